"""The reranker's first job: order candidates by what the model makes of them, blended with the order they came in."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay import inert
from assay.config import RerankerConfig
from assay.context import focus
from assay.errors import BadModelOutput
from assay.grade import FeatureGrader
from assay.llm.wire import AS_JSON
from assay.ports import LLM, Tokenizer
from assay.relevance import (
    GRADED,
    MEASURING,
    TEMPLATES,
    Passage,
    Relevance,
    listwise_schema,
    listwise_tokens,
    method,
    yes,
)
from assay.schemas import Usage
from assay.templates import Prompts
from assay.tokens import room
from assay.types import Grade, GradeRequest, Hit, Message, Ranked, Reranked, RerankRequest, Support, SupportRequest

# What stands around a passage; and less of one than this says nothing.
MARK_TOKENS, LEAST_TOKENS = 8, 16


def standardise(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Zero mean, unit deviation; NaN stays NaN and does not count; equal values become 0."""
    known = values[~np.isnan(values)]
    spread = known.std() if known.size else 0.0
    return (values - known.mean()) / spread if spread > 1e-12 else np.where(np.isnan(values), np.nan, 0.0)


def blend(first: Sequence[float], second: Sequence[float], weight: float) -> NDArray[np.float64]:
    """``weight`` of the standardised second list (turned round where it is negative) and the rest of the first; an unknown
    (NaN) second leaves the first alone."""
    a, b = standardise(np.asarray(first, float)), standardise(np.asarray(second, float))
    return np.where(np.isnan(b), a, (1 - abs(weight)) * a + weight * b)


def passage(question: str, hit: Hit, tokens: int, tokenizer: Tokenizer) -> Passage:
    """What the model is given of a hit: under its heading, and of a longer text the part that is nearest to the question. Made
    harmless before it is counted: a mark of one token is then many."""
    headings = " > ".join(dict.fromkeys(filter(None, (hit.chunk.title, *hit.chunk.heading))))
    where = tokenizer.truncate(inert.passage(headings), tokens // 2)
    text = focus(inert.passage(hit.chunk.text), question, tokens - tokenizer.count(where), tokenizer)
    title = tokenizer.truncate(inert.passage(hit.chunk.title), tokens // 2)
    return Passage(f"{where}\n{text}" if where else text, title)


class LLMReranker:
    """``ports.Reranker``: it orders by the method of the config, and grades by measured features."""

    def __init__(
        self,
        llm: LLM,
        tokenizer: Tokenizer,
        config: RerankerConfig,
        prompts: Prompts = Prompts(),
        *,
        context_tokens: int | None = None,
        shows_schema: bool = False,
    ) -> None:
        """``context_tokens``: of one prompt, where the engine's limit is known; ``passage_tokens`` are cut to it.
        ``shows_schema``: the engine is told in its prompt what form an answer must have."""
        self._tokenizer, self._config = tokenizer, config
        self._context_tokens, self._shows_schema = context_tokens, shows_schema
        # Where the model has no say in the order, nothing is asked but what a grade needs.
        self._silent = config.weight == 0 and config.threshold is None
        self._method = method(
            "likelihood" if self._silent and config.method in MEASURING else config.method, llm, prompts
        )
        self._ungraded = method(config.method, llm, prompts, graded=0)
        self._grader = FeatureGrader(config.grade)
        self._llm, self._support = llm, prompts["support"]
        self._around = prompts[TEMPLATES[config.method]].text

    async def grade(self, request: GradeRequest) -> Grade:
        return await self._grader.grade(request)

    async def support(self, request: SupportRequest) -> Support:
        """Whether each quote says what its claim says, by P(yes) against P(no): for models that judge in words. One that does
        not fit the model's context is unknown."""
        contexts = [
            self._support.fill(quote=f"{claim.heading}\n{claim.quote}".strip(), claim=claim.text)
            for claim in request.claims
        ]
        found = await yes(self._llm, contexts, request.request_id, request.cache_salt)
        return Support(found.values, found.usage)

    async def rerank(self, request: RerankRequest) -> Reranked:
        """Reorders the best ``candidates`` hits; the rest follow in fused order, unscored.

        A passage that cannot be scored keeps its fused score and is counted in ``faults``. When none can, that is a
        ``BadModelOutput``, and the caller falls back to the fused order by name. With a ``threshold``, passages known to be
        below it are dropped, and so is the unscored rest, of which nobody knows. With a ``weight`` of 0 and no threshold
        nothing is reordered, and only what a grade needs is scored: the first ``GRADED``, or none where no grade follows.
        """
        scored = min(self._config.candidates, GRADED) if self._silent else self._config.candidates
        head, tail = request.hits[:scored], request.hits[scored:]
        found = await self._relevance(request, head)
        order = blend([hit.score for hit in head], found.values, self._config.weight)
        bound = self._config.threshold
        ranked = [
            Ranked(hit, float(score), gain)
            for place, (hit, score, value, gain) in enumerate(zip(head, order, found.values, found.gains, strict=True))
            if bound is None or place in found.unasked or not value < bound  # one that is unknown stays
        ]
        ranked.sort(key=lambda r: -r.score)
        if bound is None:
            floor = ranked[-1].score if ranked else 0.0
            ranked += [Ranked(hit, floor - 1.0 - rank, None) for rank, hit in enumerate(tail)]
        return Reranked(tuple(ranked[: request.keep]), found.usage, sum(map(math.isnan, found.values)))

    def _size(self, question: str, passages: int) -> int:
        """The tokens of each passage: as configured, or what the model's context leaves for it beside the question, for all of
        them where they stand in one prompt. Raises ``BadModelOutput`` where that is too little to judge by."""
        together, output, around = 1, 1, self._around
        if self._config.method == "listwise":
            together, output = passages, listwise_tokens(passages)
            around += AS_JSON + listwise_schema(passages) if self._shows_schema else ""
        asked = Message("user", inert.inert(question))
        left = room(self._tokenizer, self._context_tokens, output, (asked,), around)
        size = min(self._config.passage_tokens, left // max(1, together) - MARK_TOKENS)
        if size < LEAST_TOKENS and passages:
            limit = f"the {self._context_tokens} tokens of the model (max_model_len)"
            raise BadModelOutput(f"The question and {together} passages do not fit {limit}.")
        return size

    async def _relevance(self, request: RerankRequest, hits: Sequence[Hit]) -> Relevance:
        if self._silent and not request.gains:
            return Relevance((0.0,) * len(hits), (None,) * len(hits), Usage())
        judge = self._method if request.gains else self._ungraded
        size = self._size(request.question, len(hits))
        passages = [passage(request.question, hit, size, self._tokenizer) for hit in hits]
        return await judge.score(request.question, passages, request.request_id, request.cache_salt)
