"""This process joined to the Ray of a running graph, for calls by handle."""

from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.serve import context


@contextmanager
def attached(address: str) -> Iterator[None]:
    """``address``: ``host:port`` of the cluster's head. Raises what ``ray.init`` raises where there is none."""
    try:
        ray.init(address=address, namespace="serve", log_to_driver=False, configure_logging=False)
        yield
    finally:
        ray.shutdown()
        # Serve keeps its controller by the number of the job, which a process may have in the next cluster too.
        context._set_global_client(None)
