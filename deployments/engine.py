"""vLLM engines through ``ray.serve.llm``: one deployment per engine of the config, each of them an ``assay.ports.LLM``.

``ray.serve.llm`` brings vLLM, 9 to 14 s of imports, and is imported inside the replica only: the process that builds the
app would otherwise import it first, and every start would wait for it twice. The engine's own process imports vLLM too,
at the same time as the replica does (``_ForkServer``).
"""

import asyncio
import json
import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application

from assay.config import EngineConfig
from assay.errors import BadModelOutput, Overloaded, StageUnavailable
from assay.schemas import Usage
from assay.types import (
    Completion,
    CompletionRequest,
    Delta,
    FinishReason,
    ItemScore,
    Message,
    ScoreItem,
    ScoreRequest,
    Scores,
)
from deployments.remote import Reply, reply

log = logging.getLogger("ray.serve")

HEALTH_PERIOD_S = 5.0

# Imported by the fork server: what the engine's process would import itself, after the replica had finished its own.
_PRELOAD = ["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "vllm.v1.executor.uniproc_executor", "xgrammar"]

# One of each form that a request can be constrained by: the first call of a form compiles tables for the whole vocabulary.
_WARM_UP: tuple[dict[str, Any], ...] = (
    {
        "json_schema": '{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],"additionalProperties":false}'
    },
    {"regex": "(yes|no)"},
    {"choice": ("yes", "no")},
)


def build_engine(name: str, config: EngineConfig, model_path: str) -> Application:
    """The Serve deployment of one engine. ``model_path`` is a local folder or a Hugging Face id."""
    return serve.deployment(Engine, name=f"engine-{name}", **_options(config)).bind(name, config, model_path)


def _options(config: EngineConfig) -> dict[str, Any]:
    """Serve options; the bundles are those that ``ray.serve.llm`` would compute, without importing it to do so."""
    if config.min_replicas == config.max_replicas:
        replicas: dict[str, Any] = {"num_replicas": config.max_replicas}
    else:
        autoscaling = {
            "min_replicas": config.min_replicas,
            "max_replicas": config.max_replicas,
            "target_ongoing_requests": config.target_ongoing_requests,
        }
        replicas = {"autoscaling_config": autoscaling}
    worker: dict[str, float] = {"GPU": 1} if config.device == "gpu" else {}
    if config.accelerator_type:
        worker[f"accelerator_type:{config.accelerator_type}"] = 0.001
    bundles = [{"CPU": 1.0, **worker}, *([worker or {"CPU": 1.0}] * (config.tensor_parallel - 1))]
    return {
        **replicas,
        "max_ongoing_requests": config.max_ongoing_requests,
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": config.health_timeout_s + 5,
        "graceful_shutdown_timeout_s": 10,
        "ray_actor_options": {"num_cpus": 1},
        "placement_group_bundles": bundles,
        "placement_group_strategy": "PACK",
    }


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
        with _ForkServer(config) as fork:
            self._server = await _start_server(name, config, model, fork)
        self._chat = self._server.engine
        self._client: Any = self._chat._engine_client
        self._monitor = _Monitor()
        self._client.logger_manager.stat_loggers.append(self._monitor)
        self._scorer = _Scorer(self._client, config.max_model_len)
        started = time.monotonic()
        await self._warm_up()
        log.info("engine %s: started in %.1f s, warmed up in %.1f s", name, started - start, time.monotonic() - started)

    # ---- assay.ports.LLM --------------------------------------------------------------------------------------------

    async def complete(self, request: CompletionRequest) -> Reply[Completion]:
        return await reply(self._complete(request))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        """Closing it aborts the generation inside the engine."""
        chunks = self._chat.chat(_chat_request(self._name, request, stream=True))
        reason: FinishReason | None = None
        try:
            with _faults():
                async for chunk in chunks:
                    for delta in _deltas(chunk):
                        reason = delta.finish_reason or reason
                        if delta.usage is not None:
                            yield Delta(finish_reason=reason, usage=delta.usage)
                        elif delta.text or delta.reasoning:
                            yield Delta(delta.text, delta.reasoning)
        finally:
            await chunks.aclose()

    async def score(self, request: ScoreRequest) -> Reply[Scores]:
        with _faults():
            return await reply(self._scorer.score(request))

    # ---- operations -------------------------------------------------------------------------------------------------

    async def ready(self) -> Reply[str]:
        return await reply(asyncio.sleep(0, "ready"))

    async def stats(self) -> EngineStats:
        process = self._client.engine_core.resources.engine_manager.processes[0]
        return EngineStats(self._monitor.running, self._monitor.waiting, process.pid)

    async def check_health(self) -> None:
        """A hung engine still answers, so ask it for a token; steps since the last check are proof enough.

        Serve replaces the replica after three failures in a row.
        """
        if time.monotonic() - self._monitor.last_step < HEALTH_PERIOD_S:
            return
        async with asyncio.timeout(self._config.health_timeout_s):
            await self._scorer.one_token()

    async def __del__(self) -> None:
        if client := getattr(self, "_client", None):
            client.shutdown()

    # ---- inside -----------------------------------------------------------------------------------------------------

    async def _complete(self, request: CompletionRequest) -> Completion:
        with _faults():
            (response,) = [r async for r in self._chat.chat(_chat_request(self._name, request, stream=False))]
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError  # vLLM answers a cancelled call with an error of its own
        _raise_error(response)
        choice = response.choices[0]
        return Completion(choice.message.content or "", _reason(choice.finish_reason), _usage(response.usage))

    async def _warm_up(self) -> None:
        ask = (Message("user", "yes or no?"),)
        requests = [CompletionRequest(ask, max_tokens=8, **form) for form in _WARM_UP]
        await asyncio.gather(
            *map(self._complete, requests), self._scorer.score(ScoreRequest((ScoreItem("a", " b c"),)))
        )


# ---- starting the server --------------------------------------------------------------------------------------------


async def _start_server(name: str, config: EngineConfig, model: str, fork: "_ForkServer") -> Any:
    start = time.monotonic()
    from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
    from ray.serve.llm import LLMConfig, LLMServer

    log.info("engine %s: imported vLLM in %.1f s", name, time.monotonic() - start)

    class LocalEngine(VLLMEngine):
        """``VLLMEngine`` without what a local folder does not need."""

        async def start(self) -> None:
            # A task that "downloads" the model: for a folder it only imports vLLM once more, 13 s.
            self.llm_config.get_or_create_callback().ctx.run_init_node = not Path(model).is_dir()
            await super().start()

        def _start_async_llm_engine(self, args: Any, vllm_config: Any, group: Any) -> Any:
            if fork.used:
                # ray.serve.llm asks for "mp": a third process for the only worker, and 14 s for its imports.
                vllm_config.parallel_config.distributed_executor_backend = "uni"
            with fork.instead_of_spawn():
                return super()._start_async_llm_engine(args, vllm_config, group)

    class LocalServer(LLMServer):
        """``LLMServer`` without its report of the model's name to Ray's usage collection, 6 s."""

        async def _start_engine(self) -> None:
            await self.engine.start()

    accelerator = {"accelerator_type": config.accelerator_type} if config.accelerator_type else {}
    llm_config = LLMConfig(
        model_loading_config={"model_id": name, "model_source": model},
        accelerator_config={"kind": config.device},
        engine_kwargs=_engine_kwargs(config),
        **accelerator,
    )
    if fork.used and Path(model).is_dir():
        _register_architectures(Path(model))
    server = LocalServer.sync_init(llm_config, engine_cls=LocalEngine)
    await server.start()
    return server


def _register_architectures(model: Path) -> None:
    """Import the model's class here: to learn what it can do, vLLM starts a process that imports all of vLLM (11 s, and again
    on every machine whose vLLM cache is empty), so as not to touch CUDA."""
    from vllm import ModelRegistry

    for architecture in json.loads((model / "config.json").read_text()).get("architectures", ()):
        if architecture in ModelRegistry.models:
            ModelRegistry.register_model(architecture, ModelRegistry.models[architecture].load_model_cls())


def _engine_kwargs(config: EngineConfig) -> dict[str, Any]:
    """vLLM's arguments. Whitespace is switched off here because vLLM ignores the same switch on a request.

    On a CPU a step is bounded to about a second: an abort, and every other request, waits for the step that runs.
    """
    memory = (
        {"kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30), "block_size": 32, "max_num_batched_tokens": 512}
        if config.device == "cpu"
        else {"gpu_memory_utilization": config.gpu_memory_utilization}
    )
    thinking = {"reasoning_parser": config.reasoning_parser} if config.reasoning_parser else {}
    return {
        "dtype": _cpu_dtype() if config.device == "cpu" and config.dtype == "auto" else config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "enforce_eager": config.enforce_eager,
        "tensor_parallel_size": config.tensor_parallel,
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        **memory,
        **thinking,
        **config.engine_kwargs,
    }


def _cpu_dtype() -> str:
    """bfloat16 where the CPU multiplies it (twice float32's speed); elsewhere it is three times slower than float32."""
    import torch

    return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"


class _ForkServer:
    """Starts the engine's process by fork from a clean server that imports vLLM while the replica does, not after it.

    vLLM spawns that process, and its imports then take as long as the replica's own did. CPU only, one worker.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.used = config.device == "cpu" and config.tensor_parallel == 1

    def __enter__(self) -> "_ForkServer":
        if self.used:
            # Ray sets one thread per CPU that the replica reserves; the engine may use what the machine lets it use. By
            # default a waiting thread spins, which beside other busy processes costs more than half of the speed.
            os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
            forkserver.set_forkserver_preload(_PRELOAD)
            forkserver.ensure_running()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def instead_of_spawn(self) -> Iterator[None]:
        if not self.used:
            yield
            return
        from vllm.v1.engine import utils

        spawn = utils.get_mp_context
        utils.get_mp_context = _EngineContext
        try:
            yield
        finally:
            utils.get_mp_context = spawn


class _EngineContext(ForkServerContext):
    """What vLLM needs of a multiprocessing context."""

    def Process(self, *, target: Callable[..., None], name: str, kwargs: dict[str, Any]) -> ForkServerProcess:  # type: ignore[override]  # noqa: N802
        return ForkServerProcess(target=_engine_main, name=name, args=(dict(os.environ), target), kwargs=kwargs)


def _engine_main(environment: dict[str, str], target: Callable[..., None], **kwargs: Any) -> None:
    """The engine's process. A fork server's child has the environment of the server's start: bring vLLM's later settings."""
    os.environ.update(environment)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    target(**kwargs)


def _die_with_parent() -> None:
    """A replica that was killed could not stop its engine, which would keep its memory for good."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


# ---- chat -----------------------------------------------------------------------------------------------------------


def _chat_request(model: str, request: CompletionRequest, *, stream: bool) -> Any:
    from ray.serve.llm.openai_api_models import ChatCompletionRequest

    constraint = {"json": request.json_schema, "regex": request.regex, "choice": list(request.choice)}
    chosen = {kind: value for kind, value in constraint.items() if value}
    extra: dict[str, Any] = {}
    if chosen:
        # A thinking model would think inside the JSON, or outside of any constraint.
        extra |= {"structured_outputs": chosen, "chat_template_kwargs": {"enable_thinking": False}}
    if stream:
        extra["stream_options"] = {"include_usage": True}
    if request.request_id:
        extra["request_id"] = request.request_id
    if request.cache_salt:
        extra["cache_salt"] = request.cache_salt
    return ChatCompletionRequest(
        model=model,
        messages=[{"role": m.role, "content": m.content} for m in request.messages],
        max_completion_tokens=request.max_tokens,
        temperature=request.temperature,
        stream=stream,
        **extra,
    )


def _deltas(chunk: Any) -> Iterator[Delta]:
    """One server-sent event of the engine: text, reasoning, the end, or (last) the usage."""
    _raise_error(chunk)
    data = chunk.removeprefix("data: ").strip()
    if data == "[DONE]":
        return
    event = json.loads(data)
    if "error" in event:
        raise _fault(event["error"]["message"], int(event["error"].get("code") or 500))
    for choice in event["choices"]:
        delta, reason = choice["delta"], choice.get("finish_reason")
        text, reasoning = delta.get("content") or "", delta.get("reasoning") or ""
        yield Delta(text, reasoning, _reason(reason) if reason else None)
    if event.get("usage"):
        yield Delta(usage=_usage(event["usage"]))


def _raise_error(response: Any) -> None:
    if (error := getattr(response, "error", None)) is not None:
        raise _fault(error.message, error.code)


def _fault(message: str, status: int) -> Exception:
    if status == 503:
        return Overloaded(message)
    return BadModelOutput(message) if 400 <= status < 500 else StageUnavailable(message)


@contextmanager
def _faults() -> Iterator[None]:
    """vLLM's errors would need vLLM, 9 s of imports, where they are unpickled."""
    from vllm.exceptions import VLLMClientError, VLLMServerError

    try:
        yield
    except VLLMClientError as e:
        raise BadModelOutput(str(e)) from None
    except VLLMServerError as e:
        raise StageUnavailable(str(e)) from None


def _reason(reason: str | None) -> FinishReason:
    return "stop" if reason == "stop" else "length" if reason == "length" else "abort"


def _usage(usage: Any) -> Usage:
    u = usage if isinstance(usage, dict) else usage.model_dump()
    cached = (u.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(
        llm_calls=1,
        prompt_tokens=u["prompt_tokens"],
        cached_tokens=cached,
        completion_tokens=u.get("completion_tokens") or 0,
    )


# ---- scoring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """A prompt whose last ``tail`` tokens are the continuation."""

    tokens: list[int]
    tail: int


class _Scorer:
    """Log-probabilities of continuations. All items of a request are in the engine at once."""

    def __init__(self, client: Any, max_model_len: int) -> None:
        self._client, self._max_model_len = client, max_model_len
        self._tokenizer: Any = client.get_tokenizer()
        self._calls = 0

    async def one_token(self) -> None:
        await self._generate([self._tokenizer.eos_token_id or 0], self._params(), "health", None)

    async def score(self, request: ScoreRequest) -> Scores:
        jobs = await asyncio.to_thread(lambda: [self._job(item) for item in request.items])
        results = await asyncio.gather(*(self._one(job, request) for job in jobs))
        return Scores(tuple(score for score, _ in results), sum((usage for _, usage in results), Usage()))

    def _job(self, item: ScoreItem) -> _Job | str:
        """Tokens, or the item's fault.

        Both strings are tokenised together, as the model would have met them, and split where they part from the context's
        own tokens. Spaces at the context's end move over: in most vocabularies a space belongs to the word that follows.
        """
        context = item.context.rstrip(" ")
        continuation = item.context[len(context) :] + item.continuation
        if not item.continuation.strip():
            return "empty continuation"
        before = self._tokenizer.encode(context)
        tokens = self._tokenizer.encode(context + continuation)
        shared = next((i for i, (a, b) in enumerate(zip(before, tokens, strict=False)) if a != b), len(before))
        if shared == 0:
            return "empty context"
        if len(tokens) >= self._max_model_len:
            return f"{len(tokens)} tokens do not fit the model's {self._max_model_len}"
        return _Job(tokens, len(tokens) - shared)

    async def _one(self, job: _Job | str, request: ScoreRequest) -> tuple[ItemScore, Usage]:
        if isinstance(job, str):
            return ItemScore(math.nan, 0, job), Usage()
        logprobs, usage = await (self._single(job, request) if job.tail == 1 else self._tail(job, request))
        if len(logprobs) != job.tail or not all(map(math.isfinite, logprobs)):
            return ItemScore(math.nan, 0, "the engine returned no score"), usage
        return ItemScore(sum(logprobs), job.tail), usage

    async def _single(self, job: _Job, request: ScoreRequest) -> tuple[list[float], Usage]:
        """One token needs no log-probabilities of the prompt: the next token's distribution holds it."""
        params = self._params(logprobs=1, logprob_token_ids=[job.tokens[-1]])
        output = await self._generate(job.tokens[:-1], params, request.request_id, request.cache_salt)
        position = output.outputs[0].logprobs[0]
        return [position[t].logprob for t in job.tokens[-1:] if t in position], _prompt_usage(output)

    async def _tail(self, job: _Job, request: ScoreRequest) -> tuple[list[float], Usage]:
        """vLLM gives no log-probabilities for tokens that it took from the prefix cache, so it does not read the cache
        by default. Here it may, as long as the cache ends before the continuation: usually it does, else ask again."""
        params = self._params(prompt_logprobs=0)
        params.skip_reading_prefix_cache = False
        output = await self._generate(job.tokens, params, request.request_id, request.cache_salt)
        usage = _prompt_usage(output)
        if output.num_cached_tokens >= len(job.tokens) - job.tail:
            params = self._params(prompt_logprobs=0)
            output = await self._generate(job.tokens, params, request.request_id, request.cache_salt)
            usage += _prompt_usage(output)
        tail = zip(job.tokens[-job.tail :], output.prompt_logprobs[-job.tail :], strict=True)
        return [position[token].logprob for token, position in tail if position and token in position], usage

    @staticmethod
    def _params(**kwargs: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=1, temperature=0.0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, **kwargs
        )

    async def _generate(self, tokens: Sequence[int], params: Any, request_id: str, salt: str | None) -> Any:
        self._calls += 1
        prompt: dict[str, Any] = {"prompt_token_ids": list(tokens)}
        if salt:
            prompt["cache_salt"] = salt
        (output,) = [o async for o in self._client.generate(prompt, params, f"{request_id}-score-{self._calls}")]
        return output


def _prompt_usage(output: Any) -> Usage:
    return Usage(
        llm_calls=1,
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens or 0,
        completion_tokens=len(output.outputs[0].token_ids),
    )


class _Monitor:
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
