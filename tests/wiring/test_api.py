"""The HTTP door over a scripted driver: every bad input is a 4xx that says what to change, every stream ends once."""

import asyncio
import gc
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openpyxl
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.requests import ClientDisconnect
from starlette.types import Message

from assay import errors as er
from assay import events as ev
from assay import schemas as s
from assay.config import AuditConfig, ConversationsConfig, IngressConfig
from deployments.api import make_api
from deployments.sse import NativeWire, send_events
from tests.wiring.index.builders import ingest, retriever, write
from tests.wiring.local_driver import LocalDriver
from tests.wiring.scripted_driver import ANSWER, CITATION, ScriptedDriver, Step, whole

pytestmark = pytest.mark.anyio

MEMORY = ConversationsConfig(store="memory")
CONFIG = IngressConfig(
    conversations=MEMORY, audit=AuditConfig(folder=None), max_body_bytes=100_000, max_ongoing=2, heartbeat_s=10
)
JSON = {"content-type": "application/json"}
ASK = "/v1/answers"


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
async def http(driver: ScriptedDriver) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(make_api(driver, CONFIG)) as client:
        yield client


@asynccontextmanager
async def in_process(app: FastAPI, address: str = "127.0.0.1") -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, client=(address, 1234))
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=JSON)
    async with app.router.lifespan_context(app), client:
        yield client


@asynccontextmanager
async def served(driver: ScriptedDriver, config: IngressConfig = CONFIG) -> AsyncGenerator[httpx.AsyncClient]:
    """A real server on a free loopback port: for clients that go away, and bodies that never end."""
    server = uvicorn.Server(uvicorn.Config(make_api(driver, config), port=0, log_level="error"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=JSON, trust_env=False) as client:
        yield client
    server.should_exit = True
    await task


def frames(text: str) -> list[dict[str, Any]]:
    found = []
    for frame in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        if "data" in fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def error_of(reply: httpx.Response) -> dict[str, Any]:
    body = s.ErrorResponse.model_validate_json(reply.content).error
    assert body.request_id == reply.headers["x-request-id"]
    return body.model_dump()


async def until(condition: Any, seconds: float = 2) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


# ---- answers, as JSON and as a stream -------------------------------------------------------------------------------


async def test_json_is_the_last_event(http: httpx.AsyncClient, driver: ScriptedDriver) -> None:
    reply = await http.post(ASK, json={"question": "When may it end?", "top_k": 3})
    assert reply.status_code == 200
    body = s.AskResponse.model_validate_json(reply.content)
    assert (body.citations, body.request_id) == ([CITATION], reply.headers["x-request-id"])
    assert body.degraded[0].fallback == "fused order"
    assert (driver.asked[0].top_k, driver.running, driver.closed) == (3, 0, 1)


async def test_stream_has_rising_ids_and_one_end(http: httpx.AsyncClient) -> None:
    reply = await http.post(ASK, json={"question": "When?", "stream": True})
    events = frames(reply.text)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (reply.headers["cache-control"], reply.headers["x-accel-buffering"]) == ("no-store, no-transform", "no")
    assert [e["id"] for e in events] == [str(n + 1) for n in range(len(whole()))]
    assert [e["event"] for e in events] == [e["data"]["type"] for e in events]
    assert {e["data"]["request_id"] for e in events} == {reply.headers["x-request-id"]}
    assert (
        [e["event"] for e in events if e["event"] in ("completed", "error")] == ["completed"] == [events[-1]["event"]]
    )


async def test_both_doors_show_the_same_answer(http: httpx.AsyncClient) -> None:
    id_ = {"x-request-id": "same"}
    plain = await http.post(ASK, json={"question": "When?"}, headers=id_)
    streamed = frames((await http.post(ASK, json={"question": "When?", "stream": True}, headers=id_)).text)
    assert streamed[-1]["data"]["response"] == plain.json()
    assert "".join(e["data"]["delta"] for e in streamed if e["event"] == "answer") == ANSWER
    assert [e["data"]["citation"] for e in streamed if e["event"] == "citation"] == plain.json()["citations"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fault", "status", "retry"),
    [
        (er.UnknownBucket("There is no bucket 'x'.", "buckets[0]", ("contracts",)), 404, False),
        (er.InvalidFilter("'year' takes a number.", "filters.value"), 422, False),
        (er.Overloaded("The queue is full."), 503, True),
        (er.StageUnavailable("The retriever is not up."), 503, True),
        (er.IndexFault("The index has no segment."), 503, False),
        (er.StageTimeout("retriever: timeout after 10 s"), 504, False),
        (er.BadModelOutput("plan: 'x'"), 502, False),
        (ValueError("boom"), 500, False),
    ],
)
async def test_fault_before_the_first_event_has_its_status(
    http: httpx.AsyncClient, driver: ScriptedDriver, fault: Exception, status: int, retry: bool, stream: bool
) -> None:
    driver.script = [fault]
    reply = await http.post(ASK, json={"question": "When?", "stream": stream})
    told = error_of(reply)
    assert (reply.status_code, "retry-after" in reply.headers) == (status, retry)
    if isinstance(fault, er.AssayError) and status != 502:
        assert (told["message"], told["field"], told["allowed"]) == (fault.message, fault.field, list(fault.allowed))
    assert driver.running == 0


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ([ev.StatusEvent(state="planning"), er.StageTimeout("generator: timeout")], "stage_timeout"),
        ([ev.StatusEvent(state="planning"), RuntimeError("secret")], "internal"),
        ([ev.StatusEvent(state="planning")], "internal"),
        (
            [ev.StatusEvent(state="planning"), ev.ErrorEvent(error=s.ErrorBody(code="overloaded", message="full"))],
            "overloaded",
        ),
        ([*whole(), ev.StatusEvent(state="planning"), RuntimeError("after the end")], "completed"),
    ],
)
async def test_stream_always_ends_with_exactly_one_end(
    http: httpx.AsyncClient, driver: ScriptedDriver, script: list[Any], code: str
) -> None:
    driver.script = script
    reply = await http.post(ASK, json={"question": "When?", "stream": True})
    events = frames(reply.text)
    ends = [e for e in events if e["event"] in ("completed", "error")]
    assert ends == events[-1:]
    assert code in (ends[0]["event"], ends[0]["data"].get("error", {}).get("code"))
    assert ends[0]["data"].get("error", {"request_id": reply.headers["x-request-id"]})["request_id"]
    assert "secret" not in reply.text
    assert driver.running == 0


