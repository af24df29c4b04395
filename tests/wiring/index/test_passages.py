"""Passages are read from their file when they are shown: whatever becomes of it meanwhile, none but the right ones are."""

import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.errors import IndexFault
from assay.index.files import KeptFile, Layout
from assay.index.mirror import compact
from assay.index.passages import FILE, PLACES
from assay.index.segment import Segment, open_passages, read
from assay.index.snapshot import FORMAT, newest, read_current
from assay.retrieve import LocalRetriever
from assay.types import SearchQuery
from tests.wiring.index.builders import flipped, found, ingest, made_old, retriever, search, write

FILES = {f"{i:02}.md": f"# Doc {i}\n\nThe marker number {i:02} is word{i:02}.\n" for i in range(20)}
TEXTS = {uri: text.split("\n\n")[1].strip() for uri, text in FILES.items()}
ALL = SearchQuery(("marker",), buckets=("docs",), top_k=100)
TORN = f"{FILE} has other bytes than were written"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    ingest(write(tmp_path / "a", FILES), tmp_path / "index")
    return tmp_path / "index"


def file_of(index: Path, name: str = FILE) -> Path:
    (path,) = Layout(str(index)).segments.glob(f"*/{name}")
    return path


def shows_all(r: LocalRetriever) -> None:
    result = search(r, ALL)
    assert result.degraded == (), "the store has them too"
    assert {hit.chunk.uri: hit.chunk.text for hit in result.hits} == TEXTS


def heals(r: LocalRetriever, index: Path) -> None:
    ingest(index.parent / "a", index)
    assert r.reload() and r.reasons == ()
    shows_all(r)


def test_they_come_from_their_file(index: Path) -> None:
    """Else nothing below would test anything."""
    r = retriever(index)
    assert r._reader is not None
    r._reader._chunks = None
    shows_all(r)


def test_a_flipped_byte_after_opening(index: Path) -> None:
    r = retriever(index)
    shows_all(r)
    flipped(file_of(index))
    assert list(r.reasons) == [], "nobody has read it yet"
    shows_all(r)
    (reason,) = r.reasons
    assert TORN in reason and "python -m assay ingest" in reason
    shows_all(r)
    assert len(r.reasons) == 1, "told once"
    for _ in range(2):  # as a graph does while something is wrong
        r.reload()
        assert any(TORN in reason for reason in r.reasons), "not mended by opening it anew"
    heals(r, index)


