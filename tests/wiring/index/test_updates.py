"""An index that changes while it is searched: small segments, tombstones, deletions, compaction."""

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.__main__ import main
from assay.config import Legs
from assay.documents.names import doc_id_of
from assay.errors import NotFound
from assay.index import dense, lists, quantised
from assay.index.files import Layout
from assay.index.mirror import compact
from assay.index.remove import remove
from assay.index.snapshot import read_current
from assay.types import Scope, SearchQuery, SearchResult
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import OUTSIDE, found, ingest, retriever, search, text_of, write

FILES = {f"{i:02}.md": f"# Doc {i}\n\nThe marker number {i} is word{i}.\n" for i in range(20)}
ALL = SearchQuery(("marker",), top_k=100)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    ingest(write(tmp_path / "a", FILES), tmp_path / "index", rebuild_rows=0)
    return tmp_path / "index"


def ranked(index: Path) -> list[list[tuple[str, float]]]:
    queries = [SearchQuery((q,), top_k=100) for q in ("marker", "word3", "number word7 zebra")]
    return [[(h.chunk.uri, round(h.score, 4)) for h in search(retriever(index), q).hits] for q in queries]


def test_a_small_change_leaves_what_is_large_alone(index: Path, tmp_path: Path) -> None:
    large = read_current(Layout(str(index))).segments[0]
    ingest(
        write(tmp_path / "a", {"new.md": "A zebra marker.", "03.md": "# Doc 3\n\nA lion marker.\n"}),
        index,
        rebuild_rows=0,
    )
    segments = read_current(Layout(str(index))).segments
    assert segments[0] == large
    assert [s.rows for s in segments] == [20, 2]
    r = retriever(index)
    assert len(search(r, ALL).hits) == 21
    for leg in ("dense", "sparse"):
        hits = search(r, SearchQuery(("word3 lion",), legs=(leg,), top_k=100)).hits
        assert [h.chunk.text for h in hits if h.chunk.uri == "03.md"] == ["A lion marker."]


@pytest.mark.parametrize("named", ["uri", "id"])
def test_what_is_deleted_is_found_by_nothing(index: Path, named: str) -> None:
    r, id = retriever(index), doc_id_of("docs", "03.md")
    assert "word3" in text_of(r, id)
    remove(Layout(str(index)), "docs", ["03.md" if named == "uri" else id])
    assert r.reload()
    assert r.reasons == ()
    for leg in ("dense", "sparse"):
        hits = search(r, SearchQuery(("word3", "marker"), legs=(leg,), top_k=100)).hits
        assert {h.chunk.uri for h in hits} == FILES.keys() - {"03.md"}
    with pytest.raises(NotFound):
        text_of(r, id)
    assert [(b.documents, b.chunks) for b in asyncio.run(r.describe(Scope()))] == [(19, 19)]


