"""A model whose output cannot be used has cost enough: neither its stage nor the loop asks for the same again."""

import pytest

from assay.config import RerankerConfig
from assay.expand import LLMExpander
from assay.generate import WritingGenerator
from assay.schemas import Usage
from assay.types import Completion
from tests.fakes import ScriptedLLM, WordTokenizer
from tests.wiring.loop.test_loop import ENOUGH, MOON, PLAN, Bench, Judge

pytestmark = pytest.mark.anyio
SENTENCE = "The Moon's gravity causes the ocean tides on Earth every day [E1]."
STAGES = {"expander": PLAN, "reranker": '{"grades": [9]}', "generator": f"{SENTENCE} It orbits the Earth [E1]."}
MALFORMED = {"expander": "no json", "reranker": '{"grades": "all"}', "generator": " "}


def cut(text: str, at: int) -> Completion:
    return Completion(text[:at], "length", Usage(llm_calls=1, completion_tokens=at))


BAD = [
    *((stage, cut(good, 12), "cut off") for stage, good in STAGES.items()),
    ("generator", cut(STAGES["generator"], len(SENTENCE) + 9), "cut off after a sentence"),
    *((stage, Completion(said, "stop", Usage(llm_calls=1)), "malformed") for stage, said in MALFORMED.items()),
]


@pytest.mark.parametrize(("stage", "bad"), [b[:2] for b in BAD], ids=[f"{stage}, {what}" for stage, _, what in BAD])
async def test_a_model_is_not_asked_again_for_what_it_said_badly(stage: str, bad: Completion) -> None:
    """Behind what is bad there is what would do, many times: whoever asks again gets it, and is counted."""
    models = {name: ScriptedLLM(*[bad] * (name == stage), *[good] * 9) for name, good in STAGES.items()}
    bench = Bench(ENOUGH, chunks=(MOON,))
    bench.expander = LLMExpander(models["expander"], bench.config.expander)
    bench.judge = Judge(models["reranker"], ENOUGH, config=RerankerConfig(method="listwise", weight=1))
    bench.generator = WritingGenerator(models["generator"], WordTokenizer(), bench.config.generator)
    response = await bench.ask(style="prose")
    assert {name: len(model.history) for name, model in models.items()} == dict.fromkeys(STAGES, 1)
    assert [d.stage for d in response.degraded] == [stage], "it is said, and what there is stands in"
    assert response.answer is not None and "tides" in response.answer.text and response.citations
