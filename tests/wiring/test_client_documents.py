"""The client and the commands at the routes of documents and conversations, over a loopback socket and a real index."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from starlette.types import Receive, Scope, Send
from typer.testing import CliRunner

from assay.cli.delete import delete
from assay.cli.ingest import ingest
from assay.client import AsyncClient, Client, Unreachable
from assay.conversations.shapes import PostMessage
from assay.documents.shapes import JobCompletedEvent, JobFileEvent
from assay.documents.spool import Spool
from assay.errors import AssayError, NotFound, SetupError, UnknownBucket
from assay.events import CompletedEvent
from deployments.api import make_api
from tests.wiring.documents_bench import PDF, PUMP, Bench
from tests.wiring.local_driver import LocalDriver
from tests.wiring.scripted_driver import CITATION, ScriptedDriver
from tests.wiring.test_client import CLOSED, CONFIG, listening

COMMANDS = {name: typer.Typer() for name in ("ingest", "delete")}
COMMANDS["ingest"].command()(ingest)
COMMANDS["delete"].command()(delete)


def run(command: str, *words: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(COMMANDS[command], list(map(str, words)), env={"COLUMNS": "200", "TERM": "dumb"})
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def url(bench: Bench) -> Iterator[str]:
    """The doors in one thread, the ingester's work in another."""
    loop = asyncio.new_event_loop()
    uploads = bench.uploads()

    async def work() -> None:
        with suppress(asyncio.CancelledError):
            await uploads.run()

    task = loop.create_task(work())
    thread = threading.Thread(target=lambda: loop.run_until_complete(task))
    thread.start()
    with listening(make_api(LocalDriver(bench.retriever), bench.config)) as url:
        yield url
    loop.call_soon_threadsafe(task.cancel)
    thread.join()
    loop.close()