async def test_a_late_fault_of_a_json_question_has_its_status(http: httpx.AsyncClient, driver: ScriptedDriver) -> None:
    driver.script = [ev.StatusEvent(state="planning"), er.StageTimeout("generator: timeout")]
    assert (await http.post(ASK, json={"question": "When?"})).status_code == 504


async def test_heartbeat_keeps_the_line_open(driver: ScriptedDriver) -> None:
    driver.script = [ev.StatusEvent(state="planning"), 0.35, *whole()]
    async with in_process(make_api(driver, CONFIG.model_copy(update={"heartbeat_s": 0.1}))) as http:
        reply = await http.post(ASK, json={"question": "When?", "stream": True})
    assert 2 <= reply.text.count(": ping\n\n") <= 4
    assert frames(reply.text.replace(": ping\n\n", ""))[-1]["event"] == "completed"


# ---- bad input ------------------------------------------------------------------------------------------------------

MODES = ["auto", "pipeline", "agentic", "tools"]
OPS = ["=", "!=", "<", "<=", ">", ">=", "in", "like", "is_null", "between"]
ASK_KEYS = list(s.AskRequest.model_fields)
PREDICATE = {"field": "type", "op": "=", "value": "Supply"}


@pytest.mark.parametrize(
    ("change", "field", "allowed"),
    [
        ({"question": ""}, "question", []),
        ({"question": " \n\t"}, "question", []),
        ({"question": "a\x00b"}, "question", []),
        ({"question": 7}, "question", []),
        ({"question": None}, "question", []),
        ({"question": ["a"]}, "question", []),
        ({"question": "a" * 8001}, "question", []),
        ({"mode": "fast"}, "mode", MODES),
        ({"mode": None}, "mode", MODES),
        ({"style": "poem"}, "style", ["auto", "extract", "prose", "list", "table"]),
        ({"include": ["trace", "prompt"]}, "include[1]", ["trace", "evidence", "tool_calls", "state"]),
        ({"budgett": {}}, "budgett", ASK_KEYS),
        ({"budget": {"round": 2}}, "budget.round", ["rounds", "tool_calls", "deadline_s", "answer_tokens", "tokens"]),
        (
            {"options": {"expandd": True}},
            "options.expandd",
            ["expand", "link_hop", "rerank", "self_correct", "clarify"],
        ),
        ({"history": [{"role": "system", "content": ""}]}, "history[0].role", ["user", "assistant"]),
        ({"history": [{"role": "user", "content": "", "name": ""}]}, "history[0].name", ["role", "content"]),
        ({"top_k": 0}, "top_k", []),
        ({"top_k": -1}, "top_k", []),
        ({"top_k": 10**30}, "top_k", []),
        ({"top_k": 1.5}, "top_k", []),
        ({"top_k": "5"}, "top_k", []),
        ({"top_k": True}, "top_k", []),
        ({"stream": "yes"}, "stream", []),
        ({"stream": 1}, "stream", []),
        ({"budget": {"rounds": 0}}, "budget.rounds", []),
        ({"budget": {"deadline_s": -1}}, "budget.deadline_s", []),
        ({"budget": {"deadline_s": 1e300}}, "budget.deadline_s", []),
        ({"budget": 3}, "budget", []),
        ({"buckets": "contracts"}, "buckets", []),
        ({"buckets": [""]}, "buckets[0]", []),
        ({"buckets": ["b"] * 65}, "buckets", []),
        ({"filters": []}, "filters", []),
        ({"filters": {"and": []}}, "filters.and", []),
        ({"filters": {"and": [PREDICATE, {**PREDICATE, "op": "$overlap"}]}}, "filters.and[1].op", OPS),
        (
            {"filters": {"and": [PREDICATE, {**PREDICATE, "feild": 1}]}},
            "filters.and[1].feild",
            ["field", "op", "value"],
        ),
        ({"filters": {"or": [{"not": {**PREDICATE, "value": {}}}]}}, "filters.or[0].not.value", []),
        ({"filters": {**PREDICATE, "value": 2**63}}, "filters.value", []),
        ({"filters": {"and_": [PREDICATE]}}, "filters.and_", ["and"]),
    ],
)
async def test_bad_value_is_422_with_its_field(
    http: httpx.AsyncClient, driver: ScriptedDriver, change: dict[str, Any], field: str, allowed: list[str]
) -> None:
    reply = await http.post(ASK, json={"question": "When?", "stream": True} | change)
    error = error_of(reply)
    assert (reply.status_code, error["field"], error["allowed"]) == (422, field, allowed)
    assert len(error["message"]) < 200
    assert "pydantic" not in reply.text
    assert not driver.asked


