"""The loop as a state machine: its stages answer, fail, hang and are cancelled in any order, on a clock that only the test
moves. Whatever happens: one end, within the budget, nothing asked twice, nothing left running, every fallback said.
"""

import asyncio
import json
import selectors
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from assay import loop
from assay.budget import Budget
from assay.config import AppConfig, EngineConfig
from assay.converse import Agent
from assay.ending import KEEP_S, top_passage
from assay.errors import (
    AssayError,
    BadModelOutput,
    InvalidFilter,
    Overloaded,
    StageFault,
    StageTimeout,
    StageUnavailable,
    UnknownBucket,
)
from assay.events import CompletedEvent, ErrorEvent, Event
from assay.llm.tools import checked
from assay.run import Stages
from assay.schemas import AskOptions, AskRequest, Degraded, Facet, FacetValue, Predicate, Usage
from assay.text import query_key
from assay.tools import Registry
from assay.types import (
    BucketInfo,
    Completion,
    Draft,
    Explain,
    FieldInfo,
    GenerateEvent,
    Grade,
    Hit,
    Plan,
    Ranked,
    Reranked,
    SearchQuery,
    SearchResult,
    ToolUse,
)
from tests.fakes import WordTokenizer, chunk

TEXTS = (
    "The Moon causes the ocean tides on Earth every day of the year.",
    "Mars has two small moons. They are called Phobos and Deimos.",
    "The Sun is a star of plasma. Its light takes eight minutes to reach the Earth.",
    "Venus has no moon and turns backwards. A day there is longer than its year.",
    "Jupiter has storms that are older than telescopes are.",
    "Saturn has rings of ice and rock around it.",
)
POOL = tuple(chunk(n, text, f"Page {n}", bucket="docs" if n % 2 else "other") for n, text in enumerate(TEXTS, 1))
QUERIES = ("tides", "the Tides?", "moons of Mars", "MARS moons", "light of the Sun", "storms", "rings", "ice rings")
QUESTION = "What causes the ocean tides on Earth?"
FAULTS: tuple[type[AssayError], ...] = (BadModelOutput, Overloaded, StageFault, StageTimeout, StageUnavailable)
REFUSALS: tuple[type[AssayError], ...] = (InvalidFilter, UnknownBucket)
CONFIG = AppConfig(engines={"small": EngineConfig(tool_parser="hermes")})
STAGE = {"plan": "expander", "rerank": "reranker", "grade": "reranker", "generate": "generator", "agent": "agent"}

Draw = Callable[[st.SearchStrategy[Any]], Any]


class _Still(selectors.SelectSelector):
    """Never waits: time stands still until the test moves it."""

    def select(self, timeout: float | None = None) -> Any:
        return super().select(0)


class StillLoop(asyncio.SelectorEventLoop):
    now = 0.0

    def __init__(self) -> None:
        super().__init__(_Still())

    def time(self) -> float:
        return self.now


@dataclass(eq=False, slots=True)
class Call:
    """A stage that was asked and has not answered yet, or how it ended."""

    kind: str
    request: Any
    future: "asyncio.Future[Any]"
    fault: AssayError | None = None
    cancelled: bool = False


class World:
    """All stages at once: each call waits until the test lets it end."""

    def __init__(self, event_loop: StillLoop) -> None:
        self._loop = event_loop
        self.pending: list[Call] = []
        self.calls: list[Call] = []

    async def ask(self, kind: str, request: Any) -> Any:
        call = Call(kind, request, self._loop.create_future())
        self.pending.append(call)
        self.calls.append(call)
        try:
            return await call.future
        except asyncio.CancelledError:
            call.cancelled = True
            raise
        finally:
            self.pending.remove(call)

    async def plan(self, request: Any) -> Any:
        return await self.ask("plan", request)

    async def search(self, query: Any) -> Any:
        return await self.ask("search", query)

    async def describe(self, scope: Any) -> Any:
        return await self.ask("describe", scope)

    async def document_lookup(self, query: Any) -> Any:
        return await self.ask("document", query)

    async def get_document_metadata(self, query: Any) -> Any:
        return await self.ask("document", query)

    async def rerank(self, request: Any) -> Any:
        return await self.ask("rerank", request)

    async def grade(self, request: Any) -> Any:
        return await self.ask("grade", request)

    async def complete(self, request: Any) -> Any:
        return await self.ask("agent", request)

    def stream(self, request: Any) -> AsyncGenerator[Any]:
        raise AssertionError("the agent asks for whole turns")

    async def score(self, request: Any) -> Any:
        raise AssertionError("the loop scores nothing itself")

    async def put(self, record: Any, owner: str) -> Any:
        return await self.ask("put", record)

    async def get(self, answer_id: str, owner: str) -> Any:
        raise AssertionError("nothing is resumed here")

    async def generate(self, request: Any) -> AsyncGenerator[GenerateEvent]:
        while (events := await self.ask("generate", request)) is not None:
            for event in events:
                yield event


