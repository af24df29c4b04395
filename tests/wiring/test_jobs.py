"""What becomes of an upload: a job that is told in events, and outlives whoever works on it."""

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from assay.documents.shapes import Job, JobStatusEvent
from assay.documents.spool import LEASE_S, Spool
from assay.errors import IndexFault, NotFound
from assay.index.files import Layout
from assay.index.snapshot import read_current
from deployments.api import make_api
from tests.wiring.documents_bench import PDF, PUMP, Bench, ended, hits, uploaded
from tests.wiring.index.builders import ingest, write
from tests.wiring.local_driver import LocalDriver
from tests.wiring.test_api import frames, in_process, until
from tests.wiring.test_client import listening

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
async def http(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    async with bench.working() as found:
        yield found


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


async def test_what_a_full_disk_does_not_take_leaves_no_half_of_a_line(bench: Bench) -> None:
    spool = Spool(Path(bench.documents.path))
    async with in_process(make_api(LocalDriver(bench.retriever), bench.config)) as http:
        del http.headers["content-type"]
        job = await uploaded(http, "docs", PUMP)
    running, said = JobStatusEvent(state="running"), len(spool.log(job.id))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (spool.size(job.id) + 30, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            spool.say(job.id, [running])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    spool.say(job.id, [running])
    assert [record.event for record in spool.log(job.id)[said:]] == [running]


async def test_a_job_waits_for_another_writer(bench: Bench) -> None:
    layout = Layout(str(bench.index))
    async with bench.working() as http:
        with layout.writer():
            job = await uploaded(http, "docs", PUMP)
            await until(lambda: Spool(Path(bench.documents.path)).read(job.id, "").status == "running")
            await asyncio.sleep(0.1)
            assert Spool(Path(bench.documents.path)).read(job.id, "").status == "running"
        assert (await ended(http, job)).status == "completed"


async def test_a_job_ends_with_the_merging_of_small_segments(bench: Bench) -> None:
    """After its report, and even where it brought nothing new."""
    for n in range(4):
        ingest(write(bench.folder / "files", {f"{n}.md": f"The marker {n}."}), bench.index, rebuild_rows=0)
    before = read_current(Layout(str(bench.index)))
    assert len(before.segments) == 4
    async with bench.working() as http:
        done = await ended(http, await uploaded(http, "docs", ("0.md", b"The marker 0.")))
        assert ([f.outcome for f in done.files], done.index_version) == (["unchanged"], before.id)
        await until(lambda: len(read_current(Layout(str(bench.index))).segments) == 1, 30)


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