async def test_messages_say_what_to_change(http: httpx.AsyncClient) -> None:
    async def told(**body: object) -> str:
        return str(error_of(await http.post(ASK, json={"question": "When?", **body}))["message"])

    assert await told(quesion="x") == "There is no field 'quesion' in a request. Did you mean 'question'?"
    assert await told(mode="fast") == "'mode' must be one of: auto, pipeline, agentic, tools."
    assert await told(budget={"rounds": 0}) == "'budget.rounds' must be at least 1."
    assert await told(question=" ") == "'question' must not be blank."
    assert await told(filters={"not": 5}) == (
        '\'filters.not\' must be {"field", "op", "value"}, {"and": [...]}, {"or": [...]} or {"not": ...}.'
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b'{"question": "a"} x',
        b'{"question": "a", "question": "b"}',
        b'{"question": "a", "budget": {"deadline_s": NaN}}',
        b'{"question": "a", "budget": {"deadline_s": -Infinity}}',
        b'{"question": "a", "budget": {"deadline_s": 1e400}}',
        b'{"question": "a", "top_k": ' + b"9" * 5000 + b"}",
        b'{"question": "\\ud800"}',
        b'{"question": "\xff"}',
        b"\xff\xfe{\x00}\x00",
        b"[" * 50_000,
        b'{"filters": ' + b'{"not": ' * 100 + b"1" + b"}" * 101,
        b'{"' + b"k" * 40_000 + b'": 1, "' + b"k" * 40_000 + b'": 1}',
    ],
)
async def test_malformed_json_is_400(http: httpx.AsyncClient, body: bytes) -> None:
    reply = await http.post(ASK, content=body)
    assert (reply.status_code, error_of(reply)["code"]) == (400, "malformed_body")
    assert len(reply.content) < 500


