"""Conversations over every store: memory, SQLite, and a real PostgreSQL; and their routes over a scripted driver."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from assay import errors as er
from assay import events as ev
from assay import schemas as s
from assay.config import ConversationsConfig, IngressConfig
from assay.conversations.database import CONNECTIONS, Database, postgresql, sqlite
from assay.conversations.shapes import Rename
from assay.conversations.store import Store
from assay.conversations.tables import ANSWERS, METADATA, TURNS
from assay.conversations.talk import Talk
from assay.conversations.types import ConversationBusy, KeyReused, Message, StoreUnavailable, TurnRecord
from deployments.api import make_api
from tests.wiring.postgres import Server, server
from tests.wiring.scripted_driver import ANSWER, ScriptedDriver, Step, response, whole
from tests.wiring.test_api import JSON, frames, in_process, until

pytestmark = pytest.mark.anyio
Open = Callable[[], Store]


@pytest.fixture(scope="session")
def running() -> Iterator[Server]:
    with server() as running:
        yield running


class Clock:
    """Milliseconds, moved by hand."""

    def __init__(self) -> None:
        self.ms = 1_764_300_000_000

    def __call__(self) -> int:
        self.ms += 1
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def open_(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Open]:
    """Each call is another replica over the same database; in memory there is one only."""
    opened: list[Store] = []

    def open_store() -> Store:
        if request.param == "postgresql":
            engine = postgresql(request.getfixturevalue("running").dsn)
        elif request.param == "memory" and opened:
            return opened[0]
        else:
            engine = sqlite(tmp_path / "c.db" if request.param == "sqlite" else None)
        opened.append(Store(Database(engine), lease_s=30, now=clock))
        return opened[-1]

    yield open_store
    if request.param == "postgresql" and opened:
        await opened[0]._database.run(lambda c: c.run_sync(drop))
    for store in opened:
        await store.close()


def drop(connection: sa.Connection) -> None:
    METADATA.drop_all(connection)
    connection.execute(sa.text("DROP TABLE alembic_version"))


@pytest.fixture
def store(open_: Open) -> Store:
    return open_()


numbers = itertools.count()


def message(question: str = "When?", key: str | None = None, digest: str = "d") -> Message:
    return Message(f"turn_{next(numbers)}", question, digest, key)


def none(turns: Any) -> int:
    return 0


async def turns_of(store: Store, id_: str) -> list[TurnRecord]:
    return (await store.read("", id_))[1]


# ---- the store ------------------------------------------------------------------------------------------------------


async def test_create_list_read_rename_delete(store: Store) -> None:
    made = [await store.create("", f"title {n}") for n in range(5)]
    await store.begin("", made[1].id, message(), none)
    ids = [c.id for c in await store.recent("", 10)]
    assert ids == [made[n].id for n in (1, 4, 3, 2, 0)]  # the last used first
    assert [c.id for c in await store.recent("", 2, ids[1])] == ids[2:4]
    assert (await store.rename("", made[0].id, "another")).title == "another"
    found, turns = await store.read("", made[0].id)
    assert (found.title, turns) == ("another", [])
    await store.delete("", made[1].id)
    with pytest.raises(er.NotFound):
        await store.read("", made[1].id)
    assert len(await store.recent("", 10)) == 4


async def test_a_tenant_sees_its_own_only(store: Store) -> None:
    theirs = await store.create("b", "secret")
    for call in (
        store.read("a", theirs.id),
        store.rename("a", theirs.id, "x"),
        store.delete("a", theirs.id),
        store.begin("a", theirs.id, message(), none),
        store.recent("a", 5, theirs.id),
    ):
        with pytest.raises(er.NotFound):
            await call
    assert await store.recent("a", 10) == []
    assert (await store.read("b", theirs.id))[0].title == "secret"


async def test_a_turn_from_its_question_to_its_answer(store: Store) -> None:
    id_ = (await store.create("")).id
    begun = await store.begin("", id_, first := message("  When may\nit end? "), none)
    assert begun.earlier == ()
    assert [t.status for t in await turns_of(store, id_)] == ["running"]
    await store.finish(first.turn_id, "{}")
    await store.finish(first.turn_id, "{}")  # asked again after a lost acknowledgement
    begun = await store.begin("", id_, second := message(), none)
    assert [(t.question, t.response) for t in begun.earlier] == [(first.question, "{}")]
    await store.fail(second.turn_id, "failed", "stage_timeout: slow")
    turns = await turns_of(store, id_)
    assert [(t.position, t.status, t.error) for t in turns] == [(0, "done", None), (1, "failed", "stage_timeout: slow")]
    assert (await store.read("", id_))[0].title == "When may it end?"
    assert len((await store.begin("", id_, message(), none)).earlier) == 1  # what failed is no history


async def test_one_message_at_a_time(open_: Open) -> None:
    """Of many at the same moment through two replicas, one is let in; the others know at once."""
    stores = [open_(), open_()]
    id_ = (await stores[0].create("")).id
    results = await asyncio.gather(
        *(stores[n % 2].begin("", id_, message(), none) for n in range(8)), return_exceptions=True
    )
    assert sorted(type(r).__name__ for r in results) == ["Begun"] + ["ConversationBusy"] * 7
    assert len(await turns_of(stores[0], id_)) == 1


async def test_a_repeated_key_is_one_turn(open_: Open) -> None:
    stores = [open_(), open_()]
    id_ = (await stores[0].create("")).id
    await stores[0].begin("", id_, first := message(key="k"), none)
    with pytest.raises(ConversationBusy):
        await stores[1].begin("", id_, message(key="k"), none)
    await stores[0].finish(first.turn_id, '{"a": 1}')
    replay = (await stores[1].begin("", id_, message(key="k"), none)).replay
    assert replay is not None and replay.response == '{"a": 1}'
    with pytest.raises(KeyReused):
        await stores[1].begin("", id_, message(key="k", digest="another"), none)
    assert len(await turns_of(stores[0], id_)) == 1
    other = (await stores[0].create("")).id
    assert (await stores[0].begin("", other, message(key="k"), none)).replay is None  # a key is of its conversation


async def test_a_key_of_what_failed_asks_anew_in_its_place(store: Store) -> None:
    id_ = (await store.create("")).id
    await store.begin("", id_, first := message(key="k"), none)
    await store.fail(first.turn_id, "interrupted")
    assert (await store.begin("", id_, again := message(key="k"), none)).replay is None
    assert [t.id for t in await turns_of(store, id_)] == [again.turn_id]


async def test_a_turn_that_is_not_renewed_blocks_nobody(store: Store, clock: Clock) -> None:
    id_ = (await store.create("")).id
    await store.begin("", id_, lost := message(), none)
    clock.ms += 20_000
    await store.renew(lost.turn_id)
    clock.ms += 20_000
    with pytest.raises(ConversationBusy):
        await store.begin("", id_, message(), none)
    clock.ms += 20_000
    await store.begin("", id_, mine := message(), none)
    for call in (store.renew(lost.turn_id), store.finish(lost.turn_id, "{}")):  # a replica that was only slow
        with pytest.raises(er.NotFound):
            await call
    await store.finish(mine.turn_id, "{}")
    assert [t.status for t in await turns_of(store, id_)] == ["interrupted", "done"]


async def test_deleted_while_it_is_answered(store: Store) -> None:
    id_ = (await store.create("")).id
    await store.begin("", id_, mine := message(), none)
    await store.delete("", id_)
    for call in (store.renew(mine.turn_id), store.finish(mine.turn_id, "{}"), store.fail(mine.turn_id, "failed")):
        with pytest.raises(er.NotFound):
            await call
    rows = await store._database.run(lambda c: c.execute(sa.select(TURNS)))
    assert rows.all() == []


async def test_the_window_is_read_from_its_start(store: Store) -> None:
    id_ = (await store.create("")).id
    seen: list[list[int]] = []

    def last_two(turns: Any) -> int:
        seen.append([t.position for t in turns])
        return max(0, len(turns) - 2)

    for _ in range(6):
        await store.begin("", id_, each := message(), last_two)
        await store.finish(each.turn_id, "{}")
    assert seen == [[], [0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]


async def test_pages_of_messages(store: Store) -> None:
    id_ = (await store.create("")).id
    for _ in range(5):
        await store.begin("", id_, each := message(), none)
        await store.finish(each.turn_id, "{}")
    assert [t.position for t in (await store.read("", id_, limit=2))[1]] == [3, 4]
    assert [t.position for t in (await store.read("", id_, limit=2, before=3))[1]] == [1, 2]


async def test_an_id_that_is_no_text_is_not_found(store: Store) -> None:
    with pytest.raises(er.NotFound):
        await store.read("t", "a\0b")


def test_a_hosted_databases_url_is_taken_and_another_parameter_is_named() -> None:
    postgresql("postgresql://u:p@db.example/x?sslmode=require")
    postgresql("postgres://u:p@db.example/x")
    with pytest.raises(er.SetupError, match="'ssl_mode'") as caught:
        postgresql("postgresql://u:p@db.example/x?ssl_mode=require")
    assert caught.value.allowed == ("host", "port", "sslmode")


@pytest.mark.parametrize("dsn", ["s3cret", "postgresql//u:s3cret@h/x", "postgresql://u:s3cret@h:s3cret/x"])
def test_what_is_no_url_is_said_without_its_password(dsn: str) -> None:
    with pytest.raises(er.SetupError, match="must be like postgresql://") as caught:
        postgresql(dsn)
    assert "s3cret" not in str(caught.value)


def test_the_url_of_another_database_is_refused() -> None:
    with pytest.raises(er.SetupError, match="begins with 'mysql'") as caught:
        postgresql("mysql://u:s3cret@h/x")
    assert "s3cret" not in str(caught.value)


def test_a_replica_holds_few_connections() -> None:
    pool: Any = postgresql("postgresql://u:p@db.example/x").pool
    assert (pool.size(), pool._max_overflow) == (CONNECTIONS, 0)


@pytest.mark.parametrize("title", ["a\0b", "x" * 201])
def test_a_title_is_text(title: str) -> None:
    with pytest.raises(ValidationError):
        Rename(title=title)


async def test_deleting_deletes_from_the_file(tmp_path: Path) -> None:
    store = Store(Database(sqlite(tmp_path / "c.db")))
    id_ = (await store.create("", "CANARY-title")).id
    await store.begin("", id_, each := message("CANARY-question"), none)
    await store.finish(each.turn_id, '"CANARY-answer"')

    def held() -> bool:
        return any(b"CANARY" in path.read_bytes() for path in tmp_path.iterdir())

    assert held()
    assert (tmp_path / "c.db").stat().st_mode & 0o077 == 0
    await store.delete("", id_)
    await store.close()
    assert not held()


async def test_migrations_and_tables_are_the_same(open_: Open) -> None:
    """What Alembic makes is what the queries are written against, and a second replica finds nothing left to do."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    def differences(connection: sa.Connection) -> Any:
        def here(_: object, name: str | None, *__: object) -> bool:
            return name != ANSWERS.name or connection.dialect.name == "postgresql"

        return compare_metadata(MigrationContext.configure(connection, opts={"include_object": here}), METADATA)

    for store in (open_(), open_()):
        assert await store._database.run(lambda c: c.run_sync(differences)) == []


