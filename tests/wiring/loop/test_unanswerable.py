"""What the documents do not answer is said so, with all that was searched and where: in every mode and style."""

from typing import Any

import pytest

from assay.generate import WritingGenerator
from assay.generate.grammar import NOT_FOUND
from assay.schemas import AskResponse
from tests.fakes import WordTokenizer, chunk
from tests.wiring.loop.test_converse import Table, calls, find
from tests.wiring.loop.test_loop import ENOUGH, MARS, QUESTION, SUN, Bench, more

pytestmark = pytest.mark.anyio

ABSENT = "Who painted the ocean ceiling of the Sistine Chapel?"
UNFOUNDED = {
    "prose": "Michelangelo painted the ceiling [E1]. He was thirty-three [E1].",
    "list": "- Michelangelo painted the ceiling [E1]\n- He was thirty-three [E2]\n",
    "table": "| Painter | Age |\n| Michelangelo | thirty-three | [E1] |\n",
}


def said_plainly(response: AskResponse) -> None:
    assert (response.status, response.terminated_by) == ("no_evidence", "no_evidence")
    assert (response.citations, response.sources, response.conflicts) == ([], [], [])
    assert response.answer is not None and response.state is not None and response.state.searched
    answer = response.answer
    assert (answer.style, answer.sentences) == ("statement", [])
    for query in response.state.searched:
        assert f"'{query}'" in answer.text
    assert "do not answer" in answer.text and "3 passages in bucket docs" in answer.text


@pytest.mark.parametrize("mode", ["pipeline", "agentic", "auto"])
async def test_evidence_about_something_else_is_not_quoted(mode: str) -> None:
    said_plainly(await Bench().ask(ABSENT, mode=mode, buckets=["docs"], include=["state"]))


@pytest.mark.parametrize("mode", ["pipeline", "agentic", "auto"])
@pytest.mark.parametrize("style", ["prose", "list", "table"])
@pytest.mark.parametrize("says", ["not found", "unfounded"])
async def test_a_model_that_says_so_is_believed_and_one_that_invents_is_not(mode: str, style: str, says: str) -> None:
    bench = Bench(ENOUGH)
    bench.generator = WritingGenerator(bench.llm, WordTokenizer(), bench.config.generator)
    bench.llm.enqueue(NOT_FOUND if says == "not found" else UNFOUNDED[style])
    options = {"rerank": False}
    response = await bench.ask(QUESTION, mode=mode, style=style, buckets=["docs"], include=["state"], options=options)
    said_plainly(response)
    assert [d.stage for d in response.degraded] == ([] if says == "not found" else ["verify"])


async def test_follow_ups_are_among_what_was_searched() -> None:
    bench = Bench(more("moons of Mars"))
    bench.generator = WritingGenerator(bench.llm, WordTokenizer(), bench.config.generator)
    bench.llm.enqueue(NOT_FOUND)
    response = await bench.ask("ocean", style="prose", buckets=["docs"], include=["state"], options={"rerank": False})
    said_plainly(response)
    assert response.answer is not None and "'moons of Mars'" in response.answer.text


@pytest.mark.parametrize("style", ["prose", "list", "table"])
@pytest.mark.parametrize("more", ["", " [E1]", "\nThe respondent need not answer the claim [E1]."])
async def test_no_passage_bears_that_there_is_no_answer(style: str, more: str) -> None:
    court = chunk(1, "The witness did not give evidence, and the respondent need not answer the claim.", "Hearing")
    question, options = "What evidence did the witness give the respondent?", {"rerank": False}
    table = Table(calls(find("witness evidence")), NOT_FOUND + more, chunks=(court, MARS, SUN))
    said_plainly(await table.ask(question, buckets=["docs"], include=["state"], options=options))
    bench = Bench(ENOUGH, chunks=(court, MARS, SUN))
    bench.generator = WritingGenerator(bench.llm, WordTokenizer(), bench.config.generator, can=frozenset())
    bench.llm.enqueue(f"{NOT_FOUND}{more}\n")
    said_plainly(await bench.ask(question, style=style, buckets=["docs"], include=["state"], options=options))


@pytest.mark.parametrize("answer", [NOT_FOUND, UNFOUNDED["prose"]])
async def test_a_conversation_says_what_its_tools_searched(answer: str) -> None:
    table = Table(calls(find("Sistine ceiling ocean")), answer)
    response: Any = await table.ask(ABSENT, buckets=["docs"], include=["state"])
    said_plainly(response)
    assert "'Sistine ceiling ocean'" in response.answer.text
