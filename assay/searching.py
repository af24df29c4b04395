"""The searches of one question: their scope, what was tried and what was found. ``assay.run`` plans them and weighs the result.

A retriever that fails has its named fallback here, said in ``degraded``.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from assay import events as ev
from assay.config import AppConfig
from assay.errors import AssayError, InvalidRequest, StageTimeout, UnknownBucket
from assay.evidence import EvidenceSet
from assay.ledger import STAND_IN, UNUSED, Ledger
from assay.ports import AnswerStore, Expander, Generator, Reranker, Retriever
from assay.schemas import AskRequest, Strategy, TerminatedBy, ToolCall
from assay.statements import blocking_parts, describe_scope, without
from assay.text import query_key
from assay.types import LEGS, Explain, Hit, Leg, Plan, Scope, SearchQuery, SearchResult

# Hits of a search, for each passage that a round may keep.
DEPTH = 3
_LEGS: dict[Strategy, tuple[Leg, ...]] = {"keyword": ("sparse",), "semantic": ("dense",), "hybrid": LEGS}
_TOOLS: dict[Strategy, str] = {"keyword": "search_text", "semantic": "search_semantic", "hybrid": "search_hybrid"}


@dataclass(frozen=True, slots=True)
class Stages:
    expander: Expander
    retriever: Retriever
    reranker: Reranker
    generator: Generator
    agent: object = None
    """``assay.converse.Agent``, where an engine can call tools."""
    answers: AnswerStore | None = None


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


def tool_of(query: SearchQuery) -> str:
    """The name of the tool that makes this search."""
    return next(_TOOLS[strategy] for strategy, legs in _LEGS.items() if legs == query.legs)


def arguments_of(query: SearchQuery) -> dict[str, Any]:
    told = {"queries": list(query.queries), "buckets": list(query.buckets), "top_k": query.top_k}
    return {**told, "link_hop": query.link_hop}


def called(query: SearchQuery, found: SearchResult | None, seconds: float, outcome: str) -> ToolCall:
    """A search, for the audit log."""
    return ToolCall(
        tool=tool_of(query),
        arguments=arguments_of(query),
        filters=query.filters,
        index_version=found.index_version if found else None,
        hits=len(found.hits) if found else 0,
        duration_ms=round(1000 * seconds, 2),
        outcome=outcome,
    )


class Searching:
    """Attributes without an underscore are what the loop and the ending read."""

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
        self.request, self.stages, self.config, self.id, self.ledger = request, stages, config, request_id, ledger
        self.plan = plan or Plan(query=request.question)
        self.queries: tuple[str, ...] = (request.question,)
        self.parts: tuple[str, ...] = ()  # searched beside them, each by itself: sub-questions, or further follow-ups
        self._own_scope = self.scope = Scope(
            tuple(request.buckets), request.filters
        )  # narrowed by the plan, never widened
        self.evidence = EvidenceSet(config.loop.per_document)
        self.found: SearchResult | None = None
        self.explain: Explain | None = None
        self.end: TerminatedBy | None = None
        self.why = ""  # it ended so, for the trace
        self.round = 0
        self.index_version: str | None = None
        self.searched: list[str] = []
        self.tried: set[str] = set()  # normalised queries, none of which a later round asks
        self._first_hop: asyncio.Task[SearchResult] | None = None
        self._first_query: SearchQuery | None = None
        self._first_begun = self._first_s = 0.0
        self._first_outcome: str | None = UNUSED  # None: it became the plan's own search, and is logged as that
        self._refused: AssayError | None = None

    @property
    def narrowed(self) -> bool:
        return self.scope != self._own_scope

    def more_rounds(self) -> bool:
        """Whether another round may start; otherwise ``end`` names the bound that forbids it."""
        budget = self.ledger.budget
        if self.round == 0 and self._first_result() is not None:
            return True
        if self.round >= budget.rounds:
            self.end, self.why = "rounds", f"{budget.rounds} rounds are all"
        elif budget.left_for_search() <= 0:
            self.end, self.why = "deadline", "the time for searching is over"
        elif self.ledger.calls_left() <= 0:
            self.end, self.why = "tool_budget", f"{budget.tool_calls} tool calls are all"
        elif self.round and self.ledger.tokens_left() <= 0:
            self.end, self.why = "tool_budget", f"of {budget.tokens} tokens only the answer's own are left"
        return self.end is None

    def begin_first_hop(self) -> "asyncio.Task[SearchResult]":
        """A search for the raw question, beside the planner; used where the plan asks for just that, and let go otherwise."""
        self._first_query = query = self.query(self.queries)
        self._first_begun = self.ledger.budget.clock()

        async def search() -> SearchResult:
            try:
                return await self.stages.retriever.search(query)
            finally:
                self._first_s = self.ledger.budget.clock() - self._first_begun

        self._first_hop = asyncio.create_task(search())
        return self._first_hop

    def let_first_hop_go(self) -> None:
        """Where the plan asked for something else: it is one of the calls that were made all the same, the first."""
        if self._first_hop is None or self._first_query is None or self._first_outcome is None:
            return
        found = self._first_result()
        self._first_hop.cancel()
        seconds = self._first_s or self.ledger.budget.clock() - self._first_begun
        self.ledger.tool_calls.insert(0, called(self._first_query, found, seconds, self._first_outcome))

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
            top_k=self._depth,
            request_id=self.id,
        )

    @property
    def _depth(self) -> int:
        """Hits of a search: those that the reranker scores, and enough for a round that knows some and finds doubles. Each that
        is not needed costs its text on the way between three replicas."""
        wanted = max(self.config.reranker.candidates, DEPTH * self.config.loop.evidence)
        return min(self.config.retriever.fetch, wanted)

    async def search(self) -> AsyncGenerator[ev.Event]:
        """One hop over this round's queries. A retriever that fails after the first round leaves the evidence so far; a plan's
        guess that leaves nothing to search is given up for what the request itself says."""
        self.round += 1
        self.searched += [*self.queries, *self._parts()]
        self.tried |= {query_key(query) for query in (*self.queries, *self._parts())}
        async for event in self._searched():
            yield event
        while (wider := self._wider()) is not None:
            where = describe_scope(self.scope)
            reason = str(self._refused) if self._refused else f"the plan's {where} left no passage"
            self.scope = wider
            own = "buckets" if self.narrowed else "buckets and filters"
            yield self.ledger.fell_back("expander", reason, f"the request's own {own}")
            if self.ledger.calls_left() > 0:
                async for event in self._searched():
                    yield event
            elif not self.narrowed:
                await self._use_first_hop()
                return

    def _wider(self) -> Scope | None:
        """Where to search instead, where the plan left nothing to be searched: without its buckets, which are a guess; without
        its filter too where that is none that the index knows, but not where it is what the question said and nothing has."""
        if not self.narrowed or (self._refused is None and (self.explain is None or self.explain.allowed_rows)):
            return None
        own = self._own_scope
        if self._refused is not None or self.scope.filters == own.filters:
            return own
        if self.scope.buckets != own.buckets:
            return Scope(own.buckets, self.scope.filters)
        blocking = self.explain.blocking if self.explain else None
        said = self.plan.filters
        if said is None or blocking is None or any(without(said, part) == said for part in blocking_parts(blocking)):
            return own
        return None

    async def _use_first_hop(self) -> None:
        """What the raw question found, where no further search is allowed; it asked for all that the request allows."""
        self.found = None
        if self._first_hop is not None:
            self._first_outcome = STAND_IN
            try:
                work = asyncio.shield(self._first_hop)
                self.found = await self.ledger.call("retrieve", work, self.config.retriever.timeout_s)
            except AssayError:
                return  # told already: the search that it stands in for found nothing either
        self.explain = self.found.explain if self.found else self.explain
        self.index_version = self.found.index_version if self.found else self.index_version

    def _parts(self) -> tuple[str, ...]:
        """As far as the tool budget goes."""
        return self.parts[: max(0, self.ledger.calls_left() - 1)]

    async def _searched(self) -> AsyncGenerator[ev.Event]:
        asked = [self.queries, *((part,) for part in self._parts())]
        queries = list(map(self.query, asked))
        for query in queries:
            yield ev.ToolCallStart(tool=tool_of(query), arguments=arguments_of(query))
        fault = None
        spent = [0.0] * len(asked)
        self.found, self._refused = None, None
        results: list[SearchResult | AssayError] = []
        try:
            results = await self.ledger.call("retrieve", self._hop(queries, spent), self.config.retriever.timeout_s)
        except AssayError as error:
            results = [error] * len(asked)
        for query, result, seconds in zip(queries, results, spent, strict=True):
            outcome = result.code if isinstance(result, AssayError) else "ok"
            call = called(query, None if isinstance(result, AssayError) else result, seconds, outcome)
            self.ledger.tool_calls.append(call)
            self.ledger.note("retrieve", f"round {self.round}: {call.hits} hits, {outcome}")
            yield ev.ToolCallResult(tool=call.tool, hits=call.hits, duration_ms=call.duration_ms, outcome=outcome)
        if isinstance(first := results[0], AssayError):
            fault = first
            if not isinstance(fault, StageTimeout):  # after one there is no time to wait
                await self._first_hop_over()
            if self.round == 1 and not self.narrowed and (instead := self._first_result()) is not None:
                results[0], self._first_outcome = instead, STAND_IN
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
            if not self.evidence.all and not (self.ledger.late and isinstance(fault, StageTimeout)):
                raise fault
            self.end = (
                self.end if self.evidence.all else "deadline"
            )  # it was the budget that ran out, not the search's own time
            yield self.ledger.fell_back("retriever", fault, "the evidence found so far")
        for part, result in zip(asked[1:], results[1:], strict=True):
            if isinstance(result, AssayError) and fault is None:
                yield self.ledger.fell_back("retriever", result, f"no search for the part '{part[0]}'")

    async def _hop(self, queries: Sequence[SearchQuery], spent: list[float]) -> list[SearchResult | AssayError]:
        """Each search's result or fault, side by side; what the first hop asks already is not asked again. ``spent``: gets the
        seconds of each, of one that was cancelled too."""

        async def timed(number: int, query: SearchQuery) -> SearchResult:
            start = self.ledger.budget.clock()
            work = self._found_by(query)
            try:
                return await work
            finally:
                own = self._first_s if work is self._first_hop else 0.0
                spent[number] = max(own, self.ledger.budget.clock() - start)

        done = await asyncio.gather(*itertools.starmap(timed, enumerate(queries)), return_exceptions=True)
        for result in done:
            if isinstance(result, BaseException) and not isinstance(result, AssayError):
                raise result
        return [result for result in done if isinstance(result, SearchResult | AssayError)]

    def _found_by(self, query: SearchQuery) -> Awaitable[SearchResult]:
        if self.round == 1 and self._first_hop is not None and query == self._first_query:
            self._first_outcome = None
            return self._first_hop
        return self.stages.retriever.search(query)

    async def _first_hop_over(self) -> None:
        """Waits until the hop on the raw question is back, or its time is over: a search may have failed before that."""
        if self.round == 1 and not self.narrowed and self._first_hop is not None:
            with suppress(StageTimeout):
                await self.ledger.call("retrieve", asyncio.wait([self._first_hop]), self.config.retriever.timeout_s)

    def _first_result(self) -> SearchResult | None:
        """What the hop on the raw question brought, if it is back and did not fail."""
        hop = self._first_hop
        whole = hop is not None and hop.done() and not hop.cancelled() and hop.exception() is None
        return hop.result() if hop is not None and whole else None

    @property
    def fresh(self) -> bool:
        """Whether the last hop found anything that is not in the evidence yet; if not, searching on is pointless."""
        return self.found is not None and bool(self.evidence.new(self.found.hits))
