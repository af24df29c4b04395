"""The plan of a search as a model writes it: its JSON schema, which binds the model, and what becomes of it.

The schema and the parser stand together, since one must not change without the other. A schema is made for one scope: buckets,
fields, operators and values are those that there are, so that nothing else can be written. What a schema cannot hold is
checked here: a filter must rest on words that somebody said.
"""

import json
import re
from collections.abc import Collection, Sequence
from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from assay.bound import joined
from assay.schemas import OPS, Filter, FilterOp, Intent, Or, Predicate, Step, Strategy, WrittenStyle
from assay.text import normalise, terms
from assay.types import BucketInfo, FieldInfo

# One word is about 6 characters. A small model's query is a few words; a longer bound only keeps it looping for longer.
QUERY_CHARS, SHORT_CHARS = 160, 64
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
MOST_FILTERS, MOST_QUESTIONS, MOST_TOPICS, MOST_ENTITIES, MOST_LISTED = 6, 4, 4, 6, 8

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


def wide(steps: Collection[Step]) -> bool:
    """Whether more is to be decided than what a small model can: it rewrites and varies a question, and no more."""
    return not set(steps) <= {"rewrite", "expand"}


def plan_schema(steps: Collection[Step], buckets: Sequence[BucketInfo] = (), variants: int = 0) -> str:
    """The JSON schema of a plan for these buckets, as text. Every string and list is bounded, so that the model ends."""
    query, properties = _text(QUERY_CHARS if wide(steps) else SHORT_CHARS, 3), dict[str, Any]()
    if "gate" in steps:
        properties |= {"reason": _text(QUERY_CHARS), "search": {"type": "boolean"}}
    if "rewrite" in steps:
        properties["query"] = query
    if "decompose" in steps:
        properties["intent"] = {"enum": ["answer", "list", "summarise", "compare", "compute"]}
    if "route" in steps:
        searches = [_search(bucket, buckets, "filters" in steps) for bucket in buckets]
        properties["searches"] = _array({"anyOf": searches}, 1, len(buckets))
    elif "filters" in steps and (fields := usable(buckets)):
        properties["filters"] = _conditions(fields)
    if "decompose" in steps:
        role = {"enum": ["company", "person", "place", "product", "other"]}
        properties["entities"] = _array(_object({"name": _text(60), "role": role}), 0, MOST_ENTITIES)
        properties["topics"] = _array(_text(60), 0, MOST_TOPICS)
        properties["strategy"] = {"enum": ["keyword", "semantic", "hybrid"]}
        properties["questions"] = _array(query, 0, MOST_QUESTIONS)
    if "expand" in steps:
        properties["variants"] = _array(query, 0 if "gate" in steps else variants, variants)
    if "format" in steps:
        properties["format"] = {"enum": ["prose", "list", "table"]}
    return json.dumps(_object(properties), ensure_ascii=False)


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
    planned: Planned, buckets: Sequence[BucketInfo], said: str
) -> tuple[tuple[str, ...], Filter | None, tuple[str, ...]]:
    """Buckets and filter of a plan, and what was left out of it. ``said``: the whole conversation."""
    free = {f.name for b in buckets for f in b.fields if f.type in ("text", "list") and not f.values}
    dropped: list[str] = []

    def held(conditions: Sequence[Condition]) -> list[Filter]:
        kept: list[Filter] = []
        for condition in conditions:
            if fault := _unfounded(condition, said, condition.field in free):
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


def _search(bucket: BucketInfo, beside: Sequence[BucketInfo], with_filters: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {"bucket": {"enum": [bucket.name]}}
    alike = {field.name for field in usable(beside)} if with_filters else set()
    if fields := [field for field in bucket.fields if field.name in alike]:
        properties["filters"] = _conditions(fields)
    return _object(properties)


def _conditions(fields: Sequence[FieldInfo]) -> dict[str, Any]:
    return _array({"anyOf": [kind for field in fields for kind in _kinds(field)]}, 0, MOST_FILTERS)


def _kinds(field: FieldInfo) -> list[dict[str, Any]]:
    """The tests that a field admits, one schema for each shape of value. ``is_null`` is nobody's question."""
    value = _value_schema(field)
    ops = [op for op in OPS[field.type] if op != "is_null"]
    if field.values:
        ops = [op for op in ops if op != "like"]  # the values themselves can be named
    elif field.type in ("text", "list"):
        ops = ["=", "like"]
    single = [op for op in ops if op not in ("in", "between")]
    kinds = [_condition(field, single, value)]
    if "in" in ops and field.values:
        kinds.append(_condition(field, ["in"], _array(value, 1, MOST_LISTED)))
    if "between" in ops:
        kinds.append(_condition(field, ["between"], _array(value, 2, 2)))
    return kinds


def _condition(field: FieldInfo, ops: Sequence[str], value: dict[str, Any]) -> dict[str, Any]:
    return _object({"said": _text(80), "field": {"enum": [field.name]}, "op": {"enum": list(ops)}, "value": value})


def _value_schema(field: FieldInfo) -> dict[str, Any]:
    if field.values:
        return {"enum": list(field.values)}
    if field.type == "number":
        return {"type": "number"}
    if field.type == "boolean":
        return {"type": "boolean"}
    if field.type == "date":
        return {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
    return _text(80)
