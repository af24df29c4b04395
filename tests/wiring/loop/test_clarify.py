"""Asking back: from facts, once a turn, and the reply continues the plan that was made."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from assay import loop
from assay.budget import Budget
from assay.clarify import overload, resumed, wants_all
from assay.config import LoopConfig
from assay.errors import AssayError, InvalidRequest, NotFound, StageUnavailable
from assay.events import ClarifyEvent, CompletedEvent, Event
from assay.run import Stages
from assay.schemas import (
    And,
    AnswerRecord,
    AskRequest,
    AskResponse,
    Facet,
    FacetValue,
    Intent,
    Predicate,
)
from assay.types import BucketInfo, Explain, FieldInfo, Grade, Plan, PlanRequest, SearchQuery, SearchResult
from tests.fakes import ListRetriever
from tests.wiring.loop.test_loop import ENOUGH, MARS, MOON, QUESTION, SUN, Bench

pytestmark = pytest.mark.anyio

PAGE = Predicate(field="page", op=">", value=900)
UNCLEAR = Grade(p_enough=0.2, p_more=0.2, p_clarify=0.6, p_about=0.2, features={})


class MemoryAnswers:
    """``ports.AnswerStore``."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], AnswerRecord] = {}
        self.fault: AssayError | None = None

    async def put(self, record: AnswerRecord, owner: str) -> None:
        if self.fault is not None:
            raise self.fault
        self.kept[record.response.id, owner] = AnswerRecord.model_validate_json(record.model_dump_json(by_alias=True))

    async def get(self, answer_id: str, owner: str) -> AnswerRecord | None:
        return self.kept.get((answer_id, owner))


class Planner:
    """Plans once; a second time is a mistake."""

    def __init__(self, **plan: Any) -> None:
        self._plan = plan
        self.asked = 0

    async def plan(self, request: PlanRequest) -> Plan:
        self.asked += 1
        assert self.asked == 1, "a plan that is gone on with is not made again"
        return Plan(**({"query": request.question} | self._plan))


class Counting(ListRetriever):
    def __init__(self, *chunks: Any, **facets: Facet) -> None:
        super().__init__(*chunks)
        self.facets = facets

    async def search(self, query: SearchQuery) -> SearchResult:
        found = await super().search(query)
        return replace(found, facets={name: self.facets[name] for name in query.facets if name in self.facets})


class Asking(Bench):
    def __init__(self, *grades: Any, **plan: Any) -> None:
        super().__init__(*(grades or (ENOUGH,)))
        self.expander = Planner(**plan)
        self.answers = MemoryAnswers()

    def stream(self, request: AskRequest, budget: Budget | None = None) -> AsyncGenerator[Event]:
        stages = Stages(self.expander, self.retriever, self.judge, self.generator, answers=self.answers)
        return loop.answer(request, stages, self.config, "req_test", budget)

    def empty(self) -> None:
        """A filter leaves nothing."""
        self.retriever.chunks, self.retriever.explain = (), Explain(0, 3, {}, PAGE, 3)

    def full(self) -> None:
        self.retriever.chunks, self.retriever.explain = (MOON, MARS, SUN), None


async def asked_back(bench: Asking, **fields: Any) -> tuple[AskResponse, str]:
    response = await bench.ask(**fields)
    assert response.status == "clarify" and response.clarification is not None
    assert response.clarification.resume is not None
    return response, response.clarification.resume


# ---- going on -------------------------------------------------------------------------------------------------------


async def test_a_choice_continues_the_same_plan_under_its_filter() -> None:
    bench = Asking(variants=("why the tides rise",))
    bench.empty()
    response, resume = await asked_back(bench, filters=PAGE.model_dump())
    assert response.clarification is not None
    bench.full()
    again = await bench.ask(response.clarification.choices[0].label.upper(), resume=resume)
    assert again.status == "answered" and again.citations
    query = bench.retriever.history[-1]
    assert query.filters is None and query.queries == (QUESTION, "why the tides rise")


