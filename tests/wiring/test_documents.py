"""Documents over HTTP, over a real index: uploads that become jobs, what came of them, and how they are read and deleted.

The ingester's work runs here in this process, with the parser's child and an encoder without a model.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.config import ConversationsConfig, DocumentsConfig, IndexConfig, IngressConfig, RetrieverConfig
from assay.documents.shapes import DocumentView, Job, JobStatusEvent
from assay.documents.spool import LEASE_S, Spool
from assay.errors import IndexBusy, IndexFault, NotFound
from assay.groups import Groups
from assay.index.buckets import BucketSchema
from assay.index.files import Layout
from assay.index.ingest import Ingestion
from assay.index.parse.parser import Limits, Parser
from assay.index.uploads import Uploads
from assay.keys import KeyFile
from assay.retrieve import LocalRetriever
from deployments.api import make_api
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser
from tests.wiring.local_driver import LocalDriver
from tests.wiring.test_api import error_of, frames, in_process, until
from tests.wiring.test_client import listening

pytestmark = pytest.mark.anyio
PUMP = ("pump.md", b"# Pump\n\n## Pressure\n\nThe pump holds five bar.\n\n## Care\n\nOil it in May.\n")
PDF = ("broken.pdf", b"%PDF-1.7 nothing of the kind")


class Bench:
    """Everything but the sockets and Ray."""

    def __init__(self, folder: Path, config: DocumentsConfig | None = None, encoder: WordEncoder | None = None) -> None:
        self.folder, self.index = folder, folder / "index"
        self.documents = (config or DocumentsConfig()).model_copy(update={"path": str(folder / "uploads")})
        self.retriever = LocalRetriever(IndexConfig(uri=str(self.index)), RetrieverConfig(), WordEncoder())
        self.encoder = encoder or WordEncoder()
        self.config = IngressConfig(
            keys=str(folder / "keys.json"),
            conversations=ConversationsConfig(store="memory"),
            documents=self.documents,
            heartbeat_s=0.2,
        )
        self.parsers: list[Limits] = []

    def uploads(self) -> Uploads:
        index = IndexConfig(uri=str(self.index))
        return Uploads(self.documents, index, lambda: self.encoder, self.served, self.parser)

    def parser(self, limits: Limits) -> Parser:
        self.parsers.append(limits)
        return DirectParser(limits)

    async def served(self) -> str | None:
        await asyncio.to_thread(self.retriever.reload)
        return self.retriever.index_version

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[httpx.AsyncClient]:
        uploads = self.uploads()
        task = asyncio.create_task(uploads.run())
        async with in_process(make_api(LocalDriver(self.retriever, uploads=uploads), self.config)) as http:
            del http.headers["content-type"]
            yield http
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def key(
        self,
        buckets: list[str] | None,
        tenant: str = "a",
        scopes: Iterable[Any] = ("search", "ingest"),
        groups: Groups = (),
    ) -> dict[str, str]:
        text = KeyFile(self.folder / "keys.json").create(tenant, buckets, list(scopes), 10_000, 16, groups)[1]
        return {"authorization": f"Bearer {text}"}


def sent(*files: tuple[str, bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", file) for file in files]


async def uploaded(http: httpx.AsyncClient, bucket: str, *files: tuple[str, bytes], **more: Any) -> Job:
    reply = await http.post("/v1/documents", params={"bucket": bucket}, files=sent(*files), **more)
    assert reply.status_code == 202, reply.text
    job = Job.model_validate_json(reply.content)
    assert reply.headers["location"] == f"/v1/documents/jobs/{job.id}"
    return job


async def ended(http: httpx.AsyncClient, job: Job, headers: dict[str, str] | None = None) -> Job:
    async with asyncio.timeout(60):
        while True:
            reply = await http.get(f"/v1/documents/jobs/{job.id}", headers=headers)
            assert reply.status_code == 200, reply.text
            found = Job.model_validate_json(reply.content)
            if found.status in ("completed", "failed"):
                return found
            await asyncio.sleep(0.02)


async def hits(http: httpx.AsyncClient, question: str) -> list[str]:
    reply = await http.post("/v1/search", json={"question": question, "legs": ["sparse"]})
    return [hit["uri"] for hit in reply.json()["hits"]]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
async def http(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    async with bench.working() as found:
        yield found


async def test_from_upload_to_search_to_deletion(http: httpx.AsyncClient, bench: Bench) -> None:
    assert (await http.get("/v1/buckets")).json() == {"buckets": [], "index_version": None}
    assert (await http.get("/v1/documents")).json()["documents"] == []
    job = await uploaded(http, "manuals", PUMP, ("log.txt", b"The valve was serviced in June."), ("empty.md", b""))
    done = await ended(http, job)
    assert [(f.name, f.outcome, f.reason) for f in done.files] == [
        ("pump.md", "ingested", ""),
        ("log.txt", "ingested", ""),
        ("empty.md", "skipped", "empty"),
    ]
    assert done.index_version is not None and done.progress.files == 3
    assert await hits(http, "five bar") == ["pump.md"]  # at once: the report waited for it
    listed = (await http.get("/v1/documents", params={"bucket": "manuals"})).json()
    assert {row["doc_id"] for row in listed["documents"]} == {f.doc_id for f in done.files if f.outcome == "ingested"}
    again = await ended(http, await uploaded(http, "manuals", PUMP))
    assert [f.outcome for f in again.files] == ["unchanged"]
    changed = await ended(http, await uploaded(http, "manuals", (PUMP[0], PUMP[1].replace(b"five", b"seven"))))
    assert [f.outcome for f in changed.files] == ["replaced"]
    assert (await hits(http, "five"), await hits(http, "seven")) == ([], ["pump.md"])
    path = f"/v1/documents/{done.files[0].doc_id}"
    assert (await http.get(path)).status_code == 200
    assert (await http.delete(path)).status_code == 204
    assert await hits(http, "pump pressure bar") == []
    for method in ("GET", "DELETE"):
        gone = await http.request(method, path)
        assert (gone.status_code, error_of(gone)["code"]) == (404, "not_found")
    assert not list((bench.folder / "uploads").rglob("files")), "the files go when a job ends"
    assert not list((bench.folder / "uploads" / "incoming").iterdir())


async def test_what_is_wrong_with_one_file_is_its_own(http: httpx.AsyncClient) -> None:
    good = [(f"{n}.md", f"# Page {n}\n\nWord{n} stands here.".encode()) for n in range(3)]
    job = await uploaded(http, "docs", good[0], PDF, good[1], ("photo.jpg", b"\xff\xd8"), ("x.json", b"{"), good[2])
    files = {f.name: f for f in (await ended(http, job)).files}
    assert {name: f.outcome for name, f in files.items()} == {
        **dict.fromkeys(["0.md", "1.md", "2.md"], "ingested"),
        "broken.pdf": "failed",
        "x.json": "failed",
        "photo.jpg": "skipped",
    }
    assert (files["broken.pdf"].reason, files["photo.jpg"].reason) == ("malformed", "unsupported")
    assert "photo" not in files["photo.jpg"].message and "/" not in files["broken.pdf"].message
    assert await hits(http, "Word1") == ["1.md"]


async def test_two_uploads_at_once_are_both_in(http: httpx.AsyncClient) -> None:
    jobs = await asyncio.gather(*(uploaded(http, "docs", (f"{n}.md", f"Word{n} here.".encode())) for n in range(4)))
    done = await asyncio.gather(*(ended(http, job) for job in jobs))
    assert [job.status for job in done] == ["completed"] * 4
    for n in range(4):
        assert await hits(http, f"Word{n}") == [f"{n}.md"]
    assert len({job.index_version for job in done}) == 4


async def test_the_same_name_in_two_jobs_is_one_document(http: httpx.AsyncClient) -> None:
    old, new = await asyncio.gather(*(uploaded(http, "docs", ("a.md", f"Word{n}.".encode())) for n in range(2)))
    outcomes = [(await ended(http, job)).files[0].outcome for job in (old, new)]
    assert sorted(map(str, outcomes)) == ["ingested", "replaced"]
    assert (await http.get("/v1/documents")).json()["total"] == 1


# ---- what is refused ------------------------------------------------------------------------------------------------


def body(*parts: tuple[str, bytes], end: bytes = b"--b--\r\n") -> bytes:
    """By hand: each with its Content-Disposition."""
    return b"".join(b"--b\r\nContent-Disposition: %s\r\n\r\n%s\r\n" % (h.encode(), d) for h, d in parts) + end


FORM = {"content-type": "multipart/form-data; boundary=b"}
FILE = 'form-data; name="files"; filename="a.md"'


@pytest.mark.parametrize(
    ("content", "headers", "status", "code", "field"),
    [
        (b"{}", {"content-type": "application/json"}, 415, "unsupported_media_type", None),
        (b"", {}, 415, "unsupported_media_type", None),
        (b"", {"content-type": "multipart/form-data"}, 415, "unsupported_media_type", None),
        (body((FILE, b"x")), {**FORM, "content-encoding": "gzip"}, 415, "unsupported_media_type", None),
        (b"", FORM, 400, "malformed_body", None),
        (b"nothing of the kind", FORM, 400, "malformed_body", None),
        (body((FILE, b"x"), end=b""), FORM, 400, "malformed_body", None),
        (body(), FORM, 422, "invalid_request", "files"),
        (body((FILE + "x" * 9000, b"x")), FORM, 400, "malformed_body", None),
        (body(('form-data; name="metadata"', b"{}")), FORM, 422, "invalid_request", "files"),
        (body(('form-data; name="bucket"', b"x")), FORM, 422, "unknown_field", "bucket"),
        (body((FILE, b"x"), (FILE, b"y")), FORM, 409, "same_name", "files[1]"),
        (body(('form-data; filename=""', b"x")), FORM, 422, "invalid_request", "files[0]"),
        (body(('form-data; filename="../.."', b"x")), FORM, 422, "invalid_request", "files[0]"),
        (body(('form-data; filename="a\x00b.md"', b"x")), FORM, 422, "invalid_request", "files[0]"),
        (body((f'form-data; filename="{"a" * 500}.md"', b"x")), FORM, 422, "invalid_request", "files[0]"),
        (body((FILE, b"x"), ('form-data; name="metadata"', b"{")), FORM, 400, "malformed_body", None),
        (body((FILE, b"x"), ('form-data; name="metadata"', b"[]")), FORM, 422, "invalid_request", "metadata"),
        (body((FILE, b"x" * 2001)), FORM, 413, "too_large", "files[0]"),
        (body(*((f'form-data; filename="{n}.md"', b"x") for n in range(9))), FORM, 413, "too_large", "files"),
        (body(*((f'form-data; filename="{n}.md"', b"x" * 2000) for n in range(6))), FORM, 413, "too_large", None),
    ],
)
@pytest.mark.parametrize("declared", [True, False])
async def test_what_is_refused_leaves_nothing(
    tmp_path: Path, content: bytes, headers: dict[str, str], status: int, code: str, field: str | None, declared: bool
) -> None:
    bench = Bench(tmp_path, DocumentsConfig(max_file_bytes=2000, max_body_bytes=10_000, max_files=8))

    async def piecemeal() -> AsyncGenerator[bytes]:
        for at in range(0, len(content), 100):
            yield content[at : at + 100]

    async with bench.working() as http:
        sent = content if declared else piecemeal()
        reply = await http.post("/v1/documents?bucket=docs", content=sent, headers=headers)
        error = error_of(reply)
        assert (reply.status_code, error["code"], error["field"]) == (status, code, field), error
    assert not [path for path in (tmp_path / "uploads").rglob("*") if path.is_file()]


@pytest.mark.parametrize("bucket", ["", "..", "a/b", "a" * 101, "a b", "\u4e1c"])
async def test_a_bucket_that_is_no_name(http: httpx.AsyncClient, bucket: str) -> None:
    reply = await http.post("/v1/documents", params={"bucket": bucket}, files=sent(PUMP))
    assert (reply.status_code, error_of(reply)["field"]) == (422, "bucket")
    assert (await http.post("/v1/documents", files=sent(PUMP))).status_code == 422


async def test_too_many_uploads_at_once_and_waiting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, DocumentsConfig(max_uploads=1, max_waiting=1))
    release = asyncio.Event()

    async def slow() -> AsyncGenerator[bytes]:
        yield body((FILE, b"x" * 300_000), end=b"")
        await release.wait()
        yield b"--b--\r\n"

    async with in_process(make_api(LocalDriver(bench.retriever), bench.config)) as http:
        first = asyncio.create_task(http.post("/v1/documents?bucket=a", content=slow(), headers=FORM))
        await until(lambda: list((tmp_path / "uploads" / "incoming").rglob("*.md")))
        del http.headers["content-type"]
        second = await http.post("/v1/documents?bucket=a", files=sent(PUMP))
        assert (second.status_code, error_of(second)["code"], "retry-after" in second.headers) == (
            503,
            "overloaded",
            True,
        )
        release.set()
        assert (await first).status_code == 202
        third = await http.post("/v1/documents?bucket=a", files=sent(PUMP))
        assert (third.status_code, error_of(third)["code"]) == (503, "overloaded")


async def test_an_upload_that_is_cut_off_leaves_nothing(bench: Bench) -> None:
    started = asyncio.Event()

    async def cut() -> AsyncGenerator[bytes]:
        yield body((FILE, b"x" * 300_000), end=b"")
        started.set()
        await asyncio.sleep(60)

    with listening(make_api(LocalDriver(bench.retriever), bench.config)) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            task = asyncio.create_task(http.post("/v1/documents?bucket=a", content=cut(), headers=FORM))
            await started.wait()
            await until(lambda: list((bench.folder / "uploads").rglob("*.md")))
            task.cancel()
            await until(lambda: not list((bench.folder / "uploads").rglob("*.md")))
    assert not list((bench.folder / "uploads" / "incoming").iterdir())
    assert not (bench.folder / "uploads" / "jobs").exists()


@pytest.mark.parametrize(
    ("filename", "uri"),
    [
        ("../../etc/passwd.md", "etc/passwd.md"),
        ("/etc/passwd.md", "etc/passwd.md"),
        ("..\\..\\boot.md", "boot.md"),
        ("%2e%2e/x.md", "%2e%2e/x.md"),
        ("notes/./2025//a.md", "notes/2025/a.md"),
        ("<script>alert(1)</script>.md", "<script>alert(1)</script>.md"),
        ("nai\u0308ve \U0001f4c4.md", "na\u00efve \U0001f4c4.md"),
        ("CON.md", "CON.md"),
    ],
)
async def test_a_name_is_a_label_and_never_a_path(
    bench: Bench, http: httpx.AsyncClient, filename: str, uri: str
) -> None:
    before = set(bench.folder.parent.rglob("*.md"))
    done = await ended(http, await uploaded(http, "docs", (filename, b"# <b>Bold</b>\n\nWord here.")))
    assert [f.name for f in done.files] == [uri]
    assert (await hits(http, "Word")) == [uri]
    assert set(bench.folder.parent.rglob("*.md")) == before


async def test_metadata_goes_along_and_is_filtered_by(bench: Bench) -> None:
    """And a bucket's fields and facets show it."""
    with_schema(bench, "contracts", {"type": {"type": "text"}, "signed": {"type": "date", "description": "When."}})
    said = {"a.md": {"type": "Supply", "signed": "2020-02-03"}, "./b.md": {"type": "Lease", "odd": 1}, "c.md": {}}
    async with bench.working() as http:
        files = [*sent(("a.md", b"Word a."), ("b.md", b"Word b.")), ("metadata", (None, json.dumps(said).encode()))]
        reply = await http.post("/v1/documents?bucket=contracts", files=files)
        done = await ended(http, Job.model_validate_json(reply.content))
        assert (done.undeclared, done.unused) == ({"odd": 1}, ["c.md"])
        found = await http.post(
            "/v1/search", json={"question": "Word", "filters": {"field": "signed", "op": ">=", "value": "2020-01-01"}}
        )
        assert [hit["uri"] for hit in found.json()["hits"]] == ["a.md"]
        (row,) = (await http.get("/v1/buckets")).json()["buckets"]
        assert (row["name"], row["documents"], row["chunks"]) == ("contracts", 2, 2)
        assert [(f["name"], f["type"], f["documents"]) for f in row["fields"]] == [
            ("type", "text", 2),
            ("signed", "date", 1),
        ]
        assert row["facets"]["type"]["values"] == [
            {"value": "Lease", "to": None, "count": 1},
            {"value": "Supply", "to": None, "count": 1},
        ]
        assert row["facets"]["signed"] == {
            "values": [{"value": "2020", "to": None, "count": 1}],
            "missing": 1,
            "more": 0,
        }
        rows = (await http.get("/v1/documents")).json()["documents"]
        assert {row["uri"]: row["metadata"] for row in rows}["a.md"] == {
            "type": "Supply",
            "signed": "2020-02-03T00:00:00Z",
        }


