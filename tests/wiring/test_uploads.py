"""Documents over HTTP, over a real index: uploads that become jobs, what came of them, and how they are read and deleted.

The ingester's work runs here in this process, with the parser's child and an encoder without a model.
"""

import asyncio
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from msoffcrypto.format.ooxml import OOXMLFile

from assay.config import DocumentsConfig
from assay.documents.shapes import Job
from assay.index.buckets import BucketSchema
from assay.index.files import Layout
from assay.index.ingest import Ingestion
from deployments.api import make_api
from tests.wiring.documents_bench import PDF, PUMP, Bench, ended, hits, sent, uploaded
from tests.wiring.index.builders import OUTSIDE, DirectParser
from tests.wiring.index.test_formats import workbook
from tests.wiring.index.test_updates import contents
from tests.wiring.local_driver import LocalDriver
from tests.wiring.test_api import error_of, in_process, until
from tests.wiring.test_client import listening

pytestmark = pytest.mark.anyio


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


async def test_an_upload_takes_no_password(http: httpx.AsyncClient) -> None:
    """So that what is encrypted is told, and the rest is in."""
    locked = io.BytesIO()
    OOXMLFile(io.BytesIO(workbook())).encrypt("sesame", locked)
    done = await ended(http, await uploaded(http, "docs", ("locked.xlsx", locked.getvalue()), PUMP))
    assert [(f.outcome, f.reason) for f in done.files] == [("failed", "encrypted"), ("ingested", "")]


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
async def test_what_is_refused_leaves_nothing(
    tmp_path: Path, content: bytes, headers: dict[str, str], status: int, code: str, field: str | None
) -> None:
    bench = Bench(tmp_path, DocumentsConfig(max_file_bytes=2000, max_body_bytes=10_000, max_files=8))

    async def piecemeal() -> AsyncGenerator[bytes]:
        for at in range(0, len(content), 100):
            yield content[at : at + 100]

    async with bench.working() as http:
        reply = await http.post("/v1/documents?bucket=docs", content=piecemeal(), headers=headers)
        error = error_of(reply)
        assert (reply.status_code, error["code"], error["field"]) == (status, code, field), error
    assert not [path for path in (tmp_path / "uploads").rglob("*") if path.is_file()]


async def test_a_size_is_refused_as_it_is_declared(http: httpx.AsyncClient) -> None:
    taken = 0

    async def endless() -> AsyncGenerator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 1000

    headers = {**FORM, "content-length": "600000000"}
    reply = await http.post("/v1/documents?bucket=docs", content=endless(), headers=headers)
    assert (reply.status_code, error_of(reply)["code"]) == (413, "too_large")
    assert taken <= 1


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


NAMES = {
    "../../etc/passwd.md": "etc/passwd.md",
    "/etc/shadow.md": "etc/shadow.md",
    "..\\..\\boot.md": "boot.md",
    "%2e%2e/x.md": "%2e%2e/x.md",
    "notes/./2025//a.md": "notes/2025/a.md",
    "<script>alert(1)</script>.md": "<script>alert(1)</script>.md",
    "nai\u0308ve \U0001f4c4.md": "na\u00efve \U0001f4c4.md",
    "CON.md": "CON.md",
}


async def test_a_name_is_a_label_and_never_a_path(bench: Bench, http: httpx.AsyncClient) -> None:
    before = set(bench.folder.parent.rglob("*.md"))
    files = [(name, f"# <b>Bold</b>\n\nWord{n} here.".encode()) for n, name in enumerate(NAMES)]
    done = await ended(http, await uploaded(http, "docs", *files))
    assert [f.name for f in done.files] == list(NAMES.values())
    for n, uri in enumerate(NAMES.values()):
        assert (await hits(http, f"Word{n}")) == [uri]
    assert set(bench.folder.parent.rglob("*.md")) == before


async def test_a_name_of_something_outside_deletes_nothing(bench: Bench, http: httpx.AsyncClient) -> None:
    """Encoded once, as a client sends it, and as it is. A name with a slash leads to no route at all."""
    await ended(http, await uploaded(http, "docs", PUMP))
    (bench.folder / "outside.txt").write_text("Keep me.")
    before = contents(bench.folder)
    for name in [name.format(folder=bench.folder) for name in OUTSIDE]:
        for path in (quote(name, safe=""), quote(name, safe="/%:")):
            url = httpx.URL("http://localhost/").copy_with(raw_path=f"/v1/documents/{path}".encode())
            reply = await http.delete(url)
            assert reply.request.url.raw_path == url.raw_path, "the client sent it as it is"
            error = error_of(reply)
            assert (reply.status_code, error["code"]) in ((404, "not_found"), (404, "no_route")), (name, error)
            assert str(bench.folder) not in error["message"]
    assert contents(bench.folder) == before
    assert await hits(http, "five bar") == ["pump.md"]


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
