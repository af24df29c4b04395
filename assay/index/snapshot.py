"""What retrievers serve: a version of the store and the segments over it, under one id, published by an atomic rename."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from math import log
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from assay.config import Legs
from assay.errors import IndexFault
from assay.index import segment
from assay.index.buckets import BucketSchema
from assay.index.chunk import passage_text
from assay.index.dense import Ids, kind_for
from assay.index.files import REPAIR, RESTORE, Layout, checksum, fault_of, in_threads, remove_others, write_atomic
from assay.index.passages import COLUMNS, Writer
from assay.index.segment import Blake3File, Bm25, Content, FileEntry, SegmentEntry, read_ids
from assay.index.sparse import Terms, analyse
from assay.index.store import Store

FORMAT = 5
# Legs of this few chunks are built anew in a moment: with every publishing, so that small collections are one segment.
REBUILD_ROWS = 2_000
_MERGED = 4  # segments of about one size (within four times) become one
_SMALL = 1_000  # rows of segments that count as of one size
_MOST_TOMBSTONES = 0.3
_MOST_DRIFT = 0.2  # of the mean length of texts, before all legs are built anew with the new one
_TEXTS = ("title", "heading", "text")
_GRACE_S = 3600.0  # a retriever may still be opening what the last snapshot named


class EmbedderEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    checksum: str
    dim: int


class _Format(BaseModel):
    """What is read of a manifest first, whatever else it has."""

    format: int


class Manifest(BaseModel):
    """A snapshot in words. ``id`` is the ``index_version`` of answers: its number, and the start of its own sha256."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    number: int
    created_at: str
    embedder: EmbedderEntry
    chunks_version: int
    documents_version: int
    chunks: int
    buckets: dict[str, BucketSchema]
    """The schemas that this snapshot's filters are compiled against."""
    files: dict[str, FileEntry]
    """Of the store, at these versions."""
    legs: Legs
    segments: tuple[SegmentEntry, ...]

    @cached_property
    def id(self) -> str:
        return f"v{self.number}-{_digest(self)[:6]}"


def publish(
    layout: Layout, store: Store, legs: Legs | None = None, *, rebuild: bool = False, rebuild_rows: int = REBUILD_ROWS
) -> Manifest:
    """Make the store's state what retrievers serve. Does nothing where it already is. Call it under the writer's lock.

    Up to ``rebuild_rows`` chunks the legs are built anew. Above, new chunks and those of torn segments get a segment of
    their own, and deleted ones stay in theirs as tombstones, until ``compact``. Other ``legs`` than the index has are taken
    where all is built anew; beside segments that stay, new ones are built as those were.
    All bytes in force are checked first. Raises ``IndexFault`` where the store's are not what was written: legs built
    from it would be wrong, and their checksums right.
    """
    current = _readable(layout)
    if current is not None:
        check_store(layout, current)
    whole = () if rebuild or current is None else _undamaged(layout, current.segments)
    if current is not None and not rebuild and whole == current.segments and _serves(current, store):
        return current
    live = np.sort(store.ids())
    held = [(entry, _alive(layout, entry, live)) for entry in (whole if len(live) > rebuild_rows else ())]
    kept = [entry for entry, ids in held if len(ids)]
    own = current.legs if current else _last_legs(layout)
    choice = own if kept else legs or own
    return _put_in_force(layout, store, current, choice, kept, live)


def compact(layout: Layout, store: Store, legs: Legs | None = None) -> Manifest | None:
    """Merge what has become many: segments of about one size, ones with many tombstones, and small files of the store;
    build all anew, where ``legs`` are to be others.

    Publishes a snapshot that finds the same, or none where there is nothing to do. Call it under the writer's lock.
    """
    current = _readable(layout)
    if current is None or not _serves(current, store):
        return current  # what was never published is not ours to publish
    check_store(layout, current)
    live = np.sort(store.ids())
    held = [(entry, len(_alive(layout, entry, live))) for entry in _undamaged(layout, current.segments)]
    choice = legs or current.legs
    kept = [] if choice != current.legs or _drifted(held) else _unmerged(held)
    tidied = store.tidy() or (current.chunks_version, current.documents_version) != (
        store.state.chunks,
        store.state.documents,
    )
    if not tidied and len(kept) == len(current.segments) and choice == current.legs:
        return current
    return _put_in_force(layout, store, current, choice, kept, live)


