"""What the LLM stages cost: against the bare engine, in prompts that the prefix cache serves, and in seconds a rerank."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from assay import calibration, loop
from assay.config import (
    AppConfig,
    EngineConfig,
    ExpanderConfig,
    GeneratorConfig,
    GradeConfig,
    IndexConfig,
    LoopConfig,
    RerankerConfig,
    RerankMethod,
    RetrieverConfig,
    ToolsConfig,
)
from assay.converse import Agent
from assay.eval.ranking import BUCKET
from assay.events import CompletedEvent
from assay.expand import LLMExpander
from assay.generate import ExtractGenerator, StyledGenerator, WritingGenerator
from assay.ports import LLM
from assay.relevance import MEASURING
from assay.rerank import LLMReranker
from assay.retrieve import LocalRetriever
from assay.run import Stages
from assay.schemas import AskRequest, AskResponse, Usage
from assay.simple import simple
from assay.templates import Prompts
from assay.tools import Registry
from assay.types import Completion, CompletionRequest, Message, RerankRequest
from bench.llm_answers import paragraphs
from bench.llm_parts import CONTEXT, ENGINE, Parts, hit
from bench.llm_valid import mixed
from bench.report import Row, at_least, at_most
from deployments.engine.fork import threads

PROMPTS, TOKENS = 48, 64
PASSAGES, PASSAGE_TOKENS, AT_ONCE = 20, 120, 8
QUESTIONS, ROUNDS = 5, 3

# In a process of its own: the engine that the stages use would otherwise share the cores.
_BARE = """
import json, sys, time
from vllm import LLM, SamplingParams
given = json.load(sys.stdin)
llm = LLM(given["model"], dtype="float32", max_model_len=given["max_model_len"], max_num_seqs=32, enforce_eager=True,
          kv_cache_memory_bytes=2**30, block_size=32, max_num_batched_tokens=512, disable_log_stats=True)
