"""A passage without any text among eight, by every method of reranking: the others have the values that they have alone."""

import math
import re
from dataclasses import replace
from zlib import crc32

import pytest

from assay.config import RerankerConfig, RerankMethod
from assay.relevance import Passage, method
from assay.rerank import LLMReranker
from assay.schemas import Usage
from assay.templates import Prompts
from assay.types import Completion, CompletionRequest, Hit, ItemScore, RerankRequest, ScoreItem, ScoreRequest, Scores
from tests.fakes import ScriptedLLM, WordTokenizer, chunk

pytestmark = pytest.mark.anyio
QUESTION = "What causes the ocean tides?"
EMPTY = 1  # its place: among those that a grade asks for, and between others
METHODS: tuple[RerankMethod, ...] = ("title", "likelihood", "pointwise", "score", "listwise")
PROMPTS = Prompts()
OF_NOTHING = {
    PROMPTS["passage"].fill(passage=""),
    *(PROMPTS[name].fill(question=QUESTION, passage="") for name in ("pointwise", "grade")),
}


class Own(ScriptedLLM):
    """Every text has a value of its own, so that one that stands at another's place is seen. ``strict``: it cannot score what
    is asked of an empty passage."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self._strict = strict

    async def score(self, request: ScoreRequest) -> Scores:
        return Scores(tuple(map(self._value, request.items)), Usage(llm_calls=1))

    def _value(self, item: ScoreItem) -> ItemScore:
        if self._strict and item.context in OF_NOTHING:
            return ItemScore(math.nan, 0, "empty")
        value = -1 - crc32(f"{item.context}|{item.continuation}".encode()) % 997 / 100
        return ItemScore(value, 1, each=(value,))

    async def complete(self, request: CompletionRequest) -> Completion:
        """A grade for each passage, of its text."""
        texts = re.findall(r"\[\d\]\n(.*?)(?=\n\n\[|$)", request.messages[-1].content, re.DOTALL)
        grades = [crc32(text.encode()) % 10 for text in texts]
        return Completion(f'{{"grades": {grades}}}', "stop", Usage(llm_calls=1))


@pytest.mark.parametrize("strict", [False, True], ids=["scored", "a fault"])
@pytest.mark.parametrize("name", METHODS)
async def test_the_values_of_the_others_are_their_own(name: RerankMethod, strict: bool) -> None:
    judge = method(name, Own(strict), PROMPTS)
    others = [Passage(f"Fact {n} of the tides.", f"Moon {n}") for n in range(7)]
    eight = [*others[:EMPTY], Passage(""), *others[EMPTY:]]
    found = await judge.score(QUESTION, eight, "")
    alone = await judge.score(QUESTION, others, "")
    values = list(found.values)
    assert math.isnan(values.pop(EMPTY)) is (strict and name != "listwise")
    assert values == list(alone.values) and len(set(values)) > 3


@pytest.mark.parametrize("name", METHODS)
async def test_no_hit_is_lost_and_the_others_keep_their_order(name: RerankMethod) -> None:
    config = RerankerConfig(method=name, weight=1)
    others = [Hit(chunk(n, f"Fact {n} of the tides.", f"Moon {n}"), 1 - n / 10) for n in range(7)]
    empty = Hit(replace(chunk(9, ""), title="", heading=()), 0.95)
    ranked = []
    for hits in ((*others[:EMPTY], empty, *others[EMPTY:]), tuple(others)):
        reranker = LLMReranker(Own(strict=True), WordTokenizer(), config)
        done = await reranker.rerank(RerankRequest(QUESTION, hits, len(hits)))
        assert done.faults == (empty in hits and name != "listwise")
        assert len(done.ranked) == len(hits) and all(math.isfinite(r.score) for r in done.ranked)
        ranked.append([r.hit.chunk.id for r in done.ranked if r.hit is not empty])
    assert ranked[0] == ranked[1]
