"""Starts the ``LLMServer`` of ``ray.serve.llm``, without the parts of its start that a local folder does not need."""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from assay.config import EngineConfig
from deployments.engine.fork import ForkServer

log = logging.getLogger("ray.serve")


async def start_server(name: str, config: EngineConfig, model: str, fork: "ForkServer") -> Any:
    start = time.monotonic()
    # As it is imported, vLLM configures logging by a dictConfig, which closes every handler of the process: Serve's log file
    # would get no line of this replica any more.
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    logging.getLogger("vllm").setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"))
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
    """vLLM's arguments. Whitespace is switched off here because vLLM ignores the same switch on a request; what
    ``engine_kwargs`` says of structured outputs changes what it names, and no other field of them.

    On a CPU a step is bounded to about a second: an abort, and every other request, waits for the step that runs.
    """
    memory = (
        {"kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30), "block_size": 32, "max_num_batched_tokens": 512}
        if config.device == "cpu"
        else {"gpu_memory_utilization": config.gpu_memory_utilization}
    )
    thinking = {"reasoning_parser": config.reasoning_parser} if config.reasoning_parser else {}
    tools = {"tool_call_parser": config.tool_parser, "enable_auto_tool_choice": True} if config.tool_parser else {}
    outputs = {"backend": config.grammars, "disable_any_whitespace": True}
    return {
        "dtype": _cpu_dtype() if config.device == "cpu" and config.dtype == "auto" else config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "enforce_eager": config.enforce_eager,
        "tensor_parallel_size": config.tensor_parallel,
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,
        **memory,
        **thinking,
        **tools,
        **config.engine_kwargs,
        "structured_outputs_config": outputs | (config.engine_kwargs.get("structured_outputs_config") or {}),
    }


def _cpu_dtype() -> str:
    """bfloat16 where the CPU multiplies it (twice float32's speed); elsewhere it is three times slower than float32."""
    import torch

    return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