def _put_in_force(
    layout: Layout, store: Store, current: Manifest | None, legs: Legs, kept: list[SegmentEntry], live: Ids
) -> Manifest:
    """A snapshot of these segments, and one more of the chunks that none of them has."""
    held = [read_ids(layout, entry) for entry in kept]
    missing = np.setdiff1d(live, np.concatenate([np.zeros(0, np.int64), *held]))
    # One mean for all: scores of several segments are compared.
    mean = kept[0].bm25.mean if kept else None
    built = [_built(layout, store, missing, legs, mean)] if len(missing) else []
    manifest = Manifest(
        number=(current.number if current else _last_number(layout)) + 1,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        embedder=EmbedderEntry(name=store.state.embedder, checksum=store.state.checksum, dim=store.state.dim),
        chunks_version=store.state.chunks,
        documents_version=store.state.documents,
        chunks=len(live),
        buckets=dict(store.state.buckets),
        files=_files(store, current),
        legs=legs,
        segments=(*kept, *built),
    )
    data = _bytes(manifest)
    if (
        current is not None
    ):  # left by a writer that was stopped before it was in force: it would be swept for as one that was
        for path in layout.snapshots.glob("v*-*.json"):
            if _number(path) > current.number:
                path.unlink()
    write_atomic(layout.snapshots / f"{manifest.id}.json", data)
    write_atomic(layout.current, f"{manifest.id} {hashlib.sha256(data).hexdigest()}".encode())
    _sweep(layout, store)
    return manifest


def read_current(layout: Layout) -> Manifest:
    """The snapshot in force. Raises ``IndexFault`` where there is none, or where it is not what was written."""
    try:
        return read(layout, layout.current.read_text())
    except FileNotFoundError:
        missing = "lacks the manifest that CURRENT names" if layout.current.exists() else "has no published snapshot"
        raise IndexFault(f"the index {missing}; {REPAIR}") from None
    except (OSError, ValueError):
        raise IndexFault(f"CURRENT is damaged; {REPAIR}") from None


def read(layout: Layout, line: str, *, any_format: bool = False) -> Manifest:
    """The manifest on disk that a line of ``CURRENT`` names. Raises what ``parse`` raises, and ``OSError``."""
    return parse(line, lambda id: (layout.snapshots / f"{id}.json").read_bytes(), any_format=any_format)[0]


def parse(line: str, read: Callable[[str], bytes], *, any_format: bool = False) -> tuple[Manifest, bytes]:
    """The manifest that a line of ``CURRENT`` names, and its bytes; ``read`` gets them by id. ``any_format``: for whoever
    opens no segment of it. Raises ``ValueError`` for a line that is none, ``IndexFault`` for a manifest that is not what was
    written, and what ``read`` raises."""
    name, digest = line.split()
    data = read(name)
    if hashlib.sha256(data).hexdigest() != digest:
        raise IndexFault(f"the manifest snapshots/{name}.json has other bytes than were published; {REPAIR}")
    try:
        found = _Format.model_validate_json(data).format
        if found != FORMAT and not any_format:
            raise IndexFault(f"the index has format {found}, this version reads {FORMAT}; {REPAIR}")
        return Manifest.model_validate_json(data), data
    except ValidationError as e:
        raise IndexFault(
            f"the manifest snapshots/{name}.json is of another format ({e.error_count()} faults); {REPAIR}"
        ) from None


def check_versions(layout: Layout) -> None:
    """Checks the small files by which Lance reads all others, before a writer reads any: damage there can be a missing value,
    and would be taken for one. Raises ``IndexFault``."""
    if (current := _readable(layout)) is not None:
        _check(layout, {name: file for name, file in current.files.items() if "/_versions/" in name})


def check_store(layout: Layout, manifest: Manifest) -> None:
    """Reads every byte. Raises ``IndexFault`` for the first file that is not what was written."""
    _check(layout, manifest.files)


def _check(layout: Layout, files: Mapping[str, FileEntry]) -> None:
    faults = in_threads(lambda f: fault_of(layout.root / f[0], f[1].model_dump()), list(files.items()))
    for name, fault in zip(files, faults, strict=True):
        if fault:
            raise IndexFault(f"{name} {fault}; {RESTORE}")


def current_name(layout: Layout) -> str | None:
    """The line of ``CURRENT``: cheap to poll, different after every publishing. None where there is none."""
    try:
        return layout.current.read_text()
    except OSError:
        return None


def _readable(layout: Layout) -> Manifest | None:
    try:
        return read_current(layout)
    except IndexFault:
        return None  # whatever is wrong with it, publishing puts a whole one in its place


def _last_legs(layout: Layout) -> Legs:
    """Of the newest manifest that can be read: damage to ``CURRENT`` is no reason to build otherwise."""
    return next((manifest.legs for manifest in newest(layout, 1)), Legs())


def _last_number(layout: Layout) -> int:
    """Of the manifests on disk, where CURRENT cannot be read: a number is never used twice."""
    return max((_number(path) for path in layout.snapshots.glob("v*-*.json")), default=0)


def _number(manifest: Path) -> int:
    digits = manifest.stem[1:].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def _serves(manifest: Manifest, store: Store) -> bool:
    state = store.state
    same = state.holds_what(manifest.chunks_version, manifest.documents_version)
    return same and manifest.buckets == state.buckets


