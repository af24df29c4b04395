"""Typed filters to pyarrow expressions. Nothing that a user sends ever becomes SQL text, or the name of a column.

A test of a missing value is false (``is_null`` apart), so ``not`` of it is true: two truth values, not SQL's three.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from assay.errors import InvalidFilter, UnknownField
from assay.schemas import And, Filter, Not, Predicate

FieldType = Literal["text", "number", "date", "flag"]

_ORDER = ("<", "<=", ">", ">=", "between")
OPS: dict[FieldType, tuple[str, ...]] = {
    "text": ("=", "!=", "in", "like", "is_null"),
    "number": ("=", "!=", *_ORDER, "in", "is_null"),
    "date": ("=", "!=", *_ORDER, "in", "is_null"),
    "flag": ("=", "!=", "is_null"),
}
_WANTED: dict[FieldType, str] = {
    "text": "a text",
    "number": "a number",
    "date": "an ISO 8601 date or date and time",
    "flag": "true or false",
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda field, value: field == value,
    "!=": lambda field, value: field != value,
    "<": lambda field, value: field < value,
    "<=": lambda field, value: field <= value,
    ">": lambda field, value: field > value,
    ">=": lambda field, value: field >= value,
}
_INSTANT = pa.timestamp("us", tz="UTC")

# Lance takes a filter as a substrait plan, and making that costs pyarrow twice as much for every level of the
# expression. At these limits it is a third of a second at worst; a chain of 64 would never end.
MAX_DEPTH = 8
MAX_PREDICATES = 64


@dataclass(frozen=True, slots=True)
class Field:
    """A field that may be filtered: its type, and the store's column."""

    type: FieldType
    column: str


FIELDS: Mapping[str, Field] = {
    "doc_id": Field("text", "doc_id"),
    "title": Field("text", "title"),
    "uri": Field("text", "uri"),
    "format": Field("text", "format"),
    "page": Field("number", "page"),
    "ingested_at": Field("date", "ingested_at"),
}


def compile_filter(filters: Filter, fields: Mapping[str, Field] = FIELDS, at: str = "filters") -> pc.Expression:
    """Raises ``UnknownField`` or ``InvalidFilter``; ``at`` is where the filter stands in the request."""
    if _predicates(filters) > MAX_PREDICATES:
        raise InvalidFilter(f"the filter has more than {MAX_PREDICATES} tests", at)
    return _compile(filters, fields, at, 0)


def terms_of(filters: Filter) -> tuple[Filter, ...]:
    """What must all hold: the parts of an ``and``, flattened; any other filter is one part."""
    if isinstance(filters, And):
        return tuple(term for part in filters.and_ for term in terms_of(part))
    return (filters,)


def all_of(parts: Sequence[pc.Expression]) -> pc.Expression | None:
    """The conjunction; None, which restricts nothing, only for no parts at all."""
    return _fold(operator.and_, parts) if parts else None


def _compile(filters: Filter, fields: Mapping[str, Field], at: str, depth: int) -> pc.Expression:
    if depth > MAX_DEPTH:
        raise InvalidFilter(f"the filter is nested more than {MAX_DEPTH} deep", at)
    if isinstance(filters, Predicate):
        return _predicate(filters, fields, at)
    if isinstance(filters, Not):
        if isinstance(filters.not_, Not):
            return _compile(filters.not_.not_, fields, f"{at}.not.not", depth + 2)
        return ~_compile(filters.not_, fields, f"{at}.not", depth + 1)
    name, parts = ("and", filters.and_) if isinstance(filters, And) else ("or", filters.or_)
    compiled = [_compile(part, fields, f"{at}.{name}[{i}]", depth + 1) for i, part in enumerate(parts)]
    join = operator.and_ if isinstance(filters, And) else operator.or_
    # Tests apart from what is nested, so that a level of nesting adds one level to the expression, not several.
    flat = [c for c, part in zip(compiled, parts, strict=True) if isinstance(part, Predicate)]
    deep = [c for c, part in zip(compiled, parts, strict=True) if not isinstance(part, Predicate)]
    return _fold(join, [_fold(join, group) for group in (flat, deep) if group])