def test_every_byte_counts(index: Path) -> None:
    """Of one passage, from the first to the last."""
    path, r = file_of(index), retriever(index)
    size = path.stat().st_size
    for at in range(size // len(FILES)):
        flipped(path, at)
        r = retriever(index)
        shows_all(r)
        assert TORN in r.reasons[0], at
        flipped(path, at)
    r.reload()
    assert r.reasons == (), "it was put back"


def test_a_flipped_byte_before_opening(index: Path) -> None:
    flipped(file_of(index))
    r = retriever(index)
    shows_all(r)
    assert TORN in r.reasons[0]
    heals(r, index)


def test_only_what_is_shown_is_read(index: Path) -> None:
    """Another passage than those that are shown may be torn, and nothing of it is seen or served."""
    path, r = file_of(index), retriever(index)
    at = path.read_bytes().index(b"word07")
    flipped(path, at)
    hits = search(r, SearchQuery(("word03",), top_k=1)).hits
    assert [hit.chunk.text for hit in hits] == [TEXTS["03.md"]] and list(r.reasons) == []
    hits = search(r, SearchQuery(("word07",), top_k=1)).hits
    assert [hit.chunk.text for hit in hits] == [TEXTS["07.md"]] and TORN in r.reasons[0]


@pytest.mark.parametrize("name", [FILE, PLACES])
def test_a_truncated_file_is_noticed_at_opening(index: Path, name: str) -> None:
    path = file_of(index, name)
    path.write_bytes(path.read_bytes()[:-9])
    r = retriever(index)
    assert f"{name} has" in r.reasons[0]
    shows_all(r)
    heals(r, index)


@pytest.mark.parametrize("name", [FILE, PLACES])
def test_a_missing_file_is_noticed_at_opening(index: Path, name: str) -> None:
    file_of(index, name).unlink()
    r = retriever(index)
    assert f"{name} is missing" in r.reasons[0]
    shows_all(r)
    heals(r, index)


def test_flipped_places_are_noticed_at_opening(index: Path) -> None:
    flipped(file_of(index, PLACES))
    r = retriever(index)
    assert f"{PLACES} has other bytes" in r.reasons[0]
    shows_all(r)


def test_one_that_is_truncated_after_opening(index: Path) -> None:
    """A mapped file would end the process here."""
    r = retriever(index)
    os.truncate(file_of(index), 100)
    shows_all(r)
    assert TORN in r.reasons[0]
    heals(r, index)


@pytest.mark.parametrize("opened", [False, True])
def test_files_of_the_same_length_that_are_swapped(tmp_path: Path, opened: bool) -> None:
    """Each passage is as long as the other's, and lies where it does."""
    other = {uri: text.replace("marker", "kermar") for uri, text in FILES.items()}
    index = tmp_path / "index"
    ingest(write(tmp_path / "a", FILES), index, rebuild_rows=0)
    ingest(write(tmp_path / "b", other), index, bucket="more", rebuild_rows=0)
    paths = list(Layout(str(index)).segments.glob(f"*/{FILE}"))
    one, two = (path.read_bytes() for path in paths)
    assert len(one) == len(two) and one != two
    r = retriever(index)
    paths[0].write_bytes(two)
    paths[1].write_bytes(one)
    if not opened:
        r = retriever(index)
    shows_all(r)
    assert len(r.reasons) == 1 and TORN in r.reasons[0]
    hits = search(r, SearchQuery(("kermar",), buckets=("more",), top_k=100)).hits
    assert sorted(hit.chunk.text for hit in hits) == sorted(t.replace("marker", "kermar") for t in TEXTS.values())
    assert len(r.reasons) == 2


def test_a_sweep_that_deletes_the_folder_hurts_no_snapshot_that_is_served(index: Path) -> None:
    r = retriever(index)
    assert r._reader is not None
    r._reader._chunks = None  # the store could not help
    shutil.rmtree(file_of(index).parent)
    shows_all(r)
    assert r.reasons == ()


def test_descriptors_are_given_back(index: Path) -> None:
    path = file_of(index)

    def held() -> int:
        return sum(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd"))

    r = retriever(index)
    assert held() == 1
    flipped(path)
    shows_all(r)
    assert held() == 0, "nobody reads a torn file any more"


def test_a_manifest_that_does_not_name_it(index: Path) -> None:
    layout = Layout(str(index))
    entry = read_current(layout).segments[0].model_copy(update={"files": {}})
    with pytest.raises(IndexFault, match=f"{FILE} is not in the manifest"):
        open_passages(layout, entry, whole=True)


class ReadAtOnce(KeptFile):
    """No reader gets its bytes, which are not the right ones, before the other one asks."""

    def __init__(self, path: Path, expected: dict[str, Any]) -> None:
        super().__init__(path, expected)
        self._both = threading.Barrier(2, timeout=10)

    def read(self, begin: int, length: int) -> bytes:
        self._both.wait()
        return b"\0" * length


def test_two_searches_that_see_it_at_once_tell_it_once(index: Path) -> None:
    layout = Layout(str(index))
    (entry,) = read_current(layout).segments
    files = {name: read(layout, entry, name) for name in entry.files}
    torn = Segment(entry, files, lambda: ReadAtOnce(file_of(index), entry.files[FILE].model_dump()))
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(torn.passages, [np.array([3]), np.array([3])])) == [None, None]
    assert [what for what, _ in torn.torn] == ["passages"]


@pytest.mark.parametrize("work", [lambda index: ingest(index.parent / "a", index), lambda i: compact(Layout(str(i)))])
def test_a_torn_one_is_built_anew_before_anything_is_published_over_it(
    index: Path, work: Callable[[Path], object]
) -> None:
    """Publishing reads every byte, whether or not a search has seen it."""
    before = read_current(Layout(str(index))).segments
    work(index)
    assert read_current(Layout(str(index))).segments == before
    flipped(file_of(index))
    work(index)
    assert read_current(Layout(str(index))).segments != before


def test_an_index_of_a_format_to_come_is_named_as_such(index: Path) -> None:
    """Whatever its manifest has that this version does not know."""
    layout = Layout(str(index))
    data = b'{"format": %d, "parts": {}}' % (FORMAT + 1)
    (layout.snapshots / "v2-abcdef.json").write_bytes(data)
    layout.current.write_text(f"v2-abcdef {hashlib.sha256(data).hexdigest()}")
    assert retriever(index).reasons == (
        f"the index has format {FORMAT + 1}, this version reads {FORMAT}; run: python -m assay ingest",
    )


def test_an_index_of_the_format_before_says_what_mends_it(index: Path) -> None:
    layout = Layout(str(index))
    old = made_old(layout)
    r = retriever(index)
    assert r.index_version is None
    (reason,) = r.reasons
    assert reason == f"the index has format {FORMAT - 1}, this version reads {FORMAT}; run: python -m assay ingest"
    assert ingest(index.parent / "a", index).count("unchanged") == len(FILES), "the store is as it was"
    assert r.reload() and r.reasons == ()
    assert read_current(layout).number == old.number + 1
    assert [m.id for m in newest(layout, 2)] == [read_current(layout).id, old.id], (
        "it may be served still, and has the legs"
    )
    assert sorted(found(search(r, ALL))) == sorted(FILES)