def with_schema(bench: Bench, bucket: str, fields: dict[str, Any]) -> None:
    encoder = bench.encoder
    schema = BucketSchema.model_validate({"fields": fields})
    Ingestion(Layout(str(bench.index)), bucket, [], encoder, encoder.embed_now, DirectParser(), schema=schema).run()


# ---- events, and what dies meanwhile --------------------------------------------------------------------------------


async def test_events_are_the_job(http: httpx.AsyncClient) -> None:
    job = await uploaded(http, "docs", PUMP, PDF)
    path = f"/v1/documents/jobs/{job.id}/events"
    reply = await http.get(path)
    events = frames(reply.text)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert [e["id"] for e in events] == [str(n + 1) for n in range(len(events))]
    assert [e["event"] for e in events if e["event"] not in ("progress",)] == [
        "status",
        "status",
        "file",
        "file",
        "completed",
    ]
    assert {e["data"]["request_id"] for e in events} == {reply.headers["x-request-id"]}
    assert events[-1]["data"]["job"] == (await http.get(f"/v1/documents/jobs/{job.id}")).json()
    told = {e["data"]["file"]["name"]: e["data"]["file"]["outcome"] for e in events if e["event"] == "file"}
    assert told == {"pump.md": "ingested", "broken.pdf": "failed"}
    later = frames((await http.get(path, headers={"last-event-id": "3"})).text)
    assert [e["id"] for e in later] == [e["id"] for e in events[3:]]
    for beyond in (str(len(events)), "99"):
        last = frames((await http.get(path, headers={"last-event-id": beyond})).text)
        assert [e["event"] for e in last] == ["completed"]
    assert (await http.get(path, headers={"last-event-id": "x"})).status_code == 422
    for id_ in ("x", "job_" + "0" * 26, "..%2f..", job.id.lower()):
        assert (await http.get(f"/v1/documents/jobs/{id_}/events")).status_code == 404
        assert (await http.get(f"/v1/documents/jobs/{id_}")).status_code == 404


