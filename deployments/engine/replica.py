"""A replica of an engine: the server of ``ray.serve.llm`` behind the methods of ``assay.ports.LLM``, and its health."""

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from assay.config import EngineConfig
from assay.llm.http import gathered
from assay.llm.reasoning import OPEN
from assay.llm.wire import DeltaReader
from assay.types import (
    Completion,
    CompletionRequest,
    Delta,
    Message,
    ScoreItem,
    ScoreRequest,
    Scores,
)
from deployments.engine.chat import chat_request, event_of, faults
from deployments.engine.door import open_door
from deployments.engine.fork import ForkServer
from deployments.engine.score import Scorer
from deployments.engine.server import start_server
from deployments.remote import Reply, reply

log = logging.getLogger("ray.serve")

HEALTH_PERIOD_S = 5.0
UNHEALTHY_AFTER = 3  # checks in a row, as Serve counts them

# One of each form that a request can be constrained by: the first call of a form compiles tables for the whole vocabulary.
_WARM_UP: tuple[dict[str, Any], ...] = (
    {
        "json_schema": '{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],"additionalProperties":false}'
    },
    {"regex": "(yes|no)"},
    {"choice": ("yes", "no")},
)
_WARM_UP_GRAMMAR: dict[str, Any] = {"grammar": '%llguidance {}\nstart: "yes" | "no"'}


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's own counts, as its scheduler last reported them, and the process that it runs in."""

    running: int
    waiting: int
    pid: int


class Engine:
    """A replica: an ``LLMServer`` of ``ray.serve.llm``, spoken to through ``assay.ports.LLM``."""

    async def __init__(self, name: str, config: EngineConfig, model: str) -> None:  # type: ignore[misc]  # Serve awaits it
        self._name, self._config = name, config
        start = time.monotonic()
        with ForkServer(config) as fork:
            self._server = await start_server(name, config, model, fork)
        self._chat = self._server.engine
        self._client: Any = self._chat._engine_client
        self._monitor = Monitor()
        self._hung = 0  # health checks in a row without their token
        self._client.logger_manager.stat_loggers.append(self._monitor)
        self._scorer = Scorer(self._client, config.max_model_len)
        self._opened = _opens_thinking(self._client.get_tokenizer())
        started = time.monotonic()
        await self._warm_up()
        if config.openai_port is not None:
            self._door = await open_door(self._chat, config.openai_port)
        log.info("engine %s: started in %.1f s, warmed up in %.1f s", name, started - start, time.monotonic() - started)

    # ---- assay.ports.LLM --------------------------------------------------------------------------------------------

    async def complete(self, request: CompletionRequest) -> Reply[Completion]:
        return await reply(self._complete(request), "complete")

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        """Closing it aborts the generation inside the engine."""
        thinking = self._config.strategy == "thinking"
        reader = DeltaReader(request, self._opened if thinking else False)
        chunks = self._chat.chat(chat_request(self._name, request, thinking=thinking))
        try:
            with faults():
                async for chunk in chunks:
                    if (event := event_of(chunk)) is not None:
                        for delta in reader.feed(event):
                            yield delta
        finally:
            await chunks.aclose()
        for delta in reader.end():
            yield delta

    async def score(self, request: ScoreRequest) -> Reply[Scores]:
        with faults():
            return await reply(self._scorer.score(request), "score")

    # ---- operations -------------------------------------------------------------------------------------------------

    async def ready(self) -> Reply[str]:
        return await reply(asyncio.sleep(0, "ready"))

    async def stats(self) -> EngineStats:
        process = self._client.engine_core.resources.engine_manager.processes[0]
        return EngineStats(self._monitor.running, self._monitor.waiting, process.pid)

    async def check_health(self) -> None:
        """A hung engine still answers, so ask it for a token; steps since the last check are proof enough.

        Serve replaces the replica after three failures in a row. A hung engine's process would outlive it, with its memory,
        and hold up its end with calls that never return: it is killed with the third.
        """
        if time.monotonic() - self._monitor.last_step < HEALTH_PERIOD_S:
            self._hung = 0
            return
        try:
            async with asyncio.timeout(self._config.health_timeout_s):
                await self._scorer.one_token()
        except TimeoutError:
            self._hung += 1
            log.error(
                "engine %s: no token within %s s (%s in a row)", self._name, self._config.health_timeout_s, self._hung
            )
            if self._hung >= UNHEALTHY_AFTER:
                os.kill((await self.stats()).pid, signal.SIGKILL)
            raise
        self._hung = 0

    async def __del__(self) -> None:
        if client := getattr(self, "_client", None):
            client.shutdown()

    # ---- inside -----------------------------------------------------------------------------------------------------

    async def _complete(self, request: CompletionRequest) -> Completion:
        async with aclosing(self.stream(request)) as deltas:
            completion = gathered([delta async for delta in deltas])
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError  # vLLM ends a cancelled call in a way of its own
        return completion

    async def _warm_up(self) -> None:
        ask = (Message("user", "yes or no?"),)
        forms = _WARM_UP if self._config.grammars == "xgrammar" else (*_WARM_UP, _WARM_UP_GRAMMAR)
        requests = [CompletionRequest(ask, max_tokens=8, **form) for form in forms]
        await asyncio.gather(
            *map(self._complete, requests), self._scorer.score(ScoreRequest((ScoreItem("a", " b c"),)))
        )


def _opens_thinking(tokenizer: Any) -> bool | None:
    """Whether the chat template ends the prompt with the opening tag; None where it cannot be asked."""
    try:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": "?"}], tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
    except Exception:  # noqa: BLE001 - a template may raise anything; what it would have said is then not known
        return None
    return str(prompt).rstrip().endswith(OPEN) or None


class Monitor:
    """A stat logger of vLLM: what the scheduler reports after each of its steps."""

    def __init__(self) -> None:
        self.running = self.waiting = 0
        self.last_step = -math.inf

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self.running, self.waiting = scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs
            self.last_step = time.monotonic()

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None: ...

    def record_sleep_state(self, is_awake: int, level: int) -> None: ...
