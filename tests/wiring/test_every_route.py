"""What holds on every route: tried on all of the OpenAPI document, and on ``/mcp``, so that a new one cannot be forgotten."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay import events as ev
from assay.config import AuditConfig, ConversationsConfig, DocumentsConfig, IngressConfig
from assay.keys import SCOPES, KeyFile
from deployments import body, upload
from deployments.api import make_api
from deployments.gate import ENDS, OPEN, needed
from tests.wiring.scripted_driver import ScriptedDriver, whole
from tests.wiring.test_api import in_process, until
from tests.wiring.test_keys import key

pytestmark = pytest.mark.anyio

MOST = 10_000
MCP = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@dataclass(frozen=True)
class Route:
    method: str
    template: str
    body: Any = None
    files: bool = False
    statuses: frozenset[int] = frozenset()

    @property
    def path(self) -> str:
        return re.sub(r"\{[^}]*\}", "x", self.template) + ("?bucket=docs" if self.files else "")

    def __str__(self) -> str:
        return f"{self.method} {self.template}"


def config_of(folder: Path | None = None, **more: Any) -> IngressConfig:
    keys: dict[str, Any] = {}
    if folder is not None:
        path = str(folder / "uploads")
        uploads = DocumentsConfig(path=path, max_file_bytes=MOST, max_body_bytes=MOST, upload_s=1)
        keys = {"keys": str(folder / "keys.json"), "documents": uploads}
    memory, silent = ConversationsConfig(store="memory"), AuditConfig(folder=None)
    return IngressConfig(conversations=memory, audit=silent, max_body_bytes=MOST, **{**keys, **more})


def documented() -> list[Route]:
    """With the first example of a body as FastAPI documents it."""
    found = []
    for path, item in make_api(ScriptedDriver(), config_of()).openapi()["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            example = next(iter(content.get("application/json", {}).get("examples", {}).values()), {"value": None})[
                "value"
            ]
            statuses = frozenset(int(status) for status in operation["responses"])
            found.append(Route(method.upper(), path, example, "multipart/form-data" in content, statuses))
            assert not content or example is not None or found[-1].files, path
    return found


ALL = documented()
GUARDED = [*(route for route in ALL if route.path not in OPEN), Route("POST", "/mcp", MCP)]
WITH_JSON = [route for route in GUARDED if route.body is not None]
WITH_BODY = [route for route in GUARDED if route.body is not None or route.files]
each = pytest.mark.parametrize("route", GUARDED, ids=str)
each_body = pytest.mark.parametrize("route", WITH_JSON, ids=str)
HEADERS = {"accept": "application/json, text/event-stream"}


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
async def http(driver: ScriptedDriver, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(make_api(driver, config_of(tmp_path))) as found:
        yield found


async def send(http: httpx.AsyncClient, route: Route, headers: dict[str, str], **more: Any) -> httpx.Response:
    given = more or ({"json": route.body} if route.body is not None else {})
    return await http.request(route.method, route.path, headers={**HEADERS, **headers}, **given)


def code_of(reply: httpx.Response) -> str:
    return str(reply.json()["error"]["code"])


async def endless(taken: list[int]) -> AsyncGenerator[bytes]:
    while True:
        taken[0] += 1
        yield b"a" * 1000


# ---- before the body is read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", [*GUARDED, Route("GET", "/v1/nothing")], ids=str)
async def test_nobody_without_a_key_and_none_of_the_body_is_read(
    http: httpx.AsyncClient, file: KeyFile, driver: ScriptedDriver, route: Route
) -> None:
    mine = key(file)["authorization"]
    revoked, text = file.create("a", None, ["admin"], 600, 16)
    file.revoke(revoked.id)
    for sent in ("", mine[:-1], mine + "x", f"Bearer {text}", "Bearer assay_x_y", "Basic eDp5"):
        taken = [0]
        reply = await send(http, route, {"authorization": sent} if sent else {}, content=endless(taken))
        assert (reply.status_code, code_of(reply)) == (401, "unauthorized")
        assert reply.headers["www-authenticate"] == "Bearer" and taken[0] <= 1
    assert not driver.asked


@each
async def test_a_scope_that_is_missing(http: httpx.AsyncClient, file: KeyFile, route: Route) -> None:
    """Each route has a line in ``NEEDS``, which is what it is documented to need: without one only an admin would get in."""
    need = needed(route.method, route.path)
    for scope in SCOPES:
        taken = [0]
        if need is not None and scope not in (need, "admin"):
            reply = await send(http, route, key(file, scopes=[scope]), content=endless(taken))
            assert (reply.status_code, code_of(reply), taken[0] <= 1) == (403, "forbidden", True)
        else:
            assert (await send(http, route, key(file, scopes=[scope]))).status_code not in (401, 403)


@each
async def test_over_the_rate_and_over_the_concurrency(
    http: httpx.AsyncClient, file: KeyFile, driver: ScriptedDriver, route: Route
) -> None:
    slow = key(file, rate=1, scopes=["admin"])
    assert (await send(http, route, slow)).status_code != 429
    taken = [0]
    over = await send(http, route, slow, content=endless(taken))
    assert (over.status_code, code_of(over), taken[0] <= 1) == (429, "rate_limited", True)
    assert 0 < int(over.headers["retry-after"]) <= 60

    if route.path.startswith(ENDS.partition(" ")[2]):  # a stream's own request holds the place
        return
    one = key(file, concurrency=1, scopes=["admin"])
    driver.script = [ev.StatusEvent(state="planning"), 0.2, *whole()]
    first = asyncio.create_task(http.post("/v1/answers", json={"question": "When?"}, headers=one))
    await until(lambda: driver.running == 1)
    over = await send(http, route, one)
    assert (over.status_code, code_of(over)) == (429, "rate_limited") and int(over.headers["retry-after"]) > 0
    await first


# ---- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", WITH_BODY, ids=str)
async def test_a_body_is_bounded_as_declared_and_as_it_arrives(http: httpx.AsyncClient, route: Route) -> None:
    kind = {"content-type": "multipart/form-data; boundary=x" if route.files else "application/json"}
    taken = [0]
    declared = {**kind, "content-length": str(MOST + 1)}
    reply = await send(http, route, declared, content=endless(taken))
    assert (reply.status_code, taken[0] <= 1) == (413, True)
    taken = [0]
    reply = await send(http, route, kind, content=endless(taken))
    assert reply.status_code == 413 and taken[0] <= MOST // 1000 + 5


@pytest.mark.parametrize("route", WITH_BODY, ids=str)
@pytest.mark.parametrize("pause_s", [60.0, 0.01], ids=["stalls", "trickles"])
async def test_a_body_that_does_not_arrive_is_given_up(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, route: Route, pause_s: float
) -> None:
    monkeypatch.setattr(body, "READ_TIMEOUT_S", 0.1)
    monkeypatch.setattr(upload, "IDLE_S", 0.1)

    async def slow() -> AsyncGenerator[bytes]:
        while True:
            yield b"-"
            await asyncio.sleep(pause_s)

    kind = {"content-type": "multipart/form-data; boundary=x" if route.files else "application/json"}
    async with asyncio.timeout(5):
        reply = await send(http, route, kind, content=slow())
    assert (reply.status_code, code_of(reply)) == (408, "request_timeout")
    assert not route.files or ("Nothing" in reply.text) == (pause_s > 1)  # an upload may take long, but not stop


async def test_who_would_wait_for_a_place_is_refused_before_the_body(tmp_path: Path, driver: ScriptedDriver) -> None:
    """By every door that asks; ``test_api`` has those of our own."""
    driver.script = [ev.StatusEvent(state="planning"), 0.3, *whole()]
    async with in_process(make_api(driver, config_of(tmp_path, max_ongoing=1))) as http:
        first = asyncio.create_task(http.post("/v1/answers", json={"question": "When?"}))
        await until(lambda: driver.running == 1)
        taken = [0]
        said = {"mcp-method": "tools/call", "mcp-name": "ask", "content-type": "application/json"}
        over = await http.post("/mcp", headers={**HEADERS, **said}, content=endless(taken))
        assert (over.status_code, code_of(over), taken[0] <= 1) == (503, "overloaded", True)
        assert int(over.headers["retry-after"]) > 0
        assert (await send(http, Route("POST", "/mcp", MCP), {})).status_code == 200  # what asks nothing has its place
        await first


@each_body
@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (b"[" * 3_000, {400}),
        (b'{"a":' * 1_500 + b"1" + b"}" * 1_500, {400, 422}),
        (b'{"question": NaN}', {400, 422}),
        (b'{"question": 1e400}', {400, 422}),
        (b'{"question": "\\ud800"}', {400, 422}),
        (b"\xff\xfe", {400}),
        (b"", {400}),
        (b"null", {400, 422}),
    ],
    ids=["deep", "deep objects", "NaN", "infinite", "surrogate", "no UTF-8", "empty", "null"],
)
async def test_bodies_that_are_none(http: httpx.AsyncClient, route: Route, body: bytes, statuses: set[int]) -> None:
    reply = await send(http, route, {"content-type": "application/json"}, content=body)
    assert reply.status_code in statuses and reply.status_code < 500


@each_body
async def test_only_json_is_read_where_json_is_wanted(http: httpx.AsyncClient, route: Route) -> None:
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    for sent in ({"content-type": "text/plain"}, packed):
        reply = await send(http, route, sent, content=json.dumps(route.body).encode())
        assert reply.status_code in (400, 415)


@each
async def test_no_answer_is_taken_for_another_kind(http: httpx.AsyncClient, file: KeyFile, route: Route) -> None:
    for headers in ({}, key(file, scopes=["admin"])):
        assert (await send(http, route, headers)).headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("template", sorted({route.template for route in ALL}))
async def test_another_method_is_told_which_there_are(http: httpx.AsyncClient, template: str) -> None:
    routes = [route for route in ALL if route.template == template]
    reply = await http.request("OPTIONS", routes[0].path.partition("?")[0])
    assert (reply.status_code, code_of(reply)) == (405, "method_not_allowed")
    assert set(reply.headers["allow"].split(", ")) == {route.method for route in routes}


# ---- what is documented ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", [r for r in ALL if r.path not in OPEN], ids=str)
def test_refusals_are_documented(route: Route) -> None:
    assert {401, 403, 429} <= route.statuses
    assert route.body is None or {400, 408, 413, 415} <= route.statuses
