"""Assay's loop as the driver runs it: its events consumed one by one, the fakes as its ports.

Beyond the steps it keeps the budget and the deadline of every call, a first search on the raw question beside the planner,
typed events and response, trace, support for each sentence, and a look for conflicts.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from assay import loop
from assay.config import AppConfig, LoopConfig
from assay.events import CompletedEvent
from assay.run import Stages
from assay.schemas import AskRequest, Usage
from assay.types import (
    Chunk,
    Draft,
    Explain,
    GenerateEvent,
    GenerateRequest,
    Grade,
    GradeRequest,
    Hit,
    Plan,
    PlanRequest,
    Ranked,
    Reranked,
    RerankRequest,
    SearchQuery,
    SearchResult,
)
from bench.loops import steps
from bench.loops.steps import Answered, Passage

_CHUNKS = {
    p.id: Chunk(p.id, f"doc_{p.id}", "docs", p.title, f"log-{p.id}.md", p.text, 0, len(p.text), 0) for p in steps.POOL
}
_EXPLAIN = Explain(len(steps.POOL), len(steps.POOL))
_HITS = {p.id: Hit(_CHUNKS[p.id], 1.0, {"dense": 1}, 0.5) for p in steps.POOL}
_PASSAGES = {p.id: p for p in steps.POOL}
_CONFIG = AppConfig(loop=LoopConfig(mode="agentic", evidence=steps.KEEP, answer_evidence=steps.BEST))


class Stage:
    """All ports at once."""

    async def plan(self, request: PlanRequest) -> Plan:
        query, *parts = await steps.plan(request.question)
        return Plan(query, sub_questions=tuple(parts))

    async def search(self, query: SearchQuery) -> SearchResult:
        found = await steps.search(query.queries[0])
        return SearchResult(tuple(_HITS[p.id] for p in found), "v1", _EXPLAIN)

    async def rerank(self, request: RerankRequest) -> Reranked:
        hits = {hit.chunk.id: hit for hit in request.hits}
        ordered = await steps.rerank([_PASSAGES[n] for n in hits])
        return Reranked(tuple(Ranked(hits[p.id], 1.0, None) for p in ordered), Usage())

    async def grade(self, request: GradeRequest) -> Grade:
        more = await steps.grade(max(e.round for e in request.evidence))
        enough = 0.1 if more else 0.9
        return Grade(enough, 0.95 - enough, 0.05, 0.9, features={}, follow_up=more)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        slots: dict[int, Any] = {e.hit.chunk.id: e.slot for e in request.evidence}
        evidence: list[Passage] = [_PASSAGES[n] for n in slots]
        async for sentence, passage in steps.generate(evidence):
            yield GenerateEvent(draft=Draft(sentence, (slots[passage.id],), (0, len(sentence))))


class System:
    packages = ("assay",)

    def __init__(self) -> None:
        stage: Any = Stage()
        self._stages = Stages(stage, stage, stage, stage)
        self._request = AskRequest(question=steps.QUESTION, mode="agentic")

    async def ask(self) -> Answered:
        evidence = 0
        async with aclosing(loop.answer(self._request, self._stages, _CONFIG, "req")) as events:
            async for event in events:
                last = event
                evidence += len(event.added) if event.type == "evidence" else 0
        if not isinstance(last, CompletedEvent) or last.response.answer is None:
            return Answered(0, 0, (), ())
        response, answer = last.response, last.response.answer
        cited = tuple(c.chunk_id for c in response.citations)
        return Answered(response.rounds, evidence, tuple(s.text for s in answer.sentences), cited)
