"""A plan narrows what a request allows, whoever made it: it never widens it, and is given up where it leaves nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest

from assay.budget import Budget
from assay.config import RerankerConfig, RerankMethod, RetrieverConfig
from assay.errors import InvalidFilter, StageUnavailable
from assay.events import CompletedEvent
from assay.generate import WritingGenerator
from assay.rerank import LLMReranker
from assay.schemas import And, AskRequest, Filter, Predicate
from assay.searching import merged
from assay.types import BucketInfo, Explain, FieldInfo, Hit, Plan, PlanRequest, Scope, SearchQuery, SearchResult
from tests.fakes import ListRetriever, WordTokenizer, chunk
from tests.wiring.loop.test_loop import ENOUGH, MARS, MOON, QUESTION, SUN, Bench, Judge, more, stages_of

pytestmark = pytest.mark.anyio

OWN: Filter = Predicate(field="page", op=">", value=1)
PLANNED: Filter = Predicate(field="title", op="=", value="Moon")


class Planner:
    """An expander that says what it is told, and keeps what it was asked."""

    def __init__(self, **plan: Any) -> None:
        self._plan = plan
        self.asked: list[PlanRequest] = []

    async def plan(self, request: PlanRequest) -> Plan:
        self.asked.append(request)
        return Plan(**({"query": request.question} | self._plan))


def bench(**plan: Any) -> Bench:
    made = Bench(ENOUGH)
    made.expander = Planner(**plan)
    return made


async def test_a_plans_buckets_and_filters_bind_the_search_and_are_said() -> None:
    made = bench(buckets=("docs",), filters=PLANNED)
    events = await made.events(filters=OWN.model_dump())
    query = made.retriever.history[-1]
    assert query.buckets == ("docs",) and query.filters == And(and_=[OWN, PLANNED])
    plan = next(event for event in events if event.type == "plan")
    assert (plan.buckets, plan.filters) == (["docs"], query.filters)


async def test_a_plan_beyond_the_requests_buckets_is_cut_to_them() -> None:
    made = bench(buckets=("secrets", "docs"))
    response = await made.ask(buckets=["docs", "other"])
    assert made.retriever.history[-1].buckets == ("docs",)
    assert stages_of(response) == ["expander"] and "secrets" in response.degraded[0].reason
    made = bench(buckets=("secrets",))
    await made.ask(buckets=["docs"])
    assert made.retriever.history[-1].buckets == ("docs",)


class Empty(ListRetriever):
    """Nothing is in the plan's scope; with ``fault``, it cannot even be searched."""

    def __init__(self, fault: bool = False) -> None:
        super().__init__(MOON, MARS, SUN)
        self._fault = fault

    async def search(self, query: SearchQuery) -> SearchResult:
        found = await super().search(query)
        if query.filters is None:
            return found
        if self._fault:
            raise InvalidFilter("'=' does not apply", "filters.op")
        return SearchResult((), "v1-test", Explain(0, 3, {}, query.filters, 3))


async def test_a_plan_that_the_index_refuses_is_given_up_and_said() -> None:
    made = bench(filters=PLANNED)
    made.retriever = Empty(fault=True)
    response = await made.ask()
    assert response.status == "answered" and response.citations
    assert [d.fallback for d in response.degraded] == ["the request's own buckets and filters"]


async def test_a_condition_that_the_question_says_and_nothing_has_is_asked_back_about() -> None:
    """It is never left out unasked: that would be an answer to another question."""
    made = bench(filters=PLANNED)
    made.retriever = Empty()
    response = await made.ask(include=["tool_calls"])
    assert response.status == "clarify" and response.clarification is not None and response.citations == []
    assert (response.clarification.blocking, response.clarification.count_without) == (PLANNED, 3)
    assert [(c.filters, c.count) for c in response.clarification.choices] == [({}, 3)]
    made = bench(filters=PLANNED)
    made.retriever = Empty()
    response = await made.ask(options={"clarify": False})
    assert response.status == "no_evidence" and response.answer is not None
    assert "title = Moon" in response.answer.text and "there are 3" in response.answer.text


