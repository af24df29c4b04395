"""The store of answers: what is put is got, as many and as long as the config says, and a fault is one."""

import sqlite3
import time
from functools import partial
from pathlib import Path

import pytest

from assay import answers
from assay.answers import SqliteAnswers, store_of
from assay.answers_postgresql import PostgresqlAnswers
from assay.config import AnswersConfig
from assay.errors import SetupError, StageUnavailable
from assay.schemas import Answer, AnswerRecord, AskRequest, AskResponse, Predicate
from deployments.database import answers_of
from tests.wiring.postgres import server

pytestmark = pytest.mark.anyio


def record(number: int) -> AnswerRecord:
    filters = Predicate(field="page", op="between", value=[1, 2])
    request = AskRequest(question=f"What is {number}? 東京\u2028", filters=filters, buckets=["docs"])
    answer = Answer(text=f"It is {number}.", style="extract")
    response = AskResponse(
        id=f"ans_{number}", request_id="req", status="answered", terminated_by="answered", answer=answer
    )
    return AnswerRecord(created_at="2026-01-05T00:00:00Z", request=request, response=response)


async def test_what_was_put_is_got_also_by_another_process(tmp_path: Path) -> None:
    store = SqliteAnswers(tmp_path / "new" / "answers.db", 10, 1)
    assert await store.get("ans_1", "a") is None
    await store.put(record(1), "a")
    assert await store.get("ans_1", "a") == record(1)
    other = SqliteAnswers(tmp_path / "new" / "answers.db", 10, 1)
    assert await other.get("ans_1", "a") == record(1) and await other.get("ans_2", "a") is None
    assert await other.get("ans_1", "b") is None and await other.get("ans_1", "") is None
    assert (tmp_path / "new" / "answers.db").stat().st_mode & 0o077 == 0
    await store.close()
    await other.close()


async def test_it_keeps_so_many_and_so_long(tmp_path: Path) -> None:
    now = 1_000_000.0
    store = SqliteAnswers(tmp_path / "answers.db", 2, 1, lambda: now)
    for number in (1, 2, 3):
        await store.put(record(number), "a")
    assert [await store.get(f"ans_{n}", "a") is not None for n in (1, 2, 3)] == [False, True, True]
    now += 86_401
    assert await store.get("ans_3", "a") is None
    await store.close()


def explained(statement: str, db: sqlite3.Connection) -> list[tuple[int, int, int, str]]:
    return db.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()


async def test_what_is_too_old_is_found_without_looking_at_all(tmp_path: Path) -> None:
    store = SqliteAnswers(tmp_path / "answers.db", 2, 1)
    await store.put(record(1), "a")
    said: list[str] = []
    await store._run(lambda db: db.set_trace_callback(said.append))
    await store.put(record(2), "a")
    await store._run(lambda db: db.set_trace_callback(None))
    deletes = [each for each in said if each.startswith("DELETE")]
    plans = [await store._run(partial(explained, each)) for each in deletes]
    steps = [step[-1] for plan in plans for step in plan]
    assert len(deletes) == 2
    assert [step for step in steps if step.startswith("SCAN")] == [], steps
    await store.close()


async def test_a_file_that_is_no_store_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    path.write_bytes(b"no database " * 100)
    store = SqliteAnswers(path, 2, 1)
    with pytest.raises(StageUnavailable, match="store of answers"):
        await store.put(record(1), "a")
    with pytest.raises(StageUnavailable):
        await store.get("ans_1", "a")


async def test_a_file_that_another_holds_at_first_is_made_use_of_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "BUSY_S", 0.1)
    path = tmp_path / "answers.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    store = SqliteAnswers(path, 2, 1)
    with pytest.raises(StageUnavailable):
        await store.put(record(1), "a")
    other.execute("ROLLBACK")
    await store.put(record(1), "a")
    assert await store.get("ans_1", "a") == record(1)
    await store.close()
    other.close()


async def test_drivers_on_several_nodes_share_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one store does, so do two over one PostgreSQL, which goes away and comes back."""
    with server() as database:
        monkeypatch.setenv("ASSAY_DATABASE_URL", database.dsn)
        config = AnswersConfig(store="postgresql", keep=2, days=1)
        one, other = answers_of(config), answers_of(config)
        assert isinstance(one, PostgresqlAnswers) and isinstance(other, PostgresqlAnswers)
        for number in (1, 2, 3):
            await one.put(record(number), "a")
        assert [await other.get(f"ans_{n}", "a") is not None for n in (1, 2, 3)] == [False, True, True]
        assert await other.get("ans_3", "a") == record(3)
        assert await other.get("ans_3", "b") is None and await other.get("\0", "a") is None
        later = PostgresqlAnswers(one._database, 2, 1, lambda: time.time() + 86_401)
        assert await later.get("ans_3", "a") is None
        database.stop()
        with pytest.raises(StageUnavailable, match="does not answer"):
            await one.put(record(4), "a")
        with pytest.raises(StageUnavailable, match="does not answer"):
            await one.get("ans_3", "a")
        database.start()
        await one.put(record(4), "a")
        assert await other.get("ans_4", "a") == record(4) and await other.get("ans_2", "a") is None
        await one.close()
        await other.close()


def test_a_database_without_a_url_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSAY_DATABASE_URL", raising=False)
    with pytest.raises(
        SetupError, match=r"answers\.store is 'postgresql', but the environment has no ASSAY_DATABASE_URL"
    ):
        answers_of(AnswersConfig(store="postgresql"))
    assert answers_of(AnswersConfig(store="postgresql", keep=0)) is None


def test_none_are_kept_where_the_config_says_so() -> None:
    assert store_of(AnswersConfig(keep=0)) is None
