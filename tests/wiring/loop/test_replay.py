"""What differs between two answers is said by what it is; ids, times and tokens are nothing."""

from typing import Any

import pytest

from assay.replay import differences
from assay.schemas import AskRequest, AskResponse, Usage
from tests.wiring.loop.test_loop import ENOUGH, MARS, MOON, QUESTION, SUN, Bench

pytestmark = pytest.mark.anyio
ALL: Any = ["trace", "evidence", "tool_calls", "state"]


async def answer(*chunks: Any, **fields: Any) -> AskResponse:
    return await Bench(ENOUGH, chunks=chunks or (MOON, MARS, SUN)).ask(QUESTION, include=ALL, **fields)


async def test_the_same_question_on_the_same_index_is_the_same_answer() -> None:
    then, now = await answer(), await answer()
    assert then.id != now.id and differences(then, now) == []
    assert differences(then, now.model_copy(update={"usage": Usage(llm_calls=9), "timings_ms": {}})) == []


async def test_what_differs_is_named_in_the_order_in_which_it_happened() -> None:
    then, now = await answer(), await answer(MARS, SUN)
    found = {difference.what: difference for difference in differences(then, now)}
    assert next(iter(found)) == "searches" and {"evidence", "citations", "answer"} <= set(found)
    assert any("Moon" in line for line in found["evidence"].then)
    assert not any("Moon" in line for line in found["evidence"].now)
    assert "mode" not in found and "plan" not in found


async def test_another_order_is_a_difference_too() -> None:
    then = await answer()
    assert then.evidence is not None and len(then.evidence) > 1
    now = then.model_copy(update={"evidence": then.evidence[::-1]})
    (difference,) = differences(then, now)
    assert (difference.what, difference.then, difference.now) == ("evidence", (), ())


async def test_the_state_says_what_was_decided_and_tried() -> None:
    response = await answer(budget=None)
    assert response.state is not None
    assert response.state.mode == "agentic" and response.state.plan.query == QUESTION
    assert response.state.searched[0] == QUESTION and response.state.bounds.rounds == 3
    assert AskResponse.model_validate_json(response.model_dump_json(by_alias=True)) == response
    assert (await Bench(ENOUGH).ask()).state is None


def test_an_owner_is_no_field_and_stays_with_the_request() -> None:
    request = AskRequest(question="When?").owned_by("a")
    assert request.owner == "a" and "owner" not in request.model_dump_json()
    assert request.model_copy(update={"buckets": ["x"]}).owner == "a" and AskRequest(question="When?").owner == ""
    with pytest.raises(ValueError, match="owner"):
        AskRequest.model_validate({"question": "When?", "owner": "a"})
