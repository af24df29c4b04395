"""The searches of one question: their scope, what was tried and what was found. ``assay.run`` plans them and weighs the result.

A retriever that fails has its named fallback here, said in ``degraded``.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay import events as ev
from assay.config import AppConfig
from assay.errors import AssayError, InvalidRequest, StageTimeout, UnknownBucket
from assay.evidence import EvidenceSet
from assay.ledger import Ledger
from assay.ports import AnswerStore, Expander, Generator, Reranker, Retriever, Tokenizer
from assay.schemas import AskRequest, Strategy, TerminatedBy, ToolCall
from assay.statements import describe_scope
from assay.text import query_key
from assay.types import LEGS, Explain, Hit, Leg, Plan, Scope, SearchQuery, SearchResult

# Hits of a search, for each passage that a round may keep.
DEPTH = 3
_LEGS: dict[Strategy, tuple[Leg, ...]] = {"keyword": ("sparse",), "semantic": ("dense",), "hybrid": LEGS}


@dataclass(frozen=True, slots=True)
class Stages:
    expander: Expander
    retriever: Retriever
    reranker: Reranker
    generator: Generator
    agent: object = None
    """``assay.converse.Agent``, where an engine can call tools."""
    answers: AnswerStore | None = None
    tokenizer: Tokenizer | None = None
    """The generator's model's own, for the evidence's share of its prompt."""


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
        self.round = 0
        self.index_version: str | None = None
        self.searched: list[str] = []
        self.tried: set[str] = set()  # normalised queries, none of which is run again
        self._first_hop: asyncio.Task[SearchResult] | None = None
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
            self.end = "rounds"
        elif budget.left_for_search() <= 0:
            self.end = "deadline"
        elif len(self.ledger.tool_calls) >= budget.tool_calls or (self.round and self.ledger.tokens_left() <= 0):
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
        """One hop over this round's queries. A retriever that fails after the first round leaves the evidence so far; a plan
        that leaves nothing to search is given up for what the request itself says."""
        self.round += 1
        self.searched += [*self.queries, *self._parts()]
        self.tried |= {query_key(query) for query in (*self.queries, *self._parts())}
        async for event in self._searched():
            yield event
        nothing = self.explain is not None and not self.explain.allowed_rows
        if (nothing or self._refused is not None) and self.narrowed:
            where = describe_scope(self.scope)
            reason = str(self._refused) if self._refused else f"the plan's {where} left no passage"
            self.scope = self._own_scope
            yield self.ledger.fell_back("expander", reason, "the request's own buckets and filters")
            if len(self.ledger.tool_calls) < self.ledger.budget.tool_calls:
                async for event in self._searched():
                    yield event
            else:
                await self._use_first_hop()

    async def _use_first_hop(self) -> None:
        """What the raw question found, where no further search is allowed; it asked for all that the request allows."""
        self.found = None
        if self._first_hop is not None:
            try:
                work = asyncio.shield(self._first_hop)
                self.found = await self.ledger.call("retrieve", work, self.config.retriever.timeout_s)
            except AssayError:
                return  # told already: the search that it stands in for found nothing either
        self.explain = self.found.explain if self.found else self.explain
        self.index_version = self.found.index_version if self.found else self.index_version

    def _parts(self) -> tuple[str, ...]:
        """As far as the tool budget goes."""
        spare = self.ledger.budget.tool_calls - len(self.ledger.tool_calls) - 1
        return self.parts[: max(0, spare)]

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
            if not self.evidence.all and not (self.ledger.late and isinstance(fault, StageTimeout)):
                raise fault
            self.end = (
                self.end if self.evidence.all else "deadline"
            )  # it was the budget that ran out, not the search's own time
            yield self.ledger.fell_back("retriever", fault, "the evidence found so far")
        for part, result in zip(asked[1:], results[1:], strict=True):
            if isinstance(result, AssayError) and fault is None:
                yield self.ledger.fell_back("retriever", result, f"no search for the part '{part[0]}'")

    async def _hop(self, asked: Sequence[tuple[str, ...]]) -> list[SearchResult | AssayError]:
        """Each search's result or fault, side by side; what the first hop asks already is not asked again."""
        done = await asyncio.gather(*map(self._found_by, asked), return_exceptions=True)
        for result in done:
            if isinstance(result, BaseException) and not isinstance(result, AssayError):
                raise result
        return [result for result in done if isinstance(result, SearchResult | AssayError)]

    def _found_by(self, queries: tuple[str, ...]) -> Awaitable[SearchResult]:
        if (
            self.round == 1
            and self._first_hop is not None
            and queries == (self.request.question,)
            and not self.narrowed
        ):
            return self._first_hop
        return self.stages.retriever.search(self.query(queries))

    def _first_result(self) -> SearchResult | None:
        """What the hop on the raw question brought, if it is back and did not fail."""
        hop = self._first_hop
        whole = hop is not None and hop.done() and not hop.cancelled() and hop.exception() is None
        return hop.result() if hop is not None and whole else None

    @property
    def fresh(self) -> bool:
        """Whether the last hop found anything that is not in the evidence yet; if not, searching on is pointless."""
        return self.found is not None and bool(self.evidence.new(self.found.hits))