@pytest.mark.parametrize("body", [b"[]", b'"question"', b"null", b"1"])
async def test_no_object_is_422(http: httpx.AsyncClient, body: bytes) -> None:
    reply = await http.post(ASK, content=body)
    assert (reply.status_code, error_of(reply)["message"]) == (422, "The body must be a JSON object.")


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": ""},
        {"content-type": "application/json; charset=latin-1"},
        {"content-encoding": "gzip"},
    ],
)
async def test_not_json_is_415(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    reply = await http.post(ASK, content=b'{"question": "a"}', headers=headers)
    assert (reply.status_code, error_of(reply)["code"]) == (415, "unsupported_media_type")


async def test_too_large_is_413_by_length_and_while_it_arrives(driver: ScriptedDriver) -> None:
    async def endless() -> AsyncGenerator[bytes]:
        yield b'{"question": "'
        for _ in range(10_000):
            yield b"a" * 1000

    async with served(driver) as http:
        whole_body = await http.post(ASK, content=b'{"question": "' + b"a" * 10_000_000 + b'"}')
        assert (whole_body.status_code, error_of(whole_body)["code"]) == (413, "too_large")
        chunked = await http.post(ASK, content=endless())
        assert (chunked.status_code, error_of(chunked)["code"]) == (413, "too_large")
        assert (await http.post(ASK, json={"question": "When?"})).status_code == 200
    assert len(driver.asked) == 1


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allowed"),
    [
        ("GET", ASK, 405, "method_not_allowed", ["POST"]),
        ("DELETE", "/v1/search", 405, "method_not_allowed", ["POST"]),
        ("POST", "/healthz", 405, "method_not_allowed", ["GET"]),
        ("POST", "/v1/answers/", 404, "no_route", None),
        ("GET", "/../../etc/passwd", 404, "no_route", None),
        ("GET", "/docs", 404, "no_route", None),
    ],
)
async def test_wrong_route_or_method(
    http: httpx.AsyncClient, method: str, path: str, status: int, code: str, allowed: list[str] | None
) -> None:
    reply = await http.request(method, path)
    error = error_of(reply)
    assert (reply.status_code, error["code"]) == (status, code)
    assert "passwd" not in reply.text
    if allowed:
        assert (error["allowed"], reply.headers["allow"]) == (allowed, allowed[0])


# ---- request ids, secrets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-1._Z", True), ("a" * 64, True), ("a" * 65, False), ("a b", False), ("", False)]
)
async def test_request_id_is_taken_if_sane(
    http: httpx.AsyncClient, driver: ScriptedDriver, given: str, kept: bool
) -> None:
    headers = {"x-request-id": given}
    for reply in (
        await http.post(ASK, json={"question": "When?"}, headers=headers),
        await http.post(ASK, json={"question": ""}, headers=headers),
        await http.post("/v1/search", json={"question": "When?"}, headers=headers),
        await http.get("/nothing", headers=headers),
        await http.get("/healthz", headers=headers),
    ):
        id_ = reply.headers["x-request-id"]
        assert (id_ == given) if kept else re.fullmatch(r"req_[0-9A-Z]{26}", id_)
        if reply.url.path != "/healthz":
            assert id_ in reply.text
    assert len(driver.request_ids) == 2


