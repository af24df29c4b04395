"""The loop as a state machine: its stages answer, fail, hang and are cancelled in any order, on a clock that only the test
moves. Whatever happens: one end, within the budget and the request, nothing asked twice, nothing left running, evidence only
added to, every fallback said.
"""

import asyncio
import itertools
import json
import re
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, currently_in_test_context, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from assay import loop
from assay.budget import Budget, finish_s
from assay.converse import LEAST_TOKENS, Agent
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
from assay.events import AnswerEvent, CitationEvent, CompletedEvent, ErrorEvent, Event
from assay.groups import Groups
from assay.llm.tools import checked
from assay.run import Stages
from assay.schemas import And, AskOptions, AskRequest, AskResponse, Filter, Predicate, Usage
from assay.tools import Registry
from assay.types import (
    BucketInfo,
    Completion,
    Draft,
    Explain,
    GenerateEvent,
    GenerateRequest,
    Grade,
    Hit,
    SearchQuery,
    SearchResult,
    Support,
)
from tests.fakes import WordTokenizer
from tests.property.loop_world import CONFIG, POOL, QUESTION, Call, StillLoop, World

FAULTS: tuple[type[AssayError], ...] = (BadModelOutput, Overloaded, StageFault, StageTimeout, StageUnavailable)
REFUSALS: tuple[type[AssayError], ...] = (InvalidFilter, UnknownBucket)
# Who is named where a stage failed and the question went on. A search or a look at the buckets serves several.
TOLD = {
    "plan": {"expander"},
    "rerank": {"reranker"},
    "grade": {"reranker"},
    "support": {"reranker"},
    "generate": {"generator"},
    "agent": {"agent"},
    "search": {"retriever", "expander", "tools"},
    "describe": {"retriever", "expander", "tools"},
    "document": {"tools"},
    "metadata": {"retriever"},
    "put": {"answers"},
}
JUDGED = CONFIG.model_copy(update={"reranker": CONFIG.reranker.model_copy(update={"support": "model"})})
_STOPS = frozenset("a an and in it its of on the what".split())


def plain(text: str) -> frozenset[str]:
    """What a query asks, in the test's own reckoning: its words but for case, order, spaces and a few stop words."""
    words = frozenset(text.casefold().replace("?", " ").replace(".", " ").split())
    return words - _STOPS or words