async def test_two_replicas_that_start_at_once(running: Server) -> None:
    stores = [Store(Database(postgresql(running.dsn))) for _ in range(4)]
    await asyncio.gather(*(store.create("") for store in stores))
    assert len(await stores[0].recent("", 10)) == 4
    await stores[0]._database.run(lambda c: c.run_sync(drop))
    for store in stores:
        await store.close()


async def test_a_server_that_goes_away_and_comes_back(running: Server) -> None:
    store = Store(Database(postgresql(running.dsn)))
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 0.2, *whole())
    id_ = (await store.create("")).id
    kept = await ended(Talk(store, driver, "", id_, "k1"), "first")
    assert isinstance(kept, ev.CompletedEvent)

    talk = asyncio.create_task(ended(Talk(store, driver, "", id_, "k2"), "second"))
    await until(lambda: driver.running == 1)
    await asyncio.to_thread(running.stop)
    with pytest.raises(StoreUnavailable):
        await store.read("", id_)
    await asyncio.sleep(0.5)  # the answer is ready, and waits to be kept
    assert not talk.done()
    await asyncio.to_thread(running.start)
    assert isinstance(await talk, ev.CompletedEvent)
    assert isinstance(await ended(Talk(store, driver, "", id_, "k2"), "second"), ev.CompletedEvent)
    assert [(t.question, t.status) for t in await turns_of(store, id_)] == [("first", "done"), ("second", "done")]
    assert len(driver.asked) == 2
    await store._database.run(lambda c: c.run_sync(drop))
    await store.close()


