"""One question on its way to its evidence: the steps that ``assay.loop`` takes. Each step is a generator of events.

A stage that fails has its named fallback here, said in ``degraded``; a fault never becomes a score or an empty list.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from assay import clarify
from assay import events as ev
from assay.bound import beyond, both
from assay.config import AppConfig
from assay.errors import AssayError, InvalidRequest, NotFound, UnknownBucket
from assay.evidence import added_event, in_order
from assay.grade import FeatureGrader
from assay.ledger import Ledger
from assay.plan import usable
from assay.schemas import (
    STEPS,
    AnswerState,
    AskBudget,
    AskRequest,
    Clarification,
    Mode,
    PlanState,
    Step,
    ToolCall,
)
from assay.searching import Searching, Stages
from assay.simple import simple
from assay.statements import describe_scope
from assay.text import query_key
from assay.types import (
    BucketInfo,
    Evidence,
    Grade,
    GradeRequest,
    Message,
    Plan,
    PlanRequest,
    Ranked,
    RerankRequest,
    Scope,
)

__all__ = ["Run", "Stages", "chosen_mode", "top_k"]

T = TypeVar("T")

PLAN_SHARE = 0.4


def _summary(mode: str, plan: Plan, queries: Sequence[str], scope: Scope) -> str:
    parts = [mode, f"queries: {' | '.join(queries)}"]
    parts += [f"parts: {' | '.join(plan.sub_questions)}"] if plan.sub_questions else []
    parts += [f"where: {describe_scope(scope)}"] if scope != Scope() else []
    return "; ".join(parts if plan.search else [mode, f"no search: {plan.reason}"])


def _by_key(queries: Iterable[str]) -> dict[str, str]:
    """The first of those that ask the same, by what they ask."""
    found: dict[str, str] = {}
    for query in queries:
        found.setdefault(query_key(query), query)
    return found


def chosen_mode(asked: Mode, config: AppConfig) -> Mode:
    return config.loop.mode if asked == "auto" else asked


def top_k(request: AskRequest, config: AppConfig) -> int:
    """Passages kept per round; the configured number is the default and the upper bound."""
    most = config.loop.evidence
    if request.top_k is not None and request.top_k > most:
        raise InvalidRequest(f"top_k is {request.top_k}, but at most {most} is allowed here.", "top_k", (f"<= {most}",))
    return request.top_k or most


class Run(Searching):
    """One question on its way to its evidence. Attributes without an underscore are what the loop and the ending read."""

    def __init__(
        self,
        request: AskRequest,
        stages: Stages,
        config: AppConfig,
        request_id: str,
        ledger: Ledger,
        plan: Plan | None = None,
    ) -> None:
        """``plan``: one that was made before, and is gone on with."""
        super().__init__(request, stages, config, request_id, ledger, plan)
        self.sent = request
        self.mode = chosen_mode(request.mode, config)
        self.history = tuple(Message(turn.role, turn.content) for turn in request.history)
        self.grade: Grade | None = None
        self.clarification: Clarification | None = None
        self.said: str | None = None  # mode tools: what the model answers with
        self.cut_off = False  # and whether it ends in the middle
        self._planned = plan
        self._described: tuple[BucketInfo, ...] = ()
        self._tasks: list[asyncio.Task[Any]] = []
        self._planning: asyncio.Task[Plan] | None = None
        self._undescribed: AssayError | None = None

    def status(self, state: Literal["planning", "searching", "reranking", "grading", "answering"]) -> ev.StatusEvent:
        return ev.StatusEvent(state=state, round=self.round)

    def state(self) -> AnswerState:
        """What is known now, for whoever wants to look into it later."""
        plan, grade, budget = self.plan, self.grade, self.ledger.budget
        return AnswerState(
            mode=self.mode,
            plan=PlanState(
                query=plan.query,
                variants=list(plan.variants),
                sub_questions=list(plan.sub_questions),
                buckets=list(plan.buckets),
                filters=plan.filters,
                search=plan.search,
                reason=plan.reason,
                intent=plan.intent,
                strategy=plan.strategy,
                style=plan.style,
            ),
            searched=list(self.searched),
            missing=list(grade.missing) if grade else [],
            follow_up=grade.follow_up if grade else None,
            bounds=AskBudget(
                rounds=budget.rounds,
                tool_calls=budget.tool_calls,
                deadline_s=budget.deadline_s,
                answer_tokens=budget.answer_tokens,
                tokens=min(budget.tokens, 2**53),
            ),
            seconds=round(budget.elapsed(), 3),
        )

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
        self._tasks.append(first_hop := self.begin_first_hop())
        if self._planned is None and self.mode != "tools" and (self.request.options.expand or self.history):
            self._planning = self._start(self._plan())
        if not (self.request.buckets or self.request.filters):
            return  # nothing of the request that the index could refuse: the first event waits for nobody
        # What may be wrong with a bucket or a filter is worth waiting for: a status says it, an event would come too late.
        wait = min(self.config.retriever.timeout_s, self.ledger.budget.left())
        with self.ledger.timed("first_hop"):
            done, _ = await asyncio.wait([first_hop], timeout=wait)
        if done and isinstance(error := first_hop.exception(), (InvalidRequest, UnknownBucket, NotFound)):
            raise error

    async def _plan(self) -> Plan:
        self.ledger.check_tokens()
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
                cache_salt=self.request.cache_salt,
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
            if early := await self._found_first(self._planning, timeout_s):
                yield early
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
        queries = _by_key((self.plan.query, self.request.question, *self.plan.variants))
        self.queries = tuple(queries.values())
        self.parts = tuple(part for key, part in _by_key(self.plan.sub_questions).items() if key not in queries)
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

    async def _found_first(self, planning: "asyncio.Task[Plan]", timeout_s: float) -> ev.EvidenceEvent | None:
        """What the first hop found, where the planner still thinks."""
        if self._first_hop is None:
            return None
        with self.ledger.timed("plan"):
            await asyncio.wait([planning, self._first_hop], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        found = None if planning.done() else self._first_result()
        if found is None or not found.hits:
            return None
        best = found.hits[: self.config.loop.answer_evidence]
        return ev.EvidenceEvent(found=[hit.chunk.title for hit in best], doc_ids=[hit.chunk.doc_id for hit in best])

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
        strange = beyond(own, plan.buckets)
        within = tuple(name for name in plan.buckets if name not in strange)
        self.scope = Scope(within or own.buckets, both(own.filters, plan.filters))
        said: list[ev.Event] = []
        if strange:
            reason = f"the plan's buckets {', '.join(strange)} are not of the request"
            said.append(self.ledger.fell_back("expander", reason, "the request's buckets"))
        if not plan.search and "gate" not in self._may_decide():
            said.append(self.ledger.fell_back("expander", "the plan forgoes a search that was asked for", "a search"))
            self.plan = replace(plan, search=True)
        return said

    # ---- asking back ------------------------------------------------------------------------------------------------

    @property
    def may_ask(self) -> bool:
        """Once a turn: a reply is never asked back about."""
        return self.request.options.clarify

    async def check_overload(self) -> list[ev.Event]:
        """Where all of a kind are asked for, and there are more documents than an answer can hold: asks back by facets."""
        spare = self.ledger.calls_left() > 0
        if not (self.may_ask and self.round == 1 and spare and clarify.wants_all(self.plan)):
            return []
        try:
            work = self._overload()
            self.clarification = await self.ledger.call("clarify", work, self.config.retriever.timeout_s)
        except AssayError as error:
            return [self.ledger.fell_back("retriever", error, "an answer without a look at how many there are")]
        if self.clarification is not None:
            self.end, self.why = "clarify", "there are more documents than an answer can hold"
            self.ledger.note("clarify", self.clarification.message)
        return []

    async def _overload(self) -> Clarification | None:
        retriever, scope = self.stages.retriever, self.scope
        buckets = await retriever.describe(scope)
        documents = sum(bucket.documents for bucket in buckets)
        if documents <= self.config.loop.overload:
            return None
        types = clarify.dividing(buckets, [field.name for field in usable(buckets)])
        if not types:
            return None
        query = replace(self.query(self.queries), facets=tuple(types), link_hop=False)
        start, version, hits, outcome = self.ledger.budget.clock(), None, 0, "cancelled"
        try:
            counted = await retriever.search(query)
            version, hits, outcome = counted.index_version, len(counted.hits), "ok"
        except AssayError as error:
            outcome = error.code
            raise
        finally:  # a call that failed, or was given up, is one too
            self.ledger.tool_calls.append(
                ToolCall(
                    tool="facets",
                    arguments={"queries": list(query.queries), "buckets": list(query.buckets), "facets": list(types)},
                    filters=query.filters,
                    index_version=version,
                    hits=hits,
                    duration_ms=round(1000 * (self.ledger.budget.clock() - start), 2),
                    outcome=outcome,
                )
            )
        return clarify.overload(documents, counted.facets, types, self.request.filters)

    # ---- rerank and grade -------------------------------------------------------------------------------------------

    @property
    def reranks(self) -> bool:
        """In the first round: the model orders by the whole question, of which a follow-up's passage holds one step."""
        return self.request.options.rerank and self.round == 1

    async def rerank(self) -> list[ev.Event]:
        """What was found becomes evidence, in the reranker's order or in that of its own search."""
        assert self.found is not None
        hits, keep = self.found.hits, top_k(self.request, self.config)
        ranked: Sequence[Ranked] | None = None
        said: list[ev.Event] = []
        if self.round == 1 and (why := self.config.reranker.uncalibrated):
            said.append(self.ledger.fell_back("reranker", f"not calibrated: {why}", "weights that are no model's own"))
        if self.reranks:
            request = RerankRequest(self.plan.query, hits, len(hits), self.id, self.request.cache_salt)
            try:
                self.ledger.check_tokens()
                work = self.stages.reranker.rerank(request)
                done = await self.ledger.call("rerank", work, self.config.reranker.timeout_s)
            except AssayError as error:
                keep = min(keep, self.config.loop.answer_evidence)
                said.append(self.ledger.fell_back("reranker", error, f"fused order, top {keep}"))
            else:
                ranked = done.ranked
                self.ledger.usage += done.usage
                if done.faults:
                    reason = f"{done.faults} of {len(hits)} passages could not be scored"
                    said.append(self.ledger.fell_back("reranker", reason, "their fused order"))
        added = self.evidence.add(in_order(hits) if ranked is None else ranked, keep, self.round)
        kept = f"{len(hits)} candidates; kept {', '.join(e.slot for e in added)}"
        self.ledger.note("rerank" if self.reranks else "evidence", kept)
        return [*said, added_event(added)]

    async def make_grade(self) -> list[ev.Event]:
        request, said = self._grade_request(), list[ev.Event]()
        try:
            grade = await self.ledger.call("grade", self.stages.reranker.grade(request), self.config.reranker.timeout_s)
        except AssayError as error:
            grade = await self.measure(request)
            said.append(self.ledger.fell_back("reranker", error, "what the driver can measure itself"))
        self.grade = grade
        self.ledger.usage += grade.usage
        self.ledger.note("grade", f"{grade.verdict}; enough with probability {grade.p_enough:.2f}")
        told = ev.GradeEvent(
            p_enough=grade.p_enough,
            p_more=grade.p_more,
            p_clarify=grade.p_clarify,
            p_about=grade.p_about,
            p_holds=grade.p_holds,
            missing=list(grade.missing),
            follow_up=grade.follow_up,
            beside=list(grade.beside),
            features=dict(grade.features),
        )
        return [*said, told]

    async def measure(self, request: GradeRequest | None = None) -> Grade:
        """A grade without a model or another replica: what is left when the reranker is, and in ``pipeline`` mode."""
        return await FeatureGrader(self.config.reranker.grade).grade(request or self._grade_request())

    def _grade_request(self) -> GradeRequest:
        return GradeRequest(self.plan.query, self.best(), self.id)

    def _follow(self, grade: Grade) -> bool:
        """Whether there is anything to ask that was not asked yet; if so it is what the next round asks."""
        wanted = (grade.follow_up, *grade.beside)
        alike = _by_key(query for query in wanted if query is not None)
        fresh = tuple(query for key, query in alike.items() if key not in self.tried)
        self.queries, self.parts = fresh[:1], fresh[1:]
        return bool(fresh)

    def decided(self) -> bool:
        """Whether the search ends here. A query of an earlier round is not asked again: that ends it too."""
        grade = self.grade
        assert grade is not None
        if grade.verdict == "clarify":
            if not self.may_ask:
                self.end, self.why = "answered", "the question can be read in several ways, and is not asked back about"
                return True
            own = self.request.filters
            self.end, self.why = "clarify", "the question can be read in several ways"
            self.clarification = clarify.unclear(self.request.question, self.best(), own)
        elif grade.p_enough >= (enough := self.config.reranker.grade.enough):
            self.end, self.why = "answered", f"enough with probability {grade.p_enough:.2f}, of {enough:g} asked for"
        elif not self._follow(grade):
            self.end, self.why = "answered", "nothing is left to ask that was not asked"
        return self.end is not None