async def test_a_guess_of_buckets_that_leaves_nothing_is_given_up_and_the_condition_is_not() -> None:
    class Elsewhere(ListRetriever):
        async def search(self, query: SearchQuery) -> SearchResult:
            found = await super().search(query)
            return SearchResult((), "v1-test", Explain(0, 3, {}, PLANNED, 3)) if query.buckets == ("b",) else found

    made = bench(buckets=("b",), filters=PLANNED)
    made.retriever = Elsewhere(MOON, MARS, SUN)
    response = await made.ask()
    assert response.status == "answered" and [d.fallback for d in response.degraded] == ["the request's own buckets"]
    assert (made.retriever.history[-1].buckets, made.retriever.history[-1].filters) == ((), PLANNED)


async def test_a_request_that_leaves_nothing_still_asks_back() -> None:
    made = bench(filters=PLANNED)
    made.retriever = Empty()
    response = await made.ask(filters=OWN.model_dump())
    assert response.status == "clarify" and response.clarification is not None
    assert response.clarification.blocking == OWN


async def test_parts_are_searched_side_by_side_and_take_turns() -> None:
    made = bench(sub_questions=("What are the moons of Mars?", "How far is the light of the Sun?"))
    response = await made.ask("How do the ocean tides compare with Mars and Sun?", include=["evidence", "tool_calls"])
    assert [q.queries[0] for q in made.retriever.history] == [
        "How do the ocean tides compare with Mars and Sun?",
        "What are the moons of Mars?",
        "How far is the light of the Sun?",
    ]
    assert response.tool_calls is not None and len(response.tool_calls) == 3
    assert response.evidence is not None and {e.title for e in response.evidence} == {"Moon", "Mars", "Sun"}


class Together(ListRetriever):
    """Answers a search of the round only when all of them are there: one after another would wait for ever."""

    def __init__(self, count: int, first: str) -> None:
        super().__init__(MOON, MARS, SUN)
        self._gate, self._first = asyncio.Barrier(count), first

    async def search(self, query: SearchQuery) -> SearchResult:
        if self._first not in query.queries:
            async with asyncio.timeout(10):
                await self._gate.wait()
        return await super().search(query)


async def test_parts_and_follow_ups_are_searched_at_the_same_time() -> None:
    parts = ("What are the moons of Mars?", "How far is the light of the Sun?")
    made = bench(sub_questions=parts)
    made.retriever = Together(2, QUESTION)
    response = await made.ask()
    assert response.status == "answered" and response.degraded == []
    made = Bench(replace(more("Phobos Deimos moons"), beside=("light of the Sun",)), ENOUGH, plan='{"variants": []}')
    made.retriever = Together(2, QUESTION)
    response = await made.ask()
    assert (response.rounds, response.degraded) == (2, [])


async def test_parts_stay_within_the_tool_budget() -> None:
    made = bench(sub_questions=("What are the moons of Mars?", "How far is the light of the Sun?"))
    response = await made.ask(budget=Budget(3, 2, 30, 400, 1), include=["tool_calls"])
    assert response.tool_calls is not None and len(response.tool_calls) == 2


async def test_a_part_that_cannot_be_searched_is_said() -> None:
    made = bench(sub_questions=("What are the moons of Mars?", "How far is the light of the Sun?"))
    made.retriever.faults.extend([None, StageUnavailable("down"), None])
    response = await made.ask()
    assert response.status == "answered" and "moons of Mars" in response.degraded[0].fallback


def hits(*numbers: int) -> SearchResult:
    found = tuple(Hit(chunk(n, f"text {n}"), 1.0 / n) for n in numbers)
    return SearchResult(found, "v1", Explain(9, 9))


@pytest.mark.parametrize(
    ("lists", "order"), [([(1, 2, 3)], [1, 2, 3]), ([(1, 2, 3), (4, 1, 5)], [1, 4, 2, 3, 5]), ([(), (2,)], [2])]
)
def test_hits_of_several_searches_take_turns_and_come_once(lists: Sequence[tuple[int, ...]], order: list[int]) -> None:
    result = merged([hits(*numbers) for numbers in lists])
    assert result is not None and [hit.chunk.id for hit in result.hits] == order


