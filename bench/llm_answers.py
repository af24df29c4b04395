"""Whether extracted sentences hold the answer."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from assay import calibration
from assay.config import AppConfig, GeneratorConfig, IndexConfig, RetrieverConfig
from assay.eval.collection import Collection
from assay.eval.formats import Document
from assay.eval.ranking import BUCKET, Bench
from assay.generate import ExtractGenerator
from assay.rerank import LLMReranker
from assay.retrieve import LocalRetriever
from assay.templates import Prompts
from assay.text import normalise
from assay.types import (
    Draft,
    Evidence,
    GenerateEvent,
    GenerateRequest,
    RerankRequest,
    SearchQuery,
)
from bench.llm_parts import Parts, hit
from bench.report import Row, at_least

MOST_SENTENCES = 2
SHOWN, FETCHED = 5, 8  # passages that the generator sees, of those that are reranked


@dataclass(frozen=True, slots=True)
class Asked:
    """A SQuAD 2 question that its paragraph answers, with every wording of the answer."""

    id: str
    question: str
    paragraph: str
    answers: tuple[str, ...]


def answerable(data: Path) -> tuple[list[Asked], list[str]]:
    """The questions, and the paragraphs of all 250."""
    folder = data / "unanswerable" / "squad2_250"
    queries = json.loads((folder / "queries.json").read_text())["queries"]
    truth = json.loads((folder / "ground_truth.json").read_text())
    asked = [
        Asked(q["id"], q["question"], q["context"], tuple(truth[q["id"]]["answers"]))
        for q in queries
        if not truth[q["id"]]["is_impossible"]
    ]
    return asked, list(dict.fromkeys(q["context"] for q in queries))


def paragraphs(parts: Parts) -> tuple[list[Asked], Bench]:
    """The questions, and an index of all paragraphs."""
    asked, texts = answerable(parts.data)
    place = {text: str(number) for number, text in enumerate(texts)}
    documents = tuple(Document(name, "", text) for text, name in place.items())
    judged = {q.id: {place[q.paragraph]: 1} for q in asked}
    bench = Bench(Collection(documents, {q.id: q.question for q in asked}, judged), parts.cache, parts.encoder)
    bench.index()
    return asked, bench


async def extract(parts: Parts) -> list[Row]:
    asked, bench = paragraphs(parts)
    asked = asked[:30] if parts.quick else asked
    config = GeneratorConfig(sentences=MOST_SENTENCES)
    generator = ExtractGenerator(parts.known, parts.encoder, parts.tokenizer, config)
    retriever = LocalRetriever(IndexConfig(uri=str(bench.folder)), RetrieverConfig(timeout_s=600), parts.encoder)
    shipped = calibration.apply(AppConfig(), parts.model, Prompts()).reranker.model_copy(update={"candidates": FETCHED})
    reranker = LLMReranker(parts.known, parts.tokenizer, shipped)
    own = found = there = 0
    for q in asked:
        own += await _holds(generator, q, [Evidence("E1", hit(1, "", q.paragraph), 1.0, 1)])
        result = await retriever.search(SearchQuery((q.question,), (BUCKET,), top_k=FETCHED))
        ranked = (await reranker.rerank(RerankRequest(q.question, result.hits, SHOWN))).ranked
        evidence = [Evidence(f"E{n}", r.hit, r.score, 1, r.gain) for n, r in enumerate(ranked, 1)]
        there += any(_has(q, e.hit.chunk.text) for e in evidence)
        found += await _holds(generator, q, evidence)
    count, holds = len(asked), f"the answer stands in at most {MOST_SENTENCES} sentences"
    return [
        at_least(
            f"own paragraph: {holds}",
            own / count,
            "share",
            0.95,
        ),
        at_least(
            f"whole index: {holds}",
            found / count,
            "share",
            0.80,
        ),
        Row(f"  whole index: the answer stands in the {SHOWN} passages shown", there / count, f"share of {count}"),
    ]


async def _holds(generator: ExtractGenerator, q: Asked, evidence: Sequence[Evidence]) -> bool:
    drafts = await _drafts(generator.generate(GenerateRequest(q.question, tuple(evidence), "extract", 400)))
    return _has(q, " ".join(draft.text for draft in drafts))


async def _drafts(stream: AsyncGenerator[GenerateEvent]) -> list[Draft]:
    async with aclosing(stream) as events:
        return [event.draft async for event in events if event.draft is not None]


def _has(q: Asked, text: str) -> bool:
    read = " ".join(normalise(text).split())
    return any(" ".join(normalise(answer).split()) in read for answer in q.answers)
