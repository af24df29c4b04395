"""What ``bench.llm`` counts: plans by what the model wrote, not by what the expander makes of it, and what it costs to ask."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from assay.config import EngineConfig
from assay.plan import SIZES, plan_schema, wide
from assay.schemas import STEPS, Usage
from assay.tokens import EstimatedTokenizer
from assay.types import Completion, CompletionRequest
from bench.llm_plans import BUCKETS, VALID, fault_of, planned
from deployments.calibrate import scores_file
from deployments.engine import score
from tests.fakes import ScriptedLLM

pytestmark = pytest.mark.anyio

QUESTION = "Which supply agreements were signed in 2015, and with whom?"
VARIANTS = ["supply contracts of 2015", "agreements on supply, signed 2015"]
CONDITION = {"said": "in 2015", "field": "signed", "op": ">", "value": "2015-01-01"}
WIDE: dict[str, Any] = {
    "reason": "documents hold it",
    "search": True,
    "intent": "list",
    "searches": [{"bucket": "contracts", "filters": [CONDITION]}],
    "entities": [],
    "topics": [],
    "strategy": "hybrid",
    "questions": [],
    "variants": VARIANTS,
    "format": "table",
}


def of(bucket: str, **condition: Any) -> dict[str, Any]:
    return WIDE | {"searches": [{"bucket": bucket, "filters": [CONDITION | condition]}]}


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        (json.dumps(WIDE), VALID),
        (json.dumps(WIDE)[:-1], "not JSON"),
        (json.dumps(WIDE | {"search": float("nan")}), "not JSON"),
        (json.dumps(of("secrets")), "not of its schema"),
        (json.dumps(of("invoices")), "not of its schema"),
        (json.dumps(of("contracts", op="like")), "not of its schema"),
        (json.dumps({key: value for key, value in WIDE.items() if key != "format"}), "not of its schema"),
        (Completion(json.dumps(WIDE), "length", Usage()), "cut off"),
    ],
)
async def test_a_whole_plan_is_held_to_its_schema(text: str | Completion, counted: str) -> None:
    llm = ScriptedLLM(text)
    assert await planned(llm, EstimatedTokenizer(), [QUESTION], wide=True) == {counted: 1}
    (asked,) = llm.history
    assert isinstance(asked, CompletionRequest)
    assert asked.json_schema is not None
    sent = json.loads(asked.json_schema)
    assert sent in [plan_schema(set(STEPS) - {"rewrite"}, BUCKETS, 2, size) for size in SIZES]
    sent = sent["properties"]
    assert wide(STEPS) and {"searches", "questions"} <= set(sent)
    assert all("filters" in one["properties"] for one in sent["searches"]["items"]["anyOf"])


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        ({"variants": VARIANTS}, VALID),
        # The expander uses each of these, and reports no fault.
        ({"variants": VARIANTS[:1]}, "not of its schema"),
        ({"variants": [*VARIANTS, "purchases of goods"]}, "not of its schema"),
        ({"variants": [VARIANTS[0], "w" * 65]}, "not of its schema"),
        ({"variants": VARIANTS, "topics": ["supply"]}, "not of its schema"),
    ],
)
async def test_variants_are_held_to_their_schema_too(said: dict[str, Any], counted: str) -> None:
    assert await planned(ScriptedLLM(json.dumps(said)), EstimatedTokenizer(), [QUESTION], wide=False) == {counted: 1}


async def test_each_plan_counts_once() -> None:
    good = json.dumps({"variants": VARIANTS})
    llm = ScriptedLLM(good, "{", good, Completion(good[:9], "length", Usage()))
    assert await planned(llm, EstimatedTokenizer(), [QUESTION] * 4, wide=False) == Counter(
        {VALID: 2, "not JSON": 1, "cut off": 1}
    )


def test_what_was_asked_for_without_a_schema_is_not_valid() -> None:
    assert fault_of(None, Completion("{}", "stop", Usage()))


def test_scores_are_kept_apart_by_how_the_engine_is_asked(tmp_path: Path) -> None:
    way = hashlib.sha256(Path(score.__file__).read_bytes()).hexdigest()
    assert way[:8] in scores_file(tmp_path, EngineConfig(), "").parent.name