# ---- a message ------------------------------------------------------------------------------------------------------


async def ended(talk: Talk, question: str) -> ev.Event:
    last: ev.Event | None = None
    async with aclosing(talk.stream(s.AskRequest(question=question), "req_1")) as events:
        async for event in events:
            last = event
    assert last is not None
    return last


async def test_history_goes_along_in_whole_turns(store: Store) -> None:
    driver = ScriptedDriver()
    id_ = (await store.create("")).id
    for n in range(15):
        await ended(Talk(store, driver, "", id_, None), f"question {n}")
    sizes = [len(asked.history) for asked in driver.asked]
    assert sizes == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 10, 12, 14, 16]
    assert driver.asked[1].history == [
        s.Turn(role="user", content="question 0"),
        s.Turn(role="assistant", content=ANSWER),
    ]
    old, new = driver.asked[13].history, driver.asked[14].history
    assert new[: len(old)] == old


async def test_a_client_that_goes_ends_the_turn(store: Store) -> None:
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 60.0)
    id_ = (await store.create("")).id
    async with aclosing(Talk(store, driver, "", id_, "k").stream(s.AskRequest(question="When?"), "r")) as events:
        await anext(events)
    assert (driver.running, [t.status for t in await turns_of(store, id_)]) == (0, ["interrupted"])
    waiting = asyncio.create_task(ended(Talk(store, driver, "", id_, None), "And then?"))
    await until(lambda: driver.running == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (driver.running, [t.status for t in await turns_of(store, id_)]) == (0, ["interrupted"] * 2)


@pytest.mark.parametrize("after", [0, 1])
async def test_a_fault_ends_the_turn(store: Store, after: int) -> None:
    before: list[Step] = [ev.StatusEvent(state="planning")] * after
    driver = ScriptedDriver(*before, er.StageTimeout("retriever: timeout"))
    id_ = (await store.create("")).id
    with pytest.raises(er.StageTimeout):
        await ended(Talk(store, driver, "", id_, None), "When?")
    assert [(t.status, t.error) for t in await turns_of(store, id_)] == [("failed", "stage_timeout")]


async def test_a_conversation_deleted_under_an_answer_ends_it_soon(store: Store) -> None:
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 60.0)
    id_ = (await store.create("")).id
    talk = asyncio.create_task(ended(Talk(store, driver, "", id_, None, lease_s=0.3), "When?"))
    await until(lambda: driver.running == 1)
    await store.delete("", id_)
    with pytest.raises(er.NotFound, match="deleted"):
        async with asyncio.timeout(5):
            await talk
    assert driver.running == 0


