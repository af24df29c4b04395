"""A small client of a running graph: the requests and events of this package over HTTP, sync and async alike.

A fault is raised as the ``AssayError`` that the server named, whether it came before the stream or inside it.
"""

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from assay.errors import AssayError, StageTimeout, StageUnavailable, of_code
from assay.events import CompletedEvent, ErrorEvent, Event, parse_event
from assay.schemas import (
    AnswerRecord,
    AskRequest,
    AskResponse,
    ErrorBody,
    ErrorResponse,
    Readiness,
    SearchRequest,
    SearchResponse,
)

DEFAULT_URL = "http://127.0.0.1:8000"

M = TypeVar("M", bound=BaseModel)


class Unreachable(StageUnavailable):
    """Nothing listens at the URL."""

    code = "unreachable"


class NotAssay(AssayError):
    """Something answers at the URL, but not in our shapes."""

    code = "not_assay"
    status = 502


class EventDecoder:
    """Bytes of an event stream -> events, however they are cut.

    Only LF ends a line here: the JSON may hold U+2028 and U+0085, at which text decoders (httpx's too) would split.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[Event]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield _event(line[5:])


def _event(data: bytes) -> Event:
    try:
        event = parse_event(data)
    except ValidationError:
        raise NotAssay("The server sent an event that this version does not know.") from None
    if isinstance(event, ErrorEvent):
        raise fault_of(event.error)
    return event


def fault_of(body: ErrorBody) -> AssayError:
    """The error of the server's code; its request id is in the notes."""
    fault = of_code(body.code, body.message, body.field, tuple(body.allowed))
    if body.request_id:
        fault.add_note(f"request_id {body.request_id}")
    return fault


class _Base:
    """What both clients share: where to, how a request is written and a response read."""

    def __init__(self, url: str = DEFAULT_URL, timeout_s: float = 300, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        host = httpx.URL(self.url).host
        self._options: dict[str, Any] = {
            "base_url": self.url,
            "headers": {"authorization": f"Bearer {key}"} if key else {},
            "timeout": httpx.Timeout(timeout_s, connect=5),
            "trust_env": host not in ("127.0.0.1", "localhost", "::1"),  # a proxy cannot reach our loopback
        }

    def _read(self, response: httpx.Response, model: type[M], good: tuple[int, ...] = (200,)) -> M:
        if response.status_code not in good:
            self._refuse(response)
        try:
            return model.model_validate_json(response.content)
        except ValidationError:
            raise self._not_assay(response) from None

    def _refuse(self, response: httpx.Response) -> NoReturn:
        try:
            error = ErrorResponse.model_validate_json(response.content).error
        except ValidationError:
            raise self._not_assay(response) from None
        raise fault_of(error)

    def _not_assay(self, response: httpx.Response) -> NotAssay:
        told = f"{self.url} answers with HTTP {response.status_code}, but not as Assay does"
        return NotAssay(f"{told}: is it still starting, or another service?")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """httpx's faults as ours."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol):
            raise Unreachable(f"Nothing answers at {self.url}: start it with `make serve`.") from None
        except httpx.TimeoutException:
            raise StageTimeout(f"{self.url} did not answer in time.") from None
        except httpx.TransportError as error:
            raise StageUnavailable(
                f"The connection to {self.url} broke: {str(error) or type(error).__name__}."
            ) from None


def _json(request: BaseModel, **update: object) -> dict[str, Any]:
    written = request.model_copy(update=update).model_dump_json(by_alias=True, exclude_unset=True)
    return {"content": written, "headers": {"content-type": "application/json"}}


def _is_stream(response: httpx.Response) -> bool:
    return response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream")


def _cut_off() -> StageUnavailable:
    return StageUnavailable("The stream ended before the answer was complete.")


class Client(_Base):
    """Blocking. Use as a context manager. ``key``: an API key, where the service has keys."""

    def __init__(self, url: str = DEFAULT_URL, timeout_s: float = 300, key: str | None = None) -> None:
        super().__init__(url, timeout_s, key)
        self._http = httpx.Client(**self._options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, request: AskRequest) -> AskResponse:
        with self._told():
            response = self._http.post("/v1/answers", **_json(request, stream=False))
        return self._read(response, AskResponse)

    def stream(self, request: AskRequest) -> Generator[Event, None, None]:
        """Events as they happen; the last is CompletedEvent. Closing it cancels the question."""
        with self._told(), self._http.stream("POST", "/v1/answers", **_json(request, stream=True)) as response:
            if not _is_stream(response):
                response.read()
                self._refuse(response)
            decoder = EventDecoder()
            for piece in response.iter_bytes():
                for event in decoder.feed(piece):
                    yield event
                    if isinstance(event, CompletedEvent):
                        return
            raise _cut_off()

    def search(self, request: SearchRequest) -> SearchResponse:
        with self._told():
            response = self._http.post("/v1/search", **_json(request))
        return self._read(response, SearchResponse)

    def recall(self, answer_id: str) -> AnswerRecord:
        """A kept answer. Raises ``NotFound``."""
        with self._told():
            response = self._http.get(f"/v1/answers/{quote(answer_id, safe='')}")
        return self._read(response, AnswerRecord)

    def ready(self) -> Readiness:
        with self._told():
            response = self._http.get("/readyz")
        return self._read(response, Readiness, good=(200, 503))


class AsyncClient(_Base):
    """The same for asyncio. ``transport`` is for in-process apps (``httpx.ASGITransport``)."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        timeout_s: float = 300,
        key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, timeout_s, key)
        self._http = httpx.AsyncClient(**self._options, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, request: AskRequest) -> AskResponse:
        with self._told():
            response = await self._http.post("/v1/answers", **_json(request, stream=False))
        return self._read(response, AskResponse)

    async def stream(self, request: AskRequest) -> AsyncGenerator[Event, None]:
        """Events as they happen; the last is CompletedEvent. Closing it cancels the question."""
        with self._told():
            async with self._http.stream("POST", "/v1/answers", **_json(request, stream=True)) as response:
                if not _is_stream(response):
                    await response.aread()
                    self._refuse(response)
                decoder = EventDecoder()
                async for piece in response.aiter_bytes():
                    for event in decoder.feed(piece):
                        yield event
                        if isinstance(event, CompletedEvent):
                            return
                raise _cut_off()

    async def search(self, request: SearchRequest) -> SearchResponse:
        with self._told():
            response = await self._http.post("/v1/search", **_json(request))
        return self._read(response, SearchResponse)

    async def recall(self, answer_id: str) -> AnswerRecord:
        """A kept answer. Raises ``NotFound``."""
        with self._told():
            response = await self._http.get(f"/v1/answers/{quote(answer_id, safe='')}")
        return self._read(response, AnswerRecord)

    async def ready(self) -> Readiness:
        with self._told():
            response = await self._http.get("/readyz")
        return self._read(response, Readiness, good=(200, 503))
