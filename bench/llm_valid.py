"""Whether all that is written is valid: the citations of answers, their quotes, and the JSON of plans."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from assay import loop
from assay.config import AppConfig, EngineConfig, GeneratorConfig, IndexConfig, RetrieverConfig
from assay.eval.collection import Collection
from assay.eval.formats import Document
from assay.eval.ranking import Bench
from assay.events import CompletedEvent
from assay.expand import LLMExpander
from assay.generate import ExtractGenerator, StyledGenerator, WritingGenerator
from assay.ports import Generator
from assay.rerank import LLMReranker
from assay.retrieve import LocalRetriever
from assay.run import Stages
from assay.schemas import AskBudget, AskOptions, AskRequest, AskResponse, Citation, Predicate, Style
from assay.types import DocumentQuery, GenerateEvent, GenerateRequest
from bench.llm_parts import CONTEXT, Parts
from bench.llm_plans import VALID, WIDE_TOKENS, planned
from bench.report import Row, at_least

STYLES: tuple[Style, ...] = ("prose", "list", "table", "extract")
TOKENS = 160
AT_ONCE = 16
_PATIENCE_S = 3600.0  # what is given up for the machine's sake would be no answer of the model's


def mixed(data: Path, count: int) -> list[tuple[str, str]]:
    """Questions and passages in turn: English, Chinese, Arabic, with emoji, about code."""
    sets = [_xquad(data, language) for language in ("en", "zh", "ar")]
    emoji = [(f"{question} 🙂👩‍👩‍👧", f"🧪 {text} 🇨🇭") for question, text in sets[0][40:]]
    pages = sorted((data / "markdown" / "kserve_docs").rglob("*.md"))
    code = [
        (f"What does `{page.stem}` need in its YAML?", text[text.index("```") :][:1500])
        for page in pages
        if "```" in (text := page.read_text())
    ]
    turns = itertools.chain.from_iterable(zip(*sets, emoji, code, strict=False))
    return list(itertools.islice(turns, count))


def _xquad(data: Path, language: str) -> list[tuple[str, str]]:
    articles = json.loads((data / "ranking" / "xquad" / f"xquad.{language}.json").read_text())["data"]
    return [(p["qas"][0]["question"], p["context"]) for article in articles for p in article["paragraphs"]]


class Counted:
    """``ports.Generator`` that counts what is drafted, before what is not borne out is taken away."""

    def __init__(self, generator: Generator, said: Counter[str]) -> None:
        self._generator, self._said = generator, said

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        slots = {e.slot for e in request.evidence}
        async with aclosing(self._generator.generate(request)) as events:
            async for event in events:
                if (draft := event.draft) is not None and draft.form != "header":
                    self._said["drafts"] += 1
                    self._said["cited"] += bool(draft.slots) and set(draft.slots) <= slots
                yield event


async def valid(parts: Parts) -> list[Row]:
    """Half of the prompts ask for cited answers in the four styles, by the loop and of one document each, half for plans,
    of which half are all that a plan can be."""
    prompts = mixed(parts.data, 40 if parts.quick else 300)
    asked, questions = prompts[::2], [question for question, _ in prompts[1::2]]
    answers = await _answers(parts, asked)
    return [
        at_least(
            f"{answers['drafts']} sentences drafted for them: cited, and nothing but what was shown",
            answers["cited"] / max(1, answers["drafts"]),
            "share",
            1.0,
        ),
        at_least(  # one that says that nothing was found cites nothing
            f"answers to {len(asked)} mixed prompts: every sentence has a citation that holds",
            answers["valid"] / len(asked),
            "share",
            1.0,
        ),
        at_least(
            f"{answers['citations']} citations of these: the quote stands at their place",
            answers["quotes"] / max(1, answers["citations"]),
            "share",
            1.0,
        ),
        Row(f"  answers cut off after {TOKENS} tokens: what was complete is shown", answers["cut off"], "answers"),
        Row("  answers that say that nothing was found", answers["nothing"], "answers"),
        *await _plans(parts, "variants of the question", questions[::2], wide=False),
        *await _plans(
            parts, f"all steps, over two buckets with fields, in {WIDE_TOKENS} tokens", questions[1::2], wide=True
        ),
    ]


async def _plans(parts: Parts, what: str, questions: list[str], *, wide: bool) -> list[Row]:
    plans = await planned(await parts.engine(), parts.tokenizer, questions, wide=wide)
    named = f"plans for {len(questions)} mixed prompts, {what}"
    return [
        at_least(f"{named}: whole JSON of its schema", plans[VALID] / len(questions), "share", 1.0),
        *(Row(f"  {named}: {fault}", count, "plans") for fault, count in plans.items() if fault != VALID),
    ]


async def _answers(parts: Parts, asked: list[tuple[str, str]]) -> Counter[str]:
    documents = tuple(Document(str(number), "", text) for number, (_, text) in enumerate(asked))
    index = Bench(Collection(documents, {}, {}), parts.cache, parts.encoder)
    index.index()
    config = AppConfig()
    late = {"timeout_s": 600.0}
    # All is answered: whether the documents hold what is asked is another measurement's (``bench.agent``).
    grade = config.reranker.grade.model_copy(update={"min_answer": 0.0})
    config = config.model_copy(
        update={
            "loop": config.loop.model_copy(update={"deadline_s": _PATIENCE_S}),
            "reranker": config.reranker.model_copy(update={**late, "grade": grade}),
            "generator": config.generator.model_copy(update=late),
        }
    )
    retriever = LocalRetriever(IndexConfig(uri=str(index.folder)), RetrieverConfig(timeout_s=600), parts.encoder)
    llm, gate, said = await parts.engine(), asyncio.Semaphore(AT_ONCE), Counter[str]()
    shown = GeneratorConfig(evidence_tokens=500)
    writing = WritingGenerator(llm, parts.tokenizer, shown, can=EngineConfig().can, context_tokens=CONTEXT)
    writer = Counted(StyledGenerator(ExtractGenerator(llm, parts.encoder, parts.tokenizer, shown), writing), said)
    stages = Stages(
        LLMExpander(llm, config.expander, tokenizer=parts.tokenizer, context_tokens=CONTEXT),
        retriever,
        LLMReranker(llm, parts.tokenizer, config.reranker),
        writer,
    )

    async def one(number: int, question: str) -> None:
        request = AskRequest(
            question=question,
            mode="pipeline",
            style=STYLES[number % len(STYLES)],
            filters=Predicate(field="uri", op="=", value=str(number)),
            budget=AskBudget(answer_tokens=TOKENS),
            options=AskOptions(expand=False, rerank=False, clarify=False),
        )
        async with gate:
            async for event in loop.answer(request, stages, config, f"valid-{number}"):
                if isinstance(event, CompletedEvent):
                    quotes = [await _stands(citation, retriever, str(number)) for citation in event.response.citations]
                    said["citations"] += len(quotes)
                    said["quotes"] += sum(quotes)
                    said["valid"] += all(quotes) and _is_cited(event.response)
                    reasons = [d.reason for d in event.response.degraded if d.stage == "generator"]
                    said["cut off"] += any("cut off" in reason for reason in reasons)
                    said["nothing"] += event.response.status == "no_evidence"

    await asyncio.gather(*(one(number, question) for number, (question, _) in enumerate(asked)))
    return said


async def _stands(citation: Citation, retriever: LocalRetriever, uri: str) -> bool:
    """Whether it is of this document, whose text at the span is the quote."""
    found = await retriever.document_lookup(DocumentQuery(citation.doc_id, span=citation.span, max_chars=100_000))
    return citation.uri == uri and bool(citation.quote) and citation.quote == found.text


def _is_cited(response: AskResponse) -> bool:
    """Whether it answers, and all that it says is cited by numbers that it has; or says that nothing was found."""
    if response.status == "no_evidence":
        return not response.citations
    numbers, answer = {citation.number for citation in response.citations}, response.answer
    said = answer.sentences if answer and response.status == "answered" else []
    return bool(said) and all(s.citations and set(s.citations) <= numbers for s in said)