# ---- the routes -----------------------------------------------------------------------------------------------------

CONFIG = IngressConfig(max_body_bytes=100_000, max_ongoing=2, conversations=ConversationsConfig(store="memory"))


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
async def http(driver: ScriptedDriver) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(make_api(driver, CONFIG)) as client:
        yield client


async def begin(http: httpx.AsyncClient, **body: Any) -> str:
    reply = await http.post("/v1/conversations", json=body)
    assert reply.status_code == 201
    return f"/v1/conversations/{reply.json()['id']}"


async def test_the_life_of_a_conversation(http: httpx.AsyncClient, driver: ScriptedDriver) -> None:
    path = await begin(http)
    reply = await http.post(f"{path}/messages", json={"question": "When may it end?"})
    assert reply.json()["answer"]["text"] == ANSWER
    assert (await http.post(f"{path}/messages", json={"question": "And then?"})).status_code == 200
    assert [turn.content for turn in driver.asked[1].history] == ["When may it end?", ANSWER]
    read = (await http.get(path)).json()
    assert [(m["role"], m["content"], m["status"]) for m in read["messages"]] == [
        ("user", "When may it end?", "done"),
        ("assistant", ANSWER, "done"),
        ("user", "And then?", "done"),
        ("assistant", ANSWER, "done"),
    ]
    assert read["messages"][1]["response"]["citations"] == reply.json()["citations"]
    assert (read["title"], read["before"]) == ("When may it end?", None)
    page = (await http.get(path, params={"limit": 1})).json()
    assert (len(page["messages"]), page["before"]) == (2, 1)
    assert (await http.patch(path, json={"title": "Ends"})).json()["title"] == "Ends"
    assert [c["title"] for c in (await http.get("/v1/conversations")).json()["conversations"]] == ["Ends"]
    assert (await http.delete(path)).status_code == 204
    for gone in (
        await http.get(path),
        await http.delete(path),
        await http.patch(path, json={"title": "x"}),
        await http.post(f"{path}/messages", json={"question": "Still there?"}),
    ):
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


