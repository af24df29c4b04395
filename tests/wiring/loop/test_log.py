"""The audit log, the trace and the usage of an answer: they tell what was done, how long it took, why it ended, and no more."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from assay.budget import Budget
from assay.config import GeneratorConfig
from assay.errors import StageUnavailable
from assay.events import Event, EvidenceEvent, ToolCallStart
from assay.generate import WritingGenerator
from assay.schemas import AskResponse, Strategy, ToolCall
from assay.types import Grade, Plan, PlanRequest, SearchQuery, SearchResult
from tests.fakes import ListRetriever, ScriptedLLM, WordTokenizer
from tests.wiring.loop.test_loop import ENOUGH, MARS, MOON, QUESTION, SUN, Bench, more, stages_of

pytestmark = pytest.mark.anyio

PARTS = ("What are the moons of Mars?", "How far is the light of the Sun?")


class Planner:
    def __init__(self, **plan: Any) -> None:
        self._plan = plan

    async def plan(self, request: PlanRequest) -> Plan:
        return Plan(**({"query": request.question} | self._plan))


class Slow(ListRetriever):
    """Each search takes as long as its first query is worth."""

    def __init__(self, **seconds: float) -> None:
        super().__init__(MOON, MARS, SUN)
        self.seconds = seconds

    async def search(self, query: SearchQuery) -> SearchResult:
        waits = next((s for word, s in self.seconds.items() if word in query.queries[0]), 0.0)
        self.history.append(query)
        await asyncio.sleep(waits)
        self.history.pop()
        return await super().search(query)


def bench(*grades: Any, **plan: Any) -> Bench:
    made = Bench(*(grades or (ENOUGH,)))
    made.expander = Planner(**plan)
    return made


def calls_of(response: AskResponse) -> list[ToolCall]:
    assert response.tool_calls is not None
    return response.tool_calls


def why(response: AskResponse) -> str:
    assert response.trace is not None
    (last,) = (step.summary for step in response.trace if step.stage == "end")
    assert last.startswith(response.terminated_by)
    return last


# ---- the audit log --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "tool"), [("keyword", "search_text"), ("semantic", "search_semantic"), ("hybrid", "search_hybrid")]
)
async def test_a_search_is_logged_as_the_tool_that_it_is(strategy: Strategy, tool: str) -> None:
    made = bench(strategy=strategy)
    events = await made.events(include=["tool_calls"])
    assert [event.tool for event in events if isinstance(event, ToolCallStart)] == [tool]
    response = await bench(strategy=strategy).ask(include=["tool_calls"])
    call = next(call for call in calls_of(response) if call.outcome == "ok")
    assert (call.tool, call.hits > 0, call.index_version) == (tool, True, "v1-test")
    assert call.arguments == {"queries": [QUESTION], "buckets": [], "top_k": 30, "link_hop": strategy != "keyword"}


async def test_the_first_search_links_before_any_more_is_asked_for() -> None:
    for wanted in (True, False):
        made = bench(more("Mars moons Phobos"), ENOUGH)
        await made.ask(options={"link_hop": wanted})
        assert made.retriever.history[0].link_hop is wanted and made.retriever.history[0].queries == (QUESTION,)


async def test_every_search_that_was_made_is_logged_and_a_first_hop_that_was_not_needed_as_that() -> None:
    for plan in (
        {"variants": ("ocean tides reason",)},
        {"strategy": "keyword"},
        {"search": False, "reason": "a greeting"},
    ):
        made = bench(**plan)
        response = await made.ask(include=["tool_calls"])
        first, *rest = calls_of(response)
        assert (first.outcome, first.arguments["queries"]) == ("unused", [QUESTION])
        assert len(calls_of(response)) == len(made.retriever.history)
        assert all(call.outcome == "ok" for call in rest)
    response = await bench().ask(include=["tool_calls"])
    assert [call.outcome for call in calls_of(response)] == ["ok"], "it is the plan's own here"


async def test_a_first_hop_that_stands_in_is_logged_beside_what_failed() -> None:
    made = bench(variants=("ocean tides reason",))
    made.retriever.faults.extend([None, StageUnavailable("no replica")])
    response = await made.ask(include=["tool_calls"], budget=Budget(3, 1, 30, 400, 1))
    assert response.status == "answered" and stages_of(response) == ["retriever"]
    assert [call.outcome for call in calls_of(response)] == ["stand_in", "stage_unavailable"]
    assert [call.hits > 0 for call in calls_of(response)] == [True, False]


async def test_each_call_has_its_own_time() -> None:
    made = bench(sub_questions=PARTS)
    made.retriever = Slow(Mars=0.2, light=0.05)
    response = await made.ask(include=["tool_calls"])
    own, mars, light = (call.duration_ms for call in calls_of(response))
    assert mars >= 200 > own and 50 <= light < mars
    made = bench()
    made.retriever = Slow(ocean=0.2)
    response = await made.ask(include=["tool_calls"])
    (call,) = calls_of(response)
    assert call.duration_ms >= 190, "the whole of it, though it ran beside the plan"


# ---- why it ended ---------------------------------------------------------------------------------------------------


async def test_the_trace_says_why_it_ended() -> None:
    include: dict[str, Any] = {"include": ["trace"]}
    assert "enough with probability 0.90" in why(await bench().ask(**include))
    assert "one round is all" in why(await bench().ask(mode="pipeline", **include))
    assert "nothing is left to ask" in why(await bench(more(None)).ask(**include))
    known = bench(more("gravity of the Moon and the tides"))
    known.retriever.chunks = (MOON,)
    assert "nothing that was not there" in why(await known.ask(**include))
    assert "1 tool calls are all" in why(
        await bench(more("Mars moons Phobos")).ask("ocean", budget=Budget(3, 1, 30, 400, 1), **include)
    )
    weak = Grade(p_enough=0.05, p_more=0.9, p_clarify=0.05, p_about=0.05, features={}, follow_up=None)
    assert "about the question with probability 0.05" in why(await bench(weak).ask(**include))
    none = bench()
    none.retriever.chunks = ()
    assert "nothing was found" in why(await none.ask(**include))


# ---- tokens ---------------------------------------------------------------------------------------------------------


async def test_no_model_is_asked_once_the_tokens_are_used_up() -> None:
    """Each stage has its fallback, and says so; the answer is then quoted."""
    made = Bench(ENOUGH)
    response = await made.ask(budget=Budget(3, 6, 30, 400, 1, tokens=1), options={"expand": False})
    spent = response.usage.prompt_tokens + response.usage.completion_tokens
    assert response.status == "answered" and response.citations
    assert "reranker" in stages_of(response) and all("1 tokens" in d.reason for d in response.degraded)
    plenty = await Bench(ENOUGH).ask(options={"expand": False})
    assert spent < plenty.usage.prompt_tokens + plenty.usage.completion_tokens


async def test_the_generator_too_is_not_asked_without_tokens() -> None:
    made = Bench(ENOUGH)
    made.config = made.config.model_copy(update={"generator": GeneratorConfig(style="prose")})
    made.generator = WritingGenerator(made.llm, WordTokenizer(), made.config.generator)
    response = await made.ask(budget=Budget(3, 6, 30, 1, 1, tokens=2))
    assert stages_of(response)[-1] == "generator" and response.citations
    assert response.degraded[-1].fallback == "the top passage, quoted"


# ---- what the prompt has no room for --------------------------------------------------------------------------------


async def test_what_the_generator_leaves_out_is_told() -> None:
    config = GeneratorConfig(style="prose", evidence_tokens=90)
    long = tuple(
        replace(each, text=f"{each.text} {'Tides and oceans of the Earth. ' * 6}") for each in (MOON, SUN, MARS)
    )
    made = Bench(ENOUGH, chunks=long)
    made.llm = ScriptedLLM("The Moon causes the tides [E1].")
    made.config = made.config.model_copy(update={"generator": config})
    made.expander = Planner()
    made.generator = WritingGenerator(made.llm, WordTokenizer(), config)
    events: list[Event] = await made.events(include=["trace"])
    pruned = [event.pruned for event in events if isinstance(event, EvidenceEvent) and event.pruned]
    response = events[-1].response  # type: ignore[union-attr]
    steps = [step.summary for step in response.trace or () if step.stage == "prune"]
    assert pruned == [["E3"]], pruned
    assert any(step.startswith("E2 cut") for step in steps) and any(step.startswith("E3 left out") for step in steps)
