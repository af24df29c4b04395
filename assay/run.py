"""The search of one question: its state, and the steps that ``assay.loop`` takes. Each step is a generator of events.

A stage that fails has its named fallback here, said in ``degraded``; a fault never becomes a score or an empty list.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from assay import events as ev
from assay.config import AppConfig
from assay.errors import AssayError, InvalidRequest, NotFound, UnknownBucket
from assay.evidence import EvidenceSet, Found
from assay.grade import FeatureGrader
from assay.ledger import Ledger
from assay.ports import Expander, Generator, Reranker, Retriever
from assay.schemas import AskRequest, Clarification, Mode, TerminatedBy, ToolCall, Usage
from assay.statements import unclear
from assay.text import query_key
from assay.types import (
    Evidence,
    Explain,
    Grade,
    GradeRequest,
    Message,
    Plan,
    PlanRequest,
    Ranked,
    Reranked,
    RerankRequest,
    SearchQuery,
    SearchResult,
)

T = TypeVar("T")

# The first event must not wait for a slow index: the raw question's search gets this long before anything is said.
FIRST_EVENT_S = 0.8
PLAN_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Stages:
    expander: Expander
    retriever: Retriever
    reranker: Reranker
    generator: Generator


def chosen_mode(asked: Mode, config: AppConfig) -> Literal["pipeline", "agentic"]:
    return config.loop.mode if asked == "auto" else asked


def top_k(request: AskRequest, config: AppConfig) -> int:
    """Passages kept per round; the configured number is the default and the upper bound."""
    most = config.loop.evidence
    if request.top_k is not None and request.top_k > most:
        raise InvalidRequest(f"top_k is {request.top_k}, but at most {most} is allowed here.", "top_k", (f"<= {most}",))
    return request.top_k or most


class Run:
    """One question on its way to its evidence. Attributes without an underscore are what the loop and the ending read."""

    def __init__(self, request: AskRequest, stages: Stages, config: AppConfig, request_id: str, ledger: Ledger) -> None:
        self.request, self.stages, self.config, self.id, self.ledger = request, stages, config, request_id, ledger
        self.mode = chosen_mode(request.mode, config)
        self.history = tuple(Message(turn.role, turn.content) for turn in request.history)
        self.plan = Plan(query=request.question)
        self.queries: tuple[str, ...] = (request.question,)
        self.evidence = EvidenceSet(config.loop.per_document)
        self.found: SearchResult | None = None
        self.explain: Explain | None = None
        self.grade: Grade | None = None
        self.clarification: Clarification | None = None
        self.end: TerminatedBy | None = None
        self.round = 0
        self.index_version: str | None = None
        self.searched: list[str] = []
        self._tried: set[str] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._first_hop: asyncio.Task[SearchResult] | None = None
        self._planning: asyncio.Task[Plan] | None = None

    def status(self, state: Literal["planning", "searching", "reranking", "grading", "answering"]) -> ev.StatusEvent:
        return ev.StatusEvent(state=state, round=self.round)

    def best(self) -> tuple[Evidence, ...]:
        """The passages that the answer is made of."""
        return self.evidence.best(self.config.loop.answer_evidence)

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def close(self) -> None:
        """Cancels what still runs: an unused first hop, a plan that nobody waits for."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- plan -------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Starts the planner and, beside it, a first hop on the raw question; raises what is wrong with the request.

        The hop's result is used when the plan brings no variant, and dropped otherwise.
        """
        top_k(self.request, self.config)
        self._first_hop = self._start(self.stages.retriever.search(self._query(self.queries)))
        if self.request.options.expand or self.history:
            plan = PlanRequest(
                question=self.request.question,
                history=self.history,
                buckets=tuple(self.request.buckets),
                variants=self.config.expander.variants if self.request.options.expand else 0,
                request_id=self.id,
            )
            self._planning = self._start(self.stages.expander.plan(plan))
        # What may be wrong with a bucket or a filter is worth waiting for: a status says it, an event would come too late.
        checked = self.request.buckets or self.request.filters
        wait = self.config.retriever.timeout_s if checked else FIRST_EVENT_S
        with self.ledger.timed("first_hop"):
            done, _ = await asyncio.wait([self._first_hop], timeout=min(wait, self.ledger.budget.left()))
        if done and isinstance(error := self._first_hop.exception(), (InvalidRequest, UnknownBucket, NotFound)):
            raise error

    async def make_plan(self) -> AsyncGenerator[ev.Event]:
        if self._planning is not None:
            # A planner that hangs must not eat the time that the search needs.
            timeout_s = min(self.config.expander.timeout_s, PLAN_SHARE * self.ledger.budget.left_for_search())
            try:
                self.plan = await self.ledger.call("plan", self._planning, timeout_s)
                self.ledger.usage += self.plan.usage
            except AssayError as error:
                yield self.ledger.fell_back("expander", error, "the original query alone")
            if self.plan.fault:
                yield self.ledger.fell_back("expander", self.plan.fault, "the original query alone")
        self.queries = tuple(dict.fromkeys((self.plan.query, self.request.question, *self.plan.variants)))
        self.ledger.note("plan", f"{self.mode}; queries: {' | '.join(self.queries)}")
        yield ev.PlanEvent(
            mode=self.mode,
            query=self.plan.query,
            variants=list(self.plan.variants),
            sub_questions=list(self.plan.sub_questions),
            buckets=self.request.buckets,
        )

    # ---- search -----------------------------------------------------------------------------------------------------

    def more_rounds(self) -> bool:
        """Whether another round may start; otherwise ``end`` names the bound that forbids it."""
        budget = self.ledger.budget
        if self.round == 0 and self._first_result() is not None:
            return True
        if self.round >= budget.rounds:
            self.end = "rounds"
        elif budget.left_for_search() <= 0:
            self.end = "deadline"
        elif len(self.ledger.tool_calls) >= budget.tool_calls:
            self.end = "tool_budget"
        return self.end is None

    def _query(self, queries: tuple[str, ...]) -> SearchQuery:
        return SearchQuery(
            queries=queries,
            buckets=tuple(self.request.buckets),
            filters=self.request.filters,
            link_hop=self.request.options.link_hop and self.config.retriever.link_hop,
            top_k=self.config.retriever.fetch,
            request_id=self.id,
        )

    async def search(self) -> AsyncGenerator[ev.Event]:
        """One hop over this round's queries. A retriever that fails after the first round leaves the evidence so far."""
        self.round += 1
        self.searched += self.queries
        self._tried |= {query_key(query) for query in self.queries}
        arguments: dict[str, Any] = {"queries": list(self.queries), "buckets": self.request.buckets}
        yield ev.ToolCallStart(tool="search_hybrid", arguments=arguments)
        start, outcome, fault = self.ledger.budget.clock(), "ok", None
        self.found = None
        try:
            self.found = await self.ledger.call("retrieve", self._hop(), self.config.retriever.timeout_s)
        except AssayError as error:
            outcome, fault = error.code, error
            self.found = self._first_result() if self.round == 1 else None
        self.explain = self.found.explain if self.found else self.explain
        self.index_version = self.found.index_version if self.found else self.index_version
        hits, spent = len(self.found.hits) if self.found else 0, 1000 * (self.ledger.budget.clock() - start)
        call = ToolCall(
            tool="search_hybrid", arguments=arguments, hits=hits, duration_ms=round(spent, 2), outcome=outcome
        )
        self.ledger.tool_calls.append(call)
        self.ledger.note("retrieve", f"round {self.round}: {hits} hits, {outcome}")
        yield ev.ToolCallResult(tool=call.tool, hits=hits, duration_ms=call.duration_ms, outcome=outcome)
        for degraded in self.found.degraded if self.found else ():
            yield self.ledger.fell_back(degraded.stage, degraded.reason, degraded.fallback)
        if fault is not None and self.found is not None:
            yield self.ledger.fell_back("retriever", fault, "what the question alone found")
        elif fault is not None:
            if not self.evidence.all:
                raise fault
            yield self.ledger.fell_back("retriever", fault, "the evidence found so far")

    async def _hop(self) -> SearchResult:
        if self.round == 1 and self._first_hop is not None and self.queries == (self.request.question,):
            return await self._first_hop
        return await self.stages.retriever.search(self._query(self.queries))

    def _first_result(self) -> SearchResult | None:
        """What the hop on the raw question brought, if it is back and did not fail."""
        hop = self._first_hop
        whole = hop is not None and hop.done() and not hop.cancelled() and hop.exception() is None
        return hop.result() if hop is not None and whole else None

    @property
    def fresh(self) -> bool:
        """Whether the last hop found anything that is not in the evidence yet; if not, searching on is pointless."""
        return self.found is not None and bool(self.evidence.new(self.found.hits))

    # ---- rerank and grade -------------------------------------------------------------------------------------------

    async def rerank(self) -> AsyncGenerator[ev.Event]:
        assert self.found is not None
        hits, keep = self.evidence.new(self.found.hits), top_k(self.request, self.config)
        done = Reranked(tuple(Ranked(hit, hit.score, None) for hit in hits), usage=Usage())
        if self.request.options.rerank:
            request = RerankRequest(self.plan.query, hits, len(hits), self.id)
            try:
                done = await self.ledger.call(
                    "rerank", self.stages.reranker.rerank(request), self.config.reranker.timeout_s
                )
            except AssayError as error:
                keep = min(keep, self.config.loop.answer_evidence)
                yield self.ledger.fell_back("reranker", error, f"fused order, top {keep}")
            if done.faults:
                reason = f"{done.faults} of {len(hits)} passages could not be scored"
                yield self.ledger.fell_back("reranker", reason, "their fused order")
        self.ledger.usage += done.usage
        added = self.evidence.add((Found(r.hit, r.score, r.gain, self.round) for r in done.ranked), keep)
        self.ledger.note("rerank", f"{len(hits)} candidates; kept {', '.join(e.slot for e in added)}")
        yield ev.EvidenceEvent(
            added=[e.slot for e in added], titles=[e.hit.chunk.title for e in added], scores=[e.score for e in added]
        )

    async def make_grade(self) -> AsyncGenerator[ev.Event]:
        request = self._grade_request()
        try:
            grade = await self.ledger.call("grade", self.stages.reranker.grade(request), self.config.reranker.timeout_s)
        except AssayError as error:
            grade = await self.measure(request)
            yield self.ledger.fell_back("reranker", error, "what the driver can measure itself")
        self.grade = grade
        self.ledger.usage += grade.usage
        self.ledger.note("grade", f"{grade.verdict}; enough with probability {grade.p_enough:.2f}")
        yield ev.GradeEvent(
            p_enough=grade.p_enough,
            p_more=grade.p_more,
            p_clarify=grade.p_clarify,
            missing=list(grade.missing),
            follow_up=grade.follow_up,
            features=dict(grade.features),
        )

    async def measure(self, request: GradeRequest | None = None) -> Grade:
        """A grade without a model or another replica: what is left when the reranker is, and in ``pipeline`` mode."""
        return await FeatureGrader(self.config.reranker.grade).grade(request or self._grade_request())

    def _grade_request(self) -> GradeRequest:
        return GradeRequest(self.plan.query, self.best(), self.id)

    def decided(self) -> bool:
        """Whether the search ends here. A query that was tried before is never run again: that ends it too."""
        grade = self.grade
        assert grade is not None
        if grade.verdict == "clarify":
            self.end, self.clarification = "clarify", unclear(self.request.question, self.best())
        elif grade.verdict == "enough" or grade.follow_up is None or query_key(grade.follow_up) in self._tried:
            self.end = "answered"
        else:
            self.queries = (grade.follow_up,)
        return self.end is not None
