"""The index from outside: idempotence, replacement, interrupts, torn files, real files, and what the commands say."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from assay.documents.names import doc_id_of
from assay.errors import IndexFault, SetupError
from assay.index import segment, sparse
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from assay.index.mirror import compact
from assay.index.parse.parser import Limits, Parser
from assay.index.snapshot import read_current
from assay.index.store import Store, read_state
from assay.types import SearchQuery
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, found, ingest, retriever, search, text_of, write

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
MANY = {f"doc{i:02}.md": f"# Doc {i}\n\nThe marker number {i} is word{i}.\n" for i in range(12)}


def uris(index: Path, query: str, **rest: object) -> list[str]:
    return found(search(retriever(index), SearchQuery((query,), top_k=50, **rest)))  # type: ignore[arg-type]


# ---- idempotence and replacement ------------------------------------------------------------------------------------


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    first, encoder = ingest(folder, index), WordEncoder()
    second = ingest(folder, index, encoder=encoder)
    assert (first.count("ingested"), second.count("unchanged")) == (12, 12)
    assert encoder.calls == []
    assert first.index_version == second.index_version


def test_a_changed_document_replaces_its_old_text(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    first = ingest(folder, index)
    r = retriever(index)
    old = search(r, "word3").hits[0].chunk
    write(folder, {"doc03.md": "# Doc 3\n\nNow it says zebra.\n"})
    second = ingest(folder, index)
    assert (second.count("replaced"), second.count("unchanged")) == (1, 11)
    assert first.index_version != second.index_version
    assert uris(index, "word3", legs=("sparse",)) == []
    new = search(retriever(index), "zebra").hits[0].chunk
    assert new.doc_id == old.doc_id
    assert new.id != old.id
    # A retriever that has not reloaded still serves the old snapshot, whole.
    assert search(r, "word3").hits[0].chunk == old
    assert old.text in text_of(r, old.doc_id)
    assert r.reload()
    assert found(search(r, SearchQuery(("zebra",), legs=("sparse",)))) == ["doc03.md"]


def test_the_same_file_in_two_buckets_is_two_documents(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", {"x.md": "One zebra."}), tmp_path / "index"
    ingest(folder, index, "one")
    ingest(folder, index, "two")
    hits = search(retriever(index), "zebra").hits
    assert sorted(hit.chunk.bucket for hit in hits) == ["one", "two"]
    assert len({hit.chunk.doc_id for hit in hits}) == 2


def test_a_document_that_cannot_be_read_any_more_stays(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", {"x.txt": "One zebra."}), tmp_path / "index"
    ingest(folder, index)
    (folder / "x.txt").write_bytes("Это русский текст".encode("koi8-r"))
    report = ingest(folder, index)
    assert [(row.outcome, row.reason) for row in report.rows] == [("failed", "mojibake")]
    assert uris(index, "zebra") == ["x.txt"]


def test_several_segments_and_tombstones_answer_as_one(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index, rebuild_rows=0)
    write(folder, {"doc03.md": "# Doc 3\n\nThe marker is a zebra.\n"})
    write(tmp_path / "b", {"secret.md": "The marker is secret."})
    ingest(folder, index, rebuild_rows=0)
    ingest(tmp_path / "b", index, "private", rebuild_rows=0)
    assert len(read_current(Layout(str(index))).segments) == 3
    r = retriever(index)
    hits = search(r, SearchQuery(("marker", "word3", "secret"), top_k=50)).hits
    assert len(hits) == len({hit.chunk.id for hit in hits}) == 13
    assert uris(index, "word3", legs=("sparse",)) == []
    for leg in ("dense", "sparse"):
        only = SearchQuery(("marker", "secret", "zebra"), buckets=("private",), legs=(leg,), top_k=50)
        assert found(search(r, only)) == ["secret.md"]
    for i in range(9):
        ingest(write(folder, {f"more{i}.md": f"The marker more{i}."}), index, rebuild_rows=0)
        compact(Layout(str(index)))
        assert len(read_current(Layout(str(index))).segments) < 4
    assert len(uris(index, "marker")) == 22


def test_a_torn_segment_is_left_out_and_the_rest_serves(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index, rebuild_rows=0)
    first = segment_of(index)
    ingest(write(folder, {"new.md": "The marker is a zebra."}), index, rebuild_rows=0)
    flip(first / "dense.vectors.npy")
    r = retriever(index)
    result = search(r, SearchQuery(("zebra",), legs=("dense",), top_k=50))
    assert found(result) == ["new.md"]
    assert [d.fallback for d in result.degraded] == ["the rest of the index"]
    assert found(search(r, SearchQuery(("word3",), legs=("sparse",)))) == ["doc03.md"]


# ---- interrupts -----------------------------------------------------------------------------------------------------


def big(folder: Path) -> Path:
    """Documents of several batches each."""
    return write(
        folder, {f"{i}.md": f"# D{i}\n\n" + " ".join(f"w{i}x{j} fill." for j in range(9000)) for i in range(6)}
    )


KILLED = """
import os, sys
from pathlib import Path
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from tests.wiring.index.builders import DirectParser
from tests.unit.index.fakes import WordEncoder
folder, index, calls = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
encoder = WordEncoder()
def embed(texts):
    if len(encoder.calls) == calls:
        os._exit(9)
    return encoder.embed_now(texts)
