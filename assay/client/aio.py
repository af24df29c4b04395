"""The client for asyncio."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel

from assay.client import calls
from assay.client.wire import (
    DEFAULT_URL,
    RETRY_S,
    Base,
    Begun,
    Broken,
    Decoder,
    Place,
    Unreachable,
    cut_off,
    fault_of,
    is_stream,
)
from assay.conversations.shapes import ConversationDetail, ConversationInfo, ConversationList, PostMessage
from assay.documents.shapes import BucketList, DocumentList, DocumentView, Job, JobCompletedEvent, JobEvent
from assay.errors import StageTimeout, StageUnavailable
from assay.events import Event
from assay.schemas import AnswerRecord, AskRequest, AskResponse, Readiness, SearchRequest, SearchResponse

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E")


class AsyncClient(Base):
    """As ``Client``, for asyncio. ``transport`` is for in-process apps (``httpx.ASGITransport``)."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        timeout_s: float = 300,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, timeout_s, api_key)
        self._http = httpx.AsyncClient(**self._options, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    # ---- questions ----------------------------------------------------------------------------------------------

    async def ask(self, request: AskRequest) -> AskResponse:
        return await self._send(calls.ask(request))

    def stream(self, request: AskRequest) -> AsyncGenerator[Event, None]:
        """Events as they happen; the last is CompletedEvent. Closing it cancels the question; a ``resumable`` one then goes on
        for a while, and is taken up again by itself where its connection broke."""
        return self._taken_up(calls.stream(request))

    async def recall(self, answer_id: str) -> AnswerRecord:
        """A kept answer. Raises ``NotFound``."""
        return await self._send(calls.recall(answer_id))

    async def search(self, request: SearchRequest) -> SearchResponse:
        return await self._send(calls.search(request))

    async def tools(self) -> list[calls.Tool]:
        return (await self._send(calls.tools())).tools

    async def ready(self) -> Readiness:
        return await self._send(calls.ready())

    # ---- documents ----------------------------------------------------------------------------------------------

    async def buckets(self) -> BucketList:
        return await self._send(calls.buckets())

    async def documents(self, bucket: str | None = None, limit: int = 50, after: str | None = None) -> DocumentList:
        """The last ingested first. ``after``: the ``next`` of the page before."""
        return await self._send(calls.documents(bucket, limit, after))

    async def document(
        self,
        doc_id: str,
        span: tuple[int, int] | None = None,
        chunk_id: int | None = None,
        start: int | None = None,
        max_chars: int | None = None,
    ) -> DocumentView:
        """Its text, with ``span`` or a passage marked. Raises ``NotFound``."""
        return await self._send(calls.document(doc_id, span, chunk_id, start, max_chars))

    async def delete_document(self, doc_id: str) -> None:
        """Searches that begin after this find nothing of it. Raises ``NotFound``; ``IndexBusy``: try again."""
        await self._send(calls.delete_document(doc_id))

    async def upload(
        self,
        bucket: str,
        files: Iterable[calls.Upload],
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        base: Path | None = None,
    ) -> Job:
        """Files into a bucket, as a job that has begun when this returns. A path is named from ``base``, or by its last part;
        ``metadata`` is by those names. Raises ``SetupError``: a file cannot be read."""
        call = calls.upload(bucket, files, metadata, base)
        try:
            return await self._send(call)
        finally:
            calls.close(call)

    async def job(self, job_id: str) -> Job:
        return await self._send(calls.job(job_id))

    async def job_events(self, job_id: str, after: int = 0) -> AsyncGenerator[JobEvent, None]:
        """What becomes of a job, from the event after the ``after``-th; the last is JobCompletedEvent. Taken up again where the
        line broke. Raises the fault of a job that failed. Closing it leaves the job alone."""
        while True:
            try:
                async with aclosing(self._events(calls.job_events(job_id, after))) as events:
                    async for event in events:
                        after += 1
                        yield event
                        if isinstance(event, JobCompletedEvent):
                            return
            except (StageUnavailable, StageTimeout):
                if (job := await self.job(job_id)).error is not None:
                    raise fault_of(job.error) from None
                await asyncio.sleep(RETRY_S)

    async def wait(self, job_id: str) -> Job:
        """The job, when it has ended. Raises its fault where it failed."""
        async with aclosing(self.job_events(job_id)) as events:
            async for event in events:
                if isinstance(event, JobCompletedEvent):
                    return event.job
        raise cut_off()

    # ---- conversations ------------------------------------------------------------------------------------------

    async def create_conversation(self, title: str = "") -> ConversationInfo:
        return await self._send(calls.create_conversation(title))

    async def conversations(self, limit: int = 50, before: str | None = None) -> ConversationList:
        """The last used first. ``before``: the id of the last one that you have."""
        return await self._send(calls.conversations(limit, before))

    async def conversation(self, id_: str, limit: int = 100, before: int | None = None) -> ConversationDetail:
        """With its messages. Raises ``NotFound``."""
        return await self._send(calls.conversation(id_, limit, before))

    async def rename_conversation(self, id_: str, title: str) -> ConversationInfo:
        return await self._send(calls.rename_conversation(id_, title))

    async def delete_conversation(self, id_: str) -> None:
        await self._send(calls.delete_conversation(id_))

    async def post_message(self, id_: str, message: PostMessage, idempotency_key: str | None = None) -> AskResponse:
        return await self._send(calls.post_message(id_, message, idempotency_key))

    def stream_message(
        self, id_: str, message: PostMessage, idempotency_key: str | None = None
    ) -> AsyncGenerator[Event, None]:
        return self._taken_up(calls.stream_message(id_, message, idempotency_key))

    # ---- on the wire --------------------------------------------------------------------------------------------

    async def _send(self, call: calls.Call[M]) -> M:
        with self._told():
            response = await self._http.request(call.method, call.path, **call.options)
        return self._read(response, call)

    async def _taken_up(self, call: calls.Stream[Event]) -> AsyncGenerator[Event, None]:
        place = Place()
        while True:
            try:
                async with aclosing(self._events(call, place.note)) as events:
                    async for event in events:
                        place.passed()
                        yield event
                return
            except (Broken, Unreachable):
                if (again := place.again()) is None:
                    raise
                call = again
            await asyncio.sleep(RETRY_S)

    async def _events(self, call: calls.Stream[E], begun: Begun = lambda _: None) -> AsyncGenerator[E, None]:
        with self._told():
            async with self._http.stream(call.method, call.path, **call.options) as response:
                if not is_stream(response):
                    await response.aread()
                    self._refuse_stream(response, call.path)
                begun(response)
                decoder = Decoder(call.parse)
                async for piece in response.aiter_bytes():
                    for event in decoder.feed(piece):
                        yield event
                        if isinstance(event, call.last):
                            return
                raise cut_off()
