"""Rows to requests and outcomes."""

from typing import Any

import pytest

from assay import batch
from assay.errors import InvalidRequest, Overloaded
from assay.schemas import Answer, AskResponse

ROWS = [{batch.PLACE: n, "row": "own", "question": f"What is {n}?", "gold": n} for n in range(1, 6)]


def test_a_row_asks_for_what_its_columns_say() -> None:
    row = {"question": "Why?", "top_k": 3, "buckets": '["a"]', "filters": "", "gold": "because", "mode": "pipeline"}
    request = batch.request_of(row)
    assert (request.top_k, request.buckets, request.filters, request.mode) == (3, ["a"], None, "pipeline")


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"question": ""}, "question"),
        ({"gold": 1}, "question"),
        ({"question": "Why?", "top_k": "many"}, "top_k"),
        ({"question": "Why?", "top_k": 0}, "top_k"),
        ({"question": "Why?", "mode": "slow"}, "mode"),
        ({"question": "Why?", "filters": '{"field": "x"}'}, "filters.Predicate.op"),
    ],
)
def test_a_bad_row_names_its_column(row: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        batch.request_of(row)
    assert caught.value.field == field


def test_an_outcome_keeps_the_row_and_says_what_came_of_it() -> None:
    response = AskResponse(
        id="a",
        request_id="r",
        status="answered",
        terminated_by="answered",
        answer=Answer(text="It is.", sentences=[], style="extract"),
    )
    done = batch.answered(ROWS[0], response, 1.23456)
    assert (done["row"], done["question"], done["extra"]) == (1, "What is 1?", {"gold": 1, "row": "own"})
    assert (done["answer"], done["status"], done["error"], done["seconds"]) == ("It is.", "answered", None, 1.235)
    bad = batch.failed(ROWS[0], Overloaded("full"), 1)
    assert (bad["status"], bad["error"]["code"], bad["extra"]) == ("failed", "overloaded", {"gold": 1, "row": "own"})
    assert batch.can_retry("overloaded") and not batch.can_retry("invalid_request")
