"""A retriever's replica tells the Ingester which version of the index it serves, so that nothing is acknowledged too early."""

import asyncio
import logging
from collections.abc import Callable

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from assay.errors import AssayError
from assay.index.replicas import TELL_S
from deployments.remote import RemoteIngester

log = logging.getLogger("ray.serve")


class Telling:
    """``ingester``: its deployment's name in this application. The handle is found here and not bound: the Ingester has one
    of the retriever already. None: nobody is told."""

    def __init__(self, ingester: str | None, version: Callable[[], str | None]) -> None:
        self._name, self._version = ingester, version
        self._ingester: RemoteIngester | None = None
        self._heard = True

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(TELL_S)

    async def tell(self) -> None:
        """That the Ingester does not hear it is no fault of this replica: one that is away acknowledges nothing."""
        if self._name is None or not ray.is_initialized():  # Serve's local testing mode has one replica of each
            return
        try:
            async with asyncio.timeout(TELL_S):
                if self._ingester is None:
                    self._ingester = RemoteIngester("ingester", serve.get_deployment_handle(self._name))
                await self._ingester.told(serve.get_replica_context().replica_id.unique_id, self._version())
            self._heard = True
        except (AssayError, RayError, RayServeException, TimeoutError) as fault:
            if self._heard:
                log.warning("the Ingester does not hear which index is in force: %r", fault)
            self._heard = False
