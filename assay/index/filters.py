"""Typed filters to masks over documents and chunks. Nothing that a user sends ever becomes SQL text, or a column's name.

A test of a missing value is false (``is_null`` apart), so ``not`` of it is true: two truth values, not SQL's three.
A list is missing where it is empty; a test of a list asks whether one of its items passes: ``=`` and ``in`` mean "contains".
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from assay.errors import InvalidFilter, UnknownField
from assay.schemas import OPS, And, FieldType, Filter, Not, Predicate

Mask = NDArray[np.bool_]
_WANTED: dict[FieldType, str] = {
    "text": "a text",
    "number": "a number, finite and below 2**53 in size",
    "date": "an ISO 8601 date or date and time",
    "boolean": "true or false",
    "list": "a text, which the list is to contain",
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
INSTANT = pa.timestamp("us", tz="UTC")

MAX_DEPTH = 16
MAX_PREDICATES = 64


@dataclass(frozen=True, slots=True)
class Field:
    """A field that may be filtered: its type, its column, and whether that is one of chunks rather than of documents.

    ``clash``: what it is in which bucket, where the selected buckets do not agree on its type: it cannot be used then."""

    type: FieldType
    column: str
    of_chunks: bool = False
    clash: tuple[str, ...] = ()


FIELDS: Mapping[str, Field] = {
    "doc_id": Field("text", "doc_id"),
    "bucket": Field("text", "bucket"),
    "title": Field("text", "title"),
    "uri": Field("text", "uri"),
    "format": Field("text", "format"),
    "page": Field("number", "page", of_chunks=True),
    "ingested_at": Field("date", "ingested_at"),
}


class Frame(Protocol):
    """The rows that a filter is asked of."""

    def column(self, field: Field) -> pa.ChunkedArray: ...

    def spread(self, documents: Mask) -> Mask:
        """A mask over documents as one over their chunks."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """Where a filter holds: over documents as long as it asks nothing of chunks, so that most filters are quick."""

    mask: Mask
    of_chunks: bool


Compiled = Callable[[Frame], Held]


def compile_filter(filters: Filter, fields: Mapping[str, Field] = FIELDS, at: str = "filters") -> Compiled:
    """Raises ``UnknownField`` or ``InvalidFilter``; ``at`` is where the filter stands in the request."""
    if tests_in(filters) > MAX_PREDICATES:
        raise InvalidFilter(f"the filter has more than {MAX_PREDICATES} tests", at)
    return _compile(filters, fields, at, 0)


def all_of(parts: Sequence[Held], frame: Frame) -> Held:
    return _joined(np.logical_and, parts, frame)


def over_chunks(held: Held, frame: Frame) -> Mask:
    return held.mask if held.of_chunks else frame.spread(held.mask)


def terms_of(filters: Filter) -> tuple[Filter, ...]:
    """What must all hold: the parts of an ``and``, flattened; any other filter is one part."""
    if isinstance(filters, And):
        return tuple(term for part in filters.and_ for term in terms_of(part))
    return (filters,)


def instant_of(text: str) -> datetime | None:
    """A moment in UTC: a date is its first moment, and a time without a zone is UTC. None for any other text."""
    try:
        moment = datetime.fromisoformat(text)  # takes a bare date too
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _compile(filters: Filter, fields: Mapping[str, Field], at: str, depth: int) -> Compiled:
    if depth > MAX_DEPTH:
        raise InvalidFilter(f"the filter is nested more than {MAX_DEPTH} deep", at)
    if isinstance(filters, Predicate):
        return _predicate(filters, fields, at)
    if isinstance(filters, Not):
        inner = _compile(filters.not_, fields, f"{at}.not", depth + 1)
        return lambda frame: _negated(inner(frame))
    name, parts = ("and", filters.and_) if isinstance(filters, And) else ("or", filters.or_)
    compiled = [_compile(part, fields, f"{at}.{name}[{i}]", depth + 1) for i, part in enumerate(parts)]
    join = np.logical_and if isinstance(filters, And) else np.logical_or
    return lambda frame: _joined(join, [part(frame) for part in compiled], frame)


def field_of(name: str, fields: Mapping[str, Field], at: str) -> Field:
    """Raises ``UnknownField``, or ``InvalidFilter`` where the selected buckets do not agree on its type."""
    known = fields.get(name)
    if known is None:
        raise UnknownField(f"there is no field '{name[:80]}'", at, tuple(sorted(fields)))
    if known.clash:
        raise InvalidFilter(f"'{name}' is {', '.join(known.clash)}; select one bucket", at)
    return known


def _negated(held: Held) -> Held:
    return Held(~held.mask, held.of_chunks)


def _joined(join: Callable[[Mask, Mask], Mask], parts: Sequence[Held], frame: Frame) -> Held:
    documents = [part.mask for part in parts if not part.of_chunks]
    chunks = [part.mask for part in parts if part.of_chunks]
    if not chunks:
        return Held(reduce(join, documents), False)
    if documents:
        chunks.append(frame.spread(reduce(join, documents)))
    return Held(reduce(join, chunks), True)


def tests_in(filters: Filter) -> int:
    """How many tests there are; nested ones are visited without recursion, whatever their depth."""
    count, waiting = 0, [filters]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Predicate):
            count += 1
        else:
            waiting += [part.not_] if isinstance(part, Not) else part.and_ if isinstance(part, And) else part.or_
    return count


def _predicate(p: Predicate, fields: Mapping[str, Field], at: str) -> Compiled:
    known = field_of(p.field, fields, f"{at}.field")
    if p.op not in OPS[known.type]:
        raise InvalidFilter(
            f"'{p.op}' does not apply to '{p.field}', a {known.type} field", f"{at}.op", OPS[known.type]
        )
    if p.op == "is_null":
        if not isinstance(p.value, bool):
            raise InvalidFilter("'is_null' takes true or false", f"{at}.value", ("true", "false"))
        missing = p.value
        return lambda frame: Held(present(frame.column(known)) != missing, known.of_chunks)
    test = _test(p, known.type, at)
    if p.op == "!=" and known.type == "list":
        contains = _test(Predicate(field=p.field, op="=", value=p.value), known.type, at)
        return lambda frame: Held(
            present(frame.column(known)) & ~_passed(contains, frame.column(known)), known.of_chunks
        )
    return lambda frame: Held(_passed(test, frame.column(known)), known.of_chunks)


def _passed(test: Callable[[Any], Any], column: pa.ChunkedArray) -> Mask:
    if not pa.types.is_list(column.type):
        return _mask(test(column))
    parts = [np.zeros(len(part), bool) for part in column.chunks]
    for passed, part in zip(parts, column.chunks, strict=True):
        passed[pc.list_parent_indices(part).to_numpy()[_mask(test(part.flatten()))]] = True
    return np.concatenate([np.zeros(0, bool), *parts])


def contains(column: pa.ChunkedArray, items: Sequence[str]) -> Mask:
    """Where a list has one of the items."""
    wanted = pa.array(items, pa.string())
    return _passed(lambda values: pc.is_in(values, value_set=wanted), column)


def present(column: pa.ChunkedArray) -> Mask:
    if pa.types.is_list(column.type):
        return _mask(pc.greater(pc.list_value_length(column), 0))
    return _mask(column.is_valid())


def _mask(passed: Any) -> Mask:
    """Of a test's outcome, false where the value is missing."""
    parts = passed.chunks if isinstance(passed, pa.ChunkedArray) else [passed]
    return np.concatenate([np.zeros(0, np.bool_), *(_unpacked(part) for part in parts if len(part))])