async def test_a_listener_who_goes_leaves_the_job_alone(bench: Bench) -> None:
    app = make_api(LocalDriver(bench.retriever), bench.config)  # nobody works
    with listening(app) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            job = await uploaded(http, "docs", PUMP)
            async with http.stream("GET", f"/v1/documents/jobs/{job.id}/events") as reply:
                seen = b""
                async for piece in reply.aiter_raw():
                    seen += piece
                    if b": ping" in seen and b'"queued"' in seen:
                        break
            assert Job.model_validate_json((await http.get(f"/v1/documents/jobs/{job.id}")).content).status == "queued"
    async with bench.working() as http:
        assert (await ended(http, job)).status == "completed"


async def test_a_replica_that_ends_in_a_job_is_gone_on_with(tmp_path: Path) -> None:
    """Stopped between two batches: what is stored is told once, the rest is done by the next replica, and nothing is lost."""
    bench = Bench(tmp_path)
    files = [
        (f"{n:03}.md", "\n\n".join(f"# H{k}\n\nWord{n} {k} " + "x " * 150 for k in range(20)).encode())
        for n in range(40)
    ]
    async with bench.working() as http:
        job = await uploaded(http, "docs", *files)
        path = f"/v1/documents/jobs/{job.id}"

        async def some_done() -> bool:
            found = Job.model_validate_json((await http.get(path)).content)
            return found.progress.files > 0

        async with asyncio.timeout(60):
            while not await some_done():
                await asyncio.sleep(0.005)
    halfway = Spool(tmp_path / "uploads").read(job.id, "")
    assert halfway.status == "running" and 0 < sum(f.outcome is not None for f in halfway.files) < 40
    async with bench.working() as http:
        done = await ended(http, job)
        assert [f.outcome for f in done.files] == ["ingested"] * 40 and done.progress.files == 40
        assert (await http.get("/v1/documents")).json()["total"] == 40
        assert set(await hits(http, "Word39")) == {"039.md"}
        events = frames((await http.get(f"/v1/documents/jobs/{job.id}/events")).text)
    assert sorted(e["data"]["file"]["name"] for e in events if e["event"] == "file") == [name for name, _ in files]