def outcome(call: Call, draw: Draw) -> Any:
    """Something that the stage might answer."""
    makers: dict[str, Callable[[Any, Draw], Any]] = {
        "plan": _plan,
        "search": _found,
        "describe": lambda request, draw: _buckets(draw),
        "document": lambda request, draw: StageUnavailable("no document here"),
        "rerank": _reranked,
        "grade": _grade,
        "generate": _drafts,
        "agent": _turn,
        "put": lambda request, draw: None,
    }
    return makers[call.kind](call.request, draw)


def _plan(request: Any, draw: Draw) -> Plan:
    further = draw(st.lists(st.sampled_from(QUERIES), max_size=3, unique_by=query_key))
    cut = draw(st.integers(0, 3))
    return Plan(
        query=draw(st.sampled_from([request.question, "tides of the ocean"])),
        variants=tuple(further[:cut]),
        sub_questions=tuple(further[cut:]),
        usage=Usage(llm_calls=1),
        fault=draw(st.sampled_from([None, None, "no plan"])),
        search=draw(st.sampled_from([True, True, True, False])),
        reason="small talk",
        intent=draw(st.sampled_from([None, "answer", "list", "compare"])),
        buckets=tuple(draw(st.lists(st.sampled_from(["docs", "other", "strange"]), max_size=2, unique=True))),
        filters=draw(st.sampled_from([None, Predicate(field="page", op=">", value=3)])),
        strategy=draw(st.sampled_from(["hybrid", "keyword", "semantic"])),
    )


def _found(query: SearchQuery, draw: Draw) -> SearchResult:
    size = draw(st.sampled_from([3, 4, 2, 1, 0]))
    chunks = draw(st.lists(st.sampled_from(POOL), min_size=size, max_size=size, unique_by=lambda c: c.id))
    hits = tuple(Hit(c, 1.0 / rank, {"dense": rank}, 0.5) for rank, c in enumerate(chunks, 1))
    left = 6 if hits else draw(st.sampled_from([0, 0, 6]))
    blocking = None if left else draw(st.sampled_from([None, Predicate(field="page", op=">", value=3)]))
    facets = {name: Facet(values=[FacetValue(value=v, count=9) for v in "ab"], missing=0) for name in query.facets}
    degraded = draw(st.sampled_from([(), (Degraded(stage="sparse", reason="torn", fallback="the dense leg alone"),)]))
    explain = Explain(left, 6, {}, blocking, None if blocking is None else 6)
    return SearchResult(hits, "v1", explain, degraded, facets)


def _buckets(draw: Draw) -> tuple[BucketInfo, ...]:
    field = FieldInfo("type", "text", False, "", 100)
    return (BucketInfo("docs", draw(st.sampled_from([3, 300])), 300, "", (field,)), BucketInfo("other", 3, 3))


def _reranked(request: Any, draw: Draw) -> Reranked:
    hits = draw(st.permutations(request.hits))
    ranked = tuple(Ranked(hit, float(-n), None) for n, hit in enumerate(hits))
    return Reranked(ranked, Usage(llm_calls=1), faults=draw(st.integers(0, 1)))


def _grade(request: Any, draw: Draw) -> Grade:
    enough, more, clarify = draw(
        st.sampled_from([(0.9, 0.05, 0.05), (0.3, 0.6, 0.1), (0.1, 0.8, 0.1), (0.2, 0.2, 0.6)])
    )
    return Grade(
        enough,
        more,
        clarify,
        enough,
        features={},
        follow_up=draw(st.sampled_from([None, *QUERIES])),
        usage=Usage(llm_calls=1),
    )