def test_a_document_that_is_not_there_is_named_and_nothing_is_deleted(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_current(Layout(str(index)))
    for bucket, names in (("docs", ["03.md", "nope.md"]), ("other", ["03.md"])):
        with pytest.raises(SystemExit) as end:
            main(["delete", "--index", str(index), "--bucket", bucket, *names])
        assert end.value.code == 1
        assert repr(names[-1]) in capsys.readouterr().err
    assert read_current(Layout(str(index))) == before


def test_a_name_of_something_outside_deletes_nothing(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name is compared with those of the bucket, and is never a path."""
    (tmp_path / "outside.txt").write_text("Keep me.")
    before = contents(tmp_path)
    for name in [name.format(folder=tmp_path) for name in OUTSIDE]:
        with pytest.raises(SystemExit) as end:
            main(["delete", "--index", str(index), "--bucket", "docs", "03.md", name])
        assert end.value.code == 1
        assert capsys.readouterr().err == f"bucket 'docs' has no document {name!r}\n"
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_the_commands(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as end:
            main([*words, "--index", str(index)])
        return end.value.code, capsys.readouterr().out

    assert run("delete", "--bucket", "docs", "03.md", "04.md") == (
        0, f"bucket docs: 2 deleted, index {read_current(Layout(str(index))).id}\n"
    )  # fmt: skip
    code, told = run("compact", "--config", str(config_with(tmp_path, "{k1: 2, dense: flat}")))
    assert (code, told.startswith("18 passages in 1 segments")) == (0, True)
    for wrong, why in (("{k1: -1}", "args.index.k1"), ("{dense: lsh}", "'auto', 'flat', 'ivf', 'sq8' or 'hnsw'")):
        with pytest.raises(SystemExit, match="1"):
            main(["compact", "--index", str(index), "--config", str(config_with(tmp_path, wrong))])
        assert why in capsys.readouterr().err


def test_the_command_that_deletes_ends_with_the_merging_of_what_it_left(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("assay.index.remove.remove", partial(remove, rebuild_rows=0))
    with pytest.raises(SystemExit, match="0"):
        main(["delete", "--index", str(index), "--bucket", "docs", *(f"{n:02}.md" for n in range(7))])
    merged, told = read_current(Layout(str(index))), capsys.readouterr().out
    assert [segment.rows for segment in merged.segments] == [13]
    assert "7 deleted, index v2-" in told and merged.number == 3, "acknowledged before that"


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["delete", "03.md", "--bucket", "docs"], "assay.index.remove.publish"),
        (["compact"], "assay.index.mirror.compact"),
    ],
)
def test_a_full_disk_is_a_line_of_every_command(
    index: Path, words: list[str], step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "segments/x.npy")

    monkeypatch.setattr(step, full)
    assert main([*words, "--index", str(index)]) == 1
    assert capsys.readouterr().err == "assay: No space left on device: segments/x.npy\n"


def config_with(folder: Path, index: str) -> Path:
    path = folder / "serve.yaml"
    path.write_text(f"applications: [{{name: assay, args: {{index: {index}}}}}]")
    return path


def built(index: Path) -> set[tuple[float, float, str]]:
    return {(s.bm25.k1, s.bm25.b, s.dense) for s in read_current(Layout(str(index))).segments}


def test_the_config_decides_how_legs_are_built_and_an_index_keeps_it(index: Path, tmp_path: Path) -> None:
    layout = Layout(str(index))
    assert built(index) == {(1.2, 0.6, "flat")}
    wanted = Legs(k1=2)
    ingest(write(tmp_path / "a", {"new.md": "A zebra."}), index, rebuild_rows=0, legs=wanted)
    assert built(index) == {(1.2, 0.6, "flat")}, "segments of one snapshot have one k1, since their scores are compared"
    before = ranked(index)
    compact(layout, wanted)
    assert built(index) == {(2, 0.6, "flat")}
    assert len(read_current(layout).segments) == 1
    assert ranked(index) != before
    ingest(write(tmp_path / "a", {"newer.md": "A lion."}), index, rebuild_rows=0)
    compact(layout)
    assert built(index) == {(2, 0.6, "flat")}, "a command without a config changes nothing"
    layout.current.write_text("damaged")
    ingest(tmp_path / "a", index)
    assert built(index) == {(2, 0.6, "flat")}
    ingest(write(tmp_path / "a", {"newest.md": "A tiger."}), index, legs=Legs(b=0.1))
    assert built(index) == {(1.2, 0.1, "flat")}, "all was built anew, so the choice could be taken at once"


@pytest.mark.parametrize("kind", dense.KINDS)
def test_every_kind_finds_the_same_in_a_snapshot(
    kind: dense.Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "_INDEXED", 0)
    monkeypatch.setattr(lists, "FEW", 0)
    monkeypatch.setattr(quantised, "FEW", 0)
    folder, index = write(tmp_path / "a", FILES), tmp_path / "index"
    ingest(folder, tmp_path / "flat")
    ingest(folder, index, legs=Legs(dense=kind))
    assert built(index) == {(1.2, 0.6, kind)}
    assert ranked(index) == ranked(tmp_path / "flat")
    remove(Layout(str(index)), "docs", ["03.md"], rebuild_rows=0)
    hits = search(retriever(index), SearchQuery(("word3",), legs=("dense",), top_k=100)).hits
    assert {hit.chunk.uri for hit in hits} == FILES.keys() - {"03.md"}


def test_compaction_changes_what_is_stored_and_not_what_is_found(index: Path, tmp_path: Path) -> None:
    layout = Layout(str(index))
    for i in range(5):
        ingest(write(tmp_path / "a", {f"more{i}.md": f"A zebra marker {i}."}), index, rebuild_rows=0)
    remove(layout, "docs", [f"{i:02}.md" for i in range(8)], rebuild_rows=0)
    before, segments = ranked(index), read_current(layout).segments
    r = retriever(index)
    compact(layout)
    assert len(read_current(layout).segments) < len(segments)
    assert sum(s.rows for s in read_current(layout).segments) == 17, "tombstones are gone"
    assert [[uri for uri, _ in one] for one in ranked(index)] == [[uri for uri, _ in one] for one in before]
    assert r.reload()
    assert len(search(r, ALL).hits) == 17


@contextmanager
def searching(look: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Two threads that look all the while. What is yielded waits until each has begun one more look, and ended it."""
    faults: list[Exception] = []
    counts, told, stop = [0, 0], threading.Condition(), threading.Event()

    def run(number: int) -> None:
        while not stop.is_set():
            try:
                look()
            except Exception as fault:  # noqa: BLE001 - whatever it is, the test tells it
                faults.append(fault)
            with told:
                counts[number] += 1
                told.notify()

    def looked() -> None:
        with told:
            before = list(counts)
            assert told.wait_for(lambda: all(n > then + 1 for n, then in zip(counts, before, strict=True)), 60)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    try:
        yield looked
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert faults == []


def test_every_search_finds_one_snapshot_while_segments_come_and_go_and_are_merged(index: Path, tmp_path: Path) -> None:
    """All of its documents, each in the text that it has there, and no other."""
    r, layout, files = retriever(index), Layout(str(index)), dict(FILES)
    held: dict[str, dict[str, str]] = {}
    results: list[SearchResult] = []
    with searching(lambda: results.append(search(r, ALL))) as looked:

        def taken_up() -> None:
            r.reload()
            assert r.index_version == read_current(layout).id
            held[r.index_version] = {uri: text.split("\n\n")[1].strip() for uri, text in files.items()}
            looked()

        taken_up()
        for i in range(2):
            new = {
                f"new{i}.md": f"# New {i}\n\nThe marker new{i}.\n",
                "03.md": f"# Doc 3\n\nThe marker word3 text{i}.\n",
            }
            ingest(write(tmp_path / "new", new), index, rebuild_rows=0)
            files.update(new)
            taken_up()
            gone = [f"{n}.md" for n in (10 + i, 13 + i, 16 + i)]
            remove(layout, "docs", gone, rebuild_rows=0)
            files = {uri: text for uri, text in files.items() if uri not in gone}
            taken_up()
        assert [segment.rows for segment in read_current(layout).segments] == [20, 2, 2], "tombstones among them"
        before = ranked(index)
        compact(layout)
        assert [segment.rows for segment in read_current(layout).segments] == [2, 14]
        taken_up()
    assert [[uri for uri, _ in one] for one in ranked(index)] == [[uri for uri, _ in one] for one in before]
    for result in results:
        assert result.degraded == ()
        texts = {hit.chunk.uri: hit.chunk.text for hit in result.hits}
        assert (len(result.hits), texts) == (len(texts), held[result.index_version])
    assert {result.index_version for result in results} == held.keys()


def test_a_search_that_a_swap_overtakes_ends_on_the_snapshot_that_it_began_with(index: Path, tmp_path: Path) -> None:
    class Slow(WordEncoder):
        async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            asked.set()
            await go_on.wait()
            return self.embed_now(texts)

    async def overtaken() -> tuple[SearchResult, SearchResult]:
        before = r.index_version
        early = asyncio.create_task(r.search(ALL))
        await asked.wait()
        ingest(write(tmp_path / "new", {"03.md": "A zebra marker.", "new.md": "A lion marker."}), index, rebuild_rows=0)
        remove(Layout(str(index)), "docs", [f"{n}.md" for n in range(10, 18)], rebuild_rows=0)
        compact(Layout(str(index)))
        assert r.reload() and r.index_version != before
        go_on.set()
        return await early, await r.search(ALL)

    asked, go_on = asyncio.Event(), asyncio.Event()
    r = retriever(index, Slow())
    early, late = asyncio.run(overtaken())
    assert set(found(early)) == FILES.keys() and len(early.hits) == 20
    assert "A zebra marker." not in {hit.chunk.text for hit in early.hits}
    assert set(found(late)) == (FILES.keys() | {"new.md"}) - {f"{n}.md" for n in range(10, 18)}
    assert (early.degraded, late.degraded) == ((), ())


def test_nothing_deleted_is_found_once_it_is_reloaded_under_load(index: Path) -> None:
    """Nor returns with a compaction. When a serving graph reloads by itself: ``tests/wiring/test_serving.py``."""
    r, layout = retriever(index), Layout(str(index))
    gone: set[str] = set()

    def look() -> None:
        before = set(gone)
        result = search(r, ALL)
        assert not before & set(found(result)) and result.degraded == ()

    with searching(look) as looked:
        for i in range(0, 12, 3):
            names = [f"{n:02}.md" for n in range(i, i + 3)]
            remove(layout, "docs", names, rebuild_rows=0)
            r.reload()
            gone.update(names)
            looked()
        compact(layout)
        assert [segment.rows for segment in read_current(layout).segments] == [8]
        r.reload()
        looked()
    assert set(found(search(r, ALL))) == FILES.keys() - gone
