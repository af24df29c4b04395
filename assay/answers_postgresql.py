"""Answers in the PostgreSQL database of the conversations: what a Driver on one node keeps, those on all others find."""

import time
import zlib
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from assay.conversations.database import Database
from assay.conversations.tables import ANSWERS as A
from assay.schemas import AnswerRecord


class PostgresqlAnswers:
    """``ports.AnswerStore``: the last ``keep`` answers, none older than ``days``."""

    def __init__(self, database: Database, keep: int, days: float, now: Callable[[], float] = time.time) -> None:
        self._database, self._keep, self._age_s, self._now = database, keep, 86_400 * days, now

    async def put(self, record: AnswerRecord, owner: str) -> None:
        """Raises ``StageUnavailable``."""
        now = self._now()
        body = zlib.compress(record.model_dump_json(by_alias=True).encode(), 1)
        row = {"id": record.response.id, "owner": owner, "at": now, "record": body}
        last = sa.select(sa.func.max(A.c.seq)).scalar_subquery()
        old = A.delete().where(sa.or_(A.c.at < now - self._age_s, A.c.seq <= last - self._keep))

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(A.insert().values(row))
            await connection.execute(old)

        await self._database.run(work)

    async def get(self, answer_id: str, owner: str) -> AnswerRecord | None:
        """Raises ``StageUnavailable``; None for an answer that was never there, is no more, or is another's."""
        if "\0" in answer_id:  # PostgreSQL has no such text
            return None
        asked = (A.c.id == answer_id, A.c.owner == owner, A.c.at >= self._now() - self._age_s)
        found = await self._database.run(lambda c: c.execute(sa.select(A.c.record).where(*asked)))
        body = found.scalar_one_or_none()
        return None if body is None else AnswerRecord.model_validate_json(zlib.decompress(body))

    async def close(self) -> None:
        await self._database.close()