def within(filters: Filter | None, own: Filter) -> bool:
    return filters == own or (isinstance(filters, And) and any(within(part, own) for part in filters.and_))


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
        mode=st.sampled_from(["agentic", "tools", "agentic", "tools", "auto", "pipeline"]),
        options=st.fixed_dictionaries(
            {name: st.booleans() for name in ("expand", "link_hop", "rerank", "self_correct", "clarify")}
        ),
        buckets=st.sampled_from([[], ["docs"]]),
        filters=st.sampled_from([None, Predicate(field="page", op="<", value=9)]),
        question=st.sampled_from([QUESTION, QUESTION, QUESTION, "list all the tides", "and of it?"]),
        style=st.sampled_from(["auto", "prose"]),
        judged=st.booleans(),
        rounds=st.sampled_from([3, 4, 2, 1]),
        calls=st.sampled_from([6, 6, 3, 2, 1]),
        deadline=st.sampled_from([60.0, 60.0, 60.0, 60.0, 60.0, 0.5]),
        tokens=st.sampled_from([2**63, 2**63, 2**63, 260, 410]),
        groups=st.sampled_from([("ops",), ("hr", "ops"), ()]),
    )
    def begin(
        self,
        mode: Any,
        options: dict[str, bool],
        buckets: list[str],
        filters: Predicate | None,
        question: str,
        style: Any,
        judged: bool,
        rounds: int,
        calls: int,
        deadline: float,
        tokens: int,
        groups: Groups,
    ) -> None:
        self.budget = Budget(rounds, calls, deadline, 100, 2.0, clock=self.loop.time, tokens=tokens)
        world: Any = self.world
        agent = Agent(world, WordTokenizer(), Registry.of(CONFIG.tools))
        stages = Stages(world, world, world, world, agent, world)
        request = AskRequest(question=question, mode=mode, buckets=buckets, filters=filters, style=style)
        asked = {"include": ["tool_calls", "evidence", "state"], "options": AskOptions(**options)}
        self.request = request.model_copy(update=asked).seen_by(groups)
        stream = loop.answer(self.request, stages, JUDGED if judged else CONFIG, "req_test", self.budget)

        async def consume() -> None:
            try:
                async with aclosing(stream) as events:
                    async for each in events:
                        self.events.append(each)
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

    def side_by_side(self) -> bool:
        return sum(call.kind in ("search", "describe", "document") for call in self.world.pending) > 1

    # ---- what may happen --------------------------------------------------------------------------------------------

    @precondition(lambda self: bool(self.world.pending))
    @rule(data=st.data(), which=st.integers(0, 9), count=st.sampled_from([8, 3, 12, 20, 1]), pause=st.booleans())
    def answer(self, data: st.DataObject, which: int, count: int, pause: bool) -> None:
        """So many stages one after another, so that a question gets on and does not only end early. ``pause``: until several
        searches run side by side, which is when a client that goes, or time that passes, may leave one of them behind."""
        for _ in range(count):
            if not self.world.pending or (pause and self.side_by_side()):
                return
            self.world.end(self.world.pending[which % len(self.world.pending)], data.draw)
            self.settle()
            self.nothing_is_searched_twice()

    @precondition(lambda self: not self.task.done())
    @rule(
        what=st.sampled_from([*["nothing"] * 3, *["time"] * 3, *["fault"] * 3, "client"]),
        which=st.integers(0, 9),
        kind=st.sampled_from(FAULTS),
        refusal=st.sampled_from((*[None] * 6, *REFUSALS)),
        seconds=st.sampled_from([0.1, 0.1, 0.5, 2.0]),
    )
    def disturb(
        self, what: str, which: int, kind: type[AssayError], refusal: type[AssayError] | None, seconds: float
    ) -> None:
        """Time passes, a stage fails, or the client goes."""
        if what == "time":
            self.longest = max(self.longest, seconds)
            self.loop.now += seconds
        elif what == "fault" and self.world.pending:
            call = self.world.pending[which % len(self.world.pending)]
            refused = refusal if refusal is not None and call.kind in ("search", "describe") else None
            self.world.fail(call, (refused or kind)("it is not its day"))
        elif what == "client":
            self.client_goes()
        self.settle()

    @precondition(lambda self: not self.task.done() and self.side_by_side())
    @rule(goes=st.sampled_from([True, False]))
    def while_several_run(self, goes: bool) -> None:
        if goes:
            self.client_goes()

    def client_goes(self) -> None:
        self.closed = True
        self.task.cancel()
        self.settle()
        assert self.task.done() and self.world.pending == []  # at once, and not when its time is over

    @precondition(lambda self: self.task.done() and not self.world.pending)
    @rule()
    def nothing_happens(self) -> None:
        pass

    # ---- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def there_is_at_most_one_end(self) -> None:
        ends = [isinstance(each, CompletedEvent | ErrorEvent) for each in self.events]
        assert sum(ends) <= 1 and not any(ends[:-1])

    @invariant()
    def nothing_is_searched_twice(self) -> None:
        """But for the raw question's own first search, which the plan's may say again, and for what failed."""
        asked = set[str]()
        first: Call | None = None
        for call in self.world.of("search", "rerank", "agent"):
            if call.kind != "search":  # from here on the first search has been used
                asked |= _keys(first.request) if first is not None else set()
                continue
            keys = _keys(call.request)
            assert not keys & asked, keys & asked
            assert len(keys) == len(call.request.queries), call.request.queries
            if call.fault or call.cancelled:
                continue
            if first is None:
                first = call
            else:
                asked |= keys

    @invariant()
    def all_is_within_the_request(self) -> None:
        if not hasattr(self, "request"):
            return
        buckets, filters = self.request.buckets, self.request.filters
        for call in self.world.of("search", "describe", "document", "metadata"):
            assert not buckets or (call.request.buckets and set(call.request.buckets) <= set(buckets))
            assert filters is None or within(call.request.filters, filters)
            assert call.request.groups == self.request.groups, call
            assert not getattr(call.request, "link_hop", False) or self.request.options.link_hop

    @invariant()
    def evidence_is_only_added_to(self) -> None:
        added = [pair for e in self.events if e.type == "evidence" for pair in zip(e.added, e.titles, strict=True)]
        assert [slot for slot, _ in added] == [f"E{n}" for n in range(1, len(added) + 1)]
        assert len({title for _, title in added}) == len(added)
        grading, fresh = 0, False
        for each in self.events:  # a search that found nothing new ends the rounds
            if each.type == "evidence":
                fresh = bool(each.added)
            elif each.type == "status" and each.state == "grading":
                grading += 1
                assert fresh
        assert len(self.world.of("grade")) <= grading
        for before, now in itertools.pairwise(self.world.of("agent")):
            assert now.request.messages[: len(before.request.messages)] == before.request.messages

    @invariant()
    def the_budget_is_kept(self) -> None:
        if not hasattr(self, "budget"):
            return
        budget, world = self.budget, self.world
        turns = world.of("agent")
        assert max(len(world.of("grade")), len(world.of("rerank")), len(turns)) <= budget.rounds
        assert len(world.of("search", "document")) - 1 <= budget.tool_calls
        assert all(turn.request.tool_choice == "auto" for turn in turns[:-1])
        for_search = budget.tokens - budget.answer_tokens
        for call in world.of("plan", "rerank"):
            assert call.used < for_search, call
        # An answer is one call, which is told in parts.
        begun = {id(call.request): call for call in reversed(world.of("generate"))}
        for call in (*world.of("agent", "support"), *begun.values()):
            assert call.used < budget.tokens, call
        for turn in turns:
            assert turn.request.tool_choice == "none" or for_search - turn.used >= LEAST_TOKENS
        if not turns and not world.of("generate") and world.of("grade"):
            for call in world.of("search"):
                assert call.used < for_search or call.at <= world.of("grade")[0].at
        for call in world.pending:
            kept = {"rerank": budget.reserve_s, "grade": budget.reserve_s, "generate": finish_s(budget.deadline_s)}
            until = budget.deadline_s - kept.get(call.kind, 0.0)
            until = call.at + KEEP_S if call.kind == "put" else until
            assert self.loop.now < until or call is world.of("search")[0], (
                call
            )  # an unused first search is let go later

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
            self.nothing_is_searched_twice()
            self.evidence_is_only_added_to()
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
        searches = self.world.of("search")
        planned = [e for e in self.events if e.type == "plan"]
        forgone = bool(planned) and not planned[0].search
        # The first search, where the plan's own said more, or the plan wants none.
        unused = searches[:1] if len(searches) > 1 or forgone else []
        faults = {call.kind for call in self.world.calls if (call.fault or call.cancelled) and call not in unused}
        if self.raised is not None:  # before the first event, so that a door can refuse
            assert self.events == [] and isinstance(self.raised, AssayError) and "search" in faults
            return
        last = self.events[-1]
        if isinstance(last, ErrorEvent):
            # The first search too: it stands in where the plan's own left nothing.
            assert any(call.fault or call.cancelled for call in self.world.of("search", "describe"))
            return
        assert isinstance(last, CompletedEvent)
        self._told(last, faults)

    def _told(self, last: CompletedEvent, faults: set[str]) -> None:
        response = last.response
        if currently_in_test_context():
            event(f"{response.state.mode if response.state else ''}: {response.status} after {response.rounds} rounds")
        assert response.tool_calls is not None and response.state is not None and response.evidence is not None
        assert response.rounds <= max(self.budget.rounds, 1)
        made = [call for call in response.tool_calls if call.outcome not in ("unused", "stand_in")]
        assert len(self.world.of("search")) <= len(response.tool_calls) and len(made) <= self.budget.tool_calls
        assert len([e for e in self.events if e.type == "tool_call_start"]) == len(
            [e for e in self.events if e.type == "tool_call_result"]
        )
        if response.state.mode != "tools":  # where other legs may be asked the same
            keys = [plain(query) for query in response.state.searched]
            assert len(keys) == len(set(keys)), response.state.searched
        assert [e.degraded for e in self.events if e.type == "degraded"] == response.degraded
        stages = {d.stage for d in response.degraded}
        for kind in faults:
            by_its_end = kind == "search" and response.terminated_by == "deadline"  # "No search could finish"
            assert TOLD[kind] & stages or by_its_end, (kind, response.degraded)
        added = [pair for e in self.events if e.type == "evidence" for pair in zip(e.added, e.titles, strict=True)]
        assert [(e.slot, e.title) for e in response.evidence] == added
        assert (response.status == "clarify") == (response.clarification is not None)
        assert (response.terminated_by == "clarify") == (response.status == "clarify")
        if response.status == "answered":
            assert response.answer is not None and response.answer.text
        said = "".join(e.delta for e in self.events if e.type == "answer")
        assert said == (response.answer.text if response.answer is not None else "")
        assert [e.citation for e in self.events if e.type == "citation"] == response.citations
        for citation in response.citations:
            held = [c for c in POOL if c.id == citation.chunk_id]
            # Of a document that was looked up, the World has the text of its first passage, from 0 on.
            looked_up = next(c.text for c in POOL if c.doc_id == citation.doc_id)
            text, offset = (held[0].text, held[0].start) if held else (looked_up, 0)
            start, end = (place - offset for place in citation.span)
            assert text[start:end] == citation.quote and (citation.slot, citation.title) in added
        self._numbered(response)

    def _numbered(self, response: AskResponse) -> None:
        """FAULTS 31: a document has one number, in its order of citation: in the marks of the text as it is streamed, in the
        citations that follow these, and in the list of sources; and no other mark is left."""
        numbers: dict[str, int] = {}
        marked, cited = set[str](), set[str]()
        for each in (*self.events, AnswerEvent(delta="")):
            if isinstance(each, AnswerEvent):
                assert not cited or cited == marked
                assert marked <= set(map(str, numbers.values())), each
                marked, cited = set(re.findall(r"[\[【]([^\]】]*)", each.delta)), set()
            elif isinstance(each, CitationEvent):
                number = each.citation.number
                assert number == numbers.setdefault(each.citation.doc_id, len(numbers) + 1)
                cited.add(str(number))
        assert [(source.doc_id, source.number) for source in response.sources] == list(numbers.items())
        sentences = response.answer.sentences if response.answer is not None else []
        assert {number for sentence in sentences for number in sentence.citations} == set(numbers.values())


