"""The search of one question: its state, and the steps that ``assay.loop`` takes. Each step is a generator of events.

A stage that fails has its named fallback here, said in ``degraded``; a fault never becomes a score or an empty list.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from assay import events as ev
from assay.config import AppConfig
from assay.errors import AssayError, InvalidRequest, NotFound, UnknownBucket
from assay.evidence import EvidenceSet, Found
from assay.grade import FeatureGrader
from assay.ledger import Ledger
from assay.ports import Expander, Generator, Reranker, Retriever
from assay.schemas import (
    STEPS,
    And,
    AskRequest,
    Clarification,
    Mode,
    Step,
    Strategy,
    TerminatedBy,
    ToolCall,
    Usage,
)
from assay.simple import simple
from assay.statements import describe_scope, unclear
from assay.text import query_key
from assay.types import (
    LEGS,
    BucketInfo,
    Evidence,
    Explain,
    Grade,
    GradeRequest,
    Hit,
    Leg,
    Message,
    Plan,
    PlanRequest,
    Ranked,
    Reranked,
    RerankRequest,
    Scope,
    SearchQuery,
    SearchResult,
)

T = TypeVar("T")

# The first event must not wait for a slow index: the raw question's search gets this long before anything is said.
FIRST_EVENT_S = 0.8
PLAN_SHARE = 0.4
_LEGS: dict[Strategy, tuple[Leg, ...]] = {"keyword": ("sparse",), "semantic": ("dense",), "hybrid": LEGS}


@dataclass(frozen=True, slots=True)
class Stages:
    expander: Expander
    retriever: Retriever
    reranker: Reranker
    generator: Generator
    agent: object = None
    """``assay.converse.Agent``, where an engine can call tools."""


def merged(results: Sequence[SearchResult]) -> SearchResult | None:
    """The hits of several searches, each search's best in turn, each chunk once; the first one's explanation is the whole's."""
    if len(results) < 2:
        return results[0] if results else None
    turns = itertools.chain.from_iterable(itertools.zip_longest(*(result.hits for result in results)))
    hits: dict[int, Hit] = {}
    for hit in turns:
        if hit is not None:
            hits.setdefault(hit.chunk.id, hit)
    degraded = tuple(dict.fromkeys(d for result in results for d in result.degraded))
    return replace(results[0], hits=tuple(hits.values()), degraded=degraded)


def _summary(mode: str, plan: Plan, queries: Sequence[str], scope: Scope) -> str:
    parts = [mode, f"queries: {' | '.join(queries)}"]
    parts += [f"parts: {' | '.join(plan.sub_questions)}"] if plan.sub_questions else []
    parts += [f"where: {describe_scope(scope)}"] if scope != Scope() else []
    return "; ".join(parts if plan.search else [mode, f"no search: {plan.reason}"])