def _fold(join: Callable[[Any, Any], Any], parts: Sequence[pc.Expression]) -> pc.Expression:
    """Balanced: as few levels as there can be."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return join(_fold(join, parts[:half]), _fold(join, parts[half:]))


def _predicates(filters: Filter) -> int:
    """How many tests there are; nested ones are visited without recursion, whatever their depth."""
    count, waiting = 0, [filters]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Predicate):
            count += 1
        else:
            waiting += [part.not_] if isinstance(part, Not) else part.and_ if isinstance(part, And) else part.or_
    return count


def _predicate(p: Predicate, fields: Mapping[str, Field], at: str) -> pc.Expression:
    known = fields.get(p.field)
    if known is None:
        raise UnknownField(f"there is no field '{p.field[:80]}'", f"{at}.field", tuple(sorted(fields)))
    if p.op not in OPS[known.type]:
        raise InvalidFilter(
            f"'{p.op}' does not apply to '{p.field}', a {known.type} field", f"{at}.op", OPS[known.type]
        )
    column = pc.field(known.column)
    if known.type == "number":
        # Compared as floats, whatever the column's own type: exact up to 2**53. Lance cannot take the checked cast that
        # pyarrow would put in by itself.
        column = column.cast(pa.float64(), safe=False)
    if p.op == "is_null":
        if not isinstance(p.value, bool):
            raise InvalidFilter("'is_null' takes true or false", f"{at}.value", ("true", "false"))
        return column.is_null() if p.value else column.is_valid()
    return column.is_valid() & _test(column, p, known.type, at)


def _test(column: pc.Expression, p: Predicate, type: FieldType, at: str) -> pc.Expression:
    if p.op in ("in", "between"):
        values = _listed(p, type, at)
        if p.op == "in":
            return column.isin(pa.array(values, _INSTANT if type == "date" else None))
        low, high = values
        return (column >= _scalar(low, type)) & (column <= _scalar(high, type))
    if isinstance(p.value, list):
        raise InvalidFilter(f"'{p.op}' takes one value, not a list", f"{at}.value")
    value = _value(p.value, type, at)
    return _like(column, value, at) if p.op == "like" else _COMPARE[p.op](column, _scalar(value, type))


def _listed(p: Predicate, type: FieldType, at: str) -> list[Any]:
    if not isinstance(p.value, list) or not p.value:
        raise InvalidFilter(f"'{p.op}' takes a list that is not empty", f"{at}.value")
    if p.op == "between" and len(p.value) != 2:
        raise InvalidFilter("'between' takes two bounds, the lower one first", f"{at}.value")
    return [_value(v, type, f"{at}.value[{i}]") for i, v in enumerate(p.value)]


def _value(value: object, type: FieldType, at: str) -> Any:
    at = at if at.endswith("]") and ".value[" in at else f"{at}.value"
    if type == "text" and isinstance(value, str):
        return value
    if type == "flag" and isinstance(value, bool):
        return value
    if type == "number" and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    if type == "date" and isinstance(value, str) and (instant := _instant(value)):
        return instant
    raise InvalidFilter(f"the value must be {_WANTED[type]}", at, (_WANTED[type],))


def _scalar(value: Any, type: FieldType) -> Any:
    return pa.scalar(value, _INSTANT) if type == "date" else value


def _instant(text: str) -> datetime | None:
    """A moment in UTC: a date is its first moment, and a time without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(text)  # takes a bare date too
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _like(column: pc.Expression, pattern: str, at: str) -> pc.Expression:
    """``%`` at either end, or at both; ``_`` is itself (it is common in names of files). Case counts."""
    found = re.fullmatch(r"(%?)([^%]+)(%?)", pattern, re.DOTALL)
    if found is None:
        shapes = ("text", "text%", "%text", "%text%")
        raise InvalidFilter("'like' takes a text with % at its start, its end, or both", f"{at}.value", shapes)
    before, text, after = found.groups()
    if before and after:
        return pc.match_substring(column, text)
    if before:
        return pc.ends_with(column, text)
    return pc.starts_with(column, text) if after else column == text