def _keys(query: SearchQuery) -> set[str]:
    """What a search asks: each of its queries, where and how."""
    how = replace(query, queries=(), top_k=0, context_chars=None, link_hop=False, request_id="")
    return {repr((sorted(plain(text)), how)) for text in query.queries}


TestLoop: Any = Loop.TestCase
TestLoop.settings = settings(
    max_examples=150, stateful_step_count=18, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_client_that_goes_leaves_no_tool_call_behind() -> None:
    """By hand, since the machine comes there only in some of its runs."""
    machine, options = Loop(), dict.fromkeys(("expand", "link_hop", "rerank", "self_correct", "clarify"), False)
    machine.begin("tools", options, [], None, QUESTION, "auto", False, 3, 6, 60.0, 2**63, ("ops",))
    found = SearchResult((Hit(POOL[0], 1.0),), "v1", Explain(6, 6))
    answers: dict[str, Any] = {"search": found, "describe": (BucketInfo("docs", 3, 3),)}
    while (call := machine.world.pending[0]).kind != "agent":
        call.future.set_result(answers[call.kind])
        machine.settle()
    uses = [
        checked(call.request.tools, q, "search_hybrid", json.dumps({"query": q})) for q in ("moons", "rings", "ice")
    ]
    call.future.set_result(Completion("", "stop", Usage(), tool_uses=tuple(uses)))
    machine.settle()
    assert len(machine.world.pending) == 3
    machine.client_goes()
    machine.teardown()


def test_a_document_keeps_its_number_whatever_is_cited_beside_it() -> None:
    """By hand, for the same reason: sentences of two documents each, from two of which a judge takes the first citation."""
    machine, options = Loop(), dict.fromkeys(("expand", "link_hop", "rerank", "self_correct", "clarify"), False)
    machine.begin("pipeline", options, [], None, QUESTION, "prose", True, 3, 6, 60.0, 2**63, ("ops",))
    hits = tuple(Hit(POOL[n], 1 / (n + 1)) for n in (0, 2, 4, 6))
    answers: dict[str, Any] = {
        "search": lambda request: SearchResult(hits, "v1", Explain(8, 8)),
        "grade": lambda request: Grade(0.9, 0.05, 0.05, 0.9, features={}),
        "support": lambda request: Support((0.1 if len(machine.world.of("support")) < 3 else 0.9, 0.9), Usage()),
        "generate": lambda request: None if len(machine.world.of("generate")) > 1 else said(request),
        "put": lambda request: None,
    }

    def said(request: GenerateRequest) -> list[GenerateEvent]:
        slots = tuple(e.slot for e in request.evidence)
        return [GenerateEvent(draft=Draft(f"Indeed {top_passage(e).text}", slots)) for e in request.evidence]

    while machine.world.pending:
        call = machine.world.pending[0]
        call.future.set_result(answers[call.kind](call.request))
        machine.settle()
    machine.teardown()
    last = machine.events[-1]
    assert isinstance(last, CompletedEvent) and [c.number for c in last.response.citations] == [1, 2, 1, 2, 2, 1]
