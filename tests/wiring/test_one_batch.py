"""All candidates of all waiting requests are in the engine at once: from the reranker's handle down to vLLM's own client."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import SimpleNamespace as Of
from typing import Any
from zlib import crc32

from ray import serve

from assay.config import EngineConfig, RerankerConfig
from assay.templates import Prompts
from assay.types import Hit, RerankRequest
from deployments.engine.replica import Engine
from deployments.engine.score import Scorer
from deployments.remote import Reordered, Reply
from deployments.reranker import Reranker
from tests.fakes import chunk

TEXTS = ("Stars burn hydrogen.", "The Moon causes ocean tides.", "Fish swim in the ocean.")
HITS = tuple(Hit(chunk(n, text), 1 - n / 10) for n, text in enumerate(TEXTS))
QUESTIONS = ("What causes the ocean tides?", "Which stars burn helium?")
PROMPTS_OF_ONE = 1 + len(TEXTS)  # the question alone, and after each passage


class _Client:
    """vLLM's client: its engine answers no prompt before ``together`` of them are there. A token is a word."""

    def __init__(self, together: int) -> None:
        self._all_there = asyncio.Barrier(together)

    def get_tokenizer(self) -> Any:
        return self

    def encode(self, text: str) -> list[int]:
        return [crc32(word.encode()) for word in text.split()]

    async def generate(self, prompt: Mapping[str, Sequence[int]], params: Any, request_id: str) -> AsyncGenerator[Any]:
        await self._all_there.wait()
        tokens = prompt["prompt_token_ids"]
        logprobs = [None, *({token: Of(logprob=-1.0)} for token in tokens[1:])]
        generated = [Of(token_ids=[0], logprobs=None)]
        yield Of(prompt_token_ids=tokens, prompt_logprobs=logprobs, num_cached_tokens=0, outputs=generated)


class _ScoringEngine(Engine):
    """The replica, but for the engine behind its client."""

    async def __init__(self, together: int) -> None:  # type: ignore[misc]  # Serve awaits it
        self._name, self._config = "small", EngineConfig()
        self._scorer = Scorer(_Client(together), max_model_len=512)

    async def check_health(self) -> None: ...


def test_the_candidates_of_two_requests_are_in_the_engine_at_once() -> None:
    """One that waited for another, of its own request or of the other one, would wait for ever."""
    engine: Any = serve.deployment(_ScoringEngine, name="engine-small")
    config = RerankerConfig(method="likelihood")
    app = Reranker.bind(config, engine.bind(PROMPTS_OF_ONE * len(QUESTIONS)), "", Prompts(), EngineConfig())  # type: ignore[attr-defined]
    handle: Any = serve.run(app, name="one-batch", _local_testing_mode=True)
    waiting = [handle.rerank.remote(RerankRequest(question, HITS, len(HITS))) for question in QUESTIONS]
    for response in waiting:
        done: Reply[Reordered] = response.result(timeout_s=30)
        assert len(done.value.ranked) == len(HITS) and done.value.faults == 0
        assert done.value.usage.llm_calls == PROMPTS_OF_ONE
