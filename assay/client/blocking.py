"""The blocking client."""

import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
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


class Client(Base):
    """Blocking. Use as a context manager. ``api_key``: by default what ``ASSAY_API_KEY`` of the environment says."""

    def __init__(self, url: str = DEFAULT_URL, timeout_s: float = 300, api_key: str | None = None) -> None:
        super().__init__(url, timeout_s, api_key)
        self._http = httpx.Client(**self._options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    # ---- questions ----------------------------------------------------------------------------------------------

    def ask(self, request: AskRequest) -> AskResponse:
        return self._send(calls.ask(request))

    def stream(self, request: AskRequest) -> Generator[Event, None, None]:
        """Events as they happen; the last is CompletedEvent. Closing it cancels the question; a ``resumable`` one then goes on
        for a while, and is taken up again by itself where its connection broke."""
        return self._taken_up(calls.stream(request))

    def recall(self, answer_id: str) -> AnswerRecord:
        """A kept answer. Raises ``NotFound``."""
        return self._send(calls.recall(answer_id))

    def search(self, request: SearchRequest) -> SearchResponse:
        return self._send(calls.search(request))

    def tools(self) -> list[calls.Tool]:
        return (self._send(calls.tools())).tools

    def ready(self) -> Readiness:
        return self._send(calls.ready())

    # ---- documents ----------------------------------------------------------------------------------------------

    def buckets(self) -> BucketList:
        return self._send(calls.buckets())

    def documents(self, bucket: str | None = None, limit: int = 50, after: str | None = None) -> DocumentList:
        """The last ingested first. ``after``: the ``next`` of the page before."""
        return self._send(calls.documents(bucket, limit, after))

    def document(
        self,
        doc_id: str,
        span: tuple[int, int] | None = None,
        chunk_id: int | None = None,
        start: int | None = None,
        max_chars: int | None = None,
    ) -> DocumentView:
        """Its text, with ``span`` or a passage marked. Raises ``NotFound``."""
        return self._send(calls.document(doc_id, span, chunk_id, start, max_chars))

    def delete_document(self, doc_id: str) -> None:
        """Searches that begin after this find nothing of it. Raises ``NotFound``; ``IndexBusy``: try again."""
        self._send(calls.delete_document(doc_id))

    def upload(
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
            return self._send(call)
        finally:
            calls.close(call)

    def job(self, job_id: str) -> Job:
        return self._send(calls.job(job_id))

    def job_events(self, job_id: str, after: int = 0) -> Generator[JobEvent, None, None]:
        """What becomes of a job, from the event after the ``after``-th; the last is JobCompletedEvent. Taken up again where the
        line broke. Raises the fault of a job that failed. Closing it leaves the job alone."""
        while True:
            try:
                with closing(self._events(calls.job_events(job_id, after))) as events:
                    for event in events:
                        after += 1
                        yield event
                        if isinstance(event, JobCompletedEvent):
                            return
            except (StageUnavailable, StageTimeout):
                if (job := self.job(job_id)).error is not None:
                    raise fault_of(job.error) from None
                time.sleep(RETRY_S)

    def wait(self, job_id: str) -> Job:
        """The job, when it has ended. Raises its fault where it failed."""
        with closing(self.job_events(job_id)) as events:
            for event in events:
                if isinstance(event, JobCompletedEvent):
                    return event.job
        raise cut_off()

    # ---- conversations ------------------------------------------------------------------------------------------

    def create_conversation(self, title: str = "") -> ConversationInfo:
        return self._send(calls.create_conversation(title))

    def conversations(self, limit: int = 50, before: str | None = None) -> ConversationList:
        """The last used first. ``before``: the id of the last one that you have."""
        return self._send(calls.conversations(limit, before))

    def conversation(self, id_: str, limit: int = 100, before: int | None = None) -> ConversationDetail:
        """With its messages. Raises ``NotFound``."""
        return self._send(calls.conversation(id_, limit, before))

    def rename_conversation(self, id_: str, title: str) -> ConversationInfo:
        return self._send(calls.rename_conversation(id_, title))

    def delete_conversation(self, id_: str) -> None:
        self._send(calls.delete_conversation(id_))

    def post_message(self, id_: str, message: PostMessage, idempotency_key: str | None = None) -> AskResponse:
        return self._send(calls.post_message(id_, message, idempotency_key))

    def stream_message(
        self, id_: str, message: PostMessage, idempotency_key: str | None = None
    ) -> Generator[Event, None, None]:
        return self._taken_up(calls.stream_message(id_, message, idempotency_key))

    # ---- on the wire --------------------------------------------------------------------------------------------

    def _send(self, call: calls.Call[M]) -> M:
        with self._told():
            response = self._http.request(call.method, call.path, **call.options)
        return self._read(response, call)

    def _taken_up(self, call: calls.Stream[Event]) -> Generator[Event, None, None]:
        place = Place()
        while True:
            try:
                with closing(self._events(call, place.note)) as events:
                    for event in events:
                        place.passed()
                        yield event
                return
            except (Broken, Unreachable):
                if (again := place.again()) is None:
                    raise
                call = again
            time.sleep(RETRY_S)

    def _events(self, call: calls.Stream[E], begun: Begun = lambda _: None) -> Generator[E, None, None]:
        with self._told(), self._http.stream(call.method, call.path, **call.options) as response:
            if not is_stream(response):
                response.read()
                self._refuse_stream(response, call.path)
            begun(response)
            decoder = Decoder(call.parse)
            for piece in response.iter_bytes():
                for event in decoder.feed(piece):
                    yield event
                    if isinstance(event, call.last):
                        return
            raise cut_off()
