"""Planner and writer over an OpenAI-compatible server, as each preset bounds it: by schema, by grammar, or by a promise."""

import json
from typing import Any

import pytest

from assay.config import ExpanderConfig, GeneratorConfig
from assay.errors import BadModelOutput
from assay.expand import LLMExpander
from assay.generate import WritingGenerator
from assay.llm.endpoint import PRESETS
from assay.schemas import STEPS
from assay.types import Evidence, GenerateRequest, Hit, PlanRequest
from tests.fakes import ScriptedLLM, WordTokenizer, chunk
from tests.openai_server import OpenAIServer
from tests.unit.test_plan import BOTH, FILTERS, QUESTION, said
from tests.wiring.test_endpoint import endpoint

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

PLAN = said(searches=[{"bucket": "contracts", "filters": FILTERS}])
REQUEST = PlanRequest(QUESTION, buckets=BOTH)
EVIDENCE = (Evidence("E1", Hit(chunk(1, "The Moon causes the tides. 潮は月で起きる。"), 1.0), 1.0, 1),)
CONFIG = ExpanderConfig(steps=STEPS)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for preset in PRESETS.values():
        if preset.key_env:
            monkeypatch.setenv(preset.key_env, "sk-test")


@pytest.mark.parametrize("preset", PRESETS)
async def test_a_plan_comes_whole(preset: str) -> None:
    async with endpoint(PLAN, preset=preset) as (llm, server, _):
        plan = await LLMExpander(llm, CONFIG).plan(REQUEST)
        assert plan.fault is None and plan.buckets == ("contracts",) and plan.filters is not None
        assert plan.usage.llm_calls == 1
        ((_, _, body),) = server.requests
        assert "contracts" in json.dumps(body), "the schema goes with it, in the field or in the prompt"


@pytest.mark.parametrize("preset", ["generic", "deepseek"])
async def test_a_plan_that_the_endpoint_lets_out_of_its_schema_is_refused(preset: str) -> None:
    bad = json.loads(PLAN) | {"searches": [{"bucket": "secrets", "filters": []}]}
    async with endpoint(json.dumps(bad), preset=preset) as (llm, _, _):
        with pytest.raises(BadModelOutput, match="schema"):
            await LLMExpander(llm, CONFIG).plan(REQUEST)


async def test_a_plan_that_is_cut_off_is_not_asked_for_again() -> None:
    async with endpoint("word " * 5_000) as (llm, server, _):
        plan = await LLMExpander(llm, CONFIG).plan(REQUEST)
        assert plan.fault is not None and "cut off" in plan.fault and len(server.requests) == 1


SAID = "The Moon causes the tides [E1]. 潮は月で起きる [E1]。"


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(
    ("config", "bound"),
    [
        ({"preset": "vllm"}, "regex"),
        ({"preset": "vllm", "capabilities": ["json_schema", "regex", "grammar"]}, "grammar"),
        ({"preset": "generic"}, None),
        ({"preset": "qwen"}, None),
    ],
)
async def test_prose_is_bound_by_what_the_endpoint_can(config: dict[str, Any], bound: str | None, halves: bool) -> None:
    server = OpenAIServer(ScriptedLLM(SAID), halves=halves)
    async with endpoint(server=server, **config) as (llm, running, _):
        writer = WritingGenerator(llm, WordTokenizer(), GeneratorConfig(), can=llm._config.can)
        request = GenerateRequest("What causes the tides?", EVIDENCE, "prose", 100)
        drafts = [event.draft async for event in writer.generate(request) if event.draft]
        assert [(d.text, d.slots) for d in drafts] == [
            ("The Moon causes the tides.", ("E1",)),
            ("潮は月で起きる。", ("E1",)),
        ]
        ((_, _, body),) = running.requests
        assert set(body.get("structured_outputs") or {}) == ({bound} if bound else set())
