"""The Retriever deployment: the index's two legs and the embedder in one replica. It takes up new snapshots by itself."""

import asyncio
import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from ray import serve

from assay.config import IndexConfig, RetrieverConfig
from assay.custom import Parts, implementation
from assay.documents.shapes import BucketList, DocumentList, DocumentView
from assay.documents.types import DocumentsQuery, ReadQuery
from assay.errors import AssayError
from assay.index.embed import SentenceEmbedder
from assay.ports import Retriever as Port
from assay.retrieve import LocalRetriever
from assay.types import BucketInfo, DocumentInfo, DocumentQuery, DocumentText, Scope, SearchQuery, SearchResult
from deployments.priority import stand_back
from deployments.remote import Reply, reply
from deployments.telemetry import adopt_logs
from deployments.telling import Telling

log = logging.getLogger("ray.serve")


@serve.deployment(max_ongoing_requests=64, max_queued_requests=64, ray_actor_options={"num_cpus": 0.2})
class Retriever:
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        index: IndexConfig,
        config: RetrieverConfig,
        embedder: str,
        ingester: str | None = None,
        niceness: int = 0,
    ) -> None:
        """``ingester``: the name of the deployment that is told which snapshot is in force."""
        adopt_logs()
        stand_back(niceness)
        self._poll_s, self._legs = index.poll_s, index.legs
        self._retriever = await asyncio.to_thread(self._load, index, config, embedder)
        self._telling = Telling(ingester, lambda: self._retriever.index_version)
        self._say()
        self._library = self._retriever.library
        parts = Parts(self._retriever, config, embedder=self._retriever)
        self._searching: Port = implementation("retriever", config.implementation, parts)
        await self._telling.tell()
        await self._look()  # after that, or a snapshot could be acknowledged in between without this replica
        self._watching = [asyncio.create_task(self._poll()), asyncio.create_task(self._telling.run())]

    @staticmethod
    def _load(index: IndexConfig, config: RetrieverConfig, embedder: str) -> LocalRetriever:
        return LocalRetriever(index, config, SentenceEmbedder(embedder, index.embed_device))

    async def _poll(self) -> None:
        """Serves on with the snapshot in force while a newer one is loaded; what is wrong with that one is in ``reasons``."""
        while True:
            await asyncio.sleep(self._poll_s)
            await self._look()

    async def _look(self) -> None:
        try:
            if await asyncio.to_thread(self._retriever.reload):
                self._say()
                await self._telling.tell()
        except (OSError, AssayError):
            log.exception("the index could not be looked at; trying again in %s s", self._poll_s)

    def _say(self) -> None:
        log.info("index %s is in force", self._retriever.index_version)
        if (built := self._retriever.legs) not in (None, self._legs):
            log.warning(
                "the index was built with %s and is searched so; the config says %s: `python -m assay compact --config ...`",
                built,
                self._legs,
            )

    async def search(self, query: SearchQuery) -> Reply[SearchResult]:
        return await reply(self._searching.search(query), "search")

    async def describe(self, scope: Scope) -> Reply[tuple[BucketInfo, ...]]:
        return await reply(self._searching.describe(scope), "describe")

    async def document_lookup(self, query: DocumentQuery) -> Reply[DocumentText]:
        return await reply(self._searching.document_lookup(query), "document_lookup")

    async def get_document_metadata(self, query: DocumentQuery) -> Reply[DocumentInfo]:
        return await reply(self._searching.get_document_metadata(query), "get_document_metadata")

    async def buckets(self, scope: Scope) -> Reply[BucketList]:
        return await reply(self._library.buckets(scope), "buckets")

    async def documents(self, query: DocumentsQuery) -> Reply[DocumentList]:
        return await reply(self._library.documents(query), "documents")

    async def read(self, query: ReadQuery) -> Reply[DocumentView]:
        return await reply(self._library.read(query), "read")

    async def embed(self, texts: Sequence[str]) -> Reply[NDArray[np.float32]]:
        return await reply(self._retriever.embed(texts), "embed")

    async def index_state(self) -> Reply[tuple[str | None, tuple[str, ...]]]:
        """``index_version``, and what is wrong with the index; a version of None means that nothing can be searched."""
        return Reply((self._retriever.index_version, self._retriever.reasons), 0.0)

    async def ready(self) -> Reply[str]:
        return Reply("ready", 0.0)

    async def check_health(self) -> None:
        if any(task.done() for task in self._watching):
            raise RuntimeError("the watch over new snapshots has ended")
