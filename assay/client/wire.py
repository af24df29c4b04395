"""What both clients share: where to and with which key, how a response is read, and how events come out of bytes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from assay import access  # its errors are among those that a server names
from assay.client.calls import TAKEN_UP, Call, Stream, take_up
from assay.errors import AssayError, SetupError, StageTimeout, StageUnavailable, of_code
from assay.events import ErrorEvent, Event, parse_event
from assay.schemas import ErrorBody, ErrorResponse

DEFAULT_URL = "http://127.0.0.1:8000"
API_KEY = "ASSAY_API_KEY"
RETRY_S = 1.0  # before a stream that broke is taken up again
TRIES = 30  # in a row
NOT_NOW = (429, 500, 502, 503, 504)  # a stage that restarts, or a replica of the door

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E")
Begun = Callable[[httpx.Response], None]  # told of a stream's response, before its events


class Unreachable(StageUnavailable):
    """Nothing listens at the URL."""

    code = "unreachable"


class Broken(StageUnavailable):
    """The connection ended before what came over it did."""


@dataclass(slots=True)
class Place:
    """Where a question's stream was when its connection broke: its id, where it can be taken up again, and the events seen."""

    id: str = ""
    seen: int = 0
    tries: int = 0

    def note(self, response: httpx.Response) -> None:
        self.id = response.headers.get("x-stream-id", self.id)

    def passed(self) -> None:
        self.seen, self.tries = self.seen + 1, 0

    def again(self) -> Stream[Event] | None:
        """How to go on from here; None where there is no hope."""
        self.tries += 1
        return take_up(self.id, self.seen) if self.id and self.tries <= TRIES else None


class NotAssay(AssayError):
    """Something answers at the URL, but not in our shapes."""

    code = "not_assay"
    status = 502


class Decoder(Generic[E]):
    """Bytes of an event stream -> events, however they are cut.

    Only LF ends a line here: the JSON may hold U+2028 and U+0085, at which text decoders (httpx's too) would split.
    """

    def __init__(self, parse: Callable[[bytes], E]) -> None:
        self._parse, self._rest = parse, b""

    def feed(self, piece: bytes) -> Iterator[E]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield self._event(line[5:])

    def _event(self, data: bytes) -> E:
        try:
            event = self._parse(data)
        except ValidationError:
            raise NotAssay("The server sent an event that this version does not know.") from None
        if isinstance(event, ErrorEvent):
            raise fault_of(event.error)
        return event


class EventDecoder(Decoder[Event]):
    """Of a question's events."""

    def __init__(self) -> None:
        super().__init__(parse_event)


def fault_of(body: ErrorBody) -> AssayError:
    """The error of the server's code; its request id is in the notes."""
    fault = of_code(body.code, body.message, body.field, tuple(body.allowed))
    if body.request_id:
        fault.add_note(f"request_id {body.request_id}")
    return fault


class Base:
    def __init__(self, url: str, timeout_s: float, api_key: str | None) -> None:
        self.url = url.rstrip("/")
        host = httpx.URL(self.url).host
        self._options: dict[str, Any] = {
            "base_url": self.url,
            "headers": _authorization(os.environ.get(API_KEY) if api_key is None else api_key),
            "timeout": httpx.Timeout(timeout_s, connect=5),
            "trust_env": not access.is_loopback(host),  # a proxy cannot reach our loopback
        }

    def _read(self, response: httpx.Response, call: Call[M]) -> M:
        if response.status_code not in call.good:
            self._refuse(response)
        try:
            return call.shape.model_validate_json(response.content or b"{}")
        except ValidationError:
            raise self._not_assay(response) from None

    def _refuse(self, response: httpx.Response) -> NoReturn:
        try:
            error = ErrorResponse.model_validate_json(response.content).error
        except ValidationError:
            raise self._not_assay(response) from None
        fault = fault_of(error)
        if seconds := response.headers.get("retry-after"):
            fault.add_note(f"try again in {seconds} s")
        raise fault

    def _refuse_stream(self, response: httpx.Response, path: str) -> NoReturn:
        """Raises ``Broken`` where one that is there already cannot be taken up just now."""
        if path.startswith(TAKEN_UP) and response.status_code in NOT_NOW:
            raise Broken(
                f"{self.url} answers with HTTP {response.status_code}: the stream cannot be taken up just now."
            )
        self._refuse(response)

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
            raise Broken(f"The connection to {self.url} broke: {str(error) or type(error).__name__}.") from None


def is_stream(response: httpx.Response) -> bool:
    return response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream")


def cut_off() -> Broken:
    return Broken("The stream ended before the last event.")


def _authorization(api_key: str | None) -> dict[str, str]:
    if not (key := (api_key or "").strip()):
        return {}
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise SetupError("The API key holds characters that no key has; copy it anew.", "api_key")
    return {"authorization": f"Bearer {key}"}
