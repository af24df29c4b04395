"""The database of conversations, and of answers that several nodes share: SQLite in a file or in memory, or PostgreSQL; brought
to the newest schema on first use.

Every piece of work is one transaction, and runs to its end even if the request that wanted it is cancelled: so a commit
is never left in doubt by a client that goes away.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from assay.conversations.types import StoreUnavailable
from assay.errors import SetupError

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]

TIMEOUT_S = 10
CONNECTIONS = (
    3  # of a replica to PostgreSQL, which by default has 100 for everybody; a piece of work takes milliseconds
)
_MIGRATION_LOCK = 0x4153_5341  # any number, the same in every replica
_KINDS = ("postgresql", "postgres")
_PARAMETERS = frozenset(("host", "port"))  # of a URL's query, as SQLAlchemy reads them
_MIGRATIONS = Path(__file__).with_name("migrations")


def sqlite(path: Path | None) -> AsyncEngine:
    """Of a file, readable by its owner only; or in memory, where the one connection is the database."""
    if path is None:
        engine = create_async_engine(
            "sqlite+aiosqlite://", poolclass=sa.AsyncAdaptedQueuePool, pool_size=1, max_overflow=0
        )
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        engine = create_async_engine(sa.URL.create("sqlite+aiosqlite", database=str(path)))
    sa.event.listen(engine.sync_engine, "connect", _sqlite_options)
    sa.event.listen(engine.sync_engine, "begin", _sqlite_begin)
    return engine


def _sqlite_options(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver would begin by itself, and only with the first change
    cursor = connection.cursor()
    # secure_delete: what is deleted is overwritten in the file.
    for pragma in ("foreign_keys = ON", "secure_delete = ON", f"busy_timeout = {1000 * TIMEOUT_S // 2}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # one writer at a time, waited for


def postgresql(dsn: str) -> AsyncEngine:
    """``dsn``: a URL that names a database (``postgresql://...``, also with ``?sslmode=``); the driver is asyncpg.

    Raises ``SetupError``, without the URL's text, which has the password: it is none, is of another database, or has a
    parameter that the driver would refuse with each connection."""
    try:
        url = sa.make_url(dsn)
    except (ArgumentError, ValueError):
        raise SetupError("the database's URL must be like postgresql://USER:PASSWORD@HOST:PORT/NAME") from None
    if (kind := url.get_backend_name()) not in _KINDS:
        raise SetupError(f"the database's URL begins with '{kind[:40]}'", allowed=_KINDS)
    query = dict(url.query)
    options: dict[str, Any] = {"timeout": TIMEOUT_S / 2, "command_timeout": TIMEOUT_S}
    if mode := query.pop("sslmode", None):
        options["ssl"] = mode
    if unknown := sorted(set(query) - _PARAMETERS):
        known = tuple(sorted({"sslmode", *_PARAMETERS}))
        raise SetupError(f"the database's URL has the parameter '{unknown[0][:40]}'", allowed=known)
    return create_async_engine(
        url.set(drivername="postgresql+asyncpg", query=query),
        pool_pre_ping=True,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=TIMEOUT_S / 2,
        connect_args=options,
    )


class Database:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._migrating = asyncio.Lock()
        self._ready = False

    async def run(self, work: Work[T]) -> T:
        """The work's result, committed. Raises ``StoreUnavailable``, and what the work raises (which rolls it back)."""
        return await asyncio.shield(asyncio.ensure_future(self._run(work)))

    async def _run(self, work: Work[T]) -> T:
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                await self._migrate()
                async with self._engine.begin() as connection:
                    return await work(connection)
        except IntegrityError:
            raise
        except (DBAPIError, PoolTimeout, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"The database does not answer: {type(error).__name__}.") from error

    async def _migrate(self) -> None:
        if self._ready:
            return
        async with self._migrating:
            if not self._ready:
                async with self._engine.begin() as connection:
                    if self._engine.dialect.name == "postgresql":
                        await connection.execute(
                            sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK}
                        )
                    await connection.run_sync(_upgrade)
                self._ready = True

    async def close(self) -> None:
        await self._engine.dispose()


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
