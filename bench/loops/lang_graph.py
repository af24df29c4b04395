"""LangGraph: a ``StateGraph`` whose conditional edges send searches side by side and go round again. No checkpointer."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from bench.loops import steps
from bench.loops.steps import Answered, Passage


class State(TypedDict, total=False):
    question: str
    queries: tuple[str, ...]
    found: Annotated[list[list[Passage]], operator.add]
    evidence: Annotated[list[Passage], operator.add]
    read: int
    round: int
    drafts: list[tuple[str, Passage]]
    sentences: list[tuple[str, Passage]]


async def _plan(state: State) -> State:
    return {"queries": await steps.plan(state["question"]), "round": 0, "read": 0}


def _searches(state: State) -> list[Send] | str:
    return [Send("search", query) for query in state["queries"]] or "generate"


async def _search(query: str) -> State:
    return {"found": [list(await steps.search(query))]}


async def _rerank(state: State) -> State:
    fresh = steps.merged(state["found"][state["read"] :], state.get("evidence", []))
    kept = (await steps.rerank(fresh))[: steps.KEEP]
    return {"evidence": kept, "round": state["round"] + 1, "read": len(state["found"])}


async def _grade(state: State) -> State:
    more = await steps.grade(state["round"])
    return {"queries": (more,) if more else ()}


async def _generate(state: State) -> State:
    return {"drafts": [draft async for draft in steps.generate(state["evidence"][: steps.BEST])]}


async def _verify(state: State) -> State:
    return {"sentences": [draft for draft in state["drafts"] if steps.verify(*draft)]}


class System:
    packages = ("langgraph", "langchain-core")

    def __init__(self) -> None:
        graph: Any = StateGraph(State)
        for node in (_plan, _search, _rerank, _grade, _generate, _verify):
            graph.add_node(node.__name__.strip("_"), node)
        graph.add_edge(START, "plan")
        graph.add_conditional_edges("plan", _searches, ["search", "generate"])
        graph.add_edge("search", "rerank")
        graph.add_edge("rerank", "grade")
        graph.add_conditional_edges("grade", _searches, ["search", "generate"])
        graph.add_edge("generate", "verify")
        graph.add_edge("verify", END)
        self._graph = graph.compile()

    async def ask(self) -> Answered:
        end = await self._graph.ainvoke({"question": steps.QUESTION})
        told, cited = zip(*end["sentences"], strict=True)
        return Answered(end["round"], len(end["evidence"]), told, tuple(p.id for p in cited))
