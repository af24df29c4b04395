"""Streams that are taken up again, over real sockets: after a drop, through another replica, and by nobody else."""

import asyncio
import gc
import json
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import httpx
import jsonschema
import psutil
import pytest
import uvicorn

from assay import errors as er
from assay import events as ev
from assay.config import ConversationsConfig, IngressConfig, StreamsConfig
from assay.keys import KeyFile
from assay.streams import MemoryStreams, Streams
from deployments.api import make_api
from deployments.gate import LISTENERS
from tests.wiring.scripted_driver import ScriptedDriver, Step, whole
from tests.wiring.test_api import JSON, error_of, frames, until

pytestmark = pytest.mark.anyio
ASK = "/v1/answers"
RESUMABLE = {"question": "When?", "stream": True, "resumable": True}


def config(**streams: Any) -> IngressConfig:
    return IngressConfig(
        conversations=ConversationsConfig(store="memory"), max_ongoing=4, streams=StreamsConfig(**streams)
    )


class Elsewhere(MemoryStreams):
    """Another process: what is told to it may be interrupted before it arrives, and after."""

    def __init__(self) -> None:
        super().__init__(300, 10**6)

    async def append(self, *args: Any, **more: Any) -> float:
        await asyncio.sleep(0.01)
        idle = await super().append(*args, **more)
        await asyncio.sleep(0.01)
        return idle


@asynccontextmanager
async def replicas(
    driver: ScriptedDriver, settings: IngressConfig, count: int = 1, **headers: str
) -> AsyncGenerator[list[httpx.AsyncClient]]:
    """Real servers, which find each other's streams where there are several; a client of each."""
    shared: Streams | None = Elsewhere() if count > 1 else None
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(count):
            url = await stack.enter_async_context(server(driver, settings, shared))
            client = httpx.AsyncClient(base_url=url, headers={**JSON, **headers}, trust_env=False)
            clients.append(await stack.enter_async_context(client))
        yield clients


@asynccontextmanager
async def server(driver: ScriptedDriver, settings: IngressConfig, shared: Streams | None) -> AsyncGenerator[str]:
    running = uvicorn.Server(uvicorn.Config(make_api(driver, settings, shared), port=0, log_level="error"))
    task = asyncio.create_task(running.serve())
    while not running.started:
        await asyncio.sleep(0.005)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    await task


async def drop_after(http: httpx.AsyncClient, count: int, path: str = ASK, **body: Any) -> tuple[str, str]:
    """The first ``count`` events of a stream whose connection is then closed, and its id."""
    text = b""
    async with http.stream("POST", path, json={**RESUMABLE, **body}) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for piece in reply.aiter_raw():
            text += piece
            if text.count(b"\n\n") >= count:
                break
    whole_frames = text.decode().split("\n\n")[:count]
    return reply.headers.get("x-stream-id", ""), "\n\n".join(whole_frames) + "\n\n"


async def take_up(http: httpx.AsyncClient, id: str, last: int | str, **headers: str) -> httpx.Response:
    return await http.get(f"/v1/streams/{id}", headers={"last-event-id": str(last), **headers})


def slowly(*steps: Step, seconds: float = 0.05) -> list[Step]:
    return [part for step in steps for part in (step, seconds)]


# ---- taken up -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
async def test_a_dropped_stream_goes_on_where_it_broke(count: int) -> None:
    """Also through another replica, which never saw the question."""
    driver = ScriptedDriver(*slowly(*whole()))
    async with replicas(driver, config(), count) as clients:
        id_, seen = await drop_after(clients[0], 3)
        reply = await take_up(clients[-1], id_, 3)
        events = frames(seen + reply.text)
        assert [e["id"] for e in events] == [str(n + 1) for n in range(len(whole()))]
        assert [e["event"] for e in events] == [step.type for step in whole()]  # type: ignore[union-attr]
        assert len({e["data"]["request_id"] for e in events}) == 1
        for name in ("content-type", "cache-control", "x-accel-buffering", "x-assay-events"):
            assert reply.headers[name], name
        again = await clients[-1].get(f"/v1/streams/{id_}", params={"after": 7})  # as EventSource begins
        assert [e["id"] for e in frames(again.text)] == ["8", "9"]
        assert (await take_up(clients[-1], id_, 9)).status_code == 204  # and so it ends
    assert (len(driver.asked), driver.running) == (1, 0)


