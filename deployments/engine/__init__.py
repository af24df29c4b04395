"""vLLM engines through ``ray.serve.llm``: one deployment per engine of the config, each of them an ``assay.ports.LLM``.

``ray.serve.llm`` brings vLLM, 9 to 14 s of imports, and is imported inside the replica only: the process that builds the
app would otherwise import it first, and every start would wait for it twice. The engine's own process imports vLLM too,
at the same time as the replica does (``deployments.engine.fork``).
"""

from typing import Any

from ray import serve
from ray.serve import Application

from assay.config import EngineConfig
from deployments.engine.replica import HEALTH_PERIOD_S, Engine


def build_engine(name: str, config: EngineConfig, model_path: str) -> Application:
    """The Serve deployment of one engine. ``model_path`` is a local folder or a Hugging Face id."""
    return serve.deployment(Engine, name=f"engine-{name}", **_options(config)).bind(name, config, model_path)


def _options(config: EngineConfig) -> dict[str, Any]:
    """Serve options, with the bundles and the share of a GPU that ``ray.serve.llm`` would take from ``LLMConfig``: it
    reads them where the app is built, and would be imported there to do so."""
    if config.min_replicas == config.max_replicas:
        replicas: dict[str, Any] = {"num_replicas": config.max_replicas}
    else:
        autoscaling = {
            "min_replicas": config.min_replicas,
            "max_replicas": config.max_replicas,
            "target_ongoing_requests": config.target_ongoing_requests,
        }
        replicas = {"autoscaling_config": autoscaling}
    return {
        **replicas,
        "max_ongoing_requests": config.max_ongoing_requests,
        "max_queued_requests": config.max_ongoing_requests,  # of each caller; a longer queue would outlast its deadlines
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": config.health_timeout_s + 5,
        "graceful_shutdown_timeout_s": 10,
        **_placement(config),
    }


def _placement(config: EngineConfig) -> dict[str, Any]:
    """Where a replica runs, and its workers beside it: all in one node, for tensor parallelism talks at every layer.

    vLLM's workers are Ray actors of their own, started by the engine's process. Each asks for a whole GPU unless the
    environment says otherwise, and one that asked for more than its bundle has would wait for ever.
    """
    worker: dict[str, float] = {}
    actor: dict[str, Any] = {"num_cpus": 1}
    if config.device == "gpu":
        worker["GPU"] = _gpu_share(config)
        actor["runtime_env"] = {"env_vars": {"VLLM_RAY_PER_WORKER_GPUS": str(worker["GPU"])}}
    if config.accelerator_type:
        worker[f"accelerator_type:{config.accelerator_type}"] = 0.001
    return {
        "ray_actor_options": actor,
        "placement_group_bundles": [{"CPU": 1.0, **worker}, *([worker or {"CPU": 1.0}] * (config.tensor_parallel - 1))],
        "placement_group_strategy": "STRICT_PACK",
    }


def _gpu_share(config: EngineConfig) -> float:
    """Engines that leave at least half of a GPU's memory alone can share it; a whole one is asked for otherwise."""
    alone = config.tensor_parallel > 1 or config.gpu_memory_utilization > 0.5
    return 1.0 if alone else config.gpu_memory_utilization
