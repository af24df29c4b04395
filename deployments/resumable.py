"""Streams that outlive their connection: questions asked with ``"resumable": true``, and the routes that take them up again.

Such a question runs in a task of its own and tells its events to ``Streams``, where its client reads them, at first over the
connection that asked and later over any other. It ends when it is answered, when nobody has listened for ``grace_s``, when
its client says so, or with its replica; and its stream ends with an event that says which.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, aclosing, suppress
from contextvars import Context
from typing import Annotated

from fastapi import FastAPI, Header, Path, Query, Request, Response
from pydantic import WithJsonSchema
from starlette.types import Receive, Scope, Send
from ulid import ULID

from assay.access import BoundDriver, Grant
from assay.audit import Trail
from assay.config import IngressConfig
from assay.errors import Abandoned, AssayError, StageUnavailable
from assay.events import CompletedEvent, ErrorEvent, Event
from assay.ports import Driver
from assay.schemas import AskRequest
from assay.streams import Part, Streams
from deployments import openapi_streams as openapi
from deployments.gate import bound, held
from deployments.problems import body_of, response_of
from deployments.sse import (
    EVENTS_HEADER,
    Events,
    QuestionResponse,
    Slots,
    frame,
    open_line,
    until_last,
    while_connected,
)

STREAM_HEADER = "x-stream-id"
WAIT_S = 1.0  # of one read
OPEN_S = 0.2  # of the first one: what another replica has been told may be here a moment later
MOST = 10**9  # of an event's id
_NUMBER = {"type": "integer", "minimum": 0, "maximum": MOST}  # no null, which would be the word
_GONE = StageUnavailable("The replica that was answering is gone; ask again.")
RENEW_S = 1.0  # of a writer, far below ``assay.streams.LEASE_S``


class Resumables:
    """The resumable questions of this replica."""

    def __init__(self, streams: Streams, config: IngressConfig) -> None:
        self.streams, self.config = streams, config
        self.listeners = Slots(config.max_listening, "streams that were taken up")
        self._running: set[asyncio.Task[None]] = set()

    def respond(
        self, request: Request, events: Callable[[], Events], slots: Slots, body: AskRequest, group: str = ""
    ) -> Response:
        """One question, in the way that its request asks for. ``group``: what its stream is dropped with."""
        if body.stream and body.resumable:
            return _Asked(self, request, events, slots, group)
        return QuestionResponse(events, slots, body.stream, self.config.heartbeat_s)

    def begin(self, request: Request, events: Callable[[], Events], slots: Slots, group: str) -> "Run":
        """Raises ``Overloaded``. What a question holds, its slot and its key's permit, it holds until its own end."""
        holds = ExitStack()
        holds.enter_context(slots.one())
        holds.enter_context(held(request.state.permit))
        grace_s = self.config.streams.grace_s
        run = Run(self.streams, owner_of(request), group, request.state.request_id, grace_s)
        # Ray cancels whatever a cancelled request has called, and knows it by the context: this one must not be of it.
        task = asyncio.create_task(run.live(events, holds), context=Context())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        run.task = task
        return run

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def owner_of(request: Request) -> str:
    grant: Grant = request.state.grant
    return grant.owner


class Run:
    """One question and its stream. ``first`` is there as soon as its first event is: an error has then still its status."""

    task: asyncio.Task[None]
    _holds: ExitStack

    def __init__(self, streams: Streams, owner: str, group: str, request_id: str, grace_s: float) -> None:
        self.id = f"stm_{ULID()}"
        self.first: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._streams, self._owner, self._group = streams, owner, group
        self._request_id, self._grace_s = request_id, grace_s
        self._told = 0

    async def live(self, events: Callable[[], Events], holds: ExitStack) -> None:
        fault: AssayError | None = None
        self._holds = holds
        with holds:
            try:
                await self._until_given_up(events)
            except AssayError as error:
                fault = error
            except asyncio.CancelledError:
                fault = _GONE
                raise
            finally:
                if fault is not None:
                    await self._end(fault)

    async def stop(self) -> None:
        """Whoever asked has gone before the first event: nobody knows of this stream."""
        self.task.cancel()
        await asyncio.wait({self.task})

    async def _until_given_up(self, events: Callable[[], Events]) -> None:
        telling, watching = asyncio.create_task(self._tell_all(events)), asyncio.create_task(self._watch())
        try:
            await asyncio.wait({telling, watching}, return_when=asyncio.FIRST_COMPLETED)
            (telling if telling.done() else watching).result()
        finally:
            telling.cancel()
            watching.cancel()
            await asyncio.wait({telling, watching})

    async def _tell_all(self, events: Callable[[], Events]) -> None:
        async with aclosing(events()) as told:
            async for event in told:
                # An error that comes first is told over the connection alone: there is nothing to take up.
                if self._told or not isinstance(event, ErrorEvent):
                    await self._tell(event)
                if not self.first.done():
                    self.first.set_result(event)

    async def _tell(self, event: Event) -> None:
        ended = isinstance(event, CompletedEvent | ErrorEvent)
        if ended:  # whoever hears it may ask again at once
            self._holds.close()
        await self._append((frame(self._told + 1, event),), ended)
        self._told += 1

    async def _append(self, frames: tuple[str, ...], ended: bool = False) -> float:
        return await self._streams.append(self.id, self._owner, self._told, frames, ended, self._group)

    async def _end(self, fault: AssayError) -> None:
        if not self._told and not self.first.done():
            self.first.set_exception(fault)
            return
        with suppress(AssayError):  # of the streams' own: then whoever reads is told by them
            part = await self._streams.read(self.id, self._owner, 0, 0)
            if not part.ended:  # an append that was interrupted may have been one or not
                self._told = len(part.frames)
                await self._tell(ErrorEvent(request_id=self._request_id, error=body_of(fault, self._request_id)))

    async def _watch(self) -> None:
        """Raises ``Abandoned``."""
        while True:
            await asyncio.sleep(min(RENEW_S, self._grace_s / 4))
            if self._told:
                idle_s = await self._append(())
                if idle_s > self._grace_s:
                    raise Abandoned(f"Nobody listened for {idle_s:.0f} s, so this answer was given up; ask again.")


