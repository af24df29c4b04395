"""The reranker's first job: order candidates by how likely the question becomes once the model has read each passage.

A small model is at chance when it is asked to judge in words; its probabilities do order passages (query likelihood).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay.config import RerankerConfig
from assay.errors import BadModelOutput
from assay.ports import LLM, Tokenizer
from assay.templates import Prompt
from assay.types import Hit, ItemScore, Ranked, Reranked, RerankRequest, ScoreItem, ScoreRequest

# What the question's likelihood is compared with: the same question after no passage at all.
NO_PASSAGE = "A question:"


def standardise(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Zero mean, unit deviation; NaN stays NaN and does not count; equal values become 0."""
    known = values[~np.isnan(values)]
    spread = known.std() if known.size else 0.0
    return (values - known.mean()) / spread if spread > 1e-12 else np.where(np.isnan(values), np.nan, 0.0)


def blend(first: Sequence[float], second: Sequence[float], weight: float) -> NDArray[np.float64]:
    """``weight`` of the standardised second list and the rest of the first; an unknown (NaN) second leaves the first alone."""
    a, b = standardise(np.asarray(first, float)), standardise(np.asarray(second, float))
    return np.where(np.isnan(b), a, (1 - weight) * a + weight * b)


def mean_gain(score: ItemScore, alone: ItemScore) -> float:
    """Nats per token by which a passage makes the question more likely; NaN where either could not be scored."""
    return score.mean - alone.mean if score.fault is None and alone.fault is None else math.nan


class LikelihoodReranker:
    """The ``rerank`` of ``ports.Reranker``. All passages of a request go to the engine as one batch."""

    def __init__(self, llm: LLM, tokenizer: Tokenizer, config: RerankerConfig) -> None:
        self._llm, self._tokenizer, self._config = llm, tokenizer, config
        self._passage = Prompt("passage", "passage")

    async def rerank(self, request: RerankRequest) -> Reranked:
        """Reorders the best ``candidates`` hits; the rest follow in fused order, unscored.

        A passage that cannot be scored keeps its fused score and is counted in ``faults``. When none can, that is a
        ``BadModelOutput``, and the caller falls back to the fused order by name.
        """
        head = request.hits[: self._config.candidates]
        tail = request.hits[self._config.candidates :]
        items = [ScoreItem(NO_PASSAGE, f" {request.question}"), *(self._item(hit, request.question) for hit in head)]
        scores = await self._llm.score(ScoreRequest(tuple(items), request_id=request.request_id))
        alone, passages = scores.items[0], scores.items[1:]
        faults = sum(score.fault is not None for score in passages)
        if head and faults == len(head):
            raise BadModelOutput(f"No passage could be scored: {passages[0].fault}")
        order = blend(
            [hit.score for hit in head],
            [s.mean if s.fault is None else math.nan for s in passages],
            self._config.weight,
        )
        ranked = [
            Ranked(hit, float(score), None if math.isnan(gain := mean_gain(item, alone)) else gain)
            for hit, score, item in zip(head, order, passages, strict=True)
        ]
        ranked.sort(key=lambda r: -r.score)
        floor = ranked[-1].score if ranked else 0.0
        ranked += [Ranked(hit, floor - 1.0 - rank, None) for rank, hit in enumerate(tail)]
        return Reranked(tuple(ranked[: request.keep]), scores.usage, faults)

    def _item(self, hit: Hit, question: str) -> ScoreItem:
        where = " > ".join(dict.fromkeys([hit.chunk.title, *hit.chunk.heading]))
        passage = self._tokenizer.truncate(f"{where}\n{hit.chunk.text}", self._config.passage_tokens)
        return ScoreItem(self._passage.fill(passage=passage), f" {question}")