def chosen_mode(asked: Mode, config: AppConfig) -> Mode:
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
        self.scope = Scope(tuple(request.buckets), request.filters)  # narrowed by the plan, never widened
        self.evidence = EvidenceSet(config.loop.per_document)
        self.found: SearchResult | None = None
        self.explain: Explain | None = None
        self.grade: Grade | None = None
        self.clarification: Clarification | None = None
        self.end: TerminatedBy | None = None
        self.round = 0
        self.index_version: str | None = None
        self.searched: list[str] = []
        self.said: str | None = None  # mode tools: what the model answers with
        self._described: tuple[BucketInfo, ...] = ()
        self._tried: set[str] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._first_hop: asyncio.Task[SearchResult] | None = None
        self._planning: asyncio.Task[Plan] | None = None
        self._undescribed: AssayError | None = None
        self._refused: AssayError | None = None

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
        self._first_hop = self._start(self.stages.retriever.search(self.query(self.queries)))
        if self.mode != "tools" and (self.request.options.expand or self.history):
            self._planning = self._start(self._plan())
        # What may be wrong with a bucket or a filter is worth waiting for: a status says it, an event would come too late.
        checked = self.request.buckets or self.request.filters
        wait = self.config.retriever.timeout_s if checked else FIRST_EVENT_S
        with self.ledger.timed("first_hop"):
            done, _ = await asyncio.wait([self._first_hop], timeout=min(wait, self.ledger.budget.left()))
        if done and isinstance(error := self._first_hop.exception(), (InvalidRequest, UnknownBucket, NotFound)):
            raise error

    async def _plan(self) -> Plan:
        decided = self.config.planning.decided
        buckets: tuple[BucketInfo, ...] = ()
        if self.request.options.expand and decided & {"route", "filters"}:
            try:
                buckets = self._described = await self.stages.retriever.describe(self.scope)
            except (InvalidRequest, UnknownBucket, NotFound):
                raise
            except AssayError as error:
                self._undescribed = error
        return await self.stages.expander.plan(
            PlanRequest(
                question=self.request.question,
                history=self.history,
                buckets=buckets,
                variants=self.config.expander.variants if self.request.options.expand else 0,
                steps=self._may_decide(),
                today=datetime.now(UTC).date().isoformat(),
                request_id=self.id,
            )
        )

    def _may_decide(self) -> tuple[Step, ...]:
        """Who names buckets or filters wants a search; who wants no expansion wants the question as it is."""
        if not self.request.options.expand:
            return ("rewrite",)
        bound = self.request.buckets or self.request.filters
        return tuple(step for step in STEPS if step != "gate" or not bound)

    async def make_plan(self) -> AsyncGenerator[ev.Event]:
        if self._planning is not None:
            # A planner that hangs must not eat the time that the search needs.
            timeout_s = min(self.config.expander.timeout_s, PLAN_SHARE * self.ledger.budget.left_for_search())
            try:
                self.plan = await self.ledger.call("plan", self._planning, timeout_s)
                self.ledger.usage += self.plan.usage
            except AssayError as error:
                yield self.ledger.fell_back("expander", error, "the original query alone")
            if self._undescribed is not None:
                yield self.ledger.fell_back("retriever", self._undescribed, "a plan without buckets and filters")
            if self.plan.fault:
                yield self.ledger.fell_back("expander", self.plan.fault, "the original query alone")
            for dropped in self.plan.dropped:
                yield self.ledger.fell_back("expander", dropped, "the plan without it")
        for event in self._narrow():
            yield event
        self._choose_mode()
        self.queries = tuple(dict.fromkeys((self.plan.query, self.request.question, *self.plan.variants)))
        self.ledger.note("plan", _summary(self.mode, self.plan, self.queries, self.scope))
        yield ev.PlanEvent(
            mode=self.mode,
            query=self.plan.query,
            variants=list(self.plan.variants),
            sub_questions=list(self.plan.sub_questions),
            buckets=list(self.scope.buckets),
            filters=self.scope.filters,
            search=self.plan.search,
            reason=self.plan.reason,
            intent=self.plan.intent,
        )

    def _choose_mode(self) -> None:
        """``auto``: the loop where the plan, or the question itself, is more than a simple lookup."""
        if self.mode != "auto":
            return
        why = self._why_loop()
        self.mode = "agentic" if why else "pipeline"
        self.ledger.note("mode", f"{self.mode}: {why or 'a simple lookup'}")

    def _why_loop(self) -> str | None:
        plan = self.plan
        if plan.sub_questions:
            return f"{len(plan.sub_questions)} sub-questions"
        if plan.intent not in (None, "answer"):
            return f"the question is to {plan.intent}"
        return None if simple(plan.query, self._described) else "not one question about one thing"

    def _narrow(self) -> list[ev.Event]:
        """The plan's buckets and filters within the request's own: it can take away, and never add. It can forgo a search only
        where it was asked whether to."""
        own, plan = self.scope, self.plan
        beyond = [name for name in plan.buckets if own.buckets and name not in own.buckets]
        within = tuple(name for name in plan.buckets if name not in beyond)
        parts = [part for part in (own.filters, plan.filters) if part is not None]
        self.scope = Scope(within or own.buckets, And(and_=parts) if len(parts) > 1 else parts[0] if parts else None)
        said: list[ev.Event] = []
        if beyond:
            reason = f"the plan's buckets {', '.join(beyond)} are not of the request"
            said.append(self.ledger.fell_back("expander", reason, "the request's buckets"))
        if not plan.search and "gate" not in self._may_decide():
            said.append(self.ledger.fell_back("expander", "the plan forgoes a search that was asked for", "a search"))
            self.plan = replace(plan, search=True)
        return said

    @property
    def narrowed(self) -> bool:
        return self.scope != Scope(tuple(self.request.buckets), self.request.filters)

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

    @property
    def may_link(self) -> bool:
        return self.request.options.link_hop and self.config.retriever.link_hop

    def query(self, queries: tuple[str, ...]) -> SearchQuery:
        legs = _LEGS[self.plan.strategy]
        return SearchQuery(
            queries=queries,
            buckets=self.scope.buckets,
            filters=self.scope.filters,
            legs=legs,
            link_hop=self.may_link and "dense" in legs,
            top_k=self.config.retriever.fetch,
            request_id=self.id,
        )

    async def search(self) -> AsyncGenerator[ev.Event]:
        """One hop over this round's queries. A retriever that fails after the first round leaves the evidence so far; a plan
        that leaves nothing to search is given up for what the request itself says."""
        self.round += 1
        self.searched += [*self.queries, *self._parts()]
        self._tried |= {query_key(query) for query in (*self.queries, *self._parts())}
        async for event in self._searched():
            yield event
        if self.narrowed and (
            self._refused is not None or (self.explain is not None and not self.explain.allowed_rows)
        ):
            where = describe_scope(self.scope)
            reason = str(self._refused) if self._refused else f"the plan's {where} left no passage"
            self.scope = Scope(tuple(self.request.buckets), self.request.filters)
            yield self.ledger.fell_back("expander", reason, "the request's own buckets and filters")
            async for event in self._searched():
                yield event

    def _parts(self) -> tuple[str, ...]:
        """Sub-questions are searched on their own, in the first round, as far as the tool budget goes."""
        if self.round > 1:
            return ()
        spare = self.ledger.budget.tool_calls - len(self.ledger.tool_calls) - 1
        return self.plan.sub_questions[: max(0, spare)]

    async def _searched(self) -> AsyncGenerator[ev.Event]:
        asked = [self.queries, *((part,) for part in self._parts())]
        arguments: list[dict[str, Any]] = [{"queries": list(q), "buckets": list(self.scope.buckets)} for q in asked]
        for each in arguments:
            yield ev.ToolCallStart(tool="search_hybrid", arguments=each)
        start, fault = self.ledger.budget.clock(), None
        self.found, self._refused = None, None
        results: list[SearchResult | AssayError] = []
        try:
            results = await self.ledger.call("retrieve", self._hop(asked), self.config.retriever.timeout_s)
        except AssayError as error:
            results = [error] * len(asked)
        spent = round(1000 * (self.ledger.budget.clock() - start), 2)
        if isinstance(first := results[0], AssayError):
            fault = first
            results[0] = (self._first_result() if self.round == 1 and not self.narrowed else None) or first
        for each, result in zip(arguments, results, strict=True):
            outcome = result.code if isinstance(result, AssayError) else "ok"
            hits = 0 if isinstance(result, AssayError) else len(result.hits)
            if result is results[0] and fault is not None:
                outcome = fault.code
            call = ToolCall(
                tool="search_hybrid",
                arguments=each,
                filters=self.scope.filters,
                index_version=None if isinstance(result, AssayError) else result.index_version,
                hits=hits,
                duration_ms=spent,
                outcome=outcome,
            )
            self.ledger.tool_calls.append(call)
            self.ledger.note("retrieve", f"round {self.round}: {hits} hits, {outcome}")
            yield ev.ToolCallResult(tool=call.tool, hits=hits, duration_ms=spent, outcome=outcome)
        self.found = merged([result for result in results if not isinstance(result, AssayError)])
        self.explain = self.found.explain if self.found else self.explain
        self.index_version = self.found.index_version if self.found else self.index_version
        for degraded in self.found.degraded if self.found else ():
            yield self.ledger.fell_back(degraded.stage, degraded.reason, degraded.fallback)
        if (
            fault is not None
            and self.found is None
            and self.narrowed
            and isinstance(fault, InvalidRequest | UnknownBucket)
        ):
            self._refused = fault
        elif fault is not None and self.found is not None:
            yield self.ledger.fell_back("retriever", fault, "what the question alone found")
        elif fault is not None:
            if not self.evidence.all:
                raise fault
            yield self.ledger.fell_back("retriever", fault, "the evidence found so far")
        for part, result in zip(asked[1:], results[1:], strict=True):
            if isinstance(result, AssayError) and fault is None:
                yield self.ledger.fell_back("retriever", result, f"no search for the part '{part[0]}'")

    async def _hop(self, asked: Sequence[tuple[str, ...]]) -> list[SearchResult | AssayError]:
        """Each search's result or fault, side by side."""
        if (
            self.round == 1
            and self._first_hop is not None
            and asked == [(self.request.question,)]
            and not self.narrowed
        ):
            return [await self._first_hop]
        done = await asyncio.gather(
            *(self.stages.retriever.search(self.query(queries)) for queries in asked), return_exceptions=True
        )
        for result in done:
            if isinstance(result, BaseException) and not isinstance(result, AssayError):
                raise result
        return [result for result in done if isinstance(result, SearchResult | AssayError)]

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
        if self.round == 1 and (why := self.config.reranker.uncalibrated):
            yield self.ledger.fell_back("reranker", f"not calibrated: {why}", "weights that are no model's own")
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
