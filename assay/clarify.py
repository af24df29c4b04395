"""What is asked back, from facts alone: the predicate that empties a result, the facet that divides too many, the readings of a
question that names nothing. Each is resumable: the reply continues the plan that was made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from assay.bound import both
from assay.errors import InvalidRequest, NotFound
from assay.inert import headings
from assay.ports import AnswerStore
from assay.schemas import (
    AskRequest,
    Choice,
    Clarification,
    Facet,
    FacetValue,
    FieldType,
    Filter,
    PlanState,
    Predicate,
)
from assay.statements import blocking_parts, describe, empty, without
from assay.text import names, normalise
from assay.types import BucketInfo, Evidence, Explain, Plan

# Values that are offered, and fields that are counted for it.
MOST_CHOICES, MOST_FACETS = 8, 12
# A facet of which one value has more than this share of the documents divides nothing.
MOST_SHARE = 0.9
_LISTING = frozenset("list enumerate show give name".split())
_ALL = frozenset("all every each".split())


def no_results(explain: Explain, filters: Filter | None, planned: Filter | None) -> Clarification:
    """What emptied the result, of the request's ``filters`` or of those that the question says; what is there without it, and
    the filter to ask again with."""
    assert explain.blocking is not None
    rest = without(filters, explain.blocking) if filters else None
    again = rest.model_dump(by_alias=True) if rest else {}
    parts = blocking_parts(explain.blocking)
    label = f"without {' and '.join(map(describe, parts))}"
    choices = [Choice(label=label, filters=again, count=explain.count_without)]
    # What stands outside of both filters, such as a bucket, stays.
    given = [each for each in (filters, planned) if each is not None]
    removable = all(any(without(each, part) != each for each in given) for part in parts)
    return Clarification(
        type="no_results",
        message=empty(explain.blocking, explain.count_without),
        blocking=explain.blocking,
        count_without=explain.count_without,
        choices=choices if removable else [],
    )


def unclear(question: str, evidence: Sequence[Evidence], filters: Filter | None) -> Clarification:
    """The question names too little to search for; the documents that came closest are offered as readings of it."""
    titles = headings(*(e.hit.chunk.title for e in evidence if not e.hit.chunk.untrusted))
    message = f"'{question}' names too little to search for. Name the thing that you ask about."
    choices = [_choice(title, Predicate(field="title", op="=", value=title), filters, None) for title in titles]
    return Clarification(type="ambiguous", message=message, choices=choices)


# ---- overload -------------------------------------------------------------------------------------------------------


def wants_all(plan: Plan) -> bool:
    """Whether a question asks for all of a kind, and names none of them: only then can there be too many."""
    words = normalise(plan.query).split()
    listing = plan.intent == "list" or (bool(words) and words[0] in _LISTING and bool(_ALL & set(words)))
    return listing and not names(plan.query)


def dividing(buckets: Sequence[BucketInfo], usable: Sequence[str]) -> dict[str, FieldType]:
    """The fields whose values may divide the documents of these buckets, those that most documents have first."""
    counted: dict[str, int] = {}
    types: dict[str, FieldType] = {}
    for field in (field for bucket in buckets for field in bucket.fields if field.name in usable):
        counted[field.name] = counted.get(field.name, 0) + field.documents
        types[field.name] = field.type
    ordered = sorted(counted, key=lambda name: -counted[name])[: MOST_FACETS - 1]
    own: dict[str, FieldType] = {"bucket": "text"} if len(buckets) > 1 else {}
    return own | {name: types[name] for name in ordered}


def overload(
    documents: int, facets: Mapping[str, Facet], types: Mapping[str, FieldType], filters: Filter | None
) -> Clarification | None:
    """Of ``documents`` that all may be meant: the facet after whose choice the fewest are left to be expected, with its counts.
    None where no facet divides them."""
    rated = [(left, name) for name, facet in facets.items() if (left := _left(facet)) is not None]
    if not rated:
        return None
    best = min(rated)[1]
    facet = facets[best]
    values = sorted(facet.values, key=lambda value: -value.count)[:MOST_CHOICES]
    told = ", ".join(f"{_label(value)} ({value.count})" for value in values)
    message = (
        f"{documents} documents may be meant, more than an answer can hold. By {best}, those that fit best are: {told}. "
        "Choose one, or say what narrows the question."
    )
    choices = [
        _choice(f"{best}: {_label(value)}", _predicate(best, types[best], value), filters, value.count)
        for value in values
    ]
    return Clarification(type="overload", message=message, choices=choices)


def _left(facet: Facet) -> float | None:
    """The share of the documents that is to be expected after a choice; None where there is nothing to choose."""
    counts = [value.count for value in facet.values]
    total = sum(counts) + facet.missing
    if len(counts) < 2 or max(counts) > MOST_SHARE * total or facet.missing > total / 2:
        return None
    return sum(count * count for count in (*counts, facet.missing)) / (total * total)


def _label(value: FacetValue) -> str:
    def plain(each: str | bool | float) -> str:
        return f"{each:g}" if isinstance(each, float) else str(each).lower() if isinstance(each, bool) else each

    return plain(value.value) if value.to is None else f"{plain(value.value)} to {plain(value.to)}"


def _predicate(field: str, kind: FieldType, value: FacetValue) -> Predicate:
    """The test that a facet's value stands for: dates are counted by year, many numbers by range."""
    if kind == "date":
        return Predicate(field=field, op="between", value=[f"{value.value}-01-01", f"{value.value}-12-31T23:59:59Z"])
    if value.to is not None:
        return Predicate(field=field, op="between", value=[value.value, value.to])
    return Predicate(field=field, op="=", value=value.value)


