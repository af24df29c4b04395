"""An index in an object store: a real S3 endpoint on loopback, the real index, two machines' mirrors."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from blake3 import blake3
from moto.server import ThreadedMotoServer
from obstore.store import from_url

from assay.config import IndexConfig, RetrieverConfig
from assay.errors import IndexFault, SetupError
from assay.index import files, mirror, remote, snapshot
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from assay.index.segment import Blake3File, Sha256File
from assay.retrieve import LocalRetriever
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, flipped, found, made_old, search, write
from tests.wiring.test_durability import CHANGE, NEW, OLD, holds, killed_at

LION = {f"doc{i}.md": f"# Doc {i}\n\nLion number {i} sleeps.\n" for i in range(5)}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def uri(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setattr(files, "MIRRORS", tmp_path / "machine-a")
    bucket = f"b{time.time_ns()}"
    obstore.put(from_url(endpoint, client_options={"allow_http": True}), bucket, b"")
    return f"s3://{bucket}/indexes/team one"


def on(machine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "MIRRORS", tmp_path / machine)


def ingest(folder: Path, uri: str) -> str:
    encoder = WordEncoder()
    run = Ingestion(Layout(uri), "docs", find_sources([folder], folder), encoder, encoder.embed_now, DirectParser())
    return run.run().index_version


def retriever(uri: str) -> LocalRetriever:
    return LocalRetriever(IndexConfig(uri=uri), RetrieverConfig(), WordEncoder())


def objects(uri: str) -> dict[str, int]:
    store = remote.Remote(uri)._store
    return {meta["path"]: meta["size"] for batch in store.list() for meta in batch}


def test_another_machine_finds_what_was_published(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = ingest(write(tmp_path / "a", LION), uri)
    on("machine-b", monkeypatch, tmp_path)
    r = retriever(uri)
    assert r.index_version == version and r.reasons == ()
    assert set(found(search(r, "lion"))) == set(LION)
    assert "writer.lock" not in objects(uri)


def test_a_retriever_takes_up_the_next_snapshot_and_fetches_only_what_is_new(uri: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", LION)
    ingest(folder, uri)
    r = retriever(uri)
    assert not r.reload(), "nothing new"
    before = objects(uri)
    version = ingest(write(folder, {"zebra.md": "# Zebra\n\nA zebra runs.\n"}), uri)
    assert r.reload() and r.index_version == version
    assert found(search(r, "zebra"))[0] == "zebra.md"
    assert all(objects(uri)[name] == size for name, size in before.items() if name.startswith("blobs/")), (
        "nothing in the store was written over"
    )


def test_a_second_ingest_uploads_nothing(uri: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", LION)
    version = ingest(folder, uri)
    before = objects(uri)
    assert ingest(folder, uri) == version and objects(uri) == before


def test_a_writer_on_another_machine_goes_on_from_what_was_published(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(write(tmp_path / "a", LION), uri)
    on("machine-b", monkeypatch, tmp_path)
    ingest(write(tmp_path / "b", {"zebra.md": "# Zebra\n\nA zebra runs.\n"}), uri)
    on("machine-a", monkeypatch, tmp_path)
    ingest(write(tmp_path / "c", {"okapi.md": "# Okapi\n\nAn okapi hides.\n"}), uri)
    r = retriever(uri)
    assert set(found(search(r, "lion zebra okapi"))) == {*LION, "zebra.md", "okapi.md"}
    ids = [hit.chunk.id for hit in search(r, "lion zebra okapi").hits]
    assert len(ids) == len(set(ids))


def test_what_was_stored_and_not_published_is_not_mixed_with_what_others_published(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(write(tmp_path / "a", LION), uri)
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "publish", lambda *_, **__: pytest.fail("cut off before publishing"))
        with pytest.raises(BaseException, match="cut off"):
            ingest(write(tmp_path / "b", {"lost.md": "# Lost\n\nA quagga is gone.\n"}), uri)
    on("machine-b", monkeypatch, tmp_path)
    ingest(write(tmp_path / "c", {"zebra.md": "# Zebra\n\nA zebra runs.\n"}), uri)
    on("machine-a", monkeypatch, tmp_path)
    ingest(write(tmp_path / "d", {"okapi.md": "# Okapi\n\nAn okapi hides.\n"}), uri)
    assert set(found(search(retriever(uri), "lion zebra okapi quagga"))) == {*LION, "zebra.md", "okapi.md"}


def test_what_was_stored_is_published_by_the_next_run_on_the_same_machine(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(remote.Remote, "publish", lambda *_: (_ for _ in ()).throw(IndexFault("cannot be reached")))
        with pytest.raises(IndexFault, match="cannot be reached"):
            ingest(write(tmp_path / "a", LION), uri)
    assert retriever(uri).index_version is None, "nothing is served that is not published"
    encoder = WordEncoder()
    sources = find_sources([tmp_path / "a"], tmp_path / "a")
    run = Ingestion(Layout(uri), "docs", sources, encoder, encoder.embed_now, DirectParser())
    assert run.run().count("unchanged") == len(LION)
    assert set(found(search(retriever(uri), "lion"))) == set(LION)


@pytest.mark.parametrize(
    ("step", "published"),
    [
        ("after ObjectStoreMethods.put blobs", False),
        ("before ObjectStoreMethods.put snapshots", False),
        ("before ObjectStoreMethods.put CURRENT", False),
        ("after ObjectStoreMethods.put CURRENT", True),
    ],
)
def test_a_publishing_that_was_killed_is_there_whole_or_not_at_all_and_the_next_run_goes_on(
    uri: str, step: str, published: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SIGKILL: with some files sent, with all of them and no manifest, and on either side of the write that counts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    machine = ".cache/assay/indexes"  # of that process, as it finds it in its home
    on(machine, monkeypatch, tmp_path)
    folder = write(tmp_path / "a", OLD)
    ingest(folder, uri)
    served, there = retriever(uri), objects(uri)
    taken = killed_at(write(folder, CHANGE), uri, 0, step)
    assert taken[-1] == step
    assert ("CURRENT" in step) == any(name.startswith("states/") for name in objects(uri).keys() - there.keys())
    assert any(name.startswith("blobs/") for name in objects(uri).keys() - there.keys()), "it died in the upload"

    now = NEW if published else OLD
    served.reload()
    holds(served, now)
    on("machine-b", monkeypatch, tmp_path)
    holds(retriever(uri), now)

    remote.Remote(uri)._store.delete("writer.lock")  # as a minute later
    on(machine, monkeypatch, tmp_path)
    ingest(folder, uri)
    served.reload()
    holds(served, NEW)
    on("machine-b", monkeypatch, tmp_path)
    holds(retriever(uri), NEW)


def test_a_second_writer_is_refused_at_once(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mirror.writing(Layout(uri)):
        on("machine-b", monkeypatch, tmp_path)
        begun = time.monotonic()
        with pytest.raises(IndexFault, match="another process is writing"):
            ingest(write(tmp_path / "a", LION), uri)
        assert time.monotonic() - begun < 5
    ingest(tmp_path / "a", uri)


def test_the_lease_of_a_killed_writer_runs_out(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; from assay.index import mirror; from assay.index.files import Layout; import sys\n"
    code += "with mirror.writing(Layout(sys.argv[1])): os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", code, uri], env={**os.environ, "HOME": str(tmp_path)}, check=False)
    assert killed.returncode == -9 and "writer.lock" in objects(uri)
    folder = write(tmp_path / "a", LION)
    with pytest.raises(IndexFault, match="after a killed one"):
        ingest(folder, uri)
    monkeypatch.setattr(remote, "_LEASE_S", 0.0)
    ingest(folder, uri)
    assert set(found(search(retriever(uri), "lion"))) == set(LION)


def test_a_writer_that_was_thought_dead_writes_over_nothing(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease has run out, somebody else has published, and it publishes all the same."""
    encoder = WordEncoder()
    layout = Layout(uri)
    folder = write(tmp_path / "a", LION)
    slow = Ingestion(layout, "docs", find_sources([folder], folder), encoder, encoder.embed_now, DirectParser())

    def overtaken(*_: object) -> None:
        slow_fill(*_)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(files, "MIRRORS", tmp_path / "machine-b")
            patch.setattr(remote, "_LEASE_S", 0.0)
            ingest(write(tmp_path / "b", {"zebra.md": "# Zebra\n\nA zebra runs.\n"}), uri)

    slow_fill = slow._fill
    monkeypatch.setattr(slow, "_fill", overtaken)
    with pytest.raises(IndexFault, match="has published to this index meanwhile"):
        slow.run()
    on("machine-c", monkeypatch, tmp_path)
    assert found(search(retriever(uri), "zebra lion")) == ["zebra.md"]
    on("machine-a", monkeypatch, tmp_path)
    ingest(folder, uri)
    assert set(found(search(retriever(uri), "lion zebra"))) == {*LION, "zebra.md"}, "run again, nothing is lost"


