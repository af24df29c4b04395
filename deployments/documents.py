"""The routes of documents: upload, the job of an upload and its events, list, read and delete; and the buckets."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path as File
from typing import Annotated, Any

from fastapi import FastAPI, Header, Path, Query, Request, Response
from pydantic import BaseModel, WithJsonSchema
from starlette.types import Receive, Scope, Send

from assay.access import Grant
from assay.config import DocumentsConfig, IngressConfig
from assay.documents.shapes import Job, JobCompletedEvent, JobEvent
from assay.documents.spool import Spool
from assay.documents.types import DocumentsQuery, ReadQuery
from assay.events import ErrorEvent
from assay.ports import Driver
from assay.types import Scope as Where
from deployments import openapi_documents as openapi
from deployments import upload
from deployments.gate import bound
from deployments.problems import censored
from deployments.sse import Slots, frame, open_line, until_last, while_connected

POLL_S = 0.25
MOST_CHARS = 200_000
MOST_EVENTS = 10**9
_NUMBER = {"type": "integer", "minimum": 0, "maximum": MOST_EVENTS}  # no null, which would be the word

BucketQuery = Annotated[str, Query(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="The bucket's name.")]
DocId = Annotated[str, Path(max_length=100)]
JobId = Annotated[str, Path(max_length=100)]


def add_documents(app: FastAPI, driver: Driver, config: IngressConfig) -> None:
    _add_jobs(app, driver, config.documents, config.heartbeat_s)
    _add_library(app, driver)


def _add_jobs(app: FastAPI, driver: Driver, config: DocumentsConfig, heartbeat_s: float) -> None:
    spool = Spool(File(config.path), config.max_waiting)
    uploads, streams = Slots(config.max_uploads, "uploads"), Slots(config.max_streams, "streams of jobs")

    @app.post("/v1/documents", status_code=202, tags=["documents"], response_model=None, **openapi.UPLOAD)
    async def post(request: Request, bucket: BucketQuery) -> Response:
        """Upload files into a bucket. Every part with a file name is a file; `metadata` is JSON, from file names to objects."""
        bound(driver, request).may_fill(bucket)
        with uploads.one():
            job = await _accepted(request, spool, bucket, config)
        return _json(job, 202, {"location": f"/v1/documents/jobs/{job.id}"})

    @app.get("/v1/documents/jobs/{id}", tags=["documents"], response_model=None, **openapi.JOB)
    async def job(request: Request, id: JobId) -> Response:
        """What became of an upload so far."""
        return _json(_public(await asyncio.to_thread(spool.read, id, _owner(request)), request.state.request_id))

    @app.get("/v1/documents/jobs/{id}/events", tags=["documents"], response_model=None, **openapi.EVENTS)
    async def events(
        request: Request,
        id: JobId,
        last: Annotated[
            int | None, WithJsonSchema(_NUMBER), Header(alias="Last-Event-ID", ge=0, le=MOST_EVENTS)
        ] = None,
    ) -> Response:
        """The same as Server-Sent Events, from the first one, or from the one after `Last-Event-ID`."""
        owner = _owner(request)
        await asyncio.to_thread(spool.read, id, owner)  # what is not there is a plain 404
        return JobResponse(spool, id, owner, last or 0, request.state.request_id, streams, heartbeat_s)


def _add_library(app: FastAPI, driver: Driver) -> None:
    @app.get("/v1/documents", tags=["documents"], response_model=None, **openapi.LIST)
    async def list_(
        request: Request,
        bucket: BucketQuery | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 50,
        after: Annotated[str | None, Query(max_length=100, description="The `next` of the page before.")] = None,
    ) -> Response:
        """The documents, the last ingested first."""
        query = DocumentsQuery(Where(), bucket, limit, after)
        return _json(await _asked(request, bound(driver, request).documents(query, request.state.request_id)))

    @app.get("/v1/documents/{doc_id}", tags=["documents"], response_model=None, **openapi.READ)
    async def read(
        request: Request,
        doc_id: DocId,
        span: Annotated[
            str | None, Query(pattern="^[0-9]{1,12},[0-9]{1,12}$", description="Characters to mark: from, to.")
        ] = None,
        chunk_id: Annotated[
            int | None, Query(ge=0, le=2**53, description="The passage to mark, without a span.")
        ] = None,
        start: Annotated[int | None, Query(ge=0, le=2**53, description="Where the page begins.")] = None,
        max_chars: Annotated[int, Query(ge=1, le=MOST_CHARS)] = 50_000,
    ) -> Response:
        """A document's text in its order, with pages and headings; `span` or `chunk_id` marks a place in it."""
        query = ReadQuery(doc_id, Where(), None if span is None else _span(span), chunk_id, start, max_chars)
        return _json(await _asked(request, bound(driver, request).read_document(query, request.state.request_id)))

    @app.delete("/v1/documents/{doc_id}", status_code=204, tags=["documents"], **openapi.DELETE)
    async def delete(request: Request, doc_id: DocId) -> None:
        """Take it out of the index. Searches that begin after this find nothing of it."""
        query = ReadQuery(doc_id, Where(), max_chars=1)
        await _asked(request, bound(driver, request).delete_document(query, request.state.request_id))

    @app.get("/v1/buckets", tags=["documents"], response_model=None, **openapi.BUCKETS)
    async def buckets(request: Request) -> Response:
        """The buckets, with their fields, counts and facets."""
        return _json(await _asked(request, bound(driver, request).buckets(Where(), request.state.request_id)))