class _Asked(Response):
    """Asks, and listens for as long as the connection holds."""

    def __init__(
        self, runs: Resumables, request: Request, events: Callable[[], Events], slots: Slots, group: str
    ) -> None:
        super().__init__()
        self._runs, self._request, self._events = runs, request, events
        self._slots, self._group = slots, group

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run = self._runs.begin(self._request, self._events, self._slots, self._group)
        await while_connected(receive, self._listen(run, scope, receive, send))

    async def _listen(self, run: Run, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await asyncio.shield(run.first)
        except asyncio.CancelledError:
            await run.stop()
            raise
        if isinstance(first, ErrorEvent):
            await asyncio.wait({run.task})
            await response_of(first.error)(scope, receive, send)
        else:
            await _TakenUp(self._runs, self._request, run.id, 0).listen(scope, receive, send)


class _TakenUp(Response):
    """Listens to a stream, from after an event on."""

    def __init__(self, runs: Resumables, request: Request, id: str, after: int) -> None:
        super().__init__()
        self._streams, self._heartbeat_s = runs.streams, runs.config.heartbeat_s
        self._slots = runs.listeners
        self._owner, self._request_id = owner_of(request), request.state.request_id
        self._id, self._after = id, after
        self._trail: Trail = request.state.trail
        self._tells = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._tells = True  # of whoever asks, the driver tells
        with until_last(self._slots.one(), send) as send:
            await while_connected(receive, self.listen(scope, receive, send))

    async def listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        part = await self._streams.read(self._id, self._owner, self._after, OPEN_S)
        if part.ended and not part.frames:  # an EventSource that is told so does not come again
            await Response(status_code=204)(scope, receive, send)
            return
        async with open_line(send, self._heartbeat_s, {**EVENTS_HEADER, STREAM_HEADER: self._id}) as write:
            while True:
                if part.frames:
                    frames = "".join(part.frames)
                    if self._tells:
                        self._trail.passed_on(frames)
                    await write(frames)
                if part.ended:
                    return
                self._after += len(part.frames)
                part = self._broken(_GONE) if part.lost else await self._next()

    async def _next(self) -> Part:
        try:
            return await self._streams.read(self._id, self._owner, self._after, WAIT_S)
        except AssayError as fault:
            return self._broken(fault)

    def _broken(self, fault: AssayError) -> Part:
        """The end of a stream that has none of its own."""
        error = ErrorEvent(request_id=self._request_id, error=body_of(fault, self._request_id))
        return Part((frame(self._after + 1, error),), True)


async def _check(streams: Streams, driver: BoundDriver, request: Request, id: str) -> None:
    """Raises ``NotFound``: what its events tell of was deleted meanwhile, or is no longer for whoever asks."""
    part = await streams.read(id, owner_of(request), 0, 0)
    await driver.check_stream("".join(part.frames), request.state.request_id)


def add_streams(app: FastAPI, driver: Driver, runs: Resumables) -> None:
    @app.get("/v1/streams/{id}", tags=["questions"], response_model=None, **openapi.TAKE_UP)
    async def take_up(
        request: Request,
        id: Annotated[str, Path(max_length=100)],
        last: Annotated[int | None, WithJsonSchema(_NUMBER), Header(alias="Last-Event-ID", ge=0, le=MOST)] = None,
        after: Annotated[int, Query(ge=0, le=MOST, description="The same, for a first request by `EventSource`.")] = 0,
    ) -> Response:
        """Take up a stream that was asked for with `"resumable": true`: the events after `Last-Event-ID`, and those to come."""
        await while_connected(request.receive, _check(runs.streams, bound(driver, request), request, id))
        return _TakenUp(runs, request, id, after if last is None else last)

    @app.delete("/v1/streams/{id}", status_code=204, tags=["questions"], **openapi.DROP)
    async def drop(request: Request, id: Annotated[str, Path(max_length=100)]) -> None:
        """End the answer, if it is in the making, and forget its events."""
        await runs.streams.drop(id, owner_of(request))