Ingestion(Layout(index), "docs", find_sources([folder], folder), encoder, embed, DirectParser()).run()
"""


@pytest.mark.parametrize("calls", [0, 5, 9])
def test_a_killed_run_leaves_the_old_snapshot_and_goes_on(tmp_path: Path, calls: int) -> None:
    index = tmp_path / "index"
    before = ingest(write(tmp_path / "a", {"old.md": "The old zebra."}), index)
    folder = big(tmp_path / "b")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(index), str(calls)], cwd=ROOT, check=False)
    assert killed.returncode == 9
    assert retriever(index).index_version == before.index_version
    assert uris(index, "zebra") == ["old.md"]
    encoder = WordEncoder()
    after = ingest(folder, index, encoder=encoder)
    assert after.count("ingested") + after.count("unchanged") == 6
    assert (after.count("unchanged") > 0) == (calls > 4), "what was stored before the kill is not embedded again"
    for i in range(6):
        assert uris(index, f"w{i}x8999", legs=("sparse",)) == [f"{i}.md"]
    assert uris(index, "zebra")[0] == "old.md"
    assert ingest(folder, index).count("unchanged") == 6


def test_a_batch_that_was_cut_off_between_the_two_datasets_is_undone(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index)
    chunks = lance.dataset(str(index / "chunks.lance"))
    torn = chunks.to_table().slice(0, 1).set_column(0, "id", pa.array([999], pa.int64()))
    lance.write_dataset(torn, chunks.uri, mode="append")
    write(folder, {"new.md": "A new zebra."})
    ingest(folder, index)
    assert 999 not in lance.dataset(str(index / "chunks.lance")).to_table(columns=["id"])["id"].to_pylist()
    hits = search(retriever(index), SearchQuery(("marker",), top_k=50)).hits
    assert len(hits) == 13


def test_a_second_writer_is_refused_at_once(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    with Layout(str(index)).writer(), pytest.raises(IndexFault, match="another process is writing"):
        ingest(folder, index)


def test_another_embedder_is_refused(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index)
    with pytest.raises(IndexFault, match="'words'"):
        ingest(folder, index, encoder=WordEncoder("others"))


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "x" * 101])
def test_odd_buckets_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SetupError):
        ingest(write(tmp_path / "a", MANY), tmp_path / "index", name)


def test_search_during_ingestion_sees_old_or_new_and_never_fails(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index)
    r, stop, seen, faults = retriever(index), threading.Event(), dict[str, set[int]](), []

    def reader() -> None:
        while not stop.is_set():
            r.reload()
            result = search(r, SearchQuery(("marker",), top_k=50))
            seen.setdefault(result.index_version, set()).add(len(result.hits))
            if result.degraded or r.reasons:
                faults.append((result, r.reasons))

    thread = threading.Thread(target=reader)
    thread.start()
    first = read_current(Layout(str(index))).id
    versions = [ingest(write(folder, {f"more{i}.md": f"A marker more{i}."}), index).index_version for i in range(4)]
    deadline = time.monotonic() + 20
    while versions[-1] not in seen and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    thread.join()
    assert faults == []
    assert {first, versions[-1]} <= set(seen)
    whole = {version: {12 + i} for i, version in enumerate([first, *versions])}
    assert seen.items() <= whole.items(), "each answer is of one snapshot, whole"


# ---- torn files -----------------------------------------------------------------------------------------------------


def segment_of(index: Path) -> Path:
    return index / "segments" / read_current(Layout(str(index))).segments[0].id


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
@pytest.mark.parametrize(
    ("file", "torn", "whole"), [("dense.vectors.npy", "dense", "sparse"), ("sparse.values.npy", "sparse", "dense")]
)
def test_a_torn_leg_is_named_and_the_other_serves(
    tmp_path: Path, harm: object, file: str, torn: str, whole: str
) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index)
    harm(segment_of(index) / file)  # type: ignore[operator]
    r = retriever(index)
    assert len(r.reasons) == 1
    assert file in r.reasons[0]
    assert str(tmp_path) not in r.reasons[0]
    result = search(r, "word3")
    assert found(result)[0] == "doc03.md"
    assert result.explain.methods[torn] == "failed"
    assert [d.fallback for d in result.degraded] == [f"the {whole} leg alone"]
    with Parser() as parser:
        sources, encoder = find_sources([folder], folder), WordEncoder()
        Ingestion(Layout(str(index)), "docs", sources, encoder, encoder.embed_now, parser).run(rebuild=True)
    assert encoder.calls == [], "the legs are rebuilt from the store, without the embedder"
    assert r.reload()
    assert r.reasons == ()


def test_swapped_files_of_two_segments_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    ingest(write(tmp_path / "a", MANY), one)
    ingest(write(tmp_path / "b", {k: v.replace("word", "other") for k, v in MANY.items()}), two)
    shutil.copy(segment_of(two) / "dense.vectors.npy", segment_of(one) / "dense.vectors.npy")
    assert "dense.vectors.npy" in retriever(one).reasons[0]


def test_torn_ids_leave_nothing_to_serve_and_say_so(tmp_path: Path) -> None:
    index = tmp_path / "index"
    ingest(write(tmp_path / "a", MANY), index)
    flip(segment_of(index) / "ids.npy")
    r = retriever(index)
    assert "ids.npy" in r.reasons[0]
    with pytest.raises(Exception, match="no leg"):
        search(r, "word3")


def test_a_torn_manifest_is_refused_and_the_old_snapshot_serves_on(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index)
    r = retriever(index)
    ingest(write(folder, {"new.md": "A new zebra."}), index)
    flip(index / "snapshots" / f"{read_current(Layout(str(index))).id}.json")
    assert not r.reload()
    assert "manifest" in r.reasons[0]
    assert found(search(r, "word3"))[0] == "doc03.md"
    assert retriever(index).index_version is None
    (index / "CURRENT").write_text("nonsense")
    assert "CURRENT is damaged" in retriever(index).reasons[0]
    ingest(folder, index)
    assert r.reload()
    assert r.reasons == ()
    assert found(search(r, "zebra"))[0] == "new.md"
    assert int(str(r.index_version).split("-")[0][1:]) == 3, "a number is never used twice"


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index)
    (index / "state.json").write_text("{")
    with pytest.raises(IndexFault, match=r"state\.json is damaged"):
        ingest(folder, index)
    assert uris(index, "word3")[0] == "doc03.md"


@pytest.mark.parametrize(("key", "value"), [("next_id", 1), ("dim", 5), ("chunks", "x"), ("chunks", 99)])
def test_a_state_that_cannot_be_true_is_refused(tmp_path: Path, key: str, value: object) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index)
    state = json.loads((index / "state.json").read_text())
    (index / "state.json").write_text(json.dumps({**state, key: value}))
    with pytest.raises(IndexFault, match="put back a copy"):
        ingest(folder, index)
    assert uris(index, "word3")[0] == "doc03.md"


def test_a_lost_state_does_not_cost_the_store(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index)
    (index / "state.json").unlink()
    with pytest.raises(IndexFault, match=r"state\.json is missing; put back"):
        ingest(write(tmp_path / "b", {"q.md": "Only this."}), index)
    (index / "CURRENT").unlink()
    with pytest.raises(IndexFault, match=r"state\.json is missing"):
        ingest(folder, index)
    assert lance.dataset(str(index / "chunks.lance")).count_rows() == 12


@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
@pytest.mark.parametrize("dataset", ["chunks.lance", "documents.lance"])
@pytest.mark.parametrize("part", ["data", "_versions", "_deletions"])
def test_a_damaged_store_is_refused_by_name(tmp_path: Path, harm: object, dataset: str, part: str) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index)
    ingest(write(folder, {"doc03.md": "# Doc 3\n\nNow it says zebra.\n"}), index)
    named = sorted(n for n in read_current(Layout(str(index))).files if n.startswith(f"{dataset}/{part}/"))
    before = search(retriever(index), "zebra").hits
    old, path = retriever(index), index / named[0]  # which has read nothing yet but what it opens with
    data = path.read_bytes()
    harm(path)  # type: ignore[operator]
    r = retriever(index)
    assert r.index_version is None
    assert path.name in r.reasons[0]
    assert str(tmp_path) not in r.reasons[0]
    assert not r.reload()
    with pytest.raises(IndexFault, match="put back a copy"):
        ingest(write(folder, {"new.md": "A new zebra."}), index)
    try:
        after = search(old, "zebra").hits  # it checked the bytes when it opened; a fault has its name all the same
    except IndexFault:
        after = before
    assert after == before
    path.write_bytes(data)
    assert r.reload()
    assert r.reasons == ()
    assert found(search(r, "zebra"))[0] == "doc03.md"
    ingest(folder, index)
    assert "new.md" in uris(index, "zebra")


def test_rebuilding_does_not_make_a_damaged_store_right(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index)
    flip(next((index / "documents.lance" / "data").iterdir()))
    encoder, sources = WordEncoder(), find_sources([folder], folder)
    run = Ingestion(Layout(str(index)), "docs", sources, encoder, encoder.embed_now, DirectParser())
    with pytest.raises(IndexFault, match="put back a copy"):
        run.run(rebuild=True)


@pytest.mark.parametrize("rows", [0, 1000])
@pytest.mark.parametrize("file", ["dense.vectors.npy", "sparse.values.npy", "ids.npy"])
def test_a_plain_run_mends_torn_legs_and_they_are_taken_up(tmp_path: Path, file: str, rows: int) -> None:
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    ingest(folder, index, rebuild_rows=0)
    first = segment_of(index)
    ingest(write(folder, {"new.md": "The marker is a zebra."}), index, rebuild_rows=0)
    flip(first / file)
    r, encoder = retriever(index), WordEncoder()
    assert "run: python -m assay ingest" in r.reasons[0]
    assert not r.reload(), "nothing changed"
    assert ingest(folder, index, encoder=encoder, rebuild_rows=rows).count("unchanged") == 13
    assert encoder.calls == []
    assert r.reload()
    assert r.reasons == ()
    assert len(search(r, SearchQuery(("marker",), top_k=50)).hits) == 13
    assert not r.reload()


def test_files_that_are_put_back_are_taken_up(tmp_path: Path) -> None:
    index = tmp_path / "index"
    ingest(write(tmp_path / "a", MANY), index)
    path = segment_of(index) / "dense.vectors.npy"
    data = path.read_bytes()
    truncate(path)
    r = retriever(index)
    assert len(r.reasons) == 1
    path.write_bytes(data)
    assert r.reload()
    assert r.reasons == ()


def test_a_retriever_of_the_last_snapshot_outlives_the_next(tmp_path: Path) -> None:
    """However old the last one is: its grace is not counted from when it was made."""
    folder, index = write(tmp_path / "a", MANY), tmp_path / "index"
    for i in range(3):
        ingest(write(folder, {"doc03.md": f"# Doc 3\n\nNow it says zebra {i}.\n"}), index)
    r, layout, encoder = retriever(index), Layout(str(index)), WordEncoder()
    v1 = read_current(layout)
    ingest(write(folder, {name: text.replace("marker", "lion") for name, text in MANY.items()}), index)
    v2 = read_current(layout)
    with layout.writer():
        store = Store(layout, encoder.name, encoder.checksum, encoder.dim)
        store.forget_versions(
            {v.chunks_version for v in (v1, v2)}, {v.documents_version for v in (v1, v2)}, older_than_s=-1
        )
    hit = search(r, "zebra").hits[0]
    assert hit.chunk.text == "Now it says zebra 2."
    assert "zebra" in text_of(r, hit.chunk.doc_id)
    assert retriever(index).reasons == ()
    for uri, version in ((layout.chunks, v1.chunks_version), (layout.documents, v1.documents_version)):
        left = {v["version"] for v in lance.dataset(uri).versions()}
        assert version in left
        assert min(left) == version, "what neither snapshot needs is gone"


@pytest.mark.parametrize("rows", [4, 4000])
@pytest.mark.parametrize("file", ["dense.vectors.npy", "sparse.values.npy", "sparse.terms.json", "ids.npy"])
def test_a_full_disk_under_a_leg_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, file: str
) -> None:
    real = tempfile.mkdtemp

    def full(**where: Any) -> str:
        folder = real(**where)
        (Path(folder) / file).symlink_to("/dev/full")
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    terms = sparse.analyse([[f"some words and word{i}" for i in range(rows)]])
    content = segment.Content(terms, np.ones((rows, 64), np.float16))
    bm25 = segment.Bm25(k1=1.5, b=0.75, mean=3)
    with pytest.raises(OSError, match=r"No space left|requested and 0 written"):
        segment.build(Layout(str(tmp_path)), np.arange(rows), lambda _: content, "flat", lambda _: bm25)
    assert list((tmp_path / "segments").iterdir()) == []


# ---- limits, odd names, commands ----------------------------------------------------------------------------------


def test_a_file_beyond_the_limit_of_size_is_refused_and_the_rest_is_ingested(tmp_path: Path) -> None:
    """``tests/wiring/index/test_limits.py`` has those of time and memory."""
    files = {"deep.md": "> " * 300_000 + "x", "fine.md": "Fine zebra.", "long.txt": "y" * 3_000_000}
    folder = write(tmp_path / "a", {**files, "large.txt": "z" * 5_000_000})
    encoder = WordEncoder()
    with Parser(Limits(file_bytes=4_000_000)) as parser:
        sources = find_sources([folder], folder)
        report = Ingestion(Layout(str(tmp_path / "index")), "docs", sources, encoder, encoder.embed_now, parser).run()
    assert {row.uri: (row.outcome, row.reason) for row in report.rows} == {
        **dict.fromkeys(files, ("ingested", "")),
        "large.txt": ("failed", "too_large"),
    }


def test_hidden_files_and_links_out_of_the_folder_are_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {"x.md": "X", ".git/y.md": "Y", ".hidden.md": "Z", "sub/z.md": "Z"})
    (folder / "out.md").symlink_to(write(tmp_path / "b", {"secret.md": "S"}) / "secret.md")
    assert [s.uri for s in find_sources([folder, folder / "x.md"], folder)] == ["x.md", "sub/z.md"]
    assert find_sources([folder / "x.md"], tmp_path / "b")[0].uri.startswith("file:///")
    with pytest.raises(SetupError):
        find_sources([tmp_path / "nowhere"], folder)


# ---- the commands, with the real embedder ---------------------------------------------------------------------------


def assay(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    command = [sys.executable, "-m", "assay", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=280)


@pytest.mark.integration
def test_the_commands(tmp_path: Path) -> None:
    write(
        tmp_path / "docs",
        {"pump.md": "# Pumps\n\nThe pump B-120 moves cold water.", "bad.pdf": "%PDF-1.4", "a.xyz": "?"},
    )
    done = assay("ingest", "docs", "--json", "report.json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "1 ingested, 1 skipped, 1 failed" in done.stdout
    assert "malformed" in done.stdout
    assert done.stderr == "", "quiet where stderr is no terminal"
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert {row["uri"]: row["outcome"] for row in rows} == {
        "docs/a.xyz": "skipped",
        "docs/bad.pdf": "failed",
        "docs/pump.md": "ingested",
    }
    hit = assay("search", "which pump is for water", "--legs", "dense", cwd=tmp_path)
    assert hit.returncode == 0, hit.stderr
    assert "docs/pump.md, Pumps, characters 9-41" in hit.stdout
    write(
        tmp_path,
        {"serve.yaml": "applications: [{name: assay, args: {index: {uri: .assay/index}, retriever: {fusion: rrf}}}]"},
    )
    options = (
        "--config",
        "serve.yaml",
        "--doc-id",
        doc_id_of("default", "docs/pump.md"),
        "--context-chars",
        9,
        "--json",
    )
    as_json = json.loads(assay("search", "B-120", *options, cwd=tmp_path).stdout)
    (found,) = as_json["hits"]
    assert found["uri"] == "docs/pump.md" and len(found["text"]) <= 9 and found["score"] < 0.04, "by rank"
    for words, code in [
        (("search", "x", "--bucket", "nope"), 2),
        (("search", "x", "--filter", "{"), 2),
        (("search", "x", "--legs", "both"), 2),
        (("search", "x", "--rerank"), 2),
        (("search", "  "), 2),
        (("search", "x", "--index", "nowhere"), 1),
        (("ingest", "nowhere"), 2),
        (("ingest", "docs", "--index", "ftp://host/x"), 2),
    ]:
        refused = assay(*words, cwd=tmp_path)
        assert (refused.returncode, refused.stderr.count("\n")) == (code, 1), (words, refused.stderr)
    assert "default" in assay("search", "x", "--bucket", "nope", cwd=tmp_path).stderr
    field = json.dumps({"field": "titel", "op": "=", "value": "x"})
    unknown = assay("search", "x", "--filter", field, cwd=tmp_path)
    assert unknown.returncode == 2
    assert all(name in unknown.stderr for name in ("titel", "title", "page", "ingested_at"))


@pytest.mark.integration
def test_ctrl_c_keeps_what_is_stored(tmp_path: Path) -> None:
    big(tmp_path / "docs")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "assay", "ingest", "docs"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        deadline = time.monotonic() + 240
        while (state := read_state(Layout(str(tmp_path / ".assay/index")))) is None or state.next_id == 1:
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "ingested" in out
    assert "kept" in err
    assert not (tmp_path / ".assay/index/CURRENT").exists()


def test_direct_and_child_parsers_agree(tmp_path: Path) -> None:
    data = "# Head\n\nText é.\n\n| a |\n|---|\n| b |\n".encode()
    with Parser() as parser:
        assert parser.parse(data, "x.md") == DirectParser().parse(data, "x.md")
