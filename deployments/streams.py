"""The Streams deployment: where every replica of the Ingress finds the streams of the others. One replica, in memory."""

from collections.abc import Sequence

from ray import serve

from assay.config import StreamsConfig
from assay.streams import MemoryStreams, Part
from deployments.remote import Reply, reply
from deployments.telemetry import adopt_logs


@serve.deployment(max_ongoing_requests=2000, max_queued_requests=2000, ray_actor_options={"num_cpus": 0.1})
class Streams:
    def __init__(self, config: StreamsConfig) -> None:
        adopt_logs()
        self._kept = MemoryStreams(config.kept_s, config.max_chars)

    async def append(
        self, id: str, owner: str, at: int, frames: Sequence[str], ended: bool, group: str
    ) -> Reply[float]:
        return await reply(self._kept.append(id, owner, at, frames, ended, group))

    async def read(self, id: str, owner: str, after: int, wait_s: float) -> Reply[Part]:
        return await reply(self._kept.read(id, owner, after, wait_s))

    async def drop(self, id: str, owner: str) -> Reply[None]:
        return await reply(self._kept.drop(id, owner))

    async def drop_group(self, owner: str, group: str) -> Reply[None]:
        return await reply(self._kept.drop_group(owner, group))
