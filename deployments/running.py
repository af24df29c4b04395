"""An engine of a graph that runs already, as ``assay.ports.LLM``, for commands outside of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ray import serve

from deployments.batch import connected
from deployments.remote import RemoteLLM


@contextmanager
def engine(name: str, app: str = "assay") -> Iterator[RemoteLLM]:
    """Of the graph at ``RAY_ADDRESS``. Raises ``SetupError`` where there is none."""
    with connected(os.environ.get("RAY_ADDRESS", "auto"), app):
        yield RemoteLLM(name, serve.get_deployment_handle(f"engine-{name}", app))
