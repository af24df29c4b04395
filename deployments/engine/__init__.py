"""vLLM engines through ``ray.serve.llm``: one deployment per engine of the config, each of them an ``assay.ports.LLM``.

``ray.serve.llm`` brings vLLM, 9 to 14 s of imports, and is imported inside the replica only: the process that builds the
app would otherwise import it first, and every start would wait for it twice. The engine's own process imports vLLM too,
at the same time as the replica does (``deployments.engine.fork``).
"""

from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application

from assay.config import AnyEngine, EngineConfig
from assay.llm.endpoint import EndpointConfig
from assay.llm.http import key_of
from assay.models import resolve_model
from deployments.engine.endpoint import Endpoint
from deployments.engine.replica import HEALTH_PERIOD_S, Engine


def model_of(config: AnyEngine, cache: Path) -> str:
    """The folder or id of the engine's model, for its tokenizer; "" for an endpoint that names none."""
    if isinstance(config, EndpointConfig):
        return resolve_model(config.tokenizer, cache) if config.tokenizer else ""
    return resolve_model(config.model, cache)


def build_engine(name: str, config: AnyEngine, model_path: str) -> Application:
    """The Serve deployment of one engine. ``model_path`` is a local folder or a Hugging Face id.

    Raises ``SetupError`` where an endpoint's key is not in its environment variable: a replica would only be restarted."""
    if isinstance(config, EndpointConfig):
        key_of(config)
        options = {**_replicas(config), **_queue(config.max_ongoing_requests), "ray_actor_options": {"num_cpus": 0.1}}
        return serve.deployment(Endpoint, name=f"engine-{name}", **options).bind(config)
    return serve.deployment(Engine, name=f"engine-{name}", **_options(config)).bind(name, config, model_path)


def _options(config: EngineConfig) -> dict[str, Any]:
    """Serve options, with the bundles and the share of a GPU that ``ray.serve.llm`` would take from ``LLMConfig``: it
    reads them where the app is built, and would be imported there to do so."""
    return {
        **_replicas(config),
        **_queue(config.max_ongoing_requests),
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": config.health_timeout_s + 5,
        "graceful_shutdown_timeout_s": 10,
        **_placement(config),
    }


def _replicas(config: AnyEngine) -> dict[str, Any]:
    if config.min_replicas == config.max_replicas:
        return {"num_replicas": config.max_replicas}
    autoscaling = {
        "min_replicas": config.min_replicas,
        "max_replicas": config.max_replicas,
        "target_ongoing_requests": config.target_ongoing_requests,
    }
    return {"autoscaling_config": autoscaling}


def _queue(requests: int) -> dict[str, int]:
    """The queue is each caller's own; a longer one would outlast its deadlines."""
    return {"max_ongoing_requests": requests, "max_queued_requests": requests}


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
    labels = {"placement_group_bundle_label_selector": [dict(config.node_labels)]} if config.node_labels else {}
    return {
        **labels,
        "ray_actor_options": actor,
        "placement_group_bundles": [{"CPU": 1.0, **worker}, *([worker or {"CPU": 1.0}] * (config.tensor_parallel - 1))],
        "placement_group_strategy": "STRICT_PACK",
    }


def _gpu_share(config: EngineConfig) -> float:
    """Engines that leave at least half of a GPU's memory alone can share it; a whole one is asked for otherwise."""
    alone = config.tensor_parallel > 1 or config.gpu_memory_utilization > 0.5
    return 1.0 if alone else config.gpu_memory_utilization