async def _accepted(request: Request, spool: Spool, bucket: str, config: DocumentsConfig) -> Job:
    folder = await asyncio.to_thread(spool.begin)
    try:
        files, metadata = await upload.receive(request, folder, bucket, config)
        grant: Grant = request.state.grant
        job = await asyncio.to_thread(spool.accept, folder, grant.owner, grant.groups, bucket, files, metadata)
        request.state.trail.note(job=job.id, files=len(files))
        return job
    finally:
        await asyncio.shield(asyncio.to_thread(spool.drop, folder))


class JobResponse(Response):
    """A job's log as events while its client listens. The id of an event is its line's number, so that any replica can go on
    after it."""

    def __init__(
        self, spool: Spool, id_: str, owner: str, after: int, request_id: str, slots: Slots, heartbeat_s: float
    ) -> None:
        super().__init__()
        self._spool, self._job, self._owner, self._after = spool, id_, owner, after
        self._request_id, self._slots, self._heartbeat_s = request_id, slots, heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with until_last(self._slots.one(), send) as send:
            await while_connected(receive, self._run(send))

    async def _run(self, send: Send) -> None:
        async with aclosing(self._told()) as told, open_line(send, self._heartbeat_s, {}) as write:
            async for number, event in told:
                await write(frame(number, event))

    async def _told(self) -> AsyncGenerator[tuple[int, JobEvent]]:
        after, size = self._after, -1
        while True:
            now = await asyncio.to_thread(self._spool.size, self._job)
            if now == size:
                await asyncio.sleep(POLL_S)
                continue
            size = now
            for number, event in await asyncio.to_thread(self._spool.events, self._job, self._owner, after):
                after = number
                yield number, self._stamped(event)
                if isinstance(event, JobCompletedEvent | ErrorEvent):
                    return

    def _stamped(self, event: JobEvent) -> JobEvent:
        update: dict[str, object] = {"request_id": self._request_id}
        if isinstance(event, ErrorEvent):
            update["error"] = censored(event.error, self._request_id)
        return event.model_copy(update=update)


def _span(text: str) -> tuple[int, int]:
    start, end = map(int, text.split(","))
    return start, end


async def _asked(request: Request, work: Any) -> Any:
    return await while_connected(request.receive, work)


def _owner(request: Request) -> str:
    """Whose its jobs are."""
    grant: Grant = request.state.grant
    return grant.owner


def _public(job: Job, request_id: str) -> Job:
    return job if job.error is None else job.model_copy(update={"error": censored(job.error, request_id)})


def _json(shape: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(shape.model_dump_json(), status, headers, media_type="application/json")
