"""The Retriever deployment: the index's two legs and the embedder, in one replica; it takes up new snapshots by itself."""

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from ray import serve

from assay.config import IndexConfig, RetrieverConfig
from assay.index.embed import SentenceEmbedder
from assay.retrieve import LocalRetriever
from assay.types import BucketInfo, SearchQuery, SearchResult
from deployments.remote import Reply, reply


@serve.deployment(max_ongoing_requests=64)
class Retriever:
    def __init__(self, index: IndexConfig, config: RetrieverConfig, embedder: str) -> None:
        self._poll_s = index.poll_s
        self._retriever = LocalRetriever(index, config, SentenceEmbedder(embedder, index.embed_device))
        self._polling: asyncio.Task[None] | None = None

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            await asyncio.to_thread(self._retriever.reload)

    async def search(self, query: SearchQuery) -> Reply[SearchResult]:
        return await reply(self._retriever.search(query))

    async def embed(self, texts: Sequence[str]) -> Reply[NDArray[np.float32]]:
        return await reply(self._retriever.embed(texts))

    async def buckets(self) -> Reply[tuple[BucketInfo, ...]]:
        return await reply(self._retriever.buckets())
