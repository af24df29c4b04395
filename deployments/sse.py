"""One question on one connection: its events as Server-Sent Events, or its last one as JSON.

Admission comes first, errors are plain responses until the first byte, and the question ends when its client goes.
The framing is our own three lines, because the wire must carry U+2028 and U+0085 inside a line as they are
(``fastapi.sse.format_sse_event`` splits ``data`` at them), and because importing sse-starlette patches uvicorn.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeVar

from fastapi import Response
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from assay.documents.shapes import JobEvent
from assay.errors import Overloaded
from assay.events import VERSION, CompletedEvent, ErrorEvent, Event
from deployments.problems import response_of

T = TypeVar("T")
Events = AsyncGenerator[Event, None]

SEND_TIMEOUT_S = 60  # a reader that takes nothing for so long is gone, and must not hold a slot

# no-transform: a proxy that compresses would first collect; x-accel-buffering is what nginx and its kin look at.
SSE_HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
EVENTS_HEADER = {"x-assay-events": str(VERSION)}


class Slots:
    """Admission: at most ``limit`` at once, and the next one is refused, not queued."""

    def __init__(self, limit: int, what: str) -> None:
        self._limit, self._what, self._taken = limit, what, 0

    def check(self) -> None:
        if self._taken >= self._limit:
            raise Overloaded(f"{self._limit} {self._what} are in progress here already; try again in a moment.")

    @contextmanager
    def one(self) -> Iterator[None]:
        self.check()
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


@contextmanager
def until_last(held: AbstractContextManager[None], send: Send) -> Iterator[Send]:
    """``send``, of a response that holds something for as long as there is more of it: it is let go before the last piece, for
    whoever has that may ask again at once."""
    with ExitStack() as stack:
        stack.enter_context(held)

        async def sends(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                stack.close()
            await send(message)

        yield sends


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Awaits ``work``; when the client goes first, cancels it, awaits its end and raises ClientDisconnect."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Wire(Protocol):
    """What one question looks like to its client: fed every event once, in order, whether they are streamed or not.
    ``headers`` are those of the stream."""

    headers: Mapping[str, str]

    def frames(self, event: Event) -> str:
        """The event as server-sent text; "" where this wire has nothing to say of it."""
        ...

    def response(self) -> Response:
        """The whole, after the last event."""
        ...


def frame(number: int, event: Event | JobEvent) -> str:
    return f"id: {number}\nevent: {event.type}\ndata: {event.model_dump_json(by_alias=True)}\n\n"


class NativeWire:
    """Every event as it is, under an id that rises by one; where nobody streams, none but the last."""

    headers: Mapping[str, str] = EVENTS_HEADER

    def __init__(self, stream: bool) -> None:
        self._id, self._stream = 0, stream
        self._last: Event | None = None

    def frames(self, event: Event) -> str:
        self._id += 1
        self._last = event
        return frame(self._id, event) if self._stream else ""

    def response(self) -> Response:
        if isinstance(self._last, ErrorEvent):
            return response_of(self._last.error)
        assert isinstance(self._last, CompletedEvent)
        return Response(self._last.response.model_dump_json(by_alias=True), media_type="application/json")


class QuestionResponse(Response):
    """Runs one question while its client listens. Everything of it (slot, driver's stream, heartbeat) lives inside
    ``__call__``, in one task, so that nothing is left behind however it ends.

    ``events`` must yield at least one event, end with exactly one CompletedEvent or ErrorEvent, and never raise."""

    def __init__(
        self, events: Callable[[], Events], slots: Slots, stream: bool, heartbeat_s: float, wire: Wire | None = None
    ) -> None:
        super().__init__()
        self._events, self._slots, self._stream, self._heartbeat_s = events, slots, stream, heartbeat_s
        self._wire = wire or NativeWire(stream)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with until_last(self._slots.one(), send) as send:
            await while_connected(receive, self._run(scope, receive, send))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events()) as events:
            first = await anext(events)  # before any header: an error here still has its status
            if self._stream and not isinstance(first, ErrorEvent):
                await send_events(first, events, self._wire, send, self._heartbeat_s)
                return
            self._wire.frames(first)
            async for later in events:
                self._wire.frames(later)
        await self._wire.response()(scope, receive, send)


async def send_events(
    first: Event, rest: Events, wire: Wire, send: Send, heartbeat_s: float, send_timeout_s: float = SEND_TIMEOUT_S
) -> None:
    """Pulls the next event only when the last one is taken, so a slow reader holds back the source."""
    async with open_line(send, heartbeat_s, wire.headers, send_timeout_s) as write:
        await write(wire.frames(first))
        async for event in rest:
            await write(wire.frames(event))


@asynccontextmanager
async def open_line(
    send: Send, heartbeat_s: float, headers: Mapping[str, str], send_timeout_s: float = SEND_TIMEOUT_S
) -> AsyncGenerator[Callable[[str], Awaitable[None]]]:
    """What writes frames to the open line, which is kept open by comments, and closed in order where nothing went wrong."""
    line = _Line(send, send_timeout_s)
    await line.open(headers)
    beat = asyncio.create_task(line.beat(heartbeat_s))
    try:
        yield line.write
    finally:
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)
    await line.close()


class _Line:
    """Writes whole frames, one at a time, each within ``timeout_s``."""

    def __init__(self, send: Send, timeout_s: float) -> None:
        self._send, self._timeout_s = send, timeout_s
        self._lock = asyncio.Lock()

    async def open(self, headers: Mapping[str, str]) -> None:
        headers = {"content-type": "text/event-stream; charset=utf-8", **SSE_HEADERS, **headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def beat(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.write(": ping\n\n")

    async def close(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def write(self, frames: str) -> None:
        if not frames:
            return
        try:
            async with self._lock, asyncio.timeout(self._timeout_s):
                await self._send({"type": "http.response.body", "body": frames.encode(), "more_body": True})
        except TimeoutError:
            raise ClientDisconnect from None
