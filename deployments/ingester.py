"""The Ingester deployment: uploaded files into the index, and documents out of it. Of the graph it alone writes there."""

import asyncio
import os
from functools import partial

from ray import serve
from ray.serve.handle import DeploymentHandle

from assay.config import AnyEngine, DocumentsConfig, ExtractionConfig, IndexConfig
from assay.index.embed import SentenceEmbedder
from assay.index.extract import Extractor
from assay.index.replicas import Replicas
from assay.index.uploads import Uploads
from assay.templates import Prompts
from assay.tokens import tokenizer_of
from deployments.remote import RemoteLLM, RemoteRetriever, Reply, reply
from deployments.telemetry import adopt_logs

_NICE = 10  # questions come first where they share cores


@serve.deployment(num_replicas=1, max_ongoing_requests=32, max_queued_requests=64, ray_actor_options={"num_cpus": 0.1})
class Ingester:
    """One replica: a second would find the index held by the first. Its embedder is loaded with the first upload."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        documents: DocumentsConfig,
        index: IndexConfig,
        embedder: str,
        retriever: DeploymentHandle,
        extraction: ExtractionConfig,
        engine: DeploymentHandle | None = None,
        model: str = "",
        prompts: Prompts = Prompts(),
        kind: AnyEngine | None = None,
    ) -> None:
        """``engine``: who reads metadata out of documents, ``model`` its folder or id, ``kind`` its config."""
        adopt_logs()
        os.nice(_NICE)
        if engine is not None and kind is not None:
            parts = RemoteLLM("extraction", engine), tokenizer_of(model), extraction, prompts
            shows_schema = "json_schema" not in kind.can
            extractor = partial(Extractor, *parts, context_tokens=kind.max_model_len, shows_schema=shows_schema)
        searches = RemoteRetriever("retriever", retriever)
        self._replicas = replicas = Replicas()

        async def served() -> str | None:
            # Asked first: whatever waits to be told here, after this process was busy, is told while it is awaited.
            seen, _ = await searches.index_state()
            return replicas.oldest(seen)

        self._uploads = Uploads(
            documents,
            index,
            lambda: SentenceEmbedder(embedder, index.embed_device),
            served,
            extract=None if engine is None else lambda: extractor().extract,
        )
        self._working = asyncio.create_task(self._uploads.run())

    async def delete(self, bucket: str, doc_id: str) -> Reply[None]:
        return await reply(self._uploads.delete(bucket, doc_id), "delete")

    async def told(self, replica: str, version: str | None) -> Reply[None]:
        """By a retriever's replica: what it serves."""
        self._replicas.told(replica, version)
        return Reply(None, 0.0)

    async def ready(self) -> Reply[str]:
        return Reply("ready", 0.0)

    async def check_health(self) -> None:
        if self._working.done():
            raise RuntimeError("the work on uploads has ended") from self._working.exception()
