"""The audit log: what a line says and what it does not, who writes where, and what happens when it cannot be written."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay import __main__ as command
from assay.audit import Audit
from assay.config import AuditConfig, ConversationsConfig, IngressConfig
from assay.errors import SetupError
from assay.events import CompletedEvent, EvidenceEvent
from assay.keys import KeyFile
from assay.schemas import EvidenceRef
from deployments.api import make_api
from tests.wiring.scripted_driver import ANSWER, CITATION, ScriptedDriver, response
from tests.wiring.test_api import in_process, until
from tests.wiring.test_keys import CHAT, QUESTION, key

pytestmark = pytest.mark.anyio

SECRET = "Whose notice ends it?"


def config_of(tmp_path: Path, **audit: Any) -> IngressConfig:
    return IngressConfig(
        keys=str(tmp_path / "keys.json"),
        conversations=ConversationsConfig(store="memory"),
        audit=AuditConfig(folder=str(tmp_path / "audit"), **audit),
    )


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(make_api(ScriptedDriver(), config_of(tmp_path))) as found:
        yield found


def lines(folder: Path, kind: str = "audit") -> list[dict[str, Any]]:
    """Of all files, the oldest first."""
    paths = sorted(
        folder.glob(f"audit/{kind}-*.jsonl*"), key=lambda path: path.suffix == ".jsonl" or -int(path.suffix[1:])
    )
    return [json.loads(line) for path in paths for line in path.read_text().splitlines() if line]


async def written(folder: Path, count: int, kind: str = "audit") -> list[dict[str, Any]]:
    await until(lambda: len(lines(folder, kind)) >= count, 5)
    found = lines(folder, kind)
    assert len(found) == count
    return found


async def test_who_asked_and_what_was_read_and_cited(http: httpx.AsyncClient, file: KeyFile, tmp_path: Path) -> None:
    mine = key(file, ["contracts"], groups=("legal",))
    asked = {"question": SECRET, "filters": {"field": "title", "op": "=", "value": "Deed"}}
    await http.post("/v1/answers", json={**asked, "stream": True}, headers={**mine, "x-request-id": "req_1"})
    await http.post("/v1/search", json=asked, headers=mine)
    await http.post("/v1/chat/completions", json=CHAT, headers={**mine, "x-assay-groups": "hr"})
    await http.get("/v1/answers/ans_1", headers=mine)
    await http.delete("/v1/conversations/conv_x", headers=mine)
    await http.get("/healthz", headers=mine)
    found = await written(tmp_path, 5)
    key_id = mine["authorization"].split("_")[1]
    assert {(line["key"], line["tenant"], line["address"]) for line in found} == {(key_id, "a", "127.0.0.1")}
    told = [(line["method"], line["path"], line["status"]) for line in found]
    assert told[0] == ("POST", "/v1/answers", 200) and told[4] == ("DELETE", "/v1/conversations/conv_x", 404)
    first, search, chat, again, _ = found
    assert (first["request_id"], first["ended"], first["answer"]) == ("req_1", "answered", "ans_1")
    assert first["cited"] == [CITATION.doc_id] and search["read"] == [CITATION.doc_id] == again["cited"]
    assert first["groups"] == ["legal"] and "groups" not in chat
    text = json.dumps(found)
    for secret in (SECRET, ANSWER, "Deed", CITATION.quote, mine["authorization"].rpartition("_")[2]):
        assert secret not in text and json.dumps(secret)[1:-1] not in text


async def test_what_was_kept_is_told_again_as_it_is_given_again(file: KeyFile, tmp_path: Path) -> None:
    """A repeated message, the history of a conversation, and a stream that is taken up: nobody asks the driver."""
    place = {"slot": "E1", "chunk_id": 1, "title": "", "uri": "", "rank": 1, "span": (0, 9), "score": 1.0, "round": 1}
    evidence = EvidenceRef.model_validate({**place, "doc_id": "doc_read", "sources": ["dense"]})
    completed = CompletedEvent(response=response().model_copy(update={"evidence": [evidence]}))
    driver = ScriptedDriver(EvidenceEvent(found=["Early"], doc_ids=["doc_found"]), completed)
    async with in_process(make_api(driver, config_of(tmp_path))) as http:
        await _again_and_again(http, key(file), tmp_path)


async def _again_and_again(http: httpx.AsyncClient, mine: dict[str, str], tmp_path: Path) -> None:
    path = f"/v1/conversations/{(await http.post('/v1/conversations', json={}, headers=mine)).json()['id']}"
    once = {**mine, "idempotency-key": "once"}
    for _ in range(2):
        assert (await http.post(f"{path}/messages", json=QUESTION, headers=once)).status_code == 200
    assert (await http.get(path, headers=mine)).status_code == 200
    asked = await http.post("/v1/answers", json={**QUESTION, "stream": True, "resumable": True}, headers=mine)
    taken_up = await http.get(f"/v1/streams/{asked.headers['x-stream-id']}", headers=mine)
    assert CITATION.quote in taken_up.text
    _, first, again, history, stream, resumed = await written(tmp_path, 6)
    for line in (first, stream, resumed):
        assert (line["read"], line["cited"]) == (["doc_found", "doc_read"], [CITATION.doc_id]), line
    for line in (again, history):
        assert (line["read"], line["cited"]) == (["doc_read"], [CITATION.doc_id]), line
    for line in (first, again, stream, resumed):
        assert (line["answer"], line["ended"]) == ("ans_1", "answered")
    assert "answer" not in history


async def test_texts_where_they_are_switched_on(file: KeyFile, tmp_path: Path) -> None:
    mine = key(file)
    async with in_process(make_api(ScriptedDriver(), config_of(tmp_path, texts=True))) as http:
        await http.post("/v1/answers", json={"question": SECRET}, headers=mine)
        (line,) = await written(tmp_path, 1)
    assert (line["question"], line["said"]) == (SECRET, ANSWER)


async def test_refusals_have_files_of_their_own(http: httpx.AsyncClient, file: KeyFile, tmp_path: Path) -> None:
    searches, slow = key(file, scopes=["search"]), key(file, rate=1)
    await http.get("/v1/models", headers={"authorization": "Bearer assay_x_y"})
    await http.post("/v1/answers", json=QUESTION, headers=searches)
    await http.get("/v1/models", headers=slow)
    await http.get("/v1/models", headers=slow)
    found = await written(tmp_path, 3, "refused")
    told = [(line["status"], line["error"], line.get("key", "")) for line in found]
    ids = [k["authorization"].split("_")[1] for k in (searches, slow)]
    assert told == [(401, "unauthorized", ""), (403, "forbidden", ids[0]), (429, "rate_limited", ids[1])]
    assert len(lines(tmp_path)) == 1


async def test_no_route_is_left_out(http: httpx.AsyncClient, tmp_path: Path) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    operations = [
        (method, path) for path, item in paths.items() for method in item if path not in ("/healthz", "/readyz")
    ]
    for method, path in operations:
        await http.request(method, path, content=b"{")
    found = await written(tmp_path, len(operations))
    assert [(line["method"].lower(), line["path"]) for line in found] == operations


# ---- files ----------------------------------------------------------------------------------------------------------


def test_files_rotate_and_are_their_owners(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(folder=str(tmp_path / "audit"), max_bytes=10_000, files=3))
    for number in range(2_000):
        audit.write("audit", {"number": number, "text": "é\u2028" * 5})
    for number in range(2_000):
        audit.write("refused", {"number": number})
    audit.close()
    paths = list((tmp_path / "audit").glob("*.jsonl*"))
    assert len(paths) == 6 and all(path.stat().st_size <= 10_000 for path in paths)
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    numbers = [line["number"] for line in lines(tmp_path)]
    assert numbers == list(range(numbers[0], 2_000)) and len(numbers) > 200


def test_two_processes_never_share_a_file_and_a_third_takes_up_one_that_is_free(tmp_path: Path) -> None:
    config = AuditConfig(folder=str(tmp_path / "audit"))
    one, two = Audit(config), Audit(config)
    for number in range(300):
        one.write("audit", {"by": 1, "number": number})
        two.write("audit", {"by": 2, "number": number})
    one.close()
    three = Audit(config)
    three.write("audit", {"by": 3})
    for audit in (two, three):
        audit.close()
    found = [
        [json.loads(line)["by"] for line in path.read_text().splitlines()]
        for path in tmp_path.glob("audit/audit-*.jsonl")
    ]
    assert sorted(found) == [[1] * 300 + [3], [2] * 300]


def test_half_a_line_of_a_process_that_died_spoils_no_other(tmp_path: Path) -> None:
    config = AuditConfig(folder=str(tmp_path / "audit"))
    Audit(config).close()
    (path,) = tmp_path.glob("audit/audit-*.jsonl")
    path.write_text('{"half')
    audit = Audit(config)
    audit.write("audit", {"whole": 1})
    audit.close()
    assert path.read_text() == '{"half\n{"whole":1}\n'


# ---- when it cannot be written --------------------------------------------------------------------------------------


def test_nothing_starts_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file")
    with pytest.raises(SetupError, match=r"ingress\.audit\.folder"):
        make_api(ScriptedDriver(), config_of(tmp_path))


def full_disk(folder: Path) -> list[Path]:
    """The files that the next process writes, as those of a disk that is full."""
    Audit(AuditConfig(folder=str(folder / "audit"))).close()
    paths = list(folder.glob("audit/*.jsonl"))
    for path in paths:
        path.unlink()
        path.symlink_to("/dev/full")
    return paths


async def test_a_full_disk_is_told_then_refuses_and_nothing_is_lost(tmp_path: Path) -> None:
    paths = full_disk(tmp_path)
    async with in_process(make_api(ScriptedDriver(), config_of(tmp_path, waiting=3))) as http:
        assert (await http.get("/readyz")).json()["status"] == "ready"
        for number in range(3):
            reply = await http.post("/v1/search", json=QUESTION, headers={"x-request-id": f"req_{number}"})
            assert reply.status_code == 200
        told = {"status": "ready"}
        async with asyncio.timeout(5):
            while told["status"] == "ready":  # the thread has to find out first
                told = (await http.get("/readyz")).json()
        assert told["status"] == "degraded" and "audit log" in told["reasons"][0]
        over = await http.post("/v1/search", json=QUESTION)
        assert (over.status_code, over.json()["error"]["code"]) == (503, "audit_unavailable")
        assert int(over.headers["retry-after"]) > 0
        for path in paths:
            path.unlink()
        await http.get("/readyz")
        await until(lambda: len(lines(tmp_path)) >= 3)
        assert (await http.post("/v1/search", json=QUESTION, headers={"x-request-id": "req_3"})).status_code == 200
        found = [line["request_id"] for line in await written(tmp_path, 4)]
        assert found == [f"req_{number}" for number in range(4)]
        assert (await http.get("/readyz")).json()["status"] == "ready"


async def test_a_disk_that_hangs_holds_up_no_request(tmp_path: Path) -> None:
    """A pipe that nobody reads takes 64 kB, and then its writer waits."""
    Audit(AuditConfig(folder=str(tmp_path / "audit"))).close()
    (path,) = tmp_path.glob("audit/audit-*.jsonl")
    path.unlink()
    os.mkfifo(path)
    async with in_process(make_api(ScriptedDriver(), config_of(tmp_path))) as http:
        async with asyncio.timeout(20):
            for _ in range(500):
                assert (await http.post("/v1/search", json=QUESTION)).status_code == 200
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        read = b""

        def all_read() -> bool:
            nonlocal read
            try:
                read += os.read(reader, 1_000_000)
            except BlockingIOError:
                return False
            return read.count(b"\n") == 500

        await until(all_read, 10)
        assert len(read) > 70_000
        os.close(reader)


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_changes_of_keys_are_told_or_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            command.run("keys", [*words, "--file", str(tmp_path / "keys.json")])
        return int(ended.value.code or 0), capsys.readouterr().out.strip()

    _, text = run("create", "--tenant", "acme", "--bucket", "contracts", "--groups", "legal, hr")
    (made,) = KeyFile(tmp_path / "keys.json").read()
    assert made.groups == ["legal", "hr"]
    run("revoke", made.id)
    created, revoked = lines(tmp_path)
    assert (created["change"], revoked["change"]) == ("key created", "key revoked")
    assert created["id"] == revoked["id"] == made.id and created["groups"] == ["legal", "hr"]
    assert created["by"] == f"uid {os.getuid()}" and revoked["revoked_at"]
    assert text.rpartition("_")[2] not in json.dumps([created, revoked]) and made.sha256 not in json.dumps(created)
    for path in full_disk(tmp_path):
        assert path.is_symlink()
    assert run("create", "--all-buckets")[0] == 1  # made, and it says that it could not be told
    for path in tmp_path.glob("audit/*"):
        path.unlink()
    for path in tmp_path.glob("audit/.*"):
        path.unlink()
    (tmp_path / "audit").rmdir()
    (tmp_path / "audit").write_text("a file")
    before = len(KeyFile(tmp_path / "keys.json").read())
    assert run("create", "--all-buckets")[0] == 2
    assert len(KeyFile(tmp_path / "keys.json").read()) == before
