"""Documents deleted from an index that is searched all the while: what is acknowledged holds, and what is left is merged."""

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.config import Legs
from assay.documents.names import doc_id_of
from assay.errors import IndexBusy
from assay.index import snapshot, uploads
from assay.index.files import Layout
from assay.index.remove import remove
from assay.index.snapshot import REBUILD_ROWS, read_current
from tests.wiring.documents_bench import Bench
from tests.wiring.index.builders import ingest, write
from tests.wiring.test_api import until

pytestmark = pytest.mark.anyio


def holding(folder: Path, documents: int) -> Bench:
    """One segment of as many passages."""
    ingest(write(folder / "files", {f"{n}.md": f"The marker {n}." for n in range(documents)}), folder / "index")
    return Bench(folder)


def rows(bench: Bench) -> list[int]:
    """Of the segments, tombstones among them."""
    return [segment.rows for segment in read_current(Layout(str(bench.index))).segments]


async def test_what_a_deletion_left_is_merged_after_its_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which does not wait for it. It holds the index for writing, and the next deletion waits for its turn."""
    bench, merge = holding(tmp_path, 3), snapshot.compact
    begun, go_on = threading.Event(), threading.Event()

    def held_up(*args: Any) -> Any:
        begun.set()
        assert go_on.wait(40)
        return merge(*args)

    monkeypatch.setattr(uploads, "QUIET_S", 0.0)
    monkeypatch.setattr(uploads, "remove", partial(remove, rebuild_rows=0))
    monkeypatch.setattr(snapshot, "compact", held_up)
    async with asyncio.timeout(60), bench.ingesting() as work:
        await work.delete("docs", doc_id_of("docs", "0.md"))
        assert await asyncio.to_thread(begun.wait, 20)
        assert rows(bench) == [3], "acknowledged, and not merged yet"
        second = asyncio.create_task(work.delete("docs", doc_id_of("docs", "1.md")))
        await until(lambda: work._deletions)
        go_on.set()
        await second
        await until(lambda: rows(bench) == [1], 30)


async def test_deletions_close_to_each_other_do_not_wait_for_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("merged between two deletions")

    bench = holding(tmp_path, 3)
    monkeypatch.setattr(uploads, "POLL_S", 0.01)
    monkeypatch.setattr(uploads, "compact", never)
    async with asyncio.timeout(60), bench.ingesting() as work:
        for name in ("0.md", "1.md"):
            await work.delete("docs", doc_id_of("docs", name))
            polls, waiting = [0], work._spool.waiting
            monkeypatch.setattr(
                work._spool, "waiting", lambda n=polls, of=waiting: (n.__setitem__(0, n[0] + 1), of())[1]
            )
            await until(lambda n=polls: n[0] > 3)


@pytest.mark.parametrize("fault", [IndexBusy("a command writes"), RuntimeError("commit conflict"), OSError("disk")])
async def test_what_keeps_a_merge_from_ending_keeps_no_job_or_deletion(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where only somebody else was writing, it is tried again. The legs are none of a deletion's business."""
    bench, tried = holding(tmp_path, 3), list[Any]()

    def failing(_: Layout, legs: Any) -> None:
        tried.append(legs)
        if len(tried) == 1:
            raise fault

    monkeypatch.setattr(uploads, "QUIET_S", 0.0)
    monkeypatch.setattr(uploads, "compact", failing)
    async with asyncio.timeout(60), bench.ingesting() as work:
        work._legs = Legs()
        await work.delete("docs", doc_id_of("docs", "0.md"))
        await until(lambda: len(tried) == (2 if isinstance(fault, IndexBusy) else 1))
        await work.delete("docs", doc_id_of("docs", "1.md"))
        await until(lambda: len(tried) == (3 if isinstance(fault, IndexBusy) else 2))
    assert set(tried) == {None}


@pytest.mark.parametrize("rebuild_rows", [REBUILD_ROWS, 0])
async def test_no_search_finds_what_was_acknowledged_before_it(
    rebuild_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor loses one that nobody deletes, whether the legs are built anew or have tombstones until they are merged."""
    bench = holding(tmp_path, 9)
    monkeypatch.setattr(uploads, "remove", partial(remove, rebuild_rows=rebuild_rows))
    monkeypatch.setattr(uploads, "QUIET_S", 0.0)
    asked, gone, searches = set[str](), set[str](), [0, 0]

    async def searching(http: httpx.AsyncClient, number: int) -> None:
        everything = {f"{n}.md" for n in range(9)}
        while True:
            before = set(gone)
            reply = (await http.post("/v1/search", json={"question": "marker", "top_k": 50})).json()
            found = {hit["uri"] for hit in reply["hits"]}
            assert reply["degraded"] == [] and everything - asked <= found <= everything - before
            searches[number] += 1

    async def searched() -> None:
        """Each has begun one more, and ended it."""
        seen = list(searches)
        await until(lambda: all(now > then + 1 for now, then in zip(searches, seen, strict=True)), 30)

    async with bench.working() as http, asyncio.TaskGroup() as group:
        tasks = [group.create_task(searching(http, number)) for number in range(len(searches))]
        await searched()
        for start in (0, 3):
            names = [f"{n}.md" for n in range(start, start + 3)]
            asked.update(names)
            paths = [f"/v1/documents/{doc_id_of('docs', name)}" for name in names]
            replies = await asyncio.gather(*map(http.delete, paths))
            assert [reply.status_code for reply in replies] == [204] * 3
            gone.update(names)
            await searched()
        await until(lambda: rows(bench) == [3], 30)
        await bench.served()
        await searched()
        for task in tasks:
            task.cancel()