def test_blocking(url: str, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    log = tmp_path / "notes" / "log.txt"
    log.write_text("The valve was serviced in June.")
    with Client(url) as client:
        job = client.upload("docs", [PUMP, PDF, log], {"pump.md": {"kind": "manual"}}, base=tmp_path)
        events = list(client.job_events(job.id))
        done = client.wait(job.id)
        told = {e.file.name: e.file.outcome for e in events if isinstance(e, JobFileEvent)}
        assert told == {"pump.md": "ingested", "broken.pdf": "failed", "notes/log.txt": "ingested"}
        assert isinstance(events[-1], JobCompletedEvent) and events[-1].job == done == client.job(job.id)
        first = client.documents("docs", limit=1)
        second = client.documents("docs", limit=1, after=first.next)
        assert {row.uri for row in (*first.documents, *second.documents)} == {"pump.md", "notes/log.txt"}
        assert [bucket.name for bucket in client.buckets().buckets] == ["docs"]
        view = client.document(done.files[0].doc_id, span=(2, 6))
        assert view.highlight is not None and view.highlight.text == "Pump"
        assert "search_text" in [tool.name for tool in client.tools()]
        for call in (
            lambda: client.document("../buckets"),
            lambda: client.document(".."),
            lambda: client.job("x/../y"),
        ):
            with pytest.raises(AssayError) as caught:
                call()
            assert caught.value.status == 404
        with pytest.raises(UnknownBucket):
            client.documents("nowhere")
        with pytest.raises(SetupError, match="cannot be read"):
            client.upload("docs", [tmp_path / "missing.md"])


@pytest.mark.anyio
async def test_async(url: str) -> None:
    async with AsyncClient(url) as client:
        done = await client.wait((await client.upload("docs", [PUMP])).id)
        assert [file.outcome for file in done.files] == ["ingested"]
        assert [e.type async for e in client.job_events(done.id, after=2)][-1] == "completed"
        assert (await client.document(done.files[0].doc_id, chunk_id=1)).document.uri == "pump.md"
        assert (await client.buckets()).buckets[0].documents == (await client.documents()).total == 1


@pytest.mark.anyio
async def test_conversations_in_both() -> None:
    with listening(make_api(ScriptedDriver(), CONFIG)) as url:
        async with AsyncClient(url) as other:
            with Client(url) as client:
                made = client.create_conversation("Notice")
                answer = client.post_message(made.id, PostMessage(question="When?"), idempotency_key="once")
                assert answer.citations == [CITATION]
                assert (await other.post_message(made.id, PostMessage(question="When?"), "once")).id == answer.id
                last = [event async for event in other.stream_message(made.id, PostMessage(question="And then?"))][-1]
                assert isinstance(last, CompletedEvent)
                assert len(client.conversation(made.id).messages) == 4
                assert (await other.rename_conversation(made.id, "Terms")).title == "Terms"
                assert [c.title for c in client.conversations().conversations] == ["Terms"]
                await other.delete_conversation(made.id)
                with pytest.raises(NotFound):
                    client.conversation(made.id)


def test_a_line_that_broke_is_taken_up(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    """Serve ends what is open for long: events go on after the last one that was seen, or the job's own fault is raised."""
    monkeypatch.setattr("assay.client.blocking.RETRY_S", 0.01)
    inner = make_api(LocalDriver(bench.retriever), bench.config)
    asked: list[str] = []

    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/events"):
            await inner(scope, receive, send)
            return
        headers = dict(scope["headers"])
        asked.append(headers.get(b"last-event-id", b"0").decode())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        data = b'id: 1\nevent: status\ndata: {"type": "status", "state": "queued"}\n\n'
        await send({"type": "http.response.body", "body": data, "more_body": True})

    with listening(breaks) as url, Client(url) as client:
        job = client.upload("docs", [PUMP])
        events = client.job_events(job.id)
        for _ in range(3):
            assert next(events).type == "status"
        assert asked == ["0", "1", "2"]
    with Client(CLOSED) as client, pytest.raises(Unreachable):
        next(client.job_events("job_none"))


def test_a_key_from_the_environment(bench: Bench, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = bench.key(["docs"])["authorization"].removeprefix("Bearer ")
    with Client(url) as client, pytest.raises(AssayError, match="valid API key"):
        client.buckets()
    monkeypatch.setenv("ASSAY_API_KEY", f" {key}\n")
    with Client(url) as client:
        assert client.buckets().buckets == []
    with pytest.raises(SetupError, match="no key has"):
        Client(url, api_key="assay_\u201cx\u201d")


# ---- the commands ---------------------------------------------------------------------------------------------------


def test_ingest_at_a_graph(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "pump.md").write_bytes(PUMP[1])
    (folder / "pump.md.json").write_text('{"kind": "manual"}')
    (folder / "broken.pdf").write_bytes(PDF[1])
    (folder / "photo.jpg").write_bytes(b"\xff")
    report = tmp_path / "report.json"
    code, out, err = run("ingest", folder, "--bucket", "docs", "--url", url, "--report", report)
    assert code == 1, err
    assert "1 ingested" in out and "1 failed" in out and "malformed" in out
    told = {row["uri"]: row["outcome"] for row in json.loads(report.read_text())["rows"]}
    assert told == {
        "mine/pump.md": "ingested",
        "mine/pump.md.json": "skipped",
        "mine/broken.pdf": "failed",
        "mine/photo.jpg": "skipped",
    }
    code, out, _ = run("ingest", folder / "pump.md", "--base", tmp_path, "--bucket", "docs", "--url", url)
    assert (code, "1 unchanged" in out or "1 described" in out) == (0, True), out
    assert run("delete", "mine/pump.md", "--bucket", "docs", "--url", CLOSED)[0] == 1
    for words in (["--rebuild"], ["--ray", "local"], ["--embedder", "x"]):
        code, out, err = run("ingest", folder, "--url", url, *words)
        assert (code, out) == (2, "") and words[0] in err
    code, _, err = run("ingest", folder, "--url", CLOSED)
    assert (code, "Nothing answers" in err) == (2, True)
    code, _, err = run("ingest", tmp_path / "nothing", "--url", url)
    assert (code, "does not exist" in err) == (2, True)


@pytest.mark.anyio
async def test_delete_at_a_graph(bench: Bench) -> None:
    async with bench.working() as http:
        reply = await http.post("/v1/documents?bucket=docs", files=[("files", PUMP)])
        async with AsyncClient("http://localhost", transport=http._transport) as client:
            done = await client.wait(reply.json()["id"])
            await client.delete_document(done.files[0].doc_id)
            with pytest.raises(NotFound):
                await client.delete_document(done.files[0].doc_id)
            assert (await client.documents()).total == 0
    assert not Spool(Path(bench.documents.path)).waiting()