async def test_an_answer_that_ended_meanwhile_is_whole() -> None:
    driver = ScriptedDriver(*slowly(*whole(), seconds=0.01))
    async with replicas(driver, config(), 2) as (one, other):
        id_, _ = await drop_after(one, 1)
        await until(lambda: driver.closed == 1)
        assert [e["id"] for e in frames((await take_up(other, id_, 1)).text)] == [str(n) for n in range(2, 10)]


async def test_two_listen_at_once() -> None:
    driver = ScriptedDriver(*slowly(*whole()))
    async with replicas(driver, config(), 2) as clients:
        id_, _ = await drop_after(clients[0], 1)
        replies = await asyncio.gather(*(take_up(http, id_, 0) for http in clients))
    assert [len(frames(reply.text)) for reply in replies] == [9, 9]


async def test_heartbeats_go_on_after_it_was_taken_up() -> None:
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 0.5, *whole())
    settings = config().model_copy(update={"heartbeat_s": 0.1})
    async with replicas(driver, settings) as (http,):
        id_, _ = await drop_after(http, 1)
        assert 2 <= (await take_up(http, id_, 1)).text.count(": ping\n\n") <= 5


async def test_messages_of_conversations_too() -> None:
    driver = ScriptedDriver(*slowly(*whole(), seconds=0.02))
    async with replicas(driver, config()) as (http,):
        path = "/v1/conversations/" + (await http.post("/v1/conversations", json={})).json()["id"]
        id_, seen = await drop_after(http, 2, f"{path}/messages")
        events = frames(seen + (await take_up(http, id_, 2)).text)
        read = (await http.get(path)).json()
        final, _ = await drop_after(http, 0, f"{path}/messages", delivery="final_only")
        last = frames((await take_up(http, final, 0)).text)
    assert [m["status"] for m in read["messages"]] == ["done", "done"]
    assert events[-1]["data"]["response"] == read["messages"][1]["response"] | {
        "request_id": events[0]["data"]["request_id"]
    }
    assert [(e["id"], e["event"]) for e in last] == [("1", "completed")]


async def test_a_deleted_conversation_takes_its_streams_along() -> None:
    driver = ScriptedDriver(*whole())
    async with replicas(driver, config(), 2) as (one, other):
        path = "/v1/conversations/" + (await one.post("/v1/conversations", json={})).json()["id"]
        ended, _ = await drop_after(one, 9, f"{path}/messages")
        driver.script = [ev.StatusEvent(state="planning"), 60.0]
        running, _ = await drop_after(one, 1, f"{path}/messages")
        assert (await one.delete(path)).status_code == 204
        await until(lambda: driver.running == 0)
        for http in (one, other):
            assert (await take_up(http, ended, 0)).status_code == 404
            assert frames((await take_up(http, running, 1)).text)[-1]["event"] == "error"


# ---- what cannot be taken up ----------------------------------------------------------------------------------------


async def test_only_who_asks_for_it_gets_it() -> None:
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 60.0)
    async with replicas(driver, config()) as (http,):
        async with http.stream("POST", ASK, json={**RESUMABLE, "resumable": False}) as reply:
            assert "x-stream-id" not in reply.headers and reply.headers["x-assay-events"] == "1"
        await until(lambda: driver.running == 0)
        driver.script = whole()
        plain = await http.post(ASK, json={**RESUMABLE, "stream": False})  # as with delivery: of a stream
    assert plain.json()["status"] == "answered" and "x-stream-id" not in plain.headers


