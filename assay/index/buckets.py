"""A bucket's schema: what its documents' metadata is called and of which type; and raw values to typed ones by it."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from assay import groups
from assay.errors import SetupError
from assay.index import filters
from assay.index.filters import FIELDS, INSTANT, instant_of
from assay.index.parse.parsed import Raw
from assay.schemas import FieldType

Value = str | float | bool | datetime | list[str]
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST_FIELDS = 200
_TEXT_CHARS = 2_000
_TRUE, _FALSE = frozenset(["true", "yes"]), frozenset(["false", "no"])
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?([eE][-+]?\d+)?")
_ARROW: dict[FieldType, pa.DataType] = {
    "text": pa.string(),
    "number": pa.float64(),
    "date": INSTANT,
    "boolean": pa.bool_(),
    "list": pa.list_(pa.string()),
}


class FieldSchema(BaseModel):
    """One field. ``from`` are other names that sources have for it; ``format`` is how its dates are written, as of
    ``strptime``, where that is not ISO 8601; ``values``: all that a text, or an item of a list, may be.

    ``extract``: where no source has it, a model looks for it in the text. ``stated``: what it finds must stand there."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: FieldType
    required: bool = False
    description: str = Field(default="", max_length=500)
    from_: tuple[str, ...] = Field(default=(), alias="from", max_length=8)
    format: str | None = Field(default=None, max_length=40)
    values: tuple[str, ...] = Field(default=(), max_length=200)
    extract: bool = False
    stated: bool = True

    @model_validator(mode="after")
    def _format_of_dates(self) -> "FieldSchema":
        if self.format is not None and self.type != "date":
            raise ValueError("'format' is of dates alone")
        if self.values and self.type not in ("text", "list"):
            raise ValueError("'values' are of texts and lists alone")
        return self