async def test_a_choice_takes_back_the_condition_that_the_question_said() -> None:
    bench = Asking(filters=PAGE)
    bench.empty()
    response, resume = await asked_back(bench)
    assert response.clarification is not None
    bench.full()
    again = await bench.ask(response.clarification.choices[0].label, resume=resume)
    assert again.status == "answered" and bench.retriever.history[-1].filters is None


async def test_a_filter_of_the_replys_own_holds_before_the_choices() -> None:
    bench = Asking()
    bench.empty()
    _, resume = await asked_back(bench, filters=PAGE.model_dump())
    bench.full()
    mine = Predicate(field="page", op=">", value=5)
    await bench.ask("without page > 900", resume=resume, filters=mine.model_dump())
    assert bench.retriever.history[-1].filters == mine


async def test_a_reply_in_words_is_read_with_the_question() -> None:
    bench = Asking(UNCLEAR, ENOUGH)
    _, resume = await asked_back(bench, question="ocean", buckets=["docs"])
    response = await bench.ask("the tides on Earth", resume=resume, include=["state"])
    assert response.status == "answered" and response.state is not None
    assert response.state.plan.query == "ocean the tides on Earth"
    assert bench.retriever.history[-1].buckets == ("docs",)


async def test_a_turn_is_asked_back_about_once() -> None:
    bench = Asking(UNCLEAR)
    _, resume = await asked_back(bench, question="ocean")
    response = await bench.ask("whatever", resume=resume)
    assert response.status != "clarify" and response.clarification is None
    bench = Asking()
    bench.empty()
    _, resume = await asked_back(bench, filters=PAGE.model_dump())
    response = await bench.ask("without page > 900", resume=resume)
    assert (response.status, response.clarification) == ("no_evidence", None)


async def test_who_wants_no_questions_is_asked_none() -> None:
    response = await Asking(UNCLEAR).ask("ocean", options={"clarify": False})
    assert response.clarification is None and response.status != "clarify"


async def test_readings_are_choices_that_narrow() -> None:
    response, _ = await asked_back(Asking(UNCLEAR), question="ocean", filters=PAGE.model_dump())
    assert response.clarification is not None and response.clarification.choices
    for choice in response.clarification.choices:
        held = And.model_validate(choice.filters)
        assert held.and_ == [PAGE, Predicate(field="title", op="=", value=choice.label)]


async def test_what_cannot_be_gone_on_with_is_refused() -> None:
    bench = Asking()
    answered = await bench.ask()
    for resume, fault in (("plan_nothing", NotFound), (f"plan_{answered.id[4:]}", InvalidRequest)):
        with pytest.raises(fault) as caught:
            await bench.ask("yes", resume=resume)
        assert caught.value.field == "resume"
    with pytest.raises(NotFound):
        await resumed(AskRequest(question="yes", resume="plan_x"), None)
    bench = Asking()
    bench.empty()
    _, resume = await asked_back(bench, filters=PAGE.model_dump())
    with pytest.raises(NotFound):
        await resumed(AskRequest(question="yes", resume=resume).owned_by("another"), bench.answers)


async def test_an_answer_is_kept_with_all_that_led_to_it_and_the_request_as_it_was_sent() -> None:
    bench = Asking()
    bench.empty()
    _, resume = await asked_back(bench, filters=PAGE.model_dump())
    bench.full()
    response = await bench.ask("without page > 900", resume=resume)
    assert response.trace is None and response.state is None
    kept = bench.answers.kept[response.id, ""]
    assert kept.request.model_dump(exclude_unset=True) == {"question": "without page > 900", "resume": resume}
    assert kept.response.trace and kept.response.evidence and kept.response.tool_calls and kept.response.state


async def test_an_answer_that_cannot_be_kept_is_given_and_says_so() -> None:
    bench = Asking()
    bench.answers.fault = StageUnavailable("the store is away")
    response = await bench.ask()
    assert response.status == "answered" and [d.stage for d in response.degraded] == ["answers"]


# ---- overload -------------------------------------------------------------------------------------------------------


