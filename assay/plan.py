"""The plan of a search as a model writes it: its JSON schema, which binds the model, and what becomes of it.

The schema and the parser stand together, since one must not change without the other. A schema is made for one scope: buckets,
fields, operators and values are those that there are, so that nothing else can be written. What a schema cannot hold is
checked here: a filter must rest on words that somebody said.

A small model fills every text and list to its bound. So the bounds together are such that the longest plan still ends within
the tokens that it may have: what is cut off is no plan.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from assay.bound import joined
from assay.llm.longest import NUMBER, longest
from assay.schemas import OPS, Filter, FilterOp, Intent, Or, Predicate, Step, Strategy, WrittenStyle
from assay.text import normalise, terms
from assay.types import BucketInfo, FieldInfo

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

Value = str | float | bool


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Condition(_Part):
    """One test of one field. ``said``: the words of the conversation that it rests on."""

    said: str
    field: str
    op: FilterOp
    value: Value | list[Value]


class Search(_Part):
    """A bucket to be searched, and the conditions that its documents must meet."""

    bucket: str
    filters: list[Condition] = []


class Named(_Part):
    name: str
    role: Literal["company", "person", "place", "product", "other"]


class Planned(_Part):
    """All that a plan may hold; a schema asks for the parts that are the model's to decide."""

    reason: str = ""
    search: bool = True
    query: str = ""
    intent: Intent | None = None
    searches: list[Search] = []
    filters: list[Condition] = []
    entities: list[Named] = []
    topics: list[str] = []
    strategy: Strategy = "hybrid"
    questions: list[str] = []
    variants: list[str] = []
    format: WrittenStyle | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """How much a plan may hold: the characters of a text of each kind, and the length of each list."""

    query: int
    reason: int
    said: int  # the words that a condition rests on
    value: int  # a condition's value, where it is a text: cut off, it would be another value
    name: int  # an entity's or a topic's
    filters: int  # of each bucket
    questions: int
    topics: int
    entities: int
    listed: int  # the values of one condition


# One word is about 6 characters. A small model's query is a few words; a longer bound only keeps it looping for longer.
SIZES = (
    Size(query=160, reason=160, said=80, value=80, name=60, filters=6, questions=4, topics=4, entities=6, listed=8),
    Size(query=160, reason=100, said=60, value=80, name=48, filters=4, questions=4, topics=3, entities=4, listed=6),
    Size(query=140, reason=80, said=48, value=80, name=40, filters=3, questions=3, topics=2, entities=3, listed=4),
    Size(query=120, reason=64, said=40, value=80, name=32, filters=2, questions=3, topics=2, entities=2, listed=3),
    Size(query=100, reason=48, said=32, value=72, name=24, filters=2, questions=2, topics=1, entities=2, listed=2),
    Size(query=72, reason=32, said=24, value=64, name=24, filters=1, questions=2, topics=1, entities=1, listed=2),
    Size(query=48, reason=24, said=20, value=56, name=20, filters=1, questions=2, topics=1, entities=1, listed=2),
    Size(query=32, reason=24, said=16, value=40, name=16, filters=1, questions=2, topics=1, entities=1, listed=2),
)
_SHORT = 64  # of a query, where there is no more to a plan than such


def wide(steps: Collection[Step]) -> bool:
    """Whether more is to be decided than what a small model can: it rewrites and varies a question, and no more."""
    return not set(steps) <= {"rewrite", "expand"}


class Fitting(NamedTuple):
    """A plan's schema as text. ``whole``: that of the most spacious size, by which a plan is judged: of an engine that knows
    the schema from its prompt alone, more is no fault. ``ends``: whether its longest plan ends within its tokens."""

    schema: str
    whole: str
    size: Size
    ends: bool


