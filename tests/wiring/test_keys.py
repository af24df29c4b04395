"""Keys: made, hashed, revoked; who may ask what; and that nothing outside a key's buckets shows through any door.

What holds of all routes alike is in ``test_every_route``."""

import asyncio
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from hmac import compare_digest
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay import __main__ as command
from assay import errors as er
from assay import events as ev
from assay import serve_config
from assay.config import ConversationsConfig, IngressConfig
from assay.keys import KeyFile, Keyring, keyring_of
from deployments.api import make_api
from deployments.local import LocalGraph
from tests.wiring.scripted_driver import ScriptedDriver, whole
from tests.wiring.test_api import error_of, in_process, until
from tests.wiring.test_client import listening

pytestmark = pytest.mark.anyio
QUESTION = {"question": "When?"}
CHAT = {"model": "assay", "messages": [{"role": "user", "content": "When?"}]}


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
def config(tmp_path: Path) -> IngressConfig:
    return IngressConfig(keys=str(tmp_path / "keys.json"), conversations=ConversationsConfig(store="memory"))


@pytest.fixture
async def http(driver: ScriptedDriver, config: IngressConfig) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(make_api(driver, config)) as found:
        yield found


def key(file: KeyFile, buckets: list[str] | None = None, tenant: str = "a", **more: Any) -> dict[str, str]:
    options: dict[str, Any] = {"scopes": ["search", "ask"], "rate": 600, "concurrency": 16, **more}
    return {"authorization": f"Bearer {file.create(tenant, buckets, **options)[1]}"}


# ---- the file -------------------------------------------------------------------------------------------------------


def test_the_file_holds_no_secret_and_is_its_owners(file: KeyFile, tmp_path: Path) -> None:
    made, text = file.create("a", ["contracts"], ["ask"], 60, 2)
    path = tmp_path / "keys.json"
    secret = text.removeprefix(f"assay_{made.id}_")
    assert secret not in path.read_text() and len(secret) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ring = Keyring(file)
    grant = ring.grant(text)
    assert grant is not None and (grant.tenant, grant.buckets) == ("a", ("contracts",))
    for wrong in ("", "assay_", f"assay_{made.id}_", text[:-1], text + "x", f"other_{made.id}_{secret}", made.sha256):
        assert ring.grant(wrong) is None
    file.revoke(made.id)
    assert ring.grant(text) is None  # at once, without a restart
    with pytest.raises(er.NotFound):
        file.revoke("nobody")


