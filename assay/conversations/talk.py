"""One message of a conversation: its turn is begun in the store, answered by the driver with the history, and ended.

The answer is kept before its last event is shown, so what a client saw completed is there. A client that goes away, or a fault,
ends the turn too; a conversation that is deleted in the meantime ends the answer.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Protocol

from ulid import ULID

from assay.conversations.store import Store
from assay.conversations.types import Begun, Message, StoreUnavailable, TurnRecord
from assay.errors import AssayError, NotFound, StageUnavailable
from assay.events import CompletedEvent, ErrorEvent, Event
from assay.ports import Tokenizer
from assay.schemas import AskRequest, AskResponse, Turn
from assay.tokens import EstimatedTokenizer
from assay.window import Bounds, size_of, start_of, windowed

RETRY_S = 0.25  # between attempts to keep an answer while the store is away


class Asks(Protocol):
    """Of ``ports.Driver``, what a question needs."""

    def stream(self, request: AskRequest, request_id: str) -> AsyncGenerator[Event]: ...


class Sees(Asks, Protocol):
    async def seen(self, answers: Sequence[AskResponse], request_id: str) -> list[bool]:
        """Of each answer, whether all that it rests on is there for whoever asks."""
        ...

    def replayed(self, answer: AskResponse) -> None:
        """It is given once more, as it was kept."""
        ...


async def readable(driver: Sees, turns: Sequence[TurnRecord], request_id: str) -> list[TurnRecord]:
    """The turns as they may be seen now: one whose answer rests on what is no longer there has failed, as not found."""
    kept = [turn for turn in turns if turn.response]
    there = await driver.seen([AskResponse.model_validate_json(turn.response or "") for turn in kept], request_id)
    gone = {turn.id for turn, whole in zip(kept, there, strict=True) if not whole}
    return [
        replace(turn, status="failed", response=None, error=NotFound.code) if turn.id in gone else turn
        for turn in turns
    ]


def said(turn: TurnRecord) -> list[Turn]:
    """The question and the answer of a turn that was answered."""
    response = AskResponse.model_validate_json(turn.response or "")
    answer = (
        response.answer.text if response.answer else response.clarification.message if response.clarification else ""
    )
    messages = [Turn(role="user", content=turn.question)]
    return [*messages, Turn(role="assistant", content=answer[:32_000])] if answer else messages


def _as_asked(response: AskResponse, request: AskRequest) -> CompletedEvent:
    evidence = response.evidence if "evidence" in request.include else None
    return CompletedEvent(response=response.model_copy(update={"evidence": evidence}))


class Talk:
    """``Asks`` for one message of one conversation."""

    def __init__(
        self,
        store: Store,
        driver: Sees,
        tenant: str,
        conversation_id: str,
        key: str | None,
        lease_s: float = 30,
        bounds: Bounds | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self._store, self._driver = store, driver
        self._tenant, self._conversation, self._key = tenant, conversation_id, key
        self._lease_s, self._bounds = lease_s, bounds or Bounds()
        self._tokenizer = tokenizer or EstimatedTokenizer()

    async def stream(self, request: AskRequest, request_id: str) -> AsyncGenerator[Event]:
        digest = hashlib.sha256(request.model_dump_json(exclude={"stream", "resumable"}).encode()).hexdigest()
        message = Message(f"turn_{ULID()}", request.question, digest, self._key)
        begun = await self._begin(message)
        if begun.replay is not None:
            (replay,) = await readable(self._driver, [begun.replay], request_id)
            if replay.response is None:
                raise NotFound("There is no such answer, or no more.")
            answer = AskResponse.model_validate_json(replay.response)
            self._driver.replayed(answer)
            yield _as_asked(answer, request)
            return
        ended = False
        try:
            earlier = await readable(self._driver, begun.earlier, request_id)
            turns = [said(turn) for turn in earlier if turn.status == "done"]
            history = windowed(turns, self._bounds, self._tokenizer)
            # What the answer rests on is kept with it, also where it cites none of that: ``readable`` looks at it.
            update = {"history": history, "include": list(dict.fromkeys((*request.include, "evidence")))}
            whole = request.model_copy(update=update)
            async with aclosing(self._held(whole, request_id, message.turn_id)) as events:
                async for event in events:
                    if isinstance(event, CompletedEvent):
                        await self._keep(message.turn_id, event)
                        ended = True
                        event = _as_asked(event.response, request)
                    elif isinstance(event, ErrorEvent):
                        ended = True
                        await self._gave_up(message.turn_id, event.error.code)
                    yield event
        except AssayError as fault:
            ended = True
            await self._gave_up(message.turn_id, fault.code)
            raise
        finally:
            if not ended:
                await self._gave_up(message.turn_id)

    async def _begin(self, message: Message) -> Begun:
        """A client that goes while its turn is begun leaves none that runs."""
        work = asyncio.ensure_future(self._store.begin(self._tenant, self._conversation, message, self._window))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            if work.exception() is None and work.result().replay is None:
                await self._gave_up(message.turn_id)
            raise

    def _window(self, turns: Sequence[TurnRecord]) -> int:
        return start_of([size_of(said(turn), self._tokenizer) for turn in turns], self._bounds)

    async def _held(self, request: AskRequest, request_id: str, turn_id: str) -> AsyncGenerator[Event]:
        """The driver's events, for as long as the turn is ours."""
        lost = asyncio.create_task(self._renewed(turn_id))
        try:
            async with aclosing(self._driver.stream(request, request_id)) as events:
                while True:
                    step = asyncio.ensure_future(anext(events))
                    try:
                        await asyncio.wait({step, lost}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        if not step.done():  # before the stream is closed, which it must not be while it runs
                            step.cancel()
                            await asyncio.wait({step})
                    if lost.done():
                        lost.result()
                    try:
                        yield step.result()
                    except StopAsyncIteration:
                        return
        finally:
            lost.cancel()
            await asyncio.wait({lost})

    async def _renewed(self, turn_id: str) -> None:
        """Raises ``NotFound`` when the turn is lost. A store that is away is asked again until the lease must have run out."""
        held = time.monotonic()
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._store.renew(turn_id)
                held = time.monotonic()
            except NotFound:
                raise NotFound(
                    "The conversation was deleted, or this message given up, while it was answered.", "conversation_id"
                ) from None
            except StoreUnavailable:
                if time.monotonic() - held > self._lease_s:
                    raise

    async def _keep(self, turn_id: str, event: CompletedEvent) -> None:
        until = time.monotonic() + self._lease_s
        kept = event.response.model_dump_json(by_alias=True)
        while True:
            try:
                return await self._store.finish(turn_id, kept)
            except NotFound:
                raise NotFound(
                    "The conversation was deleted, or this message given up, while it was answered.", "conversation_id"
                ) from None
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise StageUnavailable("The answer could not be kept: the conversations' store is away.") from None
                await asyncio.sleep(RETRY_S)

    async def _gave_up(self, turn_id: str, code: str | None = None) -> None:
        """The fault's code alone is kept: its words may be of the inside. Where this is not written, the lease runs out."""
        status, error = ("failed", code) if code else ("interrupted", None)
        with suppress(NotFound, StoreUnavailable):
            await self._store.fail(turn_id, "failed" if status == "failed" else "interrupted", error)