def _undamaged(layout: Layout, entries: tuple[SegmentEntry, ...]) -> tuple[SegmentEntry, ...]:
    """Those of which every byte is what was written; the others are built anew."""
    names = [(entry, name) for entry in entries for name in entry.files]
    faults = in_threads(lambda e: fault_of(layout.segments / e[0].id / e[1], e[0].files[e[1]].model_dump()), names)
    torn = {entry.id for (entry, _), fault in zip(names, faults, strict=True) if fault}
    return tuple(entry for entry in entries if entry.id not in torn)


def _alive(layout: Layout, entry: SegmentEntry, live: Ids) -> Ids:
    ids = read_ids(layout, entry)
    return ids[np.isin(ids, live, assume_unique=True)]


def _drifted(held: Sequence[tuple[SegmentEntry, int]]) -> bool:
    """Whether texts have become longer or shorter than the mean that the scores were computed with."""
    rows, terms = sum(entry.rows for entry, _ in held), sum(entry.terms for entry, _ in held)
    return rows > 0 and abs(terms / rows - held[0][0].bm25.mean) > _MOST_DRIFT * held[0][0].bm25.mean


def _unmerged(held: Sequence[tuple[SegmentEntry, int]]) -> list[SegmentEntry]:
    """The segments to keep: without those of which too much is dead, and the smallest sizes of which there are many.

    What is merged counts as one more of its size, and so takes others along where it makes that full.
    """
    kept = [(entry, alive) for entry, alive in held if alive > (1 - _MOST_TOMBSTONES) * entry.rows]
    merged = sum(alive for _, alive in held) - sum(alive for _, alive in kept)
    for tier in range(_tier(sum(alive for _, alive in held)) + 1):
        same = [pair for pair in kept if _tier(pair[1]) == tier]
        if len(same) + (merged > 0 and _tier(merged) == tier) >= _MERGED:
            merged += sum(alive for _, alive in same)
            kept = [pair for pair in kept if pair not in same]
    return [entry for entry, _ in kept]


def _tier(rows: int) -> int:
    return 0 if rows <= _SMALL else 1 + int(log(rows / _SMALL, _MERGED))


def _files(store: Store, current: Manifest | None) -> dict[str, FileEntry]:
    """Files that the last snapshot named keep its checksums: what happened to them since must not become right."""
    known = current.files if current else {}
    return {
        name: known.get(name) or Blake3File(bytes=path.stat().st_size, blake3=checksum(path))
        for name, path in store.files().items()
    }


def _built(layout: Layout, store: Store, ids: Ids, legs: Legs, mean: float | None) -> SegmentEntry:
    """A segment of some chunks. ``mean`` of the others' texts; of its own where there are none."""
    vectors = np.empty((len(ids), store.state.dim), np.float16)

    def read(folder: Path) -> Content:
        with Writer(folder) as writer:
            return Content(analyse(texts(writer)), vectors)

    def texts(writer: Writer) -> Iterator[list[str]]:
        for rows, part in store.rows(ids, COLUMNS):
            vectors[np.searchsorted(ids, rows["id"].to_numpy())] = part
            fields = {name: rows[name].to_pylist() for name in COLUMNS}
            writer.write(zip(*fields.values(), strict=True))
            yield [passage_text(*row) for row in zip(*(fields[n] for n in _TEXTS), strict=True)]

    def bm25(terms: Terms) -> Bm25:
        return Bm25(k1=legs.k1, b=legs.b, mean=mean or terms.mean)

    return segment.build(layout, ids, read, kind_for(len(ids), legs.dense), bm25)


def _sweep(layout: Layout, store: Store) -> None:
    """Delete what neither the snapshot in force nor the one before needs, which retrievers may be serving still."""
    kept = newest(layout, 2)
    now = time.time()
    remove_others(layout.segments, {s.id for m in kept for s in m.segments}, _GRACE_S, now)
    remove_others(layout.snapshots, {f"{m.id}.json" for m in kept}, 30 * 24 * _GRACE_S, now)
    store.forget_versions({m.chunks_version for m in kept}, {m.documents_version for m in kept}, _GRACE_S)


def newest(layout: Layout, count: int) -> list[Manifest]:
    """The manifests on disk with the highest numbers: CURRENT may have been damaged while its snapshot is still served."""
    found: list[Manifest] = []
    for path in sorted(layout.snapshots.glob("v*-*.json"), key=_number, reverse=True):
        if len(found) == count:
            break
        try:
            found.append(Manifest.model_validate_json(path.read_bytes()))
        except ValidationError:
            continue  # damaged, or of another format: no retriever can have it open
    return found


def _bytes(manifest: Manifest) -> bytes:
    return manifest.model_dump_json(indent=1).encode()


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(_bytes(manifest)).hexdigest()
