"""Answers that are kept for a while, with all that led to them: to be read again, replayed, and gone on with."""

import asyncio
import sqlite3
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from assay.config import AnswersConfig
from assay.errors import StageUnavailable
from assay.ports import AnswerStore
from assay.schemas import AnswerRecord

T = TypeVar("T")

BUSY_S = 2.0
_PRAGMAS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", "PRAGMA secure_delete = ON")
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS answers (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, owner TEXT, at REAL, record BLOB)""",
    "CREATE INDEX IF NOT EXISTS answers_at ON answers (at)",  # else each new answer would look at all that are kept
)


def store_of(config: AnswersConfig) -> AnswerStore | None:
    """None where no answers are to be kept."""
    return SqliteAnswers(Path(config.path), config.keep, config.days) if config.keep else None


class SqliteAnswers:
    """``ports.AnswerStore`` in one file, readable by its owner only: the last ``keep`` answers, none older than ``days``.

    Several processes of one machine may share it. All work is in one thread of its own, so that the event loop never waits.
    """

    def __init__(self, path: Path, keep: int, days: float, now: Callable[[], float] = time.time) -> None:
        self._path, self._keep, self._age_s, self._now = path.expanduser(), keep, 86_400 * days, now
        self._thread = ThreadPoolExecutor(1, "answers")
        self._connection: sqlite3.Connection | None = None

    async def put(self, record: AnswerRecord, owner: str) -> None:
        """Raises ``StageUnavailable``."""
        body = zlib.compress(record.model_dump_json(by_alias=True).encode(), 1)
        await self._run(lambda db: self._put(db, record.response.id, owner, body))

    async def get(self, answer_id: str, owner: str) -> AnswerRecord | None:
        """Raises ``StageUnavailable``; None for an answer that was never there, is no more, or is another's."""
        body = await self._run(lambda db: self._get(db, answer_id, owner))
        return None if body is None else AnswerRecord.model_validate_json(zlib.decompress(body))

    async def close(self) -> None:
        if self._connection is not None:
            await self._run(lambda db: db.close())
        self._thread.shutdown()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(self._open()))
        except (sqlite3.Error, OSError) as error:
            raise StageUnavailable(f"The store of answers does not answer: {type(error).__name__}.") from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(0o600)
            connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
            try:
                for set_up in (*_PRAGMAS, *_SCHEMA):
                    connection.execute(set_up)
            except BaseException:
                connection.close()
                raise
            self._connection = connection  # once it is as it must be: what failed here is done with the next call
        return self._connection

    def _put(self, db: sqlite3.Connection, answer_id: str, owner: str, body: bytes) -> None:
        now = self._now()
        db.execute("BEGIN IMMEDIATE")
        try:
            row = (answer_id, owner, now, body)
            db.execute("INSERT INTO answers (id, owner, at, record) VALUES (?, ?, ?, ?)", row)
            db.execute("DELETE FROM answers WHERE at < ?", (now - self._age_s,))
            db.execute("DELETE FROM answers WHERE seq <= (SELECT max(seq) FROM answers) - ?", (self._keep,))
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise

    def _get(self, db: sqlite3.Connection, answer_id: str, owner: str) -> bytes | None:
        asked = (answer_id, owner, self._now() - self._age_s)
        row = db.execute("SELECT record FROM answers WHERE id = ? AND owner = ? AND at >= ?", asked).fetchone()
        return None if row is None else bytes(row[0])
