"""Where a stage runs: in a deployment of its own, or in the replica of the driver, without a hop.

Expander, Reranker and Generator compute little themselves: their engines do. Beside engines of one machine a hop to each costs
more than it brings (docs/adr/0020).
"""

from dataclasses import dataclass
from typing import Any

from ray.serve import Application
from ray.serve.deployment import Deployment
from ray.serve.handle import DeploymentHandle

from assay.config import Placement
from deployments.expander import Expander
from deployments.generator import Generator
from deployments.remote import Here
from deployments.reranker import Reranker

_PLACED: tuple[Any, ...] = (Expander, Reranker, Generator)
_STAGES: dict[str, Deployment] = {stage.name: stage for stage in _PLACED}


@dataclass(frozen=True, slots=True)
class Inside:
    """A stage for the driver to make: the name of its deployment, and what that would be bound to."""

    deployment: str
    args: tuple[Any, ...]


def placed(placement: Placement, stage: Deployment, *args: Any) -> Application | Inside:
    """``stage``: one of ``Expander``, ``Reranker``, ``Generator``."""
    return stage.bind(*args) if placement == "deployment" else Inside(stage.name, args)


def reached(stage: str, given: DeploymentHandle | Inside) -> DeploymentHandle | Here:
    """In the driver's replica: the handle, or the stage itself, made here."""
    if not isinstance(given, Inside):
        return given
    return Here(stage, _STAGES[given.deployment].func_or_class(*given.args))
