"""Quotes that a grammar holds to their passage, in an engine whose constraints are llguidance's (``grammars: guidance``)."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from assay.config import AppConfig, GeneratorConfig
from assay.errors import BadModelOutput
from assay.generate import WritingGenerator
from assay.ports import LLM
from assay.schemas import WrittenStyle
from assay.types import Completion, CompletionRequest, Delta, Evidence, GenerateRequest, ScoreRequest, Scores
from bench.llm_parts import CONTEXT, ENGINE, Parts, hit
from bench.llm_valid import AT_ONCE, mixed
from bench.report import Row, at_least
from deployments.engine.alone import AloneEngine

STYLES: tuple[WrittenStyle, ...] = ("prose", "list")
TOKENS = 320  # a small model fills words, quote and rest to their bounds before its sentence ends
_UNQUOTED = re.compile(r'(^start: )"[^"]*" \| |(?<=^unit: )(?:"- " )?WORDS cites [^|]*\| ', re.MULTILINE)
_QUOTE = re.compile('"([^"]*)"')


class Quoting:
    """``ports.LLM`` whose answers quote in every sentence: a small model seldom does by itself."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    async def complete(self, request: CompletionRequest) -> Completion:
        return await self._llm.complete(request)

    async def score(self, request: ScoreRequest) -> Scores:
        return await self._llm.score(request)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        assert request.grammar is not None
        quoting, changed = _UNQUOTED.subn(r"\1", request.grammar)
        assert changed == 2, "what a grammar admits without a quote is named otherwise now"
        async with aclosing(self._llm.stream(replace(request, grammar=quoting))) as deltas:
            async for delta in deltas:
                yield delta


async def quotes(parts: Parts) -> list[Row]:
    """Two passages each: a quote must be from the one whose slot follows it."""
    await parts.close()  # the engine of the other parts
    prompts = mixed(parts.data, 20 if parts.quick else 100)
    engine = ENGINE.model_copy(update={"grammars": "guidance"})
    alone = AloneEngine(AppConfig(engines={"small": engine}), "small")
    said, gate = Counter[str](), asyncio.Semaphore(AT_ONCE)
    try:
        llm = await alone.start()
        generators = {
            quoting: WritingGenerator(
                Quoting(llm) if quoting else llm,
                parts.tokenizer,
                GeneratorConfig(evidence_tokens=700),
                can=engine.can,
                context_tokens=CONTEXT,
            )
            for quoting in (True, False)
        }

        async def one(number: int) -> None:
            question, text = prompts[number]
            evidence = tuple(
                Evidence(slot, hit(at, "", passage), 1.0, 1)
                for at, (slot, passage) in enumerate(zip(("E1", "E2"), (text, prompts[number - 1][1]), strict=True))
            )
            request = GenerateRequest(question, evidence, STYLES[number // 2 % 2], TOKENS)
            async with gate:
                await _count(generators[number % 2 == 0], request, said)

        await asyncio.gather(*map(one, range(len(prompts))))
    finally:
        await alone.close()
    return [
        at_least(
            f"{said['quotes']} quotes in {said['drafts']} sentences: each word for word from the passage whose slot follows",
            said["held"] / max(1, said["quotes"]),
            "share",
            1.0,
        ),
        at_least(
            "the same sentences: cited, and nothing but what was shown",
            said["cited"] / max(1, said["drafts"]),
            "share",
            1.0,
        ),
        Row(f"  answers without a complete sentence within {TOKENS} tokens", said["none"], f"of {len(prompts)}"),
    ]


async def _count(generator: WritingGenerator, request: GenerateRequest, said: Counter[str]) -> None:
    texts = {e.slot: " ".join(e.hit.chunk.text.split()) for e in request.evidence}
    drafts = 0
    try:
        async with aclosing(generator.generate(request)) as events:
            async for event in events:
                if (draft := event.draft) is None:
                    continue
                drafts += 1
                said["cited"] += bool(draft.slots) and set(draft.slots) <= set(texts)
                for quote in _QUOTE.findall(draft.text):
                    said["quotes"] += 1
                    said["held"] += any(quote in texts[slot] for slot in draft.slots[:1])
    except BadModelOutput:  # within its first sentence the tokens were over
        pass
    said["drafts"] += drafts
    said["none"] += not drafts
