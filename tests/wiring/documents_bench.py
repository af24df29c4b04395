"""Documents over a real index and everything but Ray: the doors, and the ingester's work in this process."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from assay.config import ConversationsConfig, DocumentsConfig, IndexConfig, IngressConfig, RetrieverConfig
from assay.documents.shapes import Job
from assay.groups import Groups
from assay.index.parse.parser import Limits, Parser
from assay.index.uploads import Uploads
from assay.keys import KeyFile
from assay.retrieve import LocalRetriever
from deployments.api import make_api
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser
from tests.wiring.local_driver import LocalDriver
from tests.wiring.test_api import in_process

PUMP = ("pump.md", b"# Pump\n\n## Pressure\n\nThe pump holds five bar.\n\n## Care\n\nOil it in May.\n")
PDF = ("broken.pdf", b"%PDF-1.7 nothing of the kind")


class Bench:
    """Everything but the sockets and Ray."""

    def __init__(self, folder: Path, config: DocumentsConfig | None = None, encoder: WordEncoder | None = None) -> None:
        self.folder, self.index = folder, folder / "index"
        self.documents = (config or DocumentsConfig()).model_copy(update={"path": str(folder / "uploads")})
        self.retriever = LocalRetriever(IndexConfig(uri=str(self.index)), RetrieverConfig(), WordEncoder())
        self.encoder = encoder or WordEncoder()
        self.config = IngressConfig(
            keys=str(folder / "keys.json"),
            conversations=ConversationsConfig(store="memory"),
            documents=self.documents,
            heartbeat_s=0.2,
        )
        self.parsers: list[Limits] = []

    def uploads(self) -> Uploads:
        index = IndexConfig(uri=str(self.index))
        return Uploads(self.documents, index, lambda: self.encoder, self.served, self.parser)

    def parser(self, limits: Limits) -> Parser:
        self.parsers.append(limits)
        return DirectParser(limits)

    async def served(self) -> str | None:
        await asyncio.to_thread(self.retriever.reload)
        return self.retriever.index_version

    @asynccontextmanager
    async def ingesting(self) -> AsyncGenerator[Uploads]:
        uploads = self.uploads()
        task = asyncio.create_task(uploads.run())
        try:
            yield uploads
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[httpx.AsyncClient]:
        async with (
            self.ingesting() as uploads,
            in_process(make_api(LocalDriver(self.retriever, uploads=uploads), self.config)) as http,
        ):
            del http.headers["content-type"]
            yield http

    def key(
        self,
        buckets: list[str] | None,
        tenant: str = "a",
        scopes: Iterable[Any] = ("search", "ingest"),
        groups: Groups = (),
    ) -> dict[str, str]:
        text = KeyFile(self.folder / "keys.json").create(tenant, buckets, list(scopes), 10_000, 16, groups)[1]
        return {"authorization": f"Bearer {text}"}


def sent(*files: tuple[str, bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", file) for file in files]


async def uploaded(http: httpx.AsyncClient, bucket: str, *files: tuple[str, bytes], **more: Any) -> Job:
    reply = await http.post("/v1/documents", params={"bucket": bucket}, files=sent(*files), **more)
    assert reply.status_code == 202, reply.text
    job = Job.model_validate_json(reply.content)
    assert reply.headers["location"] == f"/v1/documents/jobs/{job.id}"
    return job


async def ended(http: httpx.AsyncClient, job: Job, headers: dict[str, str] | None = None) -> Job:
    async with asyncio.timeout(60):
        while True:
            reply = await http.get(f"/v1/documents/jobs/{job.id}", headers=headers)
            assert reply.status_code == 200, reply.text
            found = Job.model_validate_json(reply.content)
            if found.status in ("completed", "failed"):
                return found
            await asyncio.sleep(0.02)


async def hits(http: httpx.AsyncClient, question: str) -> list[str]:
    reply = await http.post("/v1/search", json={"question": question, "legs": ["sparse"]})
    return [hit["uri"] for hit in reply.json()["hits"]]
