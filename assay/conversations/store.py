"""The store of conversations: each method is one transaction, and the same over SQLite and PostgreSQL.

A turn is begun, renewed while it is answered, and ended, all by its id. One turn of a conversation runs at a time; one that
is not renewed in time counts as interrupted, so that a replica that died blocks nobody.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from ulid import ULID

from assay.conversations.database import Database
from assay.conversations.tables import CONVERSATIONS as C
from assay.conversations.tables import TURNS as T
from assay.conversations.types import (
    Begun,
    Conversation,
    ConversationBusy,
    KeyReused,
    Message,
    TurnRecord,
    TurnStatus,
)
from assay.errors import NotFound

KEPT = (T.c.id, T.c.position, T.c.question, T.c.status, T.c.created_at, T.c.ended_at, T.c.response, T.c.error)
TITLE_CHARS = 80

# Index of the first turn of a window over these turns.
WindowOf = Callable[[Sequence[TurnRecord]], int]


def _now() -> int:
    return int(time.time() * 1000)


def _missing() -> NotFound:
    return NotFound("There is no such conversation.", "conversation_id")


class Store:
    """Every method raises ``StoreUnavailable``; those that name a conversation ``NotFound``, where the tenant has none such."""

    def __init__(self, database: Database, lease_s: float = 30, now: Callable[[], int] = _now) -> None:
        self._database, self._lease_ms, self._now = database, int(1000 * lease_s), now

    async def create(self, tenant: str, title: str = "") -> Conversation:
        now = self._now()
        made = Conversation(f"conv_{ULID()}", tenant, title, now, now)
        values = {"id": made.id, "tenant": tenant, "title": title, "created_at": now, "updated_at": now}
        await self._database.run(lambda c: c.execute(C.insert().values(values)))
        return made

    async def recent(self, tenant: str, limit: int, before: str | None = None) -> list[Conversation]:
        """Newest first; ``before``: those after this one in that order."""

        async def work(c: AsyncConnection) -> list[Conversation]:
            query = sa.select(C).where(C.c.tenant == tenant)
            if before is not None:
                last = await _conversation(c, tenant, before)
                key = sa.tuple_(C.c.updated_at, C.c.id)
                query = query.where(key < sa.tuple_(sa.literal(last.updated_at), sa.literal(last.id)))
            rows = await c.execute(query.order_by(C.c.updated_at.desc(), C.c.id.desc()).limit(limit))
            return [_made(row) for row in rows]

        return await self._database.run(work)

    async def read(
        self, tenant: str, id_: str, limit: int = 100, before: int | None = None
    ) -> tuple[Conversation, list[TurnRecord]]:
        """With its last ``limit`` turns, oldest first; ``before``: of those at a lower position."""

        async def work(c: AsyncConnection) -> tuple[Conversation, list[TurnRecord]]:
            found = await _conversation(c, tenant, id_)
            query = sa.select(*KEPT).where(T.c.conversation_id == id_)
            if before is not None:
                query = query.where(T.c.position < before)
            rows = await c.execute(query.order_by(T.c.position.desc()).limit(limit))
            return found, [_turn(row) for row in rows][::-1]

        return await self._database.run(work)

    async def rename(self, tenant: str, id_: str, title: str) -> Conversation:
        async def work(c: AsyncConnection) -> Conversation:
            await c.execute(C.update().where(C.c.id == id_, C.c.tenant == tenant).values(title=title))
            return await _conversation(c, tenant, id_)

        return await self._database.run(work)

    async def delete(self, tenant: str, id_: str) -> None:
        """With all of its turns. One that is running finds out when it is renewed or ended."""

        async def work(c: AsyncConnection) -> None:
            gone = await c.execute(C.delete().where(C.c.id == id_, C.c.tenant == tenant))
            if not gone.rowcount:
                raise _missing()

        await self._database.run(work)

    # ---- one turn ---------------------------------------------------------------------------------------------------

    async def begin(self, tenant: str, id_: str, message: Message, window_of: WindowOf) -> Begun:
        """Raises ``ConversationBusy`` while another message is being answered, and ``KeyReused`` for a key of another one.

        A key of a turn that was answered replays it; of one that failed or was interrupted, asks anew in its place."""
        try:
            return await self._database.run(lambda c: self._begin(c, tenant, id_, message, window_of))
        except IntegrityError:  # two at the same moment: the database let one in
            raise _busy() from None

    async def _begin(self, c: AsyncConnection, tenant: str, id_: str, message: Message, window_of: WindowOf) -> Begun:
        row = await _row(c, tenant, id_, lock=True)
        if (replay := await self._before(c, id_, message)) is not None:
            return Begun(replay=replay)
        await self._take_over(c, id_)
        query = sa.select(*KEPT).where(
            T.c.conversation_id == id_, T.c.position >= row.window_from, T.c.status == "done"
        )
        done = [_turn(found) for found in await c.execute(query.order_by(T.c.position))]
        earlier = done[window_of(done) :]
        last = (await c.execute(sa.select(sa.func.max(T.c.position)).where(T.c.conversation_id == id_))).scalar()
        now = self._now()
        title = row.title or " ".join(message.question.split())[:TITLE_CHARS]
        start = earlier[0].position if earlier else row.window_from
        await c.execute(C.update().where(C.c.id == id_).values(updated_at=now, window_from=start, title=title))
        turn = {
            "id": message.turn_id,
            "conversation_id": id_,
            "position": 0 if last is None else last + 1,
            "question": message.question,
            "digest": message.digest,
            "key": message.key,
            "status": "running",
            "lease_until": now + self._lease_ms,
            "created_at": now,
        }
        await c.execute(T.insert().values(turn))
        return Begun(tuple(earlier))

    async def _before(self, c: AsyncConnection, id_: str, message: Message) -> TurnRecord | None:
        """The turn that this key was for, if it was answered; one that was not makes room."""
        if message.key is None:
            return None
        query = sa.select(*KEPT, T.c.digest, T.c.lease_until).where(T.c.conversation_id == id_, T.c.key == message.key)
        row = (await c.execute(query)).first()
        if row is None:
            return None
        if row.digest != message.digest:
            raise KeyReused("This Idempotency-Key was sent with another message.", "Idempotency-Key")
        if row.status == "done":
            return _turn(row)
        if row.status == "running" and row.lease_until > self._now():
            raise _busy()
        await c.execute(T.delete().where(T.c.id == row.id))
        return None

    async def _take_over(self, c: AsyncConnection, id_: str) -> None:
        running = sa.select(T.c.id, T.c.lease_until).where(T.c.conversation_id == id_, T.c.status == "running")
        row = (await c.execute(running)).first()
        if row is None:
            return
        if row.lease_until > self._now():
            raise _busy()
        await c.execute(T.update().where(T.c.id == row.id).values(status="interrupted", ended_at=self._now()))

    async def renew(self, turn_id: str) -> None:
        """Raises ``NotFound`` when the turn is nobody's any more: deleted, or taken for interrupted."""
        until = self._now() + self._lease_ms

        async def work(c: AsyncConnection) -> None:
            held = await c.execute(
                T.update().where(T.c.id == turn_id, T.c.status == "running").values(lease_until=until)
            )
            if not held.rowcount:
                raise _missing()

        await self._database.run(work)

    async def finish(self, turn_id: str, response: str) -> None:
        """Keeps the answer. A second call is the first one's: it may be asked again after a fault. Raises as ``renew``."""
        await self._end(turn_id, "done", response=response)

    async def fail(self, turn_id: str, status: TurnStatus, error: str | None = None) -> None:
        """``failed`` or ``interrupted``. Raises as ``renew``."""
        await self._end(turn_id, status, error=error)

    async def _end(self, turn_id: str, status: TurnStatus, **kept: Any) -> None:
        async def work(c: AsyncConnection) -> None:
            values = {"status": status, "ended_at": self._now(), **kept}
            held = await c.execute(T.update().where(T.c.id == turn_id, T.c.status == "running").values(values))
            if held.rowcount:
                return
            found = (await c.execute(sa.select(T.c.status).where(T.c.id == turn_id))).scalar()
            if found != status:
                raise _missing()

        await self._database.run(work)

    async def close(self) -> None:
        await self._database.close()


def _busy() -> ConversationBusy:
    return ConversationBusy("Another message of this conversation is being answered; try again when it is done.")


async def _row(c: AsyncConnection, tenant: str, id_: str, lock: bool = False) -> Any:
    if "\0" in id_:  # no text to PostgreSQL
        raise _missing()
    query = sa.select(C).where(C.c.id == id_, C.c.tenant == tenant)
    row = (await c.execute(query.with_for_update() if lock else query)).first()
    if row is None:
        raise _missing()
    return row


async def _conversation(c: AsyncConnection, tenant: str, id_: str) -> Conversation:
    return _made(await _row(c, tenant, id_))


def _made(row: Any) -> Conversation:
    return Conversation(row.id, row.tenant, row.title, row.created_at, row.updated_at)


def _turn(row: Any) -> TurnRecord:
    return TurnRecord(*(getattr(row, column.name) for column in KEPT))