async def test_a_job_that_kills_its_process_again_and_again_has_failed(bench: Bench) -> None:
    spool = Spool(Path(bench.documents.path))
    async with in_process(make_api(LocalDriver(bench.retriever), bench.config)) as http:
        del http.headers["content-type"]
        job = await uploaded(http, "docs", PUMP)
    for _ in range(3):  # what a process leaves that dies over the file
        spool.say(job.id, [JobStatusEvent(state="running")])
    with (Path(bench.documents.path) / "jobs" / job.id / "log.jsonl").open("ab") as log:
        log.write(b'{"at": 1, "event"')
    async with bench.working() as http:
        done = await ended(http, job)
        assert done.status == "failed" and done.error is not None and done.error.code == "ingestion_interrupted"
        last = frames((await http.get(f"/v1/documents/jobs/{job.id}/events")).text)[-1]
        assert (last["event"], last["data"]["error"]["code"]) == ("error", "ingestion_interrupted")
        assert (await ended(http, await uploaded(http, "docs", PUMP))).status == "completed"


async def test_nobody_works_on_it_any_more(bench: Bench) -> None:
    spool = Spool(Path(bench.documents.path), clock=lambda: time.time() + LEASE_S + 1)
    async with in_process(make_api(LocalDriver(bench.retriever), bench.config)) as http:
        del http.headers["content-type"]
        job = await uploaded(http, "docs", PUMP)
        Spool(Path(bench.documents.path)).say(job.id, [JobStatusEvent(state="running")])
        assert (await http.get(f"/v1/documents/jobs/{job.id}")).json()["status"] == "running"
    assert spool.read(job.id, "").status == "interrupted"