def _choice(label: str, predicate: Predicate, filters: Filter | None, count: int | None) -> Choice:
    narrowed = both(filters, predicate)
    assert narrowed is not None
    return Choice(label=label, filters=narrowed.model_dump(by_alias=True), count=count)


# ---- going on -------------------------------------------------------------------------------------------------------


def resume_id(answer_id: str) -> str:
    return f"plan_{answer_id.partition('_')[2]}"


async def resumed(request: AskRequest, answers: AnswerStore | None) -> tuple[AskRequest, Plan]:
    """The request that was asked back about, with the reply in it, and its plan. What the reply says beside its words holds
    instead of what was said before: a ``filters`` of its own, or that of the choice whose label it is.

    It is not asked back again. Raises ``NotFound``, ``InvalidRequest`` and ``StageUnavailable``.
    """
    assert request.resume is not None
    kept = request.resume.partition("_")[2]
    record = await answers.get(f"ans_{kept}", request.owner) if answers is not None else None
    if record is None:
        raise NotFound("There is no such question to go on with, or no more.", "resume")
    asked, clarification, state = record.request, record.response.clarification, record.response.state
    if clarification is None or state is None:
        raise InvalidRequest("Nothing was asked back about that question.", "resume")
    reply = " ".join(request.question.split())
    choice = next((c for c in clarification.choices if c.label.casefold() == reply.casefold()), None)
    plan = _plan(state.plan)
    if choice and clarification.blocking is not None and plan.filters is not None:
        plan = replace(plan, filters=without(plan.filters, clarification.blocking))
    plan = replace(plan, query=plan.query if choice else f"{plan.query} {reply}")
    update = {name: getattr(request, name) for name in request.model_fields_set - {"question", "buckets"}}
    if "filters" not in update and choice is not None:
        update["filters"] = AskRequest.model_validate({"question": "x", "filters": choice.filters}).filters
    update["buckets"] = [b for b in asked.buckets if b in request.buckets or not request.buckets] or request.buckets
    update["question"] = plan.query
    update["options"] = update.get("options", asked.options).model_copy(update={"clarify": False})
    return asked.model_copy(update=update).owned_by(request.owner).seen_by(request.groups), plan


def _plan(state: PlanState) -> Plan:
    return Plan(
        query=state.query,
        variants=tuple(state.variants),
        sub_questions=tuple(state.sub_questions),
        search=state.search,
        reason=state.reason,
        intent=state.intent,
        buckets=tuple(state.buckets),
        filters=state.filters,
        strategy=state.strategy,
        style=state.style,
    )