@pytest.mark.parametrize(("strategy", "legs"), [("keyword", ("sparse",)), ("semantic", ("dense",))])
async def test_the_strategy_chooses_the_legs(strategy: str, legs: tuple[str, ...]) -> None:
    made = bench(strategy=strategy, query="Why do the ocean tides rise on Earth?")
    await made.ask()
    query = made.retriever.history[-1]
    assert query.legs == legs and query.link_hop is (strategy == "semantic")


@pytest.mark.parametrize(("allowed", "wanted"), [(True, True), (True, False), (False, True)])
async def test_the_link_hop_is_part_of_every_search_from_the_first_on(allowed: bool, wanted: bool) -> None:
    """No grade has to ask for more before a document is found by its mention; and nothing turns on what is switched off."""
    made = Bench(more("Phobos Deimos moons"), ENOUGH, plan='{"variants": ["why is the ocean rising"]}')
    made.config = made.config.model_copy(update={"retriever": RetrieverConfig(link_hop=allowed)})
    response = await made.ask(options={"link_hop": wanted}, include=["tool_calls"])
    raw, planned, followed = made.retriever.history
    assert (raw.queries, planned.queries[1:]) == ((QUESTION,), ("why is the ocean rising",)) and response.rounds == 2
    assert [query.link_hop for query in (raw, planned, followed)] == [allowed and wanted] * 3
    assert response.tool_calls is not None
    assert [call.arguments["link_hop"] for call in response.tool_calls] == [allowed and wanted] * 3


async def test_the_planner_is_told_what_the_request_may_see() -> None:
    made = bench()
    made.config = made.config.model_copy(
        update={"expander": made.config.expander.model_copy(update={"steps": ("route", "filters", "expand")})}
    )
    cards = tuple(BucketInfo(name, 1, 1, "", (FieldInfo("f", "text", False, "", 1),)) for name in ("docs", "other"))
    made.retriever.buckets = cards
    await made.ask(buckets=["docs"])
    (asked,) = made.expander.asked
    assert [b.name for b in asked.buckets] == ["docs"] and "gate" not in asked.steps
    await made.ask(options={"expand": False})
    assert len(made.expander.asked) == 1, "without expansion nobody plans"


async def test_buckets_that_cannot_be_described_leave_a_plan_without_them() -> None:
    class Mute(ListRetriever):
        async def describe(self, scope: Scope) -> tuple[BucketInfo, ...]:
            raise StageUnavailable("retriever is not available")

    made = bench()
    made.retriever = Mute(MOON, MARS, SUN)
    made.config = made.config.model_copy(
        update={"expander": made.config.expander.model_copy(update={"steps": ("route",)})}
    )
    response = await made.ask()
    assert response.status == "answered" and response.degraded[0].fallback == "a plan without buckets and filters"


async def salts(owner: str, method: RerankMethod, style: str) -> set[str | None]:
    made = Bench(ENOUGH)
    config = RerankerConfig(method=method, support="model")
    made.config = made.config.model_copy(update={"reranker": config})
    made.judge = Judge(made.llm, ENOUGH)
    made.judge._reranker = LLMReranker(made.llm, WordTokenizer(), config)
    if method == "listwise":
        made.llm.enqueue('{"grades": [9, 1, 1]}')
    if style == "prose":
        made.generator = WritingGenerator(made.llm, WordTokenizer(), made.config.generator)
        made.llm.enqueue("The gravity of the Moon causes the ocean tides [E1].")
    request = AskRequest.model_validate({"question": QUESTION, "style": style}).owned_by(owner)
    last = [event async for event in made.stream(request)][-1]
    assert isinstance(last, CompletedEvent)
    assert len(made.llm.history) >= 3, "planned, reranked, written"
    return {asked.cache_salt for asked in made.llm.history}


@pytest.mark.parametrize("style", ["extract", "prose"])
@pytest.mark.parametrize("method", get_args(RerankMethod))
async def test_no_owner_shares_an_engines_cache_with_another(method: RerankMethod, style: str) -> None:
    """Each call of a question carries its owner's salt; without keys there is none."""
    (a,), (again,), (b,) = [await salts(owner, method, style) for owner in ("acme", "acme", "acme:1f2e")]
    assert a == again and a != b and None not in (a, b)
    assert a is not None and "acme" not in a
    assert await salts("", method, style) == {None}