def _drafts(request: Any, draw: Draw) -> list[GenerateEvent] | None:
    """Some of an answer, or its end."""
    sound = [GenerateEvent(draft=top_passage(e)) for e in request.evidence]
    unsound = GenerateEvent(draft=Draft("Whales dance around volcanoes at night.", ("E1",)))
    events = [*sound, unsound, GenerateEvent(usage=Usage(llm_calls=1)), GenerateEvent(reasoning="hm")]
    chosen = st.lists(st.sampled_from(events), max_size=2)
    return None if draw(st.booleans()) else list(draw(chosen))


def _turn(request: Any, draw: Draw) -> Completion:
    said = draw(
        st.sampled_from(["", f"{TEXTS[0][:-1]} [E1].", "Whales dance [E1].", "The evidence does not answer this."])
    )
    names = ["search_hybrid"] * 4 + ["search_text", "list_buckets", "document_lookup", "no_tool"]
    uses: list[ToolUse] = []
    for n in range(draw(st.sampled_from([0, 1, 1, 2, 3]))):
        name = draw(st.sampled_from(names))
        query = {"query": draw(st.sampled_from(QUERIES[:4]))}
        fitting = {"document_lookup": {"doc_id": "doc_x"}, "list_buckets": {}}.get(name, query)
        written = draw(st.sampled_from([fitting] * 5 + [{"x": 1}]))
        uses.append(checked(request.tools, f"call_{n}", name, json.dumps(written)))
    return Completion(said, draw(st.sampled_from(["stop", "length"])), Usage(llm_calls=1), tool_uses=tuple(uses))