def _unpacked(part: pa.BooleanArray) -> Mask:
    """Arrow's bits as bytes: its own way takes longer than most tests do."""
    valid, bits = (
        buffer and np.unpackbits(np.frombuffer(buffer, np.uint8), count=part.offset + len(part), bitorder="little")
        for buffer in part.buffers()
    )
    passed: Mask = (bits if valid is None else bits & valid)[part.offset :].view(np.bool_)
    return passed


def _test(p: Predicate, type: FieldType, at: str) -> Callable[[Any], Any]:
    if p.op == "in":
        items = pa.array(_listed(p, type, at), _arrow(type))
        return lambda column: pc.is_in(column, value_set=items)
    if p.op == "between":
        low, high = (pa.scalar(v, _arrow(type)) for v in _listed(p, type, at))
        return lambda column: pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
    if isinstance(p.value, list):
        raise InvalidFilter(f"'{p.op}' takes one value, not a list", f"{at}.value")
    value = _value(p.value, type, at)
    if p.op == "like":
        return _like(value, at)
    compare, scalar = _COMPARE[p.op], pa.scalar(value, _arrow(type))
    return lambda column: compare(column, scalar)


def _arrow(type: FieldType) -> pa.DataType:
    return {"number": pa.float64(), "date": INSTANT, "boolean": pa.bool_()}.get(type, pa.string())


def _listed(p: Predicate, type: FieldType, at: str) -> list[Any]:
    if not isinstance(p.value, list) or not p.value:
        raise InvalidFilter(f"'{p.op}' takes a list that is not empty", f"{at}.value")
    if p.op == "between" and len(p.value) != 2:
        raise InvalidFilter("'between' takes two bounds, the lower one first", f"{at}.value")
    return [_value(v, type, f"{at}.value[{i}]") for i, v in enumerate(p.value)]


def _value(value: object, type: FieldType, at: str) -> Any:
    at = at if at.endswith("]") and ".value[" in at else f"{at}.value"
    if type in ("text", "list") and isinstance(value, str):
        return value
    if type == "boolean" and isinstance(value, bool):
        return value
    if type == "number" and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    if type == "date" and isinstance(value, str) and (instant := instant_of(value)):
        return instant
    raise InvalidFilter(f"the value must be {_WANTED[type]}", at)


def _like(pattern: str, at: str) -> Callable[[Any], Any]:
    """``%`` at either end, or at both; ``_`` is itself (it is common in names of files). Case counts."""
    found = re.fullmatch(r"(%?)([^%]+)(%?)", pattern, re.DOTALL)
    if found is None:
        shapes = ("text", "text%", "%text", "%text%")
        raise InvalidFilter("'like' takes a text with % at its start, its end, or both", f"{at}.value", shapes)
    before, text, after = found.groups()
    if before and after:
        return lambda column: pc.match_substring(column, text)
    if before:
        return lambda column: pc.ends_with(column, text)
    if after:
        return lambda column: pc.starts_with(column, text)
    return lambda column: pc.equal(column, text)