async def test_streams_progressive_and_final_only(http: httpx.AsyncClient) -> None:
    path = await begin(http)
    asked = {"question": "When?", "stream": True}
    progressive = frames((await http.post(f"{path}/messages", json=asked)).text)
    final = frames((await http.post(f"{path}/messages", json={**asked, "delivery": "final_only"})).text)
    assert [e["event"] for e in progressive] == [step.type for step in whole()]  # type: ignore[union-attr]
    assert [e["event"] for e in final] == ["completed"]
    assert final[0]["data"]["response"]["answer"]["text"] == ANSWER


async def test_a_repeated_idempotency_key(http: httpx.AsyncClient, driver: ScriptedDriver) -> None:
    path, key = await begin(http), {"Idempotency-Key": "abc"}
    first = await http.post(f"{path}/messages", json={"question": "When?"}, headers=key)
    again = await http.post(f"{path}/messages", json={"question": "When?", "stream": True}, headers=key)
    assert frames(again.text)[-1]["data"]["response"]["answer"] == first.json()["answer"]
    assert len(driver.asked) == 1
    other = await http.post(f"{path}/messages", json={"question": "Why?"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    bad = await http.post(f"{path}/messages", json={"question": "Why?"}, headers={"Idempotency-Key": "a b"})
    assert (bad.status_code, bad.json()["error"]["field"]) == (422, "Idempotency-Key")


async def test_two_messages_at_once(http: httpx.AsyncClient, driver: ScriptedDriver) -> None:
    driver.script = [ev.StatusEvent(state="planning"), 0.3, *whole()]
    path = await begin(http)
    first = asyncio.create_task(http.post(f"{path}/messages", json={"question": "One?"}))
    await until(lambda: driver.running == 1)
    second = await http.post(f"{path}/messages", json={"question": "Two?", "stream": True})
    assert (second.status_code, second.json()["error"]["code"]) == (409, "conversation_busy")
    assert int(second.headers["retry-after"]) > 0
    assert (await first).status_code == 200
    assert [m["content"] for m in (await http.get(path)).json()["messages"]] == ["One?", ANSWER]


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "x"}, {"before": "x" * 50}])
async def test_bad_parameters(http: httpx.AsyncClient, query: dict[str, str]) -> None:
    reply = await http.get("/v1/conversations", params=query)
    assert (reply.status_code, reply.json()["error"]["field"]) == (422, next(iter(query)))


async def test_history_is_the_conversations_own(http: httpx.AsyncClient) -> None:
    path = await begin(http)
    body = {"question": "When?", "history": [{"role": "user", "content": "x"}]}
    reply = await http.post(f"{path}/messages", json=body)
    assert (reply.status_code, reply.json()["error"]["field"]) == (422, "history")


async def test_postgresql_without_its_address_is_said_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSAY_DATABASE_URL", raising=False)
    config = IngressConfig(conversations=ConversationsConfig(store="postgresql"))
    with pytest.raises(er.SetupError, match="ASSAY_DATABASE_URL"):
        make_api(ScriptedDriver(), config)


async def test_a_store_that_is_away_is_a_503(driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_DATABASE_URL", "postgresql://nobody@/none?host=/nowhere")
    config = CONFIG.model_copy(update={"conversations": ConversationsConfig(store="postgresql")})
    async with in_process(make_api(driver, config)) as http:
        reply = await http.get("/v1/conversations", headers=JSON)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_unavailable")
        assert (await http.post("/v1/answers", json={"question": "When?"})).status_code == 200
    assert response().answer is not None