@pytest.mark.parametrize(
    ("id_", "last", "status", "code"),
    [
        ("stm_01JB2Z0T6V9W8X7Y6Z5A4B3C2D", "3", 404, "not_found"),
        ("x" * 90, "3", 404, "not_found"),
        ("", "10", 422, "invalid_request"),
        ("", "-1", 422, "invalid_request"),
        ("", "3.5", 422, "invalid_request"),
        ("", "9" * 30, 422, "invalid_request"),
    ],
)
async def test_what_is_not_there(id_: str, last: str, status: int, code: str) -> None:
    driver = ScriptedDriver()
    async with replicas(driver, config()) as (http,):
        made, _ = await drop_after(http, 1)
        await until(lambda: driver.running == 0)
        reply = await take_up(http, id_ or made, last)
    assert (reply.status_code, error_of(reply)["code"]) == (status, code)
    assert status == 404 or error_of(reply)["field"].lower() == "last-event-id"


async def test_a_fault_before_the_first_event_is_no_stream() -> None:
    driver = ScriptedDriver(er.UnknownBucket("There is no bucket 'x'.", "buckets[0]", ("contracts",)))
    async with replicas(driver, config()) as (http,):
        reply = await http.post(ASK, json=RESUMABLE)
    assert (reply.status_code, error_of(reply)["code"], "x-stream-id" in reply.headers) == (
        404,
        "unknown_bucket",
        False,
    )
    assert driver.running == 0


async def test_after_its_time_it_is_gone() -> None:
    driver = ScriptedDriver()
    async with replicas(driver, config(kept_s=0.2)) as (http,):
        id_, _ = await drop_after(http, 3)
        assert (await take_up(http, id_, 3)).status_code == 200
        await asyncio.sleep(0.25)
        assert (await take_up(http, id_, 3)).status_code == 404


# ---- who may take it up, and what it costs them ---------------------------------------------------------------------


async def test_another_tenants_stream_does_not_exist(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")

    def key(tenant: str, buckets: list[str] | None, scopes: list[Any], concurrency: int) -> dict[str, str]:
        return {"authorization": f"Bearer {file.create(tenant, buckets, scopes, 600, concurrency)[1]}"}

    ours, same = key("a", ["contracts"], ["ask"], 1), key("a", ["contracts"], ["ask"], 1)
    others = [key("b", ["contracts"], ["ask"], 1), key("a", None, ["ask"], 1)]
    driver = ScriptedDriver(*slowly(*whole(), seconds=0.1))
    settings = config().model_copy(update={"keys": str(tmp_path / "keys.json")})
    async with replicas(driver, settings, 2, **ours) as clients:
        id_, _ = await drop_after(clients[0], 1)
        busy = await clients[0].post(ASK, json={"question": "And another?"})  # the first one still runs
        assert (busy.status_code, error_of(busy)["code"]) == (429, "rate_limited")
        for http in clients:
            for other in others:
                for reply in (
                    await take_up(http, id_, 0, **other),
                    await http.delete(f"/v1/streams/{id_}", headers=other),
                ):
                    assert (reply.status_code, error_of(reply)["code"]) == (404, "not_found")
            search = key("a", ["contracts"], ["search"], 1)
            assert (await take_up(http, id_, 0, **search)).status_code == 403
            assert (await take_up(http, id_, 0, authorization="Bearer no")).status_code == 401
        assert [len(frames((await take_up(http, id_, 0, **same)).text)) for http in clients] == [9, 9]
        driver.script = whole()
        await asyncio.sleep(0.1)  # what it holds it lets go right after its last event
        assert (await clients[0].post(ASK, json={"question": "And another?"})).status_code == 200


async def test_a_question_that_goes_on_alone_holds_its_slot() -> None:
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 0.3, *whole())
    async with replicas(driver, config().model_copy(update={"max_ongoing": 1})) as (http,):
        id_, _ = await drop_after(http, 1)
        assert (await http.post(ASK, json=RESUMABLE)).status_code == 503
        assert (await take_up(http, id_, 1)).status_code == 200
        await until(lambda: driver.running == 0)
        driver.script = whole()
        assert (await http.post(ASK, json=RESUMABLE)).status_code == 200