def fitting_schema(
    steps: Collection[Step],
    buckets: Sequence[BucketInfo],
    variants: int,
    tokens: int,
    rate: float,
    count: Callable[[str], int],
) -> Fitting:
    """The schema of the most spacious plan whose longest has at most so many tokens, by the model's tokenizer (``count``), at a
    ``rate`` of them for each character. Where there is none, a plan that fills its bounds is cut off in any case, and others
    have room."""
    whole = _dumps(plan_schema(steps, buckets, variants))
    for size in SIZES:
        schema = plan_schema(steps, buckets, variants, size)
        if longest(schema, rate, count) <= tokens:
            return Fitting(_dumps(schema), whole, size, True)
    return Fitting(whole, whole, SIZES[0], False)


def plan_schema(
    steps: Collection[Step], buckets: Sequence[BucketInfo] = (), variants: int = 0, size: Size = SIZES[0]
) -> dict[str, Any]:
    """The JSON schema of a plan for these buckets. Every string, number and list is bounded, so that the model ends."""
    query, properties = _text(size.query if wide(steps) else min(size.query, _SHORT), 3), dict[str, Any]()
    if "gate" in steps:
        properties |= {"reason": _text(size.reason), "search": {"type": "boolean"}}
    if "rewrite" in steps:
        properties["query"] = query
    if "decompose" in steps:
        properties["intent"] = {"enum": ["answer", "list", "summarise", "compare", "compute"]}
    if "route" in steps:
        alike = {field.name for field in usable(buckets)} if "filters" in steps else set[str]()
        searches = [_search(bucket, alike, size) for bucket in buckets]
        properties["searches"] = _array({"anyOf": searches}, 1, len(buckets))
    elif "filters" in steps and (fields := usable(buckets)):
        properties["filters"] = _conditions(fields, size)
    if "decompose" in steps:
        role = {"enum": ["company", "person", "place", "product", "other"]}
        properties["entities"] = _array(_object({"name": _text(size.name), "role": role}), 0, size.entities)
        properties["topics"] = _array(_text(size.name), 0, size.topics)
        properties["strategy"] = {"enum": ["keyword", "semantic", "hybrid"]}
        properties["questions"] = _array(query, 0, size.questions)
    if "expand" in steps:
        properties["variants"] = _array(query, 0 if "gate" in steps else variants, variants)
    if "format" in steps:
        properties["format"] = {"enum": ["prose", "list", "table"]}
    return _object(properties)


def usable(buckets: Sequence[BucketInfo]) -> list[FieldInfo]:
    """The fields that a filter over all these buckets may have: those of one type in all that have it."""
    fields: dict[str, FieldInfo] = {}
    clashing: set[str] = set()
    for field in (field for bucket in buckets for field in bucket.fields):
        held = fields.setdefault(field.name, field)
        if held.type != field.type:
            clashing.add(field.name)
    return [field for name, field in fields.items() if name not in clashing]


def filters_of(
    planned: Planned, buckets: Sequence[BucketInfo], said: str, most: int
) -> tuple[tuple[str, ...], Filter | None, tuple[str, ...]]:
    """Buckets and filter of a plan, and what was left out of it. ``said``: the whole conversation. ``most``: characters of
    a text of the model's own that its schema admits."""
    fields = [field for bucket in buckets for field in bucket.fields]
    free = {f.name for f in fields if f.type in ("text", "list") and not f.values}
    known = {value for f in fields for value in f.values}
    dropped: list[str] = []

    def held(conditions: Sequence[Condition]) -> list[Filter]:
        kept: list[Filter] = []
        for condition in conditions:
            is_free = condition.field in free
            if fault := _unfounded(condition, said, is_free) or (is_free and _cut(condition, known, most)):
                dropped.append(f"the filter {condition.field} {condition.op} {condition.value}: {fault}")
            else:
                kept.append(Predicate(field=condition.field, op=condition.op, value=_value(condition)))
        return kept

    by_bucket: dict[str, list[Filter]] = {}
    for search in planned.searches:
        by_bucket.setdefault(search.bucket, []).extend(held(search.filters))
    everywhere = held(planned.filters)
    if len(by_bucket) == 1:
        everywhere += next(iter(by_bucket.values()))
    elif any(by_bucket.values()):
        everywhere.append(Or(or_=[joined([_in(name), *parts]) for name, parts in by_bucket.items()]))
    return tuple(by_bucket), joined(everywhere) if everywhere else None, tuple(dropped)