async def test_what_ends_a_run_is_told_without_its_secrets(bench: Bench) -> None:
    bench.encoder.fault = IndexFault("/srv/index/chunks.lance is torn")
    async with bench.working() as http:
        done = await ended(http, await uploaded(http, "docs", PUMP))
        assert done.status == "failed" and done.error is not None
        assert (done.error.code, "/srv" in done.error.message) == ("index_fault", False)
        bench.encoder.fault = ValueError("boom")
        done = await ended(http, await uploaded(http, "docs", PUMP))
        assert done.error is not None and (done.error.code, "boom" in done.error.message) == ("internal", False)
        bench.encoder.fault = None
        assert (await ended(http, await uploaded(http, "docs", PUMP))).status == "completed"


async def test_a_job_waits_for_another_writer(bench: Bench) -> None:
    layout = Layout(str(bench.index))
    async with bench.working() as http:
        with layout.writer():
            job = await uploaded(http, "docs", PUMP)
            await until(lambda: Spool(Path(bench.documents.path)).read(job.id, "").status == "running")
            await asyncio.sleep(0.1)
            assert Spool(Path(bench.documents.path)).read(job.id, "").status == "running"
        assert (await ended(http, job)).status == "completed"


async def test_old_jobs_are_forgotten_and_waiting_ones_are_not(bench: Bench) -> None:
    async with bench.working() as http:
        old = await ended(http, await uploaded(http, "docs", PUMP))
    async with in_process(make_api(LocalDriver(bench.retriever), bench.config)) as http:
        del http.headers["content-type"]
        new = await uploaded(http, "docs", PUMP)
    Spool(Path(bench.documents.path), clock=lambda: time.time() + 9 * 86_400).sweep(8 * 86_400)
    with pytest.raises(NotFound):
        Spool(Path(bench.documents.path)).read(old.id, "")
    assert Spool(Path(bench.documents.path)).read(new.id, "").status == "queued"