async def test_a_key_listens_to_no_more_than_its_share(tmp_path: Path) -> None:
    """Who may ask one thing at a time must not take the places of all others; and may still end what it asked."""
    file = KeyFile(tmp_path / "keys.json")
    greedy, other = (
        {"authorization": f"Bearer {file.create('a', None, ['ask'], 600, concurrency)[1]}"} for concurrency in (1, 16)
    )
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 60.0)
    settings = config().model_copy(update={"keys": str(tmp_path / "keys.json")})
    async with replicas(driver, settings, 1, **greedy) as (http,), AsyncExitStack() as stack:
        id_, _ = await drop_after(http, 1)
        for _ in range(LISTENERS):
            reply = await stack.enter_async_context(http.stream("GET", f"/v1/streams/{id_}"))
            assert reply.status_code == 200
        over = await take_up(http, id_, 0)
        assert (over.status_code, error_of(over)["code"]) == (429, "rate_limited")
        theirs = await stack.enter_async_context(http.stream("GET", f"/v1/streams/{id_}", headers=other))
        assert theirs.status_code == 200
        assert (await http.delete(f"/v1/streams/{id_}")).status_code == 204
        assert [line async for line in theirs.aiter_lines() if line.startswith("event: ")][-1] == "event: error"
        await stack.aclose()
        assert (await take_up(http, id_, 0)).status_code == 200  # what it held it has let go


# ---- gone for good --------------------------------------------------------------------------------------------------


async def test_nobody_came_back() -> None:
    driver = ScriptedDriver(*whole()[:4], 60.0)
    async with replicas(driver, config(grace_s=0.2), 2) as (one, other):
        id_, seen = await drop_after(one, 3)
        await until(lambda: driver.running == 0)
        await asyncio.sleep(0.1)
        events = frames(seen + (await take_up(other, id_, 3)).text)
        assert [e["id"] for e in events] == ["1", "2", "3", "4", "5"]
        assert events[-1]["data"]["error"]["code"] == "abandoned"
        assert events[-1]["data"]["error"]["request_id"] == events[0]["data"]["request_id"]


async def test_whoever_listens_elsewhere_keeps_it_alive() -> None:
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 1.2, *whole())
    async with replicas(driver, config(grace_s=0.3), 2) as (one, other):
        id_, _ = await drop_after(one, 1)
        assert frames((await take_up(other, id_, 1)).text)[-1]["event"] == "completed"


async def test_its_client_ends_it() -> None:
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 60.0)
    async with replicas(driver, config(), 2) as (one, other):
        id_, _ = await drop_after(one, 1)
        assert (await other.delete(f"/v1/streams/{id_}")).status_code == 204
        await until(lambda: driver.running == 0)
        assert frames((await take_up(other, id_, 1)).text)[-1]["data"]["error"]["code"] == "abandoned"
        assert (await other.delete(f"/v1/streams/{id_}")).status_code == 204  # forgets what is kept
        async with asyncio.timeout(5):  # its writer's own copy goes as soon as it knows that the other one has the end
            while (await take_up(one, id_, 1)).status_code != 404:
                await asyncio.sleep(0.01)
        assert (await take_up(other, id_, 1)).status_code == 404


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.015, 0.025, 0.035])
async def test_however_an_end_comes_between_two_events_it_is_told(after_s: float) -> None:
    """Its client ends it while an event is on its way to the other replicas."""
    driver = ScriptedDriver(*slowly(ev.AnswerEvent(delta="x"), seconds=0.001) * 3000)
    async with replicas(driver, config(), 2) as (one, other):
        id_, _ = await drop_after(one, 1)
        await asyncio.sleep(after_s)
        assert (await other.delete(f"/v1/streams/{id_}")).status_code == 204
        await until(lambda: driver.running == 0)
        events = frames((await take_up(other, id_, 0)).text)
    assert [e["event"] for e in events] == ["answer"] * (len(events) - 1) + ["error"]
    assert [e["id"] for e in events] == [str(n + 1) for n in range(len(events))]


