"""Tool calls as typed values: gathered from a stream's fragments and checked against the tool's schema.

What the model wrote wrong is a value too (``ToolUse.fault``): it is told so as the tool's result, and goes on.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from assay.errors import SetupError
from assay.types import ToolSpec, ToolUse

MAX_CHARS = 100_000  # of one call's arguments
MAX_CALLS = 64
_FAULT_CHARS = 300


class ToolCalls:
    """Fragments in the shape of OpenAI's ``tool_calls`` -> ``ToolUse``s, in the order in which they were begun."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, Any]] = {}

    def feed(self, fragments: Iterable[Mapping[str, Any]]) -> None:
        for fragment in fragments:
            index = fragment.get("index")
            if not isinstance(index, int):  # a whole call at once, as some servers send it
                index = len(self._calls)
            if index not in self._calls and len(self._calls) >= MAX_CALLS:
                continue
            call = self._calls.setdefault(index, {"id": "", "name": "", "written": [], "chars": 0})
            function = fragment.get("function") or {}
            call["id"] = call["id"] or str(fragment.get("id") or "")
            call["name"] = call["name"] or str(function.get("name") or "")
            written = function.get("arguments") or ""
            written = written if isinstance(written, str) else json.dumps(written)
            call["chars"] += len(written)
            if call["chars"] <= MAX_CHARS:
                call["written"].append(written)

    def uses(self, specs: Sequence[ToolSpec]) -> tuple[ToolUse, ...]:
        return tuple(
            checked(specs, call["id"] or f"call_{number}", call["name"], "".join(call["written"]), call["chars"])
            for number, call in enumerate(self._calls.values())
        )


def checked(specs: Sequence[ToolSpec], use_id: str, name: str, written: str, chars: int = 0) -> ToolUse:
    """The use with its arguments as an object of the tool's schema, or with the fault that the model is told."""
    spec = next((spec for spec in specs if spec.name == name), None)
    arguments: Any = {}
    if spec is None:
        fault: str | None = f"There is no tool {name[:60]!r}; there are: {', '.join(s.name for s in specs) or 'none'}."
    elif chars > MAX_CHARS:
        fault = f"The arguments have {chars} characters; at most {MAX_CHARS} are read."
    else:
        arguments, fault = _arguments(spec, written)
    return ToolUse(use_id, name, {} if fault else arguments, written or "{}", fault)


def _arguments(spec: ToolSpec, written: str) -> tuple[Any, str | None]:
    try:
        arguments = json.loads(written or "{}", parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        return None, f"The arguments of {spec.name} are not JSON: {str(error)[:_FAULT_CHARS]}"
    if not isinstance(arguments, dict):
        return None, f"The arguments of {spec.name} must be a JSON object."
    return arguments, schema_fault(spec.parameters, arguments, f"The arguments of {spec.name}")


def schema_fault(schema: str, value: Any, what: str) -> str | None:
    """What of ``value`` is not of the JSON schema: its place and the reason, in one bounded line."""
    from jsonschema.exceptions import best_match

    wrong = best_match(_validator(schema).iter_errors(value))
    if wrong is None:
        return None
    place = "".join(f"[{part!r}]" for part in wrong.absolute_path)
    return f"{what} are not of their schema: {place}{' ' if place else ''}{wrong.message[:_FAULT_CHARS]}"


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    """A schema's validator; checking the schema itself takes longer than all that is done with it."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        parsed = json.loads(schema)
        Draft202012Validator.check_schema(parsed)
    except (ValueError, SchemaError) as error:
        raise SetupError(f"A JSON schema in use is no JSON schema: {str(error)[:_FAULT_CHARS]}") from None
    return Draft202012Validator(parsed)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