def test_an_unreachable_store_is_served_on_from_the_mirror(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(write(tmp_path / "a", LION), uri)
    r = retriever(uri)
    with monkeypatch.context() as patch:
        patch.setattr(remote.Remote, "current", lambda _: (_ for _ in ()).throw(IndexFault("cannot be reached")))
        assert r.reload() and r.reasons == ("cannot be reached",)
        assert len(found(search(r, "lion"))) == 5
        again = retriever(uri)
        assert again.reasons == ("cannot be reached",) and len(found(search(again, "lion"))) == 5
    assert r.reload() and r.reasons == ()


def test_a_dead_endpoint_is_an_error_in_words(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(IndexFault, match="cannot be reached") as caught:
        ingest(write(tmp_path / "a", LION), uri)
    assert "127.0.0.1" not in str(caught.value)
    assert "cannot be reached" in " ".join(retriever(uri).reasons)


def test_a_bucket_that_is_not_there_is_named_as_such(uri: str, tmp_path: Path) -> None:
    with pytest.raises(IndexFault, match="no such bucket"):
        ingest(write(tmp_path / "a", LION), uri.replace("s3://b", "s3://nob"))


def test_a_uri_of_another_kind_names_those_that_can_be() -> None:
    with pytest.raises(SetupError) as caught:
        Layout("ftp://host/index")
    assert "s3://" in caught.value.allowed


@pytest.mark.parametrize(
    ("uri", "form"), [("s3://", "s3://BUCKET/PATH"), ("gs:///a", "gs://BUCKET/PATH"), ("file://", "file:///FOLDER")]
)
def test_a_uri_that_names_nothing_is_refused_by_name(uri: str, form: str) -> None:
    with pytest.raises(SetupError, match=f"'{uri}' names no .*{form}"):
        Layout(uri)


def test_damage_in_the_mirror_heals_by_itself(uri: str, tmp_path: Path) -> None:
    ingest(write(tmp_path / "a", LION), uri)
    retriever(uri)
    layout = Layout(uri, reading=True)
    flipped(next(layout.segments.glob("*/dense.vectors.npy")))
    r = retriever(uri)
    assert r.reasons and "dense.vectors.npy" in r.reasons[0]
    assert r.reload() and r.reasons == ()


def test_torn_passages_in_the_mirror_heal_by_themselves(uri: str, tmp_path: Path) -> None:
    ingest(write(tmp_path / "a", LION), uri)
    r = retriever(uri)
    flipped(next(Layout(uri, reading=True).segments.glob("*/passages.msgpack")))
    assert len(found(search(r, "lion"))) == 5
    assert "passages.msgpack" in r.reasons[0]
    assert r.reload() and r.reasons == ()
    assert len(found(search(r, "lion"))) == 5 and r.reasons == ()


def test_every_file_lies_under_its_blake3(uri: str, tmp_path: Path) -> None:
    ingest(write(tmp_path / "a", LION), uri)
    store, blobs = remote.Remote(uri)._store, [name for name in objects(uri) if name.startswith("blobs/")]
    assert len(blobs) > 5
    assert blobs == [f"blobs/{blake3(bytes(store.get(name).bytes())).hexdigest()}" for name in blobs]


def publish_old(uri: str) -> snapshot.Manifest:
    """Put what this machine has published in place of itself, as the format before would have."""
    layout, store = Layout(uri), remote.Remote(uri)._store
    old = made_old(layout)
    store.delete([name for name in objects(uri) if name.startswith("blobs/")])
    for name, entry in mirror.files_of(old).items():
        assert isinstance(entry, Sha256File)
        store.put(f"blobs/{entry.sha256}", layout.root / name)
    store.put(f"snapshots/{old.id}.json", layout.snapshots / f"{old.id}.json")
    store.put(f"states/{old.id}.json", layout.state)
    store.put("CURRENT", layout.current.read_bytes())
    (layout.root / "BASE").write_bytes(layout.current.read_bytes())
    return old


@pytest.mark.parametrize("machine", ["machine-a", "machine-b"])
def test_an_index_of_the_format_before_is_built_anew_by_any_writer(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    folder = write(tmp_path / "a", LION)
    ingest(folder, uri)
    old, before = publish_old(uri), objects(uri)
    on(machine, monkeypatch, tmp_path)
    r = retriever(uri)
    assert r.index_version is None and f"has format {old.format}" in r.reasons[0]
    ingest(folder, uri)
    assert r.reload() and r.reasons == ()
    assert len(found(search(r, "lion"))) == 5
    now = snapshot.read_current(Layout(uri))
    assert all(isinstance(entry, Blake3File) for entry in mirror.files_of(now).values())
    assert before.keys() <= objects(uri).keys(), "retrievers of the version before are on it still"


def test_damage_in_the_store_of_the_format_before_is_refused_by_name(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "a", LION)
    ingest(folder, uri)
    old, store = publish_old(uri), remote.Remote(uri)._store
    for entry in old.files.values():
        assert isinstance(entry, Sha256File)
        store.put(f"blobs/{entry.sha256}", b"\0" * entry.bytes)
    on("machine-b", monkeypatch, tmp_path)
    with pytest.raises(IndexFault, match="checksum differs"):
        ingest(folder, uri)


def test_damage_in_the_store_is_refused_by_name(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest(write(tmp_path / "a", LION), uri)
    store = remote.Remote(uri)._store
    for name, size in objects(uri).items():
        if name.startswith("blobs/"):
            store.put(name, b"\0" * size)
    on("machine-b", monkeypatch, tmp_path)
    r = retriever(uri)
    assert r.index_version is None and "checksum differs" in r.reasons[0]


def test_what_no_kept_snapshot_needs_is_deleted_after_its_grace(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "a", LION)
    for i in range(4):
        ingest(write(folder, {"doc0.md": f"# Doc 0\n\nLion number zero, version {i}.\n"}), uri)
    young = objects(uri)
    assert sum(name.startswith("snapshots/") for name in young) == 4, "in their grace"
    monkeypatch.setattr(remote, "_GRACE_S", -5.0)
    ingest(write(folder, {"doc0.md": "# Doc 0\n\nLion number zero, the last.\n"}), uri)
    left = objects(uri)
    assert sum(name.startswith("snapshots/") for name in left) == 2
    assert len(left) < len(young)
    on("machine-b", monkeypatch, tmp_path)
    assert len(found(search(retriever(uri), "lion"))) == 5


def test_snapshots_that_were_never_published_are_not_kept_in_place_of_those_that_are_served(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of them a writer has left, and however high their numbers."""
    folder = write(tmp_path / "a", LION)
    ingest(folder, uri)
    with monkeypatch.context() as patch:
        patch.setattr(remote.Remote, "publish", lambda *_: (_ for _ in ()).throw(IndexFault("cannot be reached")))
        for i in range(3):
            with pytest.raises(IndexFault, match="cannot be reached"):
                ingest(write(folder, {"doc0.md": f"# Doc 0\n\nLion number zero, version {i}.\n"}), uri)
    on("machine-b", monkeypatch, tmp_path)
    ingest(write(tmp_path / "b", {"zebra.md": "# Zebra\n\nA zebra runs.\n"}), uri)
    served = Layout(uri).remote
    assert served is not None
    before = served.current()
    on("machine-a", monkeypatch, tmp_path)
    monkeypatch.setattr(remote, "_GRACE_S", -5.0)
    monkeypatch.setattr(mirror, "_GRACE_S", -5.0)
    ingest(write(tmp_path / "c", {"okapi.md": "# Okapi\n\nAn okapi hides.\n"}), uri)
    assert f"snapshots/{before.split()[0]}.json" in objects(uri), "retrievers may be on it still"  # type: ignore[union-attr]
    assert set(found(search(retriever(uri), "lion zebra okapi"))) == {*LION, "zebra.md", "okapi.md"}
    on("machine-c", monkeypatch, tmp_path)
    assert set(found(search(retriever(uri), "lion zebra okapi"))) == {*LION, "zebra.md", "okapi.md"}


def test_a_manifest_that_was_never_in_force_is_swept_for_none(tmp_path: Path) -> None:
    index = Layout(str(tmp_path / "index"))
    folder = write(tmp_path / "a", LION)
    ingest(folder, str(index.root))
    first = snapshot.read_current(index)
    stopped = first.model_copy(update={"number": first.number + 1, "chunks": 4})
    (index.snapshots / f"{stopped.id}.json").write_bytes(snapshot._bytes(stopped))
    ingest(write(folder, {"doc0.md": "# Doc 0\n\nAnother lion.\n"}), str(index.root))
    assert [m.number for m in snapshot.newest(index, 2)] == [first.number + 1, first.number]
    assert {m.id for m in snapshot.newest(index, 2)} == {snapshot.read_current(index).id, first.id}
