"""The style ``extract``: the evidence's own best sentences, verbatim, which makes a small model useful."""

import math
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.config import GeneratorConfig
from assay.errors import AssayError, BadModelOutput
from assay.inert import commands, headings, stated
from assay.ports import LLM, Embedder, Tokenizer
from assay.rerank import standardise
from assay.schemas import Degraded, Usage
from assay.templates import Prompts
from assay.text import terms
from assay.types import (
    Draft,
    Evidence,
    GenerateEvent,
    GenerateRequest,
    ScoreItem,
    ScoreRequest,
)
from assay.verify import coverage

# A quote is for reading: shorter ones say nothing, longer ones are not read. A longer sentence is quoted by its clauses.
MIN_TERMS, MAX_CHARS = 4, 500
_CLAUSE_ENDS = tuple(map(re.compile, (r"[;；]\s*", r"[:,，、،]\s+|[，、]", r"\s+")))
# How far below the best sentence, in summed deviations, a second and a third one may be to stand beside it.
MARGINS = (2.0, 0.6)
# What the share of the question's words counts beside likelihood and similarity.
WORDS_WEIGHT = 0.5
# Code and table rows have every word of a question without saying anything about it.
LISTING_COST = 0.5
_LISTINGS = ("```", "~~~", "|", "<")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sentence of a passage; ``span`` is its place in the passage's text."""

    slot: str
    span: tuple[int, int]
    text: str
    context: str

    @property
    def listing(self) -> bool:
        return self.text.startswith(_LISTINGS)

    @property
    def read(self) -> str:
        """As the models see it: under its heading, which often holds what the sentence is about."""
        return f"{self.context}: {self.text}" if self.context else self.text


def candidates(evidence: Sequence[Evidence]) -> list[Candidate]:
    """Every quotable sentence of the evidence, each text once, in the evidence's order."""
    found: dict[str, Candidate] = {}
    for e in evidence:
        chunk = e.hit.chunk
        context = next((above for above in reversed(chunk.heading or (chunk.title,)) if headings(above)), "")
        for start, end in stated(chunk.text):
            for span in _clauses(chunk.text, start, end):
                text = chunk.text[slice(*span)]
                if len(terms(text)) >= MIN_TERMS and not commands(text):
                    found.setdefault(" ".join(text.split()), Candidate(e.slot, span, text, context))
    return list(found.values())


def _clauses(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The sentence; of one that is too long to be quoted the clauses, as many together as can be, and of a listing nothing."""
    if end - start > MAX_CHARS and text.startswith(_LISTINGS, start):
        return
    while end - start > MAX_CHARS:
        ends = (list(each.finditer(text, start + MAX_CHARS // 4, start + MAX_CHARS)) for each in _CLAUSE_ENDS)
        cut = next((found[-1].end() for found in ends if found), start + MAX_CHARS)
        yield start, start + len(text[start:cut].rstrip())
        start = cut
    yield start, end


class ExtractGenerator:
    """Gives the one to ``sentences`` sentences of the evidence that score best by the question's likelihood after them, by
    similarity, and by the share of its words in them; the words of a listing say nothing.

    Weight and margin are the best of a few for two sentences on 214 questions of XQuAD, where they hold the answer in 94 %; on
    the 126 answerable ones of SQuAD 2, which had no say, in 95 % (``bench.llm``).
    """

    def __init__(
        self, llm: LLM, embedder: Embedder, tokenizer: Tokenizer, config: GeneratorConfig, prompts: Prompts = Prompts()
    ) -> None:
        self._llm, self._embedder, self._tokenizer, self._config = llm, embedder, tokenizer, config
        self._passage = prompts["passage"]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        """With likelihood or similarity missing it goes on with the other, and says so; raises when neither can be had."""
        pool = candidates(request.evidence)
        if not pool:
            raise BadModelOutput("The evidence holds no sentence that can be quoted.")
        fault: AssayError | None = None
        try:
            cosine = await self._cosine(request.question, pool)
        except AssayError as error:
            fault, cosine = error, None
            yield fell_back(str(error), "question likelihood alone")
        # Without similarity the question's own words are the shortlist.
        words = np.array([0.0 if c.listing else coverage(request.question, c.read) for c in pool])
        first = standardise(cosine if cosine is not None else words) - LISTING_COST * np.array(
            [c.listing for c in pool]
        )
        short = np.argsort(-first, kind="stable")[: self._config.candidates]
        pool, total = [pool[i] for i in short], first[short] + WORDS_WEIGHT * standardise(words[short])
        usage = Usage()
        try:
            likelihood, usage = await self._likelihood(request, pool)
        except AssayError as error:
            if fault is not None:
                raise
            yield fell_back(str(error), "similarity alone")
        else:
            if unknown := int(np.isnan(likelihood).sum()):
                yield fell_back(f"{unknown} of {len(pool)} sentences could not be scored", "similarity alone for them")
            total = total + np.nan_to_num(standardise(likelihood))
        for draft in self._choose(pool, total, request.answer_tokens):
            yield GenerateEvent(draft=draft)
        yield GenerateEvent(usage=usage)

    async def _cosine(self, question: str, pool: Sequence[Candidate]) -> NDArray[np.float64]:
        vectors = await self._embedder.embed([question, *(c.read for c in pool)])
        return np.asarray(vectors[1:] @ vectors[0], dtype=np.float64)

    async def _likelihood(
        self, request: GenerateRequest, pool: Sequence[Candidate]
    ) -> tuple[NDArray[np.float64], Usage]:
        """Log-probability per token of the question after each sentence; NaN for one that could not be scored."""
        items = tuple(ScoreItem(self._passage.fill(passage=c.read), f" {request.question}") for c in pool)
        scores = await self._llm.score(ScoreRequest(items, request.request_id, request.cache_salt))
        if all(s.fault is not None for s in scores.items):
            raise BadModelOutput(f"No sentence could be scored: {scores.items[0].fault}")
        return np.array([s.mean if s.fault is None else math.nan for s in scores.items]), scores.usage

    def _choose(self, pool: Sequence[Candidate], total: NDArray[np.float64], tokens: int) -> list[Draft]:
        order = np.argsort(-total, kind="stable")[: self._config.sentences]
        chosen: list[Draft] = []
        for rank, i in enumerate(order):
            margin = MARGINS[min(rank, len(MARGINS)) - 1] if rank else 0.0
            tokens -= self._tokenizer.count(pool[i].text)
            if chosen and (total[i] < total[order[0]] - margin or tokens < 0):
                break
            chosen.append(Draft(pool[i].text, (pool[i].slot,), pool[i].span))
        return chosen


def fell_back(reason: str, fallback: str) -> GenerateEvent:
    return GenerateEvent(degraded=Degraded(stage="generator", reason=reason, fallback=fallback))