# ---- deletion -------------------------------------------------------------------------------------------------------


async def test_deletion_while_searching(http: httpx.AsyncClient) -> None:
    files = [(f"{n}.md", f"The pump of day {n} moves water.".encode()) for n in range(6)]
    done = await ended(http, await uploaded(http, "docs", *files))
    gone: set[str] = set()
    stop = False

    async def searching() -> int:
        rounds = 0
        while not stop:
            before = set(gone)
            assert not before & set(await hits(http, "pump water"))
            rounds += 1
        return rounds

    searches = asyncio.create_task(searching())
    for file in done.files[:5]:
        assert (await http.delete(f"/v1/documents/{file.doc_id}")).status_code == 204
        gone.add(file.name)
    stop = True
    assert await searches >= 5
    assert await hits(http, "pump water") == ["5.md"]


async def held(bench: Bench) -> AbstractContextManager[None]:
    """The index, as soon as what comes after a report is done."""
    while True:
        with suppress(IndexBusy), Layout(str(bench.index)).writer():
            return Layout(str(bench.index)).writer()
        await asyncio.sleep(0.01)


async def test_deletion_takes_its_turn(bench: Bench) -> None:
    async with bench.working() as http:
        done = await ended(http, await uploaded(http, "docs", PUMP))
        path = f"/v1/documents/{done.files[0].doc_id}"
        with await held(bench):  # the command writes
            busy = await http.delete(path)
            assert (busy.status_code, error_of(busy)["code"], "retry-after" in busy.headers) == (
                503,
                "index_busy",
                True,
            )
            assert "/" not in error_of(busy)["message"]
        assert (await http.delete(path)).status_code == 204


# ---- lists, and reading ---------------------------------------------------------------------------------------------


async def test_a_list_in_pages(http: httpx.AsyncClient) -> None:
    jobs = [await uploaded(http, f"b{n % 2}", (f"{n}.md", b"Word.")) for n in range(7)]
    for job in jobs:
        await ended(http, job)
    seen: list[str] = []
    after: str | None = None
    while True:
        params: Any = {"limit": 3, **({"after": after} if after else {})}
        page = (await http.get("/v1/documents", params=params)).json()
        assert page["total"] == 7 - (after is not None)
        seen += [row["uri"] for row in page["documents"]]
        if not (after := page["next"]):
            break
        if len(seen) == 3:  # the one at the border goes: the next page is not put out
            await http.delete(f"/v1/documents/{page['documents'][-1]['doc_id']}")
    assert seen == [f"{n}.md" for n in (6, 5, 4, 3, 2, 1, 0)]
    only = (await http.get("/v1/documents", params={"bucket": "b1"})).json()
    assert ([row["uri"] for row in only["documents"]], only["total"], only["next"]) == (
        ["5.md", "3.md", "1.md"],
        3,
        None,
    )
    for params, field in (
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"after": "x"}, "after"),
        ({"bucket": ""}, "bucket"),
    ):
        assert error_of(await http.get("/v1/documents", params=params))["field"] == field
    missing = await http.get("/v1/documents", params={"bucket": "b2"})
    assert (missing.status_code, error_of(missing)["allowed"]) == (404, ["b0", "b1"])


