"""Prompts as data: ``templates/NAME.txt`` with ``$holes``, which are checked when the template is loaded."""

from importlib import resources
from string import Template

from assay.errors import SetupError


class Prompt:
    """A template whose holes are exactly ``holes``; filled values are text and are never read as a template again."""

    def __init__(self, name: str, *holes: str) -> None:
        self._template = Template(
            (resources.files("assay") / "templates" / f"{name}.txt").read_text(encoding="utf-8").strip("\n")
        )
        found = set(self._template.get_identifiers())
        if found != set(holes) or not self._template.is_valid():
            raise SetupError(f"templates/{name}.txt has the holes {sorted(found)}, but its code fills {sorted(holes)}.")

    def fill(self, **values: str) -> str:
        return self._template.substitute(values)