params = SamplingParams(max_tokens=given["tokens"], temperature=0)
llm.chat(given["chats"][:2], params, use_tqdm=False)
start = time.perf_counter()
done = llm.chat(given["chats"], params, use_tqdm=False)
spent = time.perf_counter() - start
print("RESULT", sum(len(d.outputs[0].token_ids) for d in done) / spent)
"""


async def throughput(parts: Parts) -> list[Row]:
    """Generated tokens a second, all prompts at once: through Serve and the port, and by vLLM alone, one after the other, with
    the engine's settings and the OpenMP environment (threads, and how they wait) that the graph gives its engine's process."""
    asked = [question for question, _ in mixed(parts.data, 12 if parts.quick else PROMPTS)]
    system = "Answer the question in a few sentences."
    llm = await parts.engine()
    requests = [
        CompletionRequest((Message("system", system), Message("user", q)), TOKENS, request_id=f"speed-{n}")
        for n, q in enumerate(asked)
    ]
    await asyncio.gather(*(llm.complete(replace(r, request_id=f"{r.request_id}-warm")) for r in requests[:2]))
    start = time.perf_counter()
    done = await asyncio.gather(*map(llm.complete, requests))
    ours = sum(c.usage.completion_tokens for c in done) / (time.perf_counter() - start)
    await parts.close()
    chats = [[{"role": "system", "content": system}, {"role": "user", "content": q}] for q in asked]
    given = json.dumps({"model": parts.model, "max_model_len": ENGINE.max_model_len, "tokens": TOKENS, "chats": chats})
    bare = await asyncio.to_thread(_bare, given)
    return [
        Row("engine through the stages' port", ours, "tokens/s"),
        Row("bare vLLM, the same prompts", bare, "tokens/s"),
        at_least("throughput against the bare engine", ours / bare, "share", 0.9),
    ]


def _bare(given: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _BARE],
        input=given,
        capture_output=True,
        text=True,
        timeout=400,
        env=os.environ | threads(),
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        raise RuntimeError(f"the bare engine failed: {done.stderr[-2000:]}")
    return float(found[0].split()[1])


async def prefix(parts: Parts) -> list[Row]:
    """Questions that took three rounds: in the loop, where they are never enough, with and without an answer that is written,
    and without passages that are scored, each in a prompt of its own; and in mode `tools`, where each round asks the model."""
    asked, bench = paragraphs(parts)
    llm = await parts.engine()
    ways: dict[str, dict[str, Any]] = {
        "extract": {"mode": "agentic", "style": "extract"},
        "prose": {"mode": "agentic", "style": "prose"},
        "prose, not reranked": {"mode": "agentic", "style": "prose", "options": {"rerank": False}},
        "mode tools": {"mode": "tools"},
    }
    rows, of_mode = [], dict[str, list[str]]()
    for how, ask in ways.items():
        used = dict[str, Usage]()
        for question in of_mode.get(ask["mode"], [q.question for q in asked]):
            response = await _answered(parts, llm, question, str(bench.folder), how, ask)
            # In mode `tools` its turns, of which the last one searches nothing.
            turns = sum(step.stage == "agent" for step in response.trace or ())
            if (turns or response.rounds) == ROUNDS:
                used[question] = response.usage
            if len(used) == QUESTIONS:
                break
        of_mode[ask["mode"]] = list(used)
        prompt = sum(usage.prompt_tokens for usage in used.values())
        share = sum(usage.cached_tokens for usage in used.values()) / max(1, prompt)
        count = f"{prompt / max(1, len(used)):.0f} a question, {len(used)} questions"
        rows.append(
            at_least(f"prompt tokens from the prefix cache, three rounds, {how} ({count})", share, "share", 0.6)
        )
    return rows


class _Calls:
    """The engine, made to call a tool in each turn that may: a model of this size calls none by itself."""

    def __init__(self, llm: LLM) -> None:
        self.stream, self.score, self._llm = llm.stream, llm.score, llm

    async def complete(self, request: CompletionRequest) -> Completion:
        calls = request.tools and request.tool_choice == "auto"
        return await self._llm.complete(replace(request, tool_choice="required") if calls else request)


async def _answered(parts: Parts, llm: LLM, question: str, index: str, how: str, ask: Mapping[str, Any]) -> AskResponse:
    """``how`` owns the question, so that its prompts are served nothing that was asked in another way."""
    never = GradeConfig(intercept=-9.0, weights={}, means={}, min_answer=0.0)
    shipped = calibration.apply(AppConfig(), parts.model, Prompts()).reranker
    config = AppConfig(
        index=IndexConfig(uri=index),
        reranker=shipped.model_copy(update={"grade": never, "timeout_s": 120.0}),
        loop=LoopConfig(rounds=ROUNDS, deadline_s=300),
        expander=ExpanderConfig(timeout_s=60),
        generator=GeneratorConfig(timeout_s=120),
        tools=ToolsConfig(rounds=ROUNDS, enabled=("search_text", "search_semantic")),
    )
    stages = Stages(
        LLMExpander(llm, config.planning, tokenizer=parts.tokenizer, context_tokens=CONTEXT),
        LocalRetriever(config.index, RetrieverConfig(timeout_s=600), parts.encoder),
        LLMReranker(llm, parts.tokenizer, config.reranker),
        StyledGenerator(
            ExtractGenerator(llm, parts.encoder, parts.tokenizer, config.generator),
            WritingGenerator(llm, parts.tokenizer, config.generator, can=EngineConfig().can, context_tokens=CONTEXT),
        ),
        agent=Agent(_Calls(llm), parts.tokenizer, Registry.of(config.tools), context_tokens=8192),
    )
    request = AskRequest.model_validate({"question": question, "buckets": [BUCKET], "include": ["trace"], **ask})
    async with aclosing(loop.answer(request.owned_by(how), stages, config, f"prefix-{how}-{hash(question)}")) as events:
        async for event in events:
            if isinstance(event, CompletedEvent):
                return event.response
    raise RuntimeError("the question ended without an answer")


async def latency(parts: Parts) -> list[Row]:
    """Whole reranks of passages that are all cut to the same length; the prefix cache has seen none of them."""
    llm, rows = await parts.engine(), list[Row]()
    for kind in MEASURING:
        config = RerankerConfig(method=kind, candidates=PASSAGES, passage_tokens=PASSAGE_TOKENS)
        rows += await _latency(parts, LLMReranker(llm, parts.tokenizer, config), kind)
    return rows


async def _latency(parts: Parts, reranker: LLMReranker, kind: RerankMethod) -> list[Row]:
    pairs = mixed(parts.data, 5 * (AT_ONCE + 1) * PASSAGES)[::5]
    questions, texts = [q for q, _ in pairs if kind != "title" or simple(q)], [text for _, text in pairs]

    def request(number: int) -> RerankRequest:
        own = [f"{number}. {texts[(number * PASSAGES + i) % len(texts)]} {texts[i]}" for i in range(PASSAGES)]
        titles = [" ".join(text.split()[1:5]) if kind == "title" else "" for text in own]
        hits = tuple(hit(i, title, text) for i, (title, text) in enumerate(zip(titles, own, strict=True)))
        return RerankRequest(questions[number], hits, PASSAGES, f"{kind}{number}")

    start = time.perf_counter()
    one = await reranker.rerank(request(0))
    alone = time.perf_counter() - start
    start = time.perf_counter()
    await asyncio.gather(*(reranker.rerank(request(n)) for n in range(1, AT_ONCE + 1)))
    together = time.perf_counter() - start
    named = f"rerank by {kind} of {PASSAGES} passages of {PASSAGE_TOKENS} tokens"
    return [
        at_most(f"{named}, one question", alone, "s", 6),
        at_most(f"{named}, {AT_ONCE} questions at once", together, "s", 45),
        Row(f"{named}: prompt tokens", one.usage.prompt_tokens, "tokens"),
    ]
