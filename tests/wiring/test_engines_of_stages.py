"""A stage's ``engine:`` decides who works for it, wherever it runs: its handle, its tokenizer, and what it may ask for."""

from collections.abc import Iterator
from typing import Any

import pytest
from ray import serve
from ray.serve import Application

from assay.config import AppConfig, Placement
from deployments.placement import Inside
from graph import wire

ENGINES = ("plans", "judges", "writes", "talks", "reads", "idles")
# Deployment -> whose handle it is bound to, whose model, and whose config, which the driver finds in its own.
BOUND = {
    "Expander": (["plans"], ["plans"], ["plans"]),
    "Reranker": (["judges"], ["judges"], ["judges"]),
    "Generator": (["writes"], ["writes"], ["writes"]),
    "Driver": (["talks"], ["talks"], []),
    "Ingester": (["reads"], ["reads"], ["reads"]),
}


class _Engine: ...


def deployments(node: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The name of each deployment below this one, and of each stage inside of the driver, with what it is bound to."""
    if isinstance(node, Application):
        name, args = node._bound_deployment.name, node._bound_deployment.init_args
    elif isinstance(node, Inside):
        name, args = node.deployment, node.args
    else:
        return
    yield name, args
    for arg in args:
        yield from deployments(arg)


def config(placement: Placement) -> AppConfig:
    stage = {"placement": placement}
    engine = {"tool_parser": "hermes"}
    args = {
        "engines": {name: {"model": f"{name}-7b", "capable": name == "plans", **engine} for name in ENGINES},
        "expander": {"engine": "plans", **stage},
        "reranker": {"engine": "judges", **stage},
        "generator": {"engine": "writes", **stage},
        "tools": {"engine": "talks"},
        "extraction": {"engine": "reads"},
    }
    return AppConfig.model_validate(args)


@pytest.mark.parametrize("placement", ["deployment", "driver"])
def test_each_stage_is_bound_to_the_engine_that_its_config_names(placement: Placement) -> None:
    asked = config(placement)
    engines = {name: serve.deployment(_Engine, name=f"engine-{name}").bind() for name in ENGINES}
    models = {name: f"models/{name}" for name in ENGINES}
    found = dict(deployments(wire(asked, engines, models, "embedder")))
    bound = {
        stage: (
            [name for name, engine in engines.items() if any(arg is engine for arg in found[stage])],
            [name for name, model in models.items() if any(isinstance(a, str) and a == model for a in found[stage])],
            [name for name, kind in asked.engines.items() if any(arg is kind for arg in found[stage])],
        )
        for stage in BOUND
    }
    assert bound == BOUND
    assert "gate" in found["Expander"][0].decided, "what its own engine is capable of"