def _in(bucket: str) -> Filter:
    return Predicate(field="bucket", op="=", value=bucket)


def _unfounded(condition: Condition, said: str, free: bool) -> str | None:
    """Why a condition cannot be used. ``free``: its value is a text of the model's own."""
    if not (words := _plain(condition.said)) or words not in _plain(said):
        return "nobody said so"
    values = condition.value if isinstance(condition.value, list) else [condition.value]
    if free and not {term for value in values for term in terms(str(value))} <= set(terms(said)):
        return "it names what nobody said"
    if not all(_is_date(value) for value in values if isinstance(value, str) and _DATE.fullmatch(value)):
        return "there is no such day"
    return None


def _cut(condition: Condition, known: Collection[Value], most: int) -> str | None:
    """The start of a name is another name: where its bound ended a value, and not the model, it is none."""
    values = condition.value if isinstance(condition.value, list) else [condition.value]
    long = any(len(str(value)) == most for value in values if value not in known)
    return f"it may go on after {most} characters" if long else None


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _plain(text: str) -> str:
    return " ".join(normalise(text).split())


def _value(condition: Condition) -> Any:
    """``like`` without a ``%`` would be an equality, and ``between`` wants the lower bound first."""
    value = condition.value
    if condition.op == "like" and isinstance(value, str):
        return f"%{value.strip('%')}%"
    return sorted(value, key=_rank) if condition.op == "between" and isinstance(value, list) else value


def _rank(value: Value) -> tuple[float, str]:
    return (0.0, value) if isinstance(value, str) else (float(value), "")


def _dumps(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False)


# ---- schemas --------------------------------------------------------------------------------------------------------


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _array(items: dict[str, Any], least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _text(most: int, least: int = 1) -> dict[str, Any]:
    return {"type": "string", "minLength": least, "maxLength": most}


def _search(bucket: BucketInfo, alike: Collection[str], size: Size) -> dict[str, Any]:
    """``alike``: the fields that a filter may have."""
    properties: dict[str, Any] = {"bucket": {"enum": [bucket.name]}}
    if fields := [field for field in bucket.fields if field.name in alike]:
        properties["filters"] = _conditions(fields, size)
    return _object(properties)


def _conditions(fields: Sequence[FieldInfo], size: Size) -> dict[str, Any]:
    return _array({"anyOf": [kind for field in fields for kind in _kinds(field, size)]}, 0, size.filters)


def _kinds(field: FieldInfo, size: Size) -> list[dict[str, Any]]:
    """The tests that a field admits, one schema for each shape of value. ``is_null`` is nobody's question."""
    value = _value_schema(field, size)
    ops = [op for op in OPS[field.type] if op != "is_null"]
    if field.values:
        ops = [op for op in ops if op != "like"]  # the values themselves can be named
    elif field.type in ("text", "list"):
        ops = ["=", "like"]
    single = [op for op in ops if op not in ("in", "between")]
    kinds = [_condition(field, single, value, size)]
    if "in" in ops and field.values:
        kinds.append(_condition(field, ["in"], _array(value, 1, size.listed), size))
    if "between" in ops:
        kinds.append(_condition(field, ["between"], _array(value, 2, 2), size))
    return kinds


def _condition(field: FieldInfo, ops: Sequence[str], value: dict[str, Any], size: Size) -> dict[str, Any]:
    return _object(
        {"said": _text(size.said), "field": {"enum": [field.name]}, "op": {"enum": list(ops)}, "value": value}
    )


def _value_schema(field: FieldInfo, size: Size) -> dict[str, Any]:
    if field.values:
        return {"enum": list(field.values)}
    if field.type == "number":
        return NUMBER
    if field.type == "boolean":
        return {"type": "boolean"}
    if field.type == "date":
        return {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
    return _text(size.value)