async def test_gone_before_the_first_event() -> None:
    driver = ScriptedDriver(60.0)
    async with replicas(driver, config()) as (http,):
        task = asyncio.create_task(http.post(ASK, json=RESUMABLE))
        await until(lambda: driver.running == 1)
        task.cancel()
        await until(lambda: driver.running == 0)
    assert driver.closed == 1


async def test_a_replica_that_stops_says_so() -> None:
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 60.0)
    shared = Elsewhere()
    async with (
        server(driver, config(), shared) as url,
        httpx.AsyncClient(base_url=url, headers=JSON, trust_env=False) as http,
    ):
        id_, _ = await drop_after(http, 1)
    assert driver.running == 0
    part = await shared.read(id_, "", 1, 0)
    assert part.ended and '"code":"stage_unavailable"' in part.frames[0]


async def test_a_driver_that_dies_is_an_error_for_whoever_comes_back() -> None:
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 0.1, er.StageUnavailable("driver is not available"))
    async with replicas(driver, config(), 2) as (one, other):
        id_, _ = await drop_after(one, 1)
        events = frames((await take_up(other, id_, 1)).text)
    assert [(e["id"], e["data"]["error"]["code"]) for e in events] == [("2", "stage_unavailable")]


@pytest.mark.parametrize("resumable", [False, True])
async def test_two_hundred_that_drop_leave_nothing(resumable: bool) -> None:
    driver = ScriptedDriver(*slowly(ev.AnswerEvent(delta="x"), seconds=0.02) * 3000)
    settings = config(grace_s=0.4).model_copy(update={"max_ongoing": 200})
    async with replicas(driver, settings) as (http,):
        await http.get("/healthz")
        tasks, files = len(asyncio.all_tasks()), psutil.Process().num_fds()
        connections = httpx.Limits(max_connections=200, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=http.base_url, headers=JSON, trust_env=False, limits=connections) as many:
            await asyncio.gather(*(drop_after(many, 3, resumable=resumable) for _ in range(200)))
        assert len(driver.asked) == 200
        await until(lambda: driver.running == 0, 10)
        await until(lambda: len(asyncio.all_tasks()) <= tasks and psutil.Process().num_fds() <= files, 10)
    gc.collect()
    assert driver.closed == 200


# ---- what is documented ---------------------------------------------------------------------------------------------


def test_every_event_stands_in_the_docs_with_its_fields() -> None:
    """The docs are the interface: what is missing there, or is there no more, would be told to nobody."""
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    table = re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    kinds = get_args(get_args(ev.Event)[0])
    found = {kind.model_fields["type"].default: [*kind.model_fields][2:] for kind in kinds}
    assert {name: re.findall(r"\w+", fields) for name, fields in table} == found
    assert f"x-assay-events: {ev.VERSION}" in text


def test_the_openapi_document_has_the_shape_of_every_event() -> None:
    document = make_api(ScriptedDriver(), config()).openapi()
    for path, method in ((ASK, "post"), ("/v1/conversations/{id}/messages", "post"), ("/v1/streams/{id}", "get")):
        media = document["paths"][path][method]["responses"]["200"]["content"]["text/event-stream"]
        data = media["itemSchema"]["properties"]["data"]["contentSchema"]
        validator = jsonschema.Draft202012Validator({**data, "components": document["components"]})
        for step in whole():
            assert isinstance(step, ev._Event)
            validator.validate(json.loads(step.model_dump_json(by_alias=True)))
        assert not validator.is_valid({"type": "news"})
