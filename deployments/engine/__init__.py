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
    worker: dict[str, float] = {"GPU": _gpu_share(config)} if config.device == "gpu" else {}
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


def _gpu_share(config: EngineConfig) -> float:
    """Engines that leave at least half of a GPU's memory alone can share it; a whole one is asked for otherwise."""
    alone = config.tensor_parallel > 1 or config.gpu_memory_utilization > 0.5
    return 1.0 if alone else config.gpu_memory_utilization