@pytest.mark.parametrize(
    "words",
    [
        "/srv/data/index/manifest.json is torn",
        "see ~/.cache/assay/models",
        r"C:\data\index is torn",
        'Traceback (most recent call last):\n  File "x.py", line 1',
        "a" * 1000,
    ],
)
@pytest.mark.parametrize(
    "kind", [er.IndexFault, er.StageUnavailable, er.SetupError, er.AssayError, er.BadModelOutput, OSError]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_error_bodies_leak_nothing(
    http: httpx.AsyncClient,
    driver: ScriptedDriver,
    kind: type[Exception],
    words: str,
    stream: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripts: list[list[Step]] = [[kind(words)], [ev.StatusEvent(state="planning"), kind(words)]]
    for script in scripts:
        driver.script = script
        reply = await http.post(ASK, json={"question": "When?", "stream": stream})
        assert words not in json.loads(json.dumps(reply.text))
        assert not re.search(r"/srv|\.cache|data\\|Traceback|aaaa|\.py", reply.text)
        request_id = reply.headers["x-request-id"]
        assert any(words in r.getMessage() and getattr(r, "question_id", "") == request_id for r in caplog.records)
    driver.search_fault = kind(words)
    assert words not in (await http.post("/v1/search", json={"question": "When?"})).text


async def test_an_error_event_of_the_driver_is_read_too(http: httpx.AsyncClient, driver: ScriptedDriver) -> None:
    for code in ("internal", "index_fault", "parse_fault", "never_heard_of"):
        driver.script = [ev.ErrorEvent(error=s.ErrorBody(code=code, message="/srv/data/x: prompt was 'y'"))]
        reply = await http.post(ASK, json={"question": "When?", "stream": True})
        assert reply.status_code in (500, 503)
        assert "prompt" not in error_of(reply)["message"]


# ---- admission, and clients that go away ----------------------------------------------------------------------------


async def test_beyond_max_ongoing_is_503_at_once(driver: ScriptedDriver) -> None:
    driver.script = [ev.StatusEvent(state="planning"), 0.5, *whole()]
    async with in_process(make_api(driver, CONFIG)) as http:
        replies = await asyncio.gather(
            *(http.post(ASK, json={"question": "When?", "stream": n % 2 == 0}) for n in range(6))
        )
        assert [r.status_code for r in replies] == [200, 200, 503, 503, 503, 503]
        for reply in replies[2:]:
            assert (error_of(reply)["code"], int(reply.headers["retry-after"]) > 0) == ("overloaded", True)
        assert (await http.post("/v1/search", json={"question": "When?"})).status_code == 200
        driver.script = [er.UnknownBucket("no")]
        for _ in range(3):  # slots come back, after answers and after faults
            assert (await http.post(ASK, json={"question": "When?"})).status_code == 404
    assert len(driver.asked) == 5


async def test_a_refusal_waits_for_no_body(driver: ScriptedDriver) -> None:
    read = 0

    async def slow() -> AsyncGenerator[bytes]:
        nonlocal read
        read += 1
        yield b'{"question": '
        await asyncio.sleep(60)

    driver.script = [ev.StatusEvent(state="planning"), 1.0, *whole()]
    async with in_process(make_api(driver, CONFIG)) as http:
        conversation = (await http.post("/v1/conversations", json={})).json()["id"]
        asked = [asyncio.create_task(http.post(ASK, json={"question": "When?"})) for _ in range(CONFIG.max_ongoing)]
        await until(lambda: driver.running == CONFIG.max_ongoing)
        for path in (ASK, "/v1/chat/completions", f"/v1/conversations/{conversation}/messages"):
            async with asyncio.timeout(5):
                reply = await http.post(path, content=slow())
            assert (reply.status_code, read) == (503, 0), path
        await asyncio.gather(*asked)
        driver.search_waits = asyncio.Event()
        found = [asyncio.create_task(http.post("/v1/search", json={"question": "W?"})) for _ in range(2)]
        await until(lambda: len(driver.searched) == CONFIG.max_ongoing)
        async with asyncio.timeout(5):
            assert (await http.post("/v1/search", content=slow())).status_code == 503
        assert read == 0
        driver.search_waits.set()
        assert [reply.status_code for reply in await asyncio.gather(*found)] == [200, 200]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("before", [[], [ev.StatusEvent(state="planning"), ev.AnswerEvent(delta="It")]])
async def test_client_that_goes_ends_the_question(stream: bool, before: list[Any]) -> None:
    driver = ScriptedDriver(*before, 60.0)
    async with served(driver) as http:
        task = asyncio.create_task(http.post(ASK, json={"question": "When?", "stream": stream}))
        await until(lambda: driver.running == 1)
        await asyncio.sleep(0.1)
        task.cancel()
        await until(lambda: driver.closed == 1 and driver.running == 0)
        driver.script = whole()
        for _ in range(3):
            assert (await http.post(ASK, json={"question": "When?"})).status_code == 200
    gc.collect()  # a generator that was left open would warn here


async def test_many_clients_that_drop_leave_nothing_running() -> None:
    script: list[Step] = [ev.AnswerEvent(delta="x"), 0.02]
    driver = ScriptedDriver(*script * 1000, *whole())
    async with served(driver, CONFIG.model_copy(update={"max_ongoing": 50})) as http:

        async def drops_at_the_third() -> None:
            async with http.stream("POST", ASK, json={"question": "When?", "stream": True}) as reply:
                seen = b""
                async for piece in reply.aiter_raw():
                    seen += piece
                    if seen.count(b"data:") >= 3:
                        return

        await asyncio.gather(*(drops_at_the_third() for _ in range(50)))
        await until(lambda: driver.running == 0)
    assert driver.closed == 50


async def test_cancelled_from_outside_closes_too() -> None:
    driver = ScriptedDriver(ev.StatusEvent(state="planning"), 60.0)
    async with in_process(make_api(driver, CONFIG)) as http:
        task = asyncio.create_task(http.post(ASK, json={"question": "When?", "stream": True}))
        await until(lambda: driver.running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (driver.running, driver.closed) == (0, 1)


async def test_a_reader_that_takes_nothing_is_given_up() -> None:
    pulled = 0
    sent: list[str] = []

    async def rest() -> AsyncGenerator[ev.Event]:
        nonlocal pulled
        while True:
            pulled += 1
            yield ev.AnswerEvent(delta="x")

    async def send(message: Message) -> None:
        sent.append(message["type"])
        if len(sent) > 3:
            await asyncio.sleep(60)

    async with aclosing(rest()) as events:
        first = ev.AnswerEvent(delta="x")
        with pytest.raises(ClientDisconnect):
            await send_events(first, events, NativeWire(stream=True), send, heartbeat_s=10, send_timeout_s=0.05)
    assert (pulled, len(sent)) == (2, 4)


# ---- search, health, the document -----------------------------------------------------------------------------------


async def test_an_answer_is_read_again(http: httpx.AsyncClient) -> None:
    reply = await http.get("/v1/answers/ans_1")
    record = s.AnswerRecord.model_validate_json(reply.content)
    assert (record.request.question, record.response.id) == ("When?", "ans_1")
    for id_ in ("ans_2", "x" * 90):
        gone = await http.get(f"/v1/answers/{id_}")
        assert (gone.status_code, error_of(gone)["code"]) == (404, "not_found"), id_


async def test_search(http: httpx.AsyncClient, driver: ScriptedDriver) -> None:
    reply = await http.post("/v1/search", json={"question": "termination", "legs": ["sparse"]})
    body = s.SearchResponse.model_validate_json(reply.content)
    assert (body.hits[0].span, body.request_id) == (CITATION.span, reply.headers["x-request-id"])
    wrong = await http.post("/v1/search", json={"question": "termination", "legs": ["both"]})
    assert (wrong.status_code, error_of(wrong)["allowed"]) == (422, ["dense", "sparse", "link"])
    alone = await http.post("/v1/search", json={"question": "termination", "legs": ["link"]})
    assert alone.status_code == 422 and "needs dense" in error_of(alone)["message"]
    driver.search_fault = er.NotFound("There is no document 'x'.", "doc_id")
    assert error_of(await http.post("/v1/search", json={"question": "x", "doc_id": "x"}))["field"] == "doc_id"


async def test_a_search_counts_facets_and_marks_what_no_reader_sees(tmp_path: Path) -> None:
    """Over a real index, of a workbook with a hidden sheet."""
    book = openpyxl.Workbook()
    book.active.append(["zebra seen"])
    unseen = book.create_sheet()
    unseen.append(["zebra unseen"])
    unseen.sheet_state = "hidden"
    book.save(write(tmp_path / "files", {"note.md": "A zebra."}) / "book.xlsx")
    ingest(tmp_path / "files", tmp_path / "index")
    async with in_process(make_api(LocalDriver(retriever(tmp_path / "index")), CONFIG)) as http:
        body = (await http.post("/v1/search", json={"question": "zebra", "facets": ["format"]})).json()
    assert {tuple(hit["heading"]): hit["hidden"] for hit in body["hits"]} == {
        (): False,
        ("Sheet",): False,
        ("Sheet1 (hidden sheet)",): True,
    }
    assert {v["value"]: v["count"] for v in body["facets"]["format"]["values"]} == {"md": 1, "xlsx": 1}


async def test_health_asks_nobody(http: httpx.AsyncClient, driver: ScriptedDriver) -> None:
    driver.ready_now = lambda: pytest.fail("asked the driver")
    assert (await http.get("/healthz")).json() == {"status": "ok"}


async def test_readiness(http: httpx.AsyncClient, driver: ScriptedDriver) -> None:
    async def ready(status: Any, reason: str) -> tuple[int, list[str]]:
        driver.ready_now = lambda: s.Readiness(status=status, reasons=[reason])
        reply = await http.get("/readyz")
        return reply.status_code, reply.json()["reasons"]

    assert await ready("ready", "-") == (200, ["-"])
    assert await ready("degraded", "segment 3 is torn") == (200, ["segment 3 is torn"])
    assert await ready("degraded", "/srv/index/3 is torn") == (200, ["see the server's log"])
    assert await ready("unavailable", "generator: starting") == (503, ["generator: starting"])

    def dead() -> s.Readiness:
        raise er.StageUnavailable("The driver is not up.")

    driver.ready_now = dead
    reply = await http.get("/readyz")
    assert (reply.status_code, reply.json()["reasons"]) == (503, ["The driver is not up."])


def test_the_document_has_examples_for_everything() -> None:
    """Of each operation, of its body and of each of its answers; and they are of their shapes."""
    document = make_api(ScriptedDriver(), CONFIG).openapi()
    operations = [(f"{m} {p}", op) for p, item in document["paths"].items() for m, op in item.items()]
    assert len(operations) > 20
    for name, operation in operations:
        replies = [reply.get("content", {}) for reply in operation["responses"].values()]
        for content in (*replies, operation.get("requestBody", {}).get("content", {})):
            for media, said in content.items():
                examples = [each["value"] for each in said.get("examples", {}).values()]
                examples += [said["example"]] if "example" in said else []
                assert examples, f"{name}: {media}"
                shape = {**said.get("schema", {}), "components": document["components"]}
                if media == "application/json":
                    for example in examples:
                        jsonschema.Draft202012Validator(shape).validate(example)