LONG = "# Manual\n\nBefore it all.\n\n" + "\n\n".join(
    f"## Part {n}\n\n" + " ".join(f"Sentence {n} of {k} is \U0001f4c4 here." for k in range(30)) for n in range(12)
)


async def read(http: httpx.AsyncClient, doc_id: str, **params: Any) -> DocumentView:
    reply = await http.get(f"/v1/documents/{doc_id}", params=params)
    assert reply.status_code == 200, reply.text
    return DocumentView.model_validate_json(reply.content)


async def test_reading_in_order_with_a_place_marked(http: httpx.AsyncClient) -> None:
    done = await ended(http, await uploaded(http, "docs", ("long.md", LONG.encode())))
    doc_id = done.files[0].doc_id
    whole = await read(http, doc_id, max_chars=200_000)
    text = "".join(part.text for part in whole.parts)
    assert (whole.span, whole.chars, whole.before, whole.after) == ((0, len(text)), len(text), None, None)
    assert all(text[part.span[0] : part.span[1]] == part.text for part in whole.parts)
    assert not any(part.marked for part in whole.parts)
    assert "Manual" in whole.parts[0].heading or whole.parts[0].heading == []
    # A page after the other is the same.
    start: int | None = 0
    pages = []
    while start is not None:
        page = await read(http, doc_id, start=start, max_chars=3000)
        pages.append(page)
        start = page.after
    assert len(pages) > 3 and "".join(part.text for page in pages for part in page.parts) == text
    back = await read(http, doc_id, start=pages[2].before, max_chars=3000)
    assert back.after is not None and back.after >= pages[2].span[0]
    # A span, over the border of two parts.
    edge = whole.parts[5].span[1]
    marked = await read(http, doc_id, span=f"{edge - 7},{edge + 9}", max_chars=3000)
    assert marked.highlight is not None and marked.highlight.span == (edge - 7, edge + 9)
    assert marked.highlight.text == text[edge - 7 : edge + 9] == "".join(p.text for p in marked.parts if p.marked)
    assert marked.span[0] < edge < marked.span[1]
    chunk = whole.parts[8]
    by_chunk = await read(http, doc_id, chunk_id=chunk.chunk_id, max_chars=1000)
    assert by_chunk.highlight is not None and by_chunk.highlight.text in chunk.text
    assert by_chunk.highlight.heading == chunk.heading
    found = await http.post("/v1/search", json={"question": "Sentence 7 of 3", "top_k": 1})
    (hit,) = found.json()["hits"]
    at_hit = await read(http, doc_id, chunk_id=hit["chunk_id"])
    assert at_hit.highlight is not None and list(at_hit.highlight.span) == hit["span"]


async def test_a_place_that_is_not_there(http: httpx.AsyncClient) -> None:
    done = await ended(http, await uploaded(http, "docs", PUMP))
    path = f"/v1/documents/{done.files[0].doc_id}"
    places: list[tuple[Any, int, str]] = [
        ({"span": "5"}, 422, "span"),
        ({"span": "9,3"}, 404, "span"),
        ({"span": "3,3"}, 404, "span"),
        ({"span": "900,901"}, 404, "span"),
        ({"chunk_id": 999}, 404, "chunk_id"),
        ({"chunk_id": "x"}, 422, "chunk_id"),
        ({"max_chars": 0}, 422, "max_chars"),
        ({"max_chars": 200_001}, 422, "max_chars"),
        ({"start": -1}, 422, "start"),
    ]
    for params, status, field in places:
        reply = await http.get(path, params=params)
        assert (reply.status_code, error_of(reply)["field"]) == (status, field), params
    assert (await http.get(path, params={"span": "3,99999"})).status_code == 200
    assert (await http.get(path, params={"start": 99999})).status_code == 200


# ---- keys -----------------------------------------------------------------------------------------------------------


