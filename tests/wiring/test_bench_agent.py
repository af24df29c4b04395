"""What ``bench.agent`` counts, and that its fake models are taken for real ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.config import ExpanderConfig
from assay.expand import LLMExpander
from assay.index.bert import is_plain_bert
from assay.index.embed import SentenceEmbedder
from assay.schemas import AskResponse
from assay.types import PlanRequest
from bench.agent_quality import Progress
from bench.agent_serving import Asked, of_deadline
from bench.fake_models import FakeEngine, tiny_embedder


def response(searches: list[list[str]], evidence_of: list[int], rounds: int) -> AskResponse:
    calls = [
        {"tool": "search_hybrid", "arguments": {"queries": q}, "hits": 9, "duration_ms": 1.0, "outcome": "ok"}
        for q in searches
    ]
    place: dict[str, Any] = {"chunk_id": 1, "doc_id": "d", "title": "t", "score": 1.0, "sources": []}
    evidence = [{**place, "slot": f"E{n}", "round": number} for n, number in enumerate(evidence_of)]
    end: dict[str, Any] = {"status": "answered", "terminated_by": "answered", "answer": None}
    return AskResponse.model_validate(
        {"id": "a", "request_id": "r", **end, "rounds": rounds, "tool_calls": calls, "evidence": evidence}
    )


def test_repeats_and_empty_rounds_are_counted() -> None:
    progress = Progress()
    progress.add(response([["Who led Rome?", "Rome's leader"], ["the city of Rome"]], [1, 2], 2))
    assert [row.value for row in progress.rows("recall")] == [0, 0]
    progress.add(response([["Who led Rome?"], ["rome LED who"]], [1, 1], 2))
    assert [(row.value, row.holds) for row in progress.rows("recall")] == [(1, False), (1, False)]


def test_a_deadline_is_kept_by_whole_answers_that_say_what_they_are() -> None:
    def body(**fields: Any) -> dict[str, Any]:
        return {
            "answer": {"text": "x"},
            "terminated_by": "answered",
            "status": "answered",
            "citations": [],
            "degraded": [],
            **fields,
        }

    partial = body(terminated_by="deadline", status="partial")
    unmarked = body(terminated_by="deadline")
    planner = {"stage": "expander", "reason": "timeout after 1.2 s", "fallback": "the original query alone"}
    whole = body(degraded=[{**planner, "stage": "answers"}, {**planner, "reason": "3 passages could not be scored"}])
    answers = [Asked(4.0, 200, whole), Asked(5.2, 200, partial), Asked(5.6, 200, unmarked), Asked(1.0, 503, {})]
    rows: dict[str, Any] = {
        row.name.split(" | ")[-1]: (row.value, row.holds) for row in of_deadline("deadline", answers)
    }
    assert rows["answered, of 4"] == (3, False)
    assert rows["slowest, deadline 5 s"] == (5.6, False)
    assert (rows["cut short by it"][0], rows["cut short, and not marked"]) == (2, (1, False))
    reranker = {**planner, "stage": "reranker", "fallback": "fused order, top 3"}
    given_up = [
        Asked(4.0, 200, body(status=status, degraded=[planner, reranker]))
        for status in ("clarify", "partial", "answered")
    ]
    given_up.append(Asked(4.0, 200, body(degraded=[planner])))  # whole, but for what a plan would have added
    *_, unmarked_row, _ = of_deadline("deadline", given_up)
    assert (unmarked_row.name.split(" | ")[-1], unmarked_row.value) == ("cut short, and not marked", 1)


@pytest.mark.anyio
async def test_fake_models_are_taken_for_real_ones(tmp_path: Path) -> None:
    engine: Any = FakeEngine(0.0)
    expander = LLMExpander(engine, ExpanderConfig(skip_simple=False))
    plan = await expander.plan(PlanRequest("Which river flows past the town where the painter Ada Lund was born?"))
    assert plan.fault is None and plan.variants
    folder = tiny_embedder(tmp_path / "tiny")
    assert is_plain_bert(Path(folder))
    a, b, c = SentenceEmbedder(folder).embed_now(["a red boat", "the red boat", "twelve clouds over there"])
    assert np.linalg.norm(a) == pytest.approx(1, abs=1e-5) and a @ b > a @ c
