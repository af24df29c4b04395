"""LlamaIndex: a ``Workflow`` of steps that events call, searches by several workers, what they find collected."""

from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from bench.loops import steps
from bench.loops.steps import Answered, Passage


class SearchEvent(Event):
    query: str


class FoundEvent(Event):
    passages: list[Passage]


class RankedEvent(Event):
    evidence: list[Passage]


class EnoughEvent(Event):
    evidence: list[Passage]


class DraftedEvent(Event):
    drafts: list[tuple[str, Passage]]
    evidence: list[Passage]


class Flow(Workflow):
    @step
    async def plan(self, ctx: Context, event: StartEvent) -> SearchEvent | None:
        queries = await steps.plan(event.question)
        await ctx.store.set("asked", len(queries))
        for query in queries:
            ctx.send_event(SearchEvent(query=query))
        return None

    @step(num_workers=4)
    async def search(self, event: SearchEvent) -> FoundEvent:
        return FoundEvent(passages=list(await steps.search(event.query)))

    @step
    async def rerank(self, ctx: Context, event: FoundEvent) -> RankedEvent | None:
        found = ctx.collect_events(event, [FoundEvent] * await ctx.store.get("asked"))
        if found is None:
            return None
        evidence = await ctx.store.get("evidence", default=[])
        fresh = steps.merged([each.passages for each in found], evidence)
        evidence = [*evidence, *(await steps.rerank(fresh))[: steps.KEEP]]
        await ctx.store.set("evidence", evidence)
        await ctx.store.set("round", await ctx.store.get("round", default=0) + 1)
        return RankedEvent(evidence=evidence)

    @step
    async def grade(self, ctx: Context, event: RankedEvent) -> SearchEvent | EnoughEvent:
        more = await steps.grade(await ctx.store.get("round"))
        if more is None:
            return EnoughEvent(evidence=event.evidence)
        await ctx.store.set("asked", 1)
        return SearchEvent(query=more)

    @step
    async def generate(self, event: EnoughEvent) -> DraftedEvent:
        drafts = [draft async for draft in steps.generate(event.evidence[: steps.BEST])]
        return DraftedEvent(drafts=drafts, evidence=event.evidence)

    @step
    async def verify(self, ctx: Context, event: DraftedEvent) -> StopEvent:
        told = [draft for draft in event.drafts if steps.verify(*draft)]
        return StopEvent(result=(await ctx.store.get("round"), len(event.evidence), told))


class System:
    packages = ("llama-index-core", "llama-index-workflows")

    def __init__(self) -> None:
        self._flow = Flow(timeout=60)

    async def ask(self) -> Answered:
        rounds, evidence, told = await self._flow.run(question=steps.QUESTION)
        return Answered(rounds, evidence, tuple(s for s, _ in told), tuple(p.id for _, p in told))