async def test_scopes_and_buckets_of_a_key(bench: Bench) -> None:
    async with bench.working() as http:
        ours, theirs = bench.key(["ours"]), bench.key(["theirs"], tenant="b")
        done = await ended(http, await uploaded(http, "ours", PUMP, headers=ours), ours)
        secret = await ended(
            http, await uploaded(http, "theirs", ("secret.md", b"The marker."), headers=theirs), theirs
        )

        async def told(bucket: str, doc_id: str, job_id: str) -> list[tuple[int, str]]:
            replies = [
                await http.post("/v1/documents", params={"bucket": bucket}, files=sent(PUMP), headers=ours),
                await http.get("/v1/documents", params={"bucket": bucket}, headers=ours),
                await http.get(f"/v1/documents/{doc_id}", headers=ours),
                await http.delete(f"/v1/documents/{doc_id}", headers=ours),
                await http.get(f"/v1/documents/jobs/{job_id}", headers=ours),
                await http.get(f"/v1/documents/jobs/{job_id}/events", headers=ours),
            ]
            hide = {bucket: "B", doc_id: "D", job_id: "J"}
            texts = []
            for reply in replies:
                text = reply.text.replace(reply.headers["x-request-id"], "")
                for word, letter in hide.items():
                    text = text.replace(word, letter)
                texts.append((reply.status_code, text))
            return texts

        hidden = await told("theirs", secret.files[0].doc_id, secret.id)
        missing = await told("never", "doc_" + "0" * 20, "job_" + "0" * 26)
        assert hidden == missing and {status for status, _ in hidden} == {404}
        names = [row["name"] for row in (await http.get("/v1/buckets", headers=ours)).json()["buckets"]]
        listed = (await http.get("/v1/documents", headers=ours)).json()
        assert (names, listed["total"], [row["uri"] for row in listed["documents"]]) == (["ours"], 1, ["pump.md"])
        assert (await http.get(f"/v1/documents/{secret.files[0].doc_id}", headers=theirs)).status_code == 200
        # A key of the same tenant that sees something else has other jobs; one that sees the same has the same.
        assert (await http.get(f"/v1/documents/jobs/{done.id}", headers=bench.key(["ours", "x"]))).status_code == 404
        assert (await http.get(f"/v1/documents/jobs/{done.id}", headers=bench.key(["ours"]))).status_code == 200
        # Scopes.
        reads, writes = bench.key(["ours"], scopes=["search"]), bench.key(["ours"], scopes=["ingest"])
        path, job = f"/v1/documents/{done.files[0].doc_id}", f"/v1/documents/jobs/{done.id}"
        for headers, may in ((reads, ("GET", path)), (reads, ("GET", "/v1/documents")), (writes, ("GET", job)),
                             (reads, ("GET", "/v1/buckets")), (writes, ("GET", "/v1/buckets"))):  # fmt: skip
            assert (await http.request(*may, headers=headers)).status_code == 200, may
        for headers, way in ((reads, ("POST", "/v1/documents?bucket=ours")), (reads, ("DELETE", path)), (reads, ("GET", job)),
                             (writes, ("GET", path)), (writes, ("GET", "/v1/documents"))):  # fmt: skip
            assert (await http.request(*way, headers=headers)).status_code == 403, way
        assert (await http.delete(path, headers=writes)).status_code == 204


async def test_a_name_tells_nothing_of_what_the_key_does_not_see(bench: Bench) -> None:
    """Under the name of a hidden document an upload is another one: neither replaced, nor told of, nor compared with it."""
    async with bench.working() as http:
        hr, plain = bench.key(["docs"], groups=("hr",)), bench.key(["docs"])
        secret = ("pay.md", b"---\nallowed_groups: hr\n---\n# Pay\n\nThe pay is secret.")
        theirs = (await ended(http, await uploaded(http, "docs", secret, headers=hr), hr)).files[0]
        path = f"/v1/documents/{theirs.doc_id}"
        assert (await http.get(path, headers=hr)).status_code == 200
        for method in ("GET", "DELETE"):
            assert (await http.request(method, path, headers=plain)).status_code == 404
        assert (await http.get("/v1/buckets", headers=plain)).json()["buckets"] == []
        assert (await http.get("/v1/documents?bucket=docs", headers=plain)).status_code == 404
        for content, outcome in ((secret[1][35:], "ingested"), (secret[1][35:], "unchanged"), (b"Mine.", "replaced")):
            mine = (await ended(http, await uploaded(http, "docs", ("pay.md", content), headers=plain), plain)).files[0]
            assert (mine.outcome, mine.doc_id != theirs.doc_id) == (outcome, True)
        listed = (await http.get("/v1/documents", headers=plain)).json()
        assert [row["doc_id"] for row in listed["documents"]] == [mine.doc_id]
        (bucket,) = (await http.get("/v1/buckets", headers=plain)).json()["buckets"]
        assert (bucket["documents"], bucket["facets"]["format"]["values"][0]["count"]) == (1, 1)
        assert (await http.get("/v1/documents", headers=hr)).json()["total"] == 2
        assert "secret" in (await http.get(path, headers=hr)).text
        narrowed = {**hr, "x-assay-groups": ""}
        assert (await http.get(path, headers=narrowed)).status_code == 404