def facet(missing: int = 0, **counts: int) -> Facet:
    return Facet(values=[FacetValue(value=value, count=count) for value, count in counts.items()], missing=missing)


def field(name: str, documents: int = 400, kind: Any = "text") -> FieldInfo:
    return FieldInfo(name, kind, False, "", documents)


def many(**plan: Any) -> Asking:
    bench = Asking(**({"intent": "list"} | plan))
    bench.retriever = Counting(
        MOON, MARS, SUN, type=facet(Supply=50, Licence=30, Service=20), status=facet(open=95, closed=5)
    )
    bench.retriever.buckets = (BucketInfo("docs", 500, 900, "", (field("type"), field("status"))),)
    return bench


async def test_too_many_are_asked_back_with_the_facet_that_divides_them_best() -> None:
    bench = many()
    events = await bench.events("list the ocean agreements", filters=PAGE.model_dump(), include=["tool_calls"])
    last = events[-1]
    assert isinstance(last, CompletedEvent) and sum(isinstance(e, ClarifyEvent) for e in events) == 1
    clarification = last.response.clarification
    assert clarification is not None and clarification.type == "overload" and "500 documents" in clarification.message
    assert [(c.label, c.count) for c in clarification.choices] == [
        ("type: Supply", 50),
        ("type: Licence", 30),
        ("type: Service", 20),
    ]
    assert And.model_validate(clarification.choices[0].filters).and_ == [
        PAGE,
        Predicate(field="type", op="=", value="Supply"),
    ]
    assert last.response.rounds == 1 and last.response.usage.llm_calls == 0
    assert last.response.tool_calls is not None and last.response.tool_calls[-1].tool == "facets"
    assert clarification.resume is not None
    response = await bench.ask("type: supply", resume=clarification.resume)
    assert response.clarification is None


@pytest.mark.parametrize("way", ["few", "named", "another intent", "no facet", "a fault"])
async def test_otherwise_it_answers(way: str) -> None:
    bench = many(**({"intent": "answer"} if way == "another intent" else {}))
    if way == "few":
        bench.config = bench.config.model_copy(update={"loop": LoopConfig(mode="agentic", overload=500)})
    if way == "no facet":
        bench.retriever.buckets = (BucketInfo("docs", 500, 900, "", (field("status"),)),)
    if way == "a fault":
        bench.retriever.faults.extend([None, StageUnavailable("away")])
    response = await bench.ask("list the ocean moons of Mars" if way == "named" else "list the ocean agreements")
    assert response.clarification is None
    assert ([d.stage for d in response.degraded] == ["retriever"]) == (way == "a fault")


@pytest.mark.parametrize(
    ("query", "intent", "wanted"),
    [
        ("list every invoice", None, True),
        ("List all the supply agreements", None, True),
        ("which agreements are there", "list", True),
        ("list the parties of the Acme agreement", "list", False),
        ("list invoice INV-7 and all of its lines", "list", False),
        ("what are all the tides", "answer", False),
        ("", None, False),
    ],
)
def test_who_wants_all_of_a_kind(query: str, intent: Intent | None, wanted: bool) -> None:
    assert wants_all(Plan(query, intent=intent)) is wanted


def test_dates_are_chosen_by_year_and_numbers_by_range() -> None:
    values = [FacetValue(value=1.0, to=9.5, count=4), FacetValue(value=10.0, to=90.0, count=4)]
    told = overload(200, {"amount": Facet(values=values, missing=0)}, {"amount": "number"}, None)
    assert told is not None and [c.label for c in told.choices] == ["amount: 1 to 9.5", "amount: 10 to 90"]
    assert told.choices[0].filters["value"] == [1.0, 9.5]
    told = overload(200, {"signed": facet(**{"2019": 3, "2020": 4})}, {"signed": "date"}, None)
    assert told is not None and told.choices[0].filters["op"] == "between"
    assert told.choices[0].filters["value"][0] == "2020-01-01"
    assert (
        overload(200, {"x": facet(a=99, b=1), "y": facet(a=1, b=1, missing=9)}, {"x": "text", "y": "text"}, None)
        is None
    )