class BucketSchema(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str = Field(default="", max_length=500)
    fields: dict[str, FieldSchema] = Field(default_factory=dict, max_length=_MOST_FIELDS)

    @model_validator(mode="after")
    def _names(self) -> "BucketSchema":
        for name in self.fields:
            if not NAME.fullmatch(name):
                raise ValueError(f"a field's name has letters, digits and . _ - only; '{name[:80]}' does not")
            if name in FIELDS:
                raise ValueError(f"every document has the field '{name}' already; choose another name")
            if groups.FIELD in (name, *self.fields[name].from_):
                raise ValueError(f"'{groups.FIELD}' says who may see a document; it can be no field of a schema")
        return self


class Typed(NamedTuple):
    """What a schema makes of raw metadata: values by field, what does not fit and why, and keys that no field takes."""

    values: dict[str, Value]
    problems: tuple[str, ...]
    missing: tuple[str, ...]
    undeclared: tuple[str, ...]


def column_of(name: str, type: FieldType) -> str:
    """The documents' column of a field; two buckets that agree in name and type share it. Injective, and plain ASCII."""
    return f"m_{type}_{name.encode().hex()}"


def arrow_of(type: FieldType) -> pa.DataType:
    return _ARROW[type]


def fields_of(schema: BucketSchema) -> dict[str, filters.Field]:
    return {name: filters.Field(f.type, column_of(name, f.type)) for name, f in schema.fields.items()}


def says(name: str, field: FieldSchema, raw: Mapping[str, Raw]) -> str | None:
    """The key by which raw metadata gives a field a value; None where it gives none."""
    key = next((key for key in (name, *field.from_) if key in raw), None)
    return None if key is None or raw[key] in ("", []) else key


def typed(schema: BucketSchema, raw: Mapping[str, Raw]) -> Typed:
    """``missing``: required fields without a value that fits."""
    values: dict[str, Value] = {}
    problems = []
    known = {groups.FIELD} | {key for name, field in schema.fields.items() for key in (name, *field.from_)}
    for name, field in schema.fields.items():
        if (key := says(name, field, raw)) is None:
            continue
        try:
            value = _value(raw[key], field)
        except ValueError as e:
            problems.append(f"{name}: {str(raw[key])[:80]!r} {e}")
            continue
        values[name] = value
    missing = tuple(name for name, field in schema.fields.items() if field.required and name not in values)
    return Typed(values, tuple(problems), missing, tuple(key for key in raw if key not in known))


def load_schema(path: Path) -> BucketSchema:
    """From YAML. Raises ``SetupError`` that names the place of the first fault."""
    try:
        return BucketSchema.model_validate(yaml.safe_load(path.read_text("utf-8")) or {})
    except ValidationError as e:
        first = e.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise SetupError(f"the schema {path} is wrong{f' at {at}' if at else ''}: {said}", at or None) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        why = e.strerror if isinstance(e, OSError) else " ".join(str(e).split())
        raise SetupError(f"the schema {path} cannot be read: {why}") from None


def dump_schema(schema: BucketSchema, notes: Mapping[str, str] | None = None) -> str:
    """As YAML that ``load_schema`` reads; ``notes`` are comments by field."""
    plain = schema.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    lines = yaml.safe_dump({"description": plain["description"]}, allow_unicode=True) if schema.description else ""
    lines += "fields:\n" if schema.fields else "fields: {}\n"
    for name in schema.fields:
        block = yaml.safe_dump({name: plain["fields"][name]}, allow_unicode=True, sort_keys=False)
        lines += "".join(f"  {line}\n" for line in block.splitlines())
        if notes and name in notes:
            lines += f"    # {notes[name]}\n"
    return lines


def infer(raws: Sequence[Mapping[str, Raw]]) -> tuple[BucketSchema, dict[str, str]]:
    """The schema that all of the values fit, and for each field how many files have it, with examples."""
    held: dict[str, list[Raw]] = {}
    for raw in raws:
        for key, value in raw.items():
            if value not in ("", []):
                held.setdefault(key, []).append(value)
    fields: dict[str, FieldSchema] = {}
    notes: dict[str, str] = {}
    for key, values in sorted(held.items(), key=lambda item: (-len(item[1]), item[0])):
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", key).strip("_.-")[:64].lower()
        name = name if NAME.fullmatch(name) else f"field_{name}"[:64]
        taken = {*FIELDS, *fields, groups.FIELD}
        if key in FIELDS or name in taken or len(fields) == _MOST_FIELDS:
            continue
        fields[name] = FieldSchema(type=_type_of(values), from_=(key,) if key != name else ())
        shown = list(dict.fromkeys(" ".join(str(v).split())[:40] for v in values))[:3]
        notes[name] = f"in {len(values)} of {len(raws)} files: {', '.join(shown)}"
    return BucketSchema(fields=fields), notes


def _type_of(values: Sequence[Raw]) -> FieldType:
    if any(isinstance(value, list) for value in values):
        return "list"
    kinds: tuple[FieldType, ...] = ("boolean", "number", "date")
    return next((kind for kind in kinds if all(_fits(value, kind) for value in values)), "text")


def _fits(value: Raw, kind: FieldType) -> bool:
    try:
        _value(value, FieldSchema(type=kind))
    except ValueError:
        return False
    return True


def _value(raw: Raw, field: FieldSchema) -> Value:
    """Raises ``ValueError`` that says what is wanted."""
    value = _of_type(raw, field)
    if field.values and (odd := [v for v in (value if isinstance(value, list) else [value]) if v not in field.values]):
        raise ValueError(f"is not one of the field's values: {', '.join(map(str, odd))[:80]}")
    return value


def _of_type(raw: Raw, field: FieldSchema) -> Value:
    if field.type == "list":
        return _list(raw)
    if isinstance(raw, list):
        if len(raw) != 1:
            raise ValueError(f"is a list, not a {field.type}")
        raw = raw[0]
    if field.type == "date":
        return _date(raw, field.format)
    return _number(raw) if field.type == "number" else _boolean(raw) if field.type == "boolean" else _text(raw)


def _list(raw: Raw) -> list[str]:
    items = raw if isinstance(raw, list) else re.split("[;|]", raw) if isinstance(raw, str) else [raw]
    return [text for item in items if (text := _text(item).strip())]


def _text(raw: str | float | bool) -> str:
    text = str(raw).lower() if isinstance(raw, bool) else str(raw)
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("holds a lone surrogate, which is no character")
    if len(text) > _TEXT_CHARS:
        raise ValueError(f"has more than {_TEXT_CHARS} characters")
    return text


def _number(raw: str | float | bool) -> float:
    if isinstance(raw, str) and any(c.isdigit() for c in raw) and _NUMBER.fullmatch(raw.strip()):
        raw = float(raw.replace(",", ""))
    if isinstance(raw, bool | str):
        raise ValueError("is not a number")
    if not abs(raw) < 2**53:  # also what is none, nan
        raise ValueError("is not a number that is finite and below 2**53 in size")
    return float(raw)


def _boolean(raw: str | float | bool) -> bool:
    if isinstance(raw, str) and raw.strip().lower() in _TRUE | _FALSE:
        return raw.strip().lower() in _TRUE
    if not isinstance(raw, bool):
        raise ValueError("is not true or false")
    return raw


def _date(raw: str | float | bool, format: str | None) -> datetime:
    if not isinstance(raw, str):
        raise ValueError("is not a date")
    if format is not None:
        try:
            moment = datetime.strptime(raw.strip(), format)  # noqa: DTZ007 - the format may have a zone
        except ValueError:
            raise ValueError(f"is not a date as {format}") from None
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    # Eight digits, or a week, are dates to ISO 8601, and numbers or names to people.
    moment_or_none = instant_of(raw.strip()) if re.match(r"\d{4}-\d\d-\d\d", raw.strip()) else None
    if moment_or_none is None:
        raise ValueError("is not an ISO 8601 date")
    return moment_or_none
