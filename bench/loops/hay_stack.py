"""Haystack: a ``Pipeline`` of components, run asynchronously; one branch of the grader leads back to a search."""

from dataclasses import dataclass
from typing import Any

from haystack import Pipeline, component
from haystack.components.joiners import BranchJoiner
from haystack.core.component.types import Variadic

from bench.loops import steps
from bench.loops.steps import Answered, Passage


@dataclass
class Work:
    """What goes round."""

    found: list[list[Passage]]
    evidence: list[Passage]
    round: int = 0


@component
class Planner:
    @component.output_types(query=str, one=str, two=str)
    def run(self, question: str) -> dict[str, Any]:
        raise NotImplementedError

    @component.output_types(query=str, one=str, two=str)
    async def run_async(self, question: str) -> dict[str, Any]:
        query, one, two = await steps.plan(question)
        return {"query": query, "one": one, "two": two}


@component
class Searcher:
    @component.output_types(passages=list[Passage])
    def run(self, query: str) -> dict[str, Any]:
        raise NotImplementedError

    @component.output_types(passages=list[Passage])
    async def run_async(self, query: str) -> dict[str, Any]:
        return {"passages": list(await steps.search(query))}


@component
class Gatherer:
    @component.output_types(work=Work)
    def run(self, passages: Variadic[list[Passage]]) -> dict[str, Any]:
        return {"work": Work(list(passages), [])}


@component
class FurtherSearcher:
    @component.output_types(work=Work)
    def run(self, query: str, work: Work) -> dict[str, Any]:
        raise NotImplementedError

    @component.output_types(work=Work)
    async def run_async(self, query: str, work: Work) -> dict[str, Any]:
        return {"work": Work([list(await steps.search(query))], work.evidence, work.round)}


@component
class Ranker:
    @component.output_types(work=Work)
    def run(self, work: Work) -> dict[str, Any]:
        raise NotImplementedError

    @component.output_types(work=Work)
    async def run_async(self, work: Work) -> dict[str, Any]:
        fresh = await steps.rerank(steps.merged(work.found, work.evidence))
        return {"work": Work([], [*work.evidence, *fresh[: steps.KEEP]], work.round + 1)}


@component
class Grader:
    @component.output_types(query=str, work=Work, enough=Work)
    def run(self, work: Work) -> dict[str, Any]:
        raise NotImplementedError

    @component.output_types(query=str, work=Work, enough=Work)
    async def run_async(self, work: Work) -> dict[str, Any]:
        more = await steps.grade(work.round)
        return {"enough": work} if more is None else {"query": more, "work": work}


@component
class Writer:
    @component.output_types(drafts=list[Any], work=Work)
    def run(self, work: Work) -> dict[str, Any]:
        raise NotImplementedError

    @component.output_types(drafts=list[Any], work=Work)
    async def run_async(self, work: Work) -> dict[str, Any]:
        return {"drafts": [draft async for draft in steps.generate(work.evidence[: steps.BEST])], "work": work}


@component
class Checker:
    @component.output_types(sentences=list[Any], work=Work)
    def run(self, drafts: list[Any], work: Work) -> dict[str, Any]:
        return {"sentences": [draft for draft in drafts if steps.verify(*draft)], "work": work}


class System:
    packages = ("haystack-ai",)

    def __init__(self) -> None:
        pipeline = self._pipeline = Pipeline()
        parts: dict[str, Any] = {
            "plan": Planner(),
            "search": Searcher(),
            "search_one": Searcher(),
            "search_two": Searcher(),
            "gather": Gatherer(),
            "work": BranchJoiner(Work),
            "rerank": Ranker(),
            "grade": Grader(),
            "further": FurtherSearcher(),
            "generate": Writer(),
            "verify": Checker(),
        }
        for name, part in parts.items():
            pipeline.add_component(name, part)
        for sender, receiver in (
            ("plan.query", "search.query"),
            ("plan.one", "search_one.query"),
            ("plan.two", "search_two.query"),
            ("search.passages", "gather.passages"),
            ("search_one.passages", "gather.passages"),
            ("search_two.passages", "gather.passages"),
            ("gather.work", "work.value"),
            ("work.value", "rerank.work"),
            ("rerank.work", "grade.work"),
            ("grade.query", "further.query"),
            ("grade.work", "further.work"),
            ("further.work", "work.value"),
            ("grade.enough", "generate.work"),
            ("generate.drafts", "verify.drafts"),
            ("generate.work", "verify.work"),
        ):
            pipeline.connect(sender, receiver)

    async def ask(self) -> Answered:
        end = (await self._pipeline.run_async({"plan": {"question": steps.QUESTION}}))["verify"]
        work: Work = end["work"]
        told = end["sentences"]
        return Answered(work.round, len(work.evidence), tuple(s for s, _ in told), tuple(p.id for _, p in told))