class Loop(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = StillLoop()
        self.world = World(self.loop)
        self.events: list[Event] = []
        self.raised: BaseException | None = None
        self.closed = False
        self.ended_at: float | None = None
        self.longest = 0.5

    @initialize(
        mode=st.sampled_from(["agentic", "agentic", "tools", "auto", "pipeline"]),
        options=st.fixed_dictionaries(
            {name: st.booleans() for name in ("expand", "link_hop", "rerank", "self_correct", "clarify")}
        ),
        buckets=st.sampled_from([[], ["docs"]]),
        question=st.sampled_from([QUESTION, "list all the tides", "and of it?"]),
        rounds=st.integers(1, 4),
        calls=st.sampled_from([1, 1, 2, 3, 6]),
        deadline=st.sampled_from([60.0, 30.0, 0.5]),
    )
    def begin(
        self,
        mode: Any,
        options: dict[str, bool],
        buckets: list[str],
        question: str,
        rounds: int,
        calls: int,
        deadline: float,
    ) -> None:
        self.budget = Budget(rounds, calls, deadline, 100, 2.0, clock=self.loop.time)
        world: Any = self.world
        agent = Agent(world, WordTokenizer(), Registry.of(CONFIG.tools))
        stages = Stages(world, world, world, world, agent, world, WordTokenizer())
        request = AskRequest(question=question, mode=mode, buckets=buckets, options=AskOptions(**options))
        request = request.model_copy(update={"include": ["tool_calls", "evidence", "state"]})
        stream = loop.answer(request, stages, CONFIG, "req_test", self.budget)

        async def consume() -> None:
            try:
                async with aclosing(stream) as events:
                    async for event in events:
                        self.events.append(event)
            except (AssayError, asyncio.CancelledError) as error:
                self.raised = error
            self.ended_at = self.loop.time()

        self.task = self.loop.create_task(consume())
        self.settle()

    def settle(self) -> None:
        """Runs all that can run without time going on."""

        async def turns() -> None:
            for _ in range(100):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    # ---- what may happen --------------------------------------------------------------------------------------------

    @precondition(lambda self: bool(self.world.pending))
    @rule(data=st.data(), which=st.integers(0, 9), count=st.sampled_from([1, 2, 3]))
    def answer(self, data: st.DataObject, which: int, count: int) -> None:
        """So many stages one after another, so that a question gets on and does not only end early."""
        for _ in range(count):
            if not self.world.pending:
                return
            call = self.world.pending[which % len(self.world.pending)]
            said = outcome(call, data.draw)
            if isinstance(said, AssayError):
                call.fault = said
                call.future.set_exception(said)
            else:
                call.future.set_result(said)
            self.settle()

    @precondition(lambda self: bool(self.world.pending))
    @rule(
        which=st.integers(0, 9),
        kind=st.sampled_from(FAULTS),
        refusal=st.sampled_from((*[None] * 6, *REFUSALS)),
        really=st.sampled_from([False, False, True]),
    )
    def fail(self, which: int, kind: type[AssayError], refusal: type[AssayError] | None, really: bool) -> None:
        if not really:
            return
        call = self.world.pending[which % len(self.world.pending)]
        refused = refusal if refusal is not None and call.kind in ("search", "describe") else None
        call.fault = (refused or kind)("it is not its day")
        call.future.set_exception(call.fault)
        self.settle()

    @precondition(lambda self: not self.task.done())
    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.longest = max(self.longest, seconds)
        self.loop.now += seconds
        self.settle()

    @precondition(lambda self: bool(self.events) and not self.task.done())
    @rule(really=st.sampled_from([False, False, False, True]))
    def the_client_goes(self, really: bool) -> None:
        if really:
            self.closed = True
            self.task.cancel()
            self.settle()

    @precondition(lambda self: self.task.done() and not self.world.pending)
    @rule()
    def nothing_happens(self) -> None:
        pass

    # ---- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def there_is_at_most_one_end(self) -> None:
        ends = [isinstance(event, CompletedEvent | ErrorEvent) for event in self.events]
        assert sum(ends) <= 1 and not any(ends[:-1])

    @invariant()
    def nothing_is_searched_twice(self) -> None:
        """But for the raw question's own first search, which the plan's may say again under its filters."""
        answered = set[str]()
        for call in self.world.calls:
            if call.kind == "search":
                key = _key(call.request)
                assert key not in answered
                if not (call.fault or call.cancelled):  # what failed may be tried again
                    answered.add(key)

    def teardown(self) -> None:
        if not hasattr(self, "task"):
            self.loop.close()
            return
        for _ in range(200):
            if self.task.done():
                break
            self.loop.now += 0.5
            self.settle()
        self.settle()
        try:
            self._ended_well()
        finally:
            self.loop.close()

    def _ended_well(self) -> None:
        assert self.task.done(), f"hangs on {[call.kind for call in self.world.pending]}"
        self.task.result()
        assert self.world.pending == [] and asyncio.all_tasks(self.loop) == set()
        if self.closed:
            return
        assert self.ended_at is not None
        assert self.ended_at <= self.budget.deadline_s + KEEP_S + 3 * self.longest
        faults = {call.kind for call in self.world.calls if call.fault or call.cancelled}
        if self.raised is not None:  # before the first event, so that a door can refuse
            assert self.events == [] and isinstance(self.raised, AssayError) and "search" in faults
            return
        last = self.events[-1]
        if isinstance(last, ErrorEvent):
            assert faults & {"search", "describe"}
            return
        assert isinstance(last, CompletedEvent)
        self._told(last, faults)

    def _told(self, last: CompletedEvent, faults: set[str]) -> None:
        response = last.response
        assert response.tool_calls is not None
        assert response.rounds <= max(self.budget.rounds, 1)
        assert len(response.tool_calls) <= self.budget.tool_calls
        assert response.state is not None
        if response.state.mode != "tools":  # where other legs may be asked the same
            keys = [query_key(query) for query in response.state.searched]
            assert len(keys) == len(set(keys)), response.state.searched
        stages = {d.stage for d in response.degraded if not d.reason.startswith("not calibrated")}
        for kind in faults & set(STAGE):
            assert STAGE[kind] in stages, (kind, response.degraded)
        if "put" in faults:
            assert "answers" in {event.degraded.stage for event in self.events if event.type == "degraded"}
        assert (response.status == "clarify") == (response.clarification is not None)
        assert (response.terminated_by == "clarify") == (response.status == "clarify")
        if response.status == "answered":
            assert response.answer is not None and response.answer.text
        for citation in response.citations:
            (source,) = (c for c in POOL if c.id == citation.chunk_id)
            start, end = (place - source.start for place in citation.span)
            assert source.text[start:end] == citation.quote


def _key(query: SearchQuery) -> str:
    plain = replace(query, queries=(), top_k=0, context_chars=None, link_hop=False, request_id="")
    return repr((sorted(query_key(text) for text in query.queries), plain))


TestLoop: Any = Loop.TestCase
TestLoop.settings = settings(
    max_examples=150, stateful_step_count=18, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
