"""Prompts as data: ``templates/NAME.txt`` with ``$holes``, each replaceable by a file of the same name in the config's folder.

A template is checked where it is loaded: its holes are exactly those that the code fills.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from string import Template

from assay.errors import SetupError
from assay.inert import inert

HOLES: Mapping[str, tuple[str, ...]] = {
    "plan": ("count",),
    "rewrite": ("count",),
    "decide": ("count", "buckets"),
    "agent": ("buckets",),
    "passage": ("passage",),
    "title": ("question",),
    "pointwise": ("question", "passage"),
    "grade": ("question", "passage"),
    "listwise": ("best",),
    "support": ("quote", "claim"),
    "extract": ("fields",),
    "prose": (),
    "list": (),
    "table": (),
    "plain": (),
}


class Prompt:
    """A template whose holes are exactly those of its name; what fills them is data: it is never read as
    a template again, and opens no turn of the chat."""

    def __init__(self, name: str, text: str, file: str) -> None:
        self.text = text.strip("\n")
        self._template = Template(self.text)
        allowed = f"its holes are: {', '.join(f'${hole}' for hole in HOLES[name]) or 'none'} ($$ is a dollar sign)"
        if not self._template.is_valid():
            raise SetupError(f"{file} has a $ that begins no hole; {allowed}.", "prompts", HOLES[name])
        found = set(self._template.get_identifiers())
        if unknown := sorted(found - set(HOLES[name])):
            raise SetupError(f"{file} has the unknown hole ${', $'.join(unknown)}; {allowed}.", "prompts", HOLES[name])
        if missing := sorted(set(HOLES[name]) - found):
            raise SetupError(f"{file} lacks the hole ${', $'.join(missing)}; {allowed}.", "prompts", HOLES[name])

    def fill(self, **values: str) -> str:
        return self._template.substitute({name: inert(value) for name, value in values.items()})


@dataclass(frozen=True, slots=True)
class Prompts:
    """All prompts by name: ``own`` where a text is given there, else those of this package."""

    own: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: str | None) -> "Prompts":
        """The templates of a folder, every one of them checked. Raises ``SetupError`` with the file and what is wrong."""
        if folder is None:
            return cls()
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise SetupError(f"The folder of prompts '{folder}' does not exist.", "prompts")
        own: dict[str, str] = {}
        for file in sorted(path.glob("*.txt")):
            if file.stem not in HOLES:
                raise SetupError(f"{file}: there is no prompt '{file.stem}'; there are: {', '.join(HOLES)}.", "prompts")
            try:
                own[file.stem] = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise SetupError(f"{file} cannot be read as UTF-8 text: {type(error).__name__}.", "prompts") from None
            Prompt(file.stem, own[file.stem], str(file))
        return cls(own)

    def __getitem__(self, name: str) -> Prompt:
        file = f"{name}.txt"
        text = self.own.get(name) or (resources.files("assay") / "templates" / file).read_text(encoding="utf-8")
        return Prompt(name, text, file)