def test_a_secret_is_compared_in_constant_time_also_where_there_is_no_such_key(
    file: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, text = file.create("a", None, ["ask"], 60, 2)
    compared: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return compare_digest(one, other)

    monkeypatch.setattr("hmac.compare_digest", compare)
    ring = Keyring(file)
    for sent in (text, text[:-1], f"assay_{made.id}_", "assay_nobody_x", "", "Ключ"):
        assert (ring.grant(sent) is not None) == (sent == text)
    assert len(compared) == 6 and {len(part) for pair in compared for part in pair} == {64}


def test_without_the_file_it_does_not_open_again(file: KeyFile, tmp_path: Path) -> None:
    ring = Keyring(file)
    before = ring.open
    _, text = file.create("a", None, ["ask"], 60, 2)
    assert (before, ring.open) == (True, False)
    (tmp_path / "keys.json").unlink()
    assert (ring.open, ring.grant(text)) == (False, None)
    (tmp_path / "keys.json").write_text("[{")
    with pytest.raises(er.SetupError):
        ring.grant(text)


def test_nothing_starts_without_a_key_where_one_is_required(file: KeyFile, config: IngressConfig) -> None:
    required = config.model_copy(update={"keys_required": True})
    with pytest.raises(er.SetupError, match="keys create"):
        make_api(ScriptedDriver(), required)
    made, _ = file.create("a", None, ["ask"], 60, 2)
    assert not keyring_of(required).open
    file.revoke(made.id)
    with pytest.raises(er.SetupError):
        keyring_of(required)


@pytest.mark.parametrize(("host", "starts"), [("127.0.0.1", True), ("0.0.0.0", False), ("10.0.0.7", False)])
def test_nothing_listens_to_others_without_a_key(file: KeyFile, tmp_path: Path, host: str, starts: bool) -> None:
    local = serve_config.load(Path(__file__).parents[2] / "configs" / "local.yaml")
    ingress = local.app.ingress.model_copy(update={"keys": str(tmp_path / "keys.json")})
    config = replace(local, host=host, app=local.app.model_copy(update={"ingress": ingress}))
    if starts:
        serve_config.check_keys(config)
        return
    with pytest.raises(er.SetupError, match="keys create"), LocalGraph(config, log=tmp_path / "log"):
        pass
    file.create("a", None, ["ask"], 60, 2)
    serve_config.check_keys(config)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            command.run("keys", [*words, "--file", str(tmp_path / "keys.json")])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    code, out, _ = run("create", "--tenant", "acme", "--bucket", "contracts", "--scope", "ask")
    grant = Keyring(KeyFile(tmp_path / "keys.json")).grant(out.strip())
    assert code == 0 and grant is not None and grant.buckets == ("contracts",)
    _, listed, _ = run("list")
    assert "acme" in listed and "in force" in listed and out.strip().rpartition("_")[2] not in listed
    assert run("revoke", grant.key_id)[1] == f"revoked {grant.key_id}\n"
    assert "revoked 2" in run("list")[1]
    for words in (["create"], ["create", "--all-buckets", "--bucket", "x"], ["create", "--all-buckets", "--scope", "x"],
                  ["create", "--all-buckets", "--rate", "0"], ["revoke"], ["revoke", "x"]):  # fmt: skip
        code, out, err = run(*words)
        assert (code, out) == (2, "") and err


# ---- the gate -------------------------------------------------------------------------------------------------------


async def test_without_keys_this_machine_alone_is_served(driver: ScriptedDriver, config: IngressConfig) -> None:
    app = make_api(driver, config)
    for address, status in (("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("10.0.0.7", 403), ("x", 403)):
        async with in_process(app, address) as http:
            assert (await http.post("/v1/answers", json=QUESTION)).status_code == status
            assert (await http.get("/healthz")).status_code == 200


async def test_without_keys_and_behind_an_haproxy_that_hides_who_asks_nobody_is_served(
    driver: ScriptedDriver, config: IngressConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    async with in_process(make_api(driver, config), "127.0.0.1") as http:
        refused = await http.post("/v1/answers", json=QUESTION)
    assert refused.status_code == 403 and "ADR 0023" in refused.text


async def test_scopes(http: httpx.AsyncClient, file: KeyFile) -> None:
    searches, asks, all_ = key(file, scopes=["search"]), key(file, scopes=["ask"]), key(file, scopes=["admin"])

    async def status(path: str, body: Any, headers: dict[str, str]) -> int:
        return (await http.post(path, json=body, headers=headers)).status_code

    assert await status("/v1/search", QUESTION, searches) == 200
    for path, body in (("/v1/answers", QUESTION), ("/v1/chat/completions", CHAT), ("/v1/conversations", {})):
        assert await status(path, body, searches) == 403
        assert await status(path, body, asks) in (200, 201)
        assert await status(path, body, all_) in (200, 201)
    assert await status("/v1/search", QUESTION, asks) == 403
    assert await status("/v1/nothing", {}, asks) == 403  # what is not known needs the most
    assert await status("/v1/nothing", {}, all_) == 404


async def test_rate_and_concurrency(http: httpx.AsyncClient, file: KeyFile, driver: ScriptedDriver) -> None:
    slow, other = key(file, rate=2), key(file)
    for _ in range(2):
        assert (await http.get("/v1/models", headers=slow)).status_code == 200
    over = await http.post("/v1/answers", json=QUESTION, headers=slow)
    assert (over.status_code, error_of(over)["code"]) == (429, "rate_limited")
    assert 0 < int(over.headers["retry-after"]) <= 30
    assert (await http.get("/v1/models", headers=other)).status_code == 200
    one = key(file, concurrency=1)
    driver.script = [ev.StatusEvent(state="planning"), 0.3, *whole()]
    first = asyncio.create_task(http.post("/v1/answers", json=QUESTION, headers=one))
    await until(lambda: driver.running == 1)
    second = await http.post("/v1/chat/completions", json=CHAT, headers=one)
    assert (second.status_code, second.json()["error"]["type"]) == (429, "rate_limit_error")
    assert (await first).status_code == 200
    assert (await http.get("/v1/models", headers=one)).status_code == 200


# ---- buckets --------------------------------------------------------------------------------------------------------


async def test_a_key_narrows_what_is_asked(http: httpx.AsyncClient, file: KeyFile, driver: ScriptedDriver) -> None:
    bound = key(file, ["contracts", "not yet there"])
    await http.post("/v1/answers", json=QUESTION, headers=bound)
    await http.post("/v1/chat/completions", json=CHAT, headers=bound)
    path = "/v1/conversations/" + (await http.post("/v1/conversations", json={}, headers=bound)).json()["id"]
    await http.post(f"{path}/messages", json=QUESTION, headers=bound)
    await http.post("/v1/answers", json={**QUESTION, "buckets": ["contracts"]}, headers=bound)
    assert [asked.buckets for asked in driver.asked] == [["contracts"]] * 4
    found = (await http.post("/v1/search", json=QUESTION, headers=bound)).json()
    assert found["explain"]["total_rows"] == 4000
    assert len(salts := {asked.cache_salt for asked in (*driver.asked, *driver.searched)}) == 1 and None not in salts
    names = [m["id"] for m in (await http.get("/v1/models", headers=bound)).json()["data"]]
    assert "assay/contracts" in names and not any("secret" in name for name in names)


async def test_a_bucket_that_may_not_be_seen_is_as_one_that_is_not(
    http: httpx.AsyncClient, file: KeyFile, driver: ScriptedDriver
) -> None:
    bound = key(file, ["contracts"])

    async def told(name: str) -> list[tuple[int, str]]:
        replies = [
            await http.post("/v1/answers", json={**QUESTION, "buckets": ["contracts", name]}, headers=bound),
            await http.post("/v1/answers", json={**QUESTION, "buckets": [name], "stream": True}, headers=bound),
            await http.post("/v1/search", json={**QUESTION, "buckets": [name]}, headers=bound),
            await http.post("/v1/chat/completions", json={**CHAT, "model": f"assay/{name}"}, headers=bound),
            await http.get(f"/v1/models/assay/{name}", headers=bound),
        ]
        return [(r.status_code, r.text.replace(name, "X").replace(r.headers["x-request-id"], "")) for r in replies]

    hidden, missing = await told("secret"), await told("never")
    assert hidden == missing
    assert {status for status, _ in hidden} == {404}
    assert not driver.asked


@pytest.mark.parametrize("buckets", [["gone"], ["gone", "lost"]])
async def test_a_key_whose_buckets_are_gone_sees_nothing(
    http: httpx.AsyncClient, file: KeyFile, driver: ScriptedDriver, buckets: list[str]
) -> None:
    bound = key(file, buckets)
    for path, body in (("/v1/answers", QUESTION), ("/v1/search", QUESTION), ("/v1/chat/completions", CHAT)):
        assert (await http.post(path, json=body, headers=bound)).status_code == 404
    assert not driver.asked


async def test_the_drivers_own_errors_name_no_other_bucket(
    http: httpx.AsyncClient, file: KeyFile, driver: ScriptedDriver
) -> None:
    bound = key(file, ["contracts"])
    fault = er.UnknownBucket("There is no bucket 'x'.", "buckets", ("contracts", "secret"))
    scripts: list[list[Any]] = [[fault], [ev.StatusEvent(state="planning"), fault]]
    for driver.script in scripts:
        for stream in (True, False):
            reply = await http.post("/v1/answers", json={**QUESTION, "stream": stream}, headers=bound)
            assert "secret" not in reply.text and "contracts" in reply.text
    driver.search_fault = fault
    assert "secret" not in (await http.post("/v1/search", json=QUESTION, headers=bound)).text


async def test_conversations_are_of_a_tenant_and_its_buckets(http: httpx.AsyncClient, file: KeyFile) -> None:
    mine = key(file, ["contracts", "secret"])
    path = "/v1/conversations/" + (await http.post("/v1/conversations", json={}, headers=mine)).json()["id"]
    assert (await http.post(f"{path}/messages", json=QUESTION, headers=mine)).status_code == 200
    for other in (key(file, ["contracts"]), key(file), key(file, ["contracts", "secret"], tenant="b")):
        for method, where, body in (
            ("GET", path, None),
            ("PATCH", path, {"title": "x"}),
            ("DELETE", path, None),
            ("POST", f"{path}/messages", QUESTION),
        ):
            assert (await http.request(method, where, json=body, headers=other)).status_code == 404
        assert (await http.get("/v1/conversations", headers=other)).json()["conversations"] == []
    same = key(file, ["secret", "contracts"])  # a new key in place of an old one
    assert len((await http.get(path, headers=same)).json()["messages"]) == 2


async def test_an_answer_is_read_again_by_its_owner_alone(
    http: httpx.AsyncClient, file: KeyFile, driver: ScriptedDriver
) -> None:
    mine, others, narrower = key(file), key(file, tenant="b"), key(file, ["contracts"])
    await http.post("/v1/answers", json=QUESTION, headers=mine)
    (asked,) = driver.asked
    for headers in (mine, others, narrower):
        await http.get("/v1/answers/ans_1", headers=headers)
    owners = [owner for _, owner in driver.recalled]
    assert owners[0] == asked.owner == "a" and len(set(owners)) == 3


def test_one_request_at_a_time_is_enough(driver: ScriptedDriver, config: IngressConfig, file: KeyFile) -> None:
    """Whoever has the end of an answer may ask again at once: also by a key, and of a service, that has room for one."""
    narrow, mcp = config.model_copy(update={"max_ongoing": 1}), {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    one = key(file, concurrency=1, rate=100_000) | {"accept": "application/json, text/event-stream"}
    with (
        listening(make_api(driver, narrow)) as url,
        httpx.Client(base_url=url, headers=one, trust_env=False) as http,
    ):
        for path, body in (
            ("/v1/answers", QUESTION),
            ("/v1/answers", {**QUESTION, "stream": True}),
            ("/v1/answers", {**QUESTION, "stream": True, "resumable": True}),
            ("/v1/chat/completions", CHAT),
            ("/v1/chat/completions", {**CHAT, "stream": True}),
            ("/v1/search", QUESTION),
            ("/mcp", mcp),
        ):
            assert {http.post(path, json=body).status_code for _ in range(30)} == {200}, body


# ---- another site's page, open in a browser on this machine ---------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8000"}, 200),
        ({"host": "127.0.0.1"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "localhost", "origin": "http://localhost:8000"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "localhost.evil.example"}, 403),
        ({"host": "localhost", "origin": "http://evil.example"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
        ({"host": "localhost", "sec-fetch-site": "same-origin"}, 200),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, 403),
        ([("host", "localhost"), ("host", "evil.example")], 403),
        ({"host": ""}, 403),
    ],
)
async def test_without_keys_no_other_site_asks(
    http: httpx.AsyncClient, file: KeyFile, headers: Any, status: int
) -> None:
    sent = httpx.Headers(headers)
    assert (await http.post("/v1/answers", json=QUESTION, headers=sent)).status_code == status
    sent.update(key(file))
    assert (await http.post("/v1/answers", json=QUESTION, headers=sent)).status_code == 200
