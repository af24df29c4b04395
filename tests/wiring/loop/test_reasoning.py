"""What a model thinks is told by events of its own, before what it then says, and is no part of the answer."""

from typing import Any

import pytest

from assay.events import AnswerEvent, CompletedEvent, Event, ReasoningEvent
from assay.generate import WritingGenerator
from assay.schemas import AskRequest, Usage
from assay.types import Completion
from tests.fakes import ScriptedLLM, WordTokenizer
from tests.wiring.loop.test_converse import SAID, Table, calls, find
from tests.wiring.loop.test_loop import ENOUGH, QUESTION, Bench

pytestmark = pytest.mark.anyio
FIRST, THEN = "Hm, let me look for it.", "Aha, it must be gravity!"


def answers(thought: str) -> Completion:
    return Completion(SAID, "stop", Usage(llm_calls=1), thought)


def writes() -> Bench:
    """Its generator's model thinks before it writes."""
    bench = Bench(ENOUGH)
    bench.generator = WritingGenerator(ScriptedLLM(answers(THEN)), WordTokenizer(), bench.config.generator)
    return bench


def converses() -> Bench:
    """Its model thinks before it calls a tool, and again before it answers."""
    return Table(calls(find("moons of Mars"), thinking=FIRST), answers(THEN))


@pytest.mark.parametrize(
    ("bench", "asked", "thoughts"),
    [
        (writes, {"mode": "agentic", "style": "prose"}, [THEN]),
        (converses, {"mode": "tools"}, [FIRST, THEN]),
    ],
    ids=["a written style", "mode tools"],
)
async def test_reasoning_comes_before_the_answer_and_not_in_it(bench: Any, asked: Any, thoughts: list[str]) -> None:
    include = ["trace", "tool_calls", "evidence", "state"]
    request = AskRequest.model_validate({"question": QUESTION, "include": include, **asked})
    events: list[Event] = [event async for event in bench().stream(request)]
    told = [at for at, event in enumerate(events) if isinstance(event, ReasoningEvent)]
    said = [at for at, event in enumerate(events) if isinstance(event, AnswerEvent)]
    assert "".join(e.delta for e in events if isinstance(e, ReasoningEvent)) == "".join(thoughts)
    assert said and max(told) < min(said)
    last = events[-1]
    assert isinstance(last, CompletedEvent) and last.response.answer is not None
    assert "gravity causes the ocean tides" in last.response.answer.text and not last.response.degraded
    others = "".join(e.model_dump_json() for e in events if not isinstance(e, ReasoningEvent))
    assert not [thought for thought in thoughts if thought in others], "neither in the answer nor anywhere beside it"
