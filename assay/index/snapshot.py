"""What retrievers serve: a version of the store and the segments over it, under one id, published by an atomic rename."""

import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from assay.errors import IndexFault
from assay.index import segment
from assay.index.chunk import passage_text
from assay.index.dense import Ids
from assay.index.files import REPAIR, RESTORE, Layout, remove_others, sha256, write_atomic
from assay.index.segment import FileEntry, SegmentEntry
from assay.index.store import Store

FORMAT = 2
# Building the legs of this many chunks takes seconds. Above, new chunks get a segment of their own and replaced ones
# stay as tombstones, until there are too many of either.
REBUILD_ROWS = 20_000
_MOST_SEGMENTS = 8
_MOST_TOMBSTONES = 0.3
_GRACE_S = 3600.0  # a retriever may still be opening what the last snapshot named


class EmbedderEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    checksum: str
    dim: int


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
    files: dict[str, FileEntry]
    """Of the store, at these versions."""
    segments: tuple[SegmentEntry, ...]

    @property
    def id(self) -> str:
        return f"v{self.number}-{_digest(self)[:6]}"


def publish(layout: Layout, store: Store, *, rebuild: bool = False, rebuild_rows: int = REBUILD_ROWS) -> Manifest:
    """Make the store's state what retrievers serve. Does nothing where it already is. Call it under the writer's lock.

    Up to ``rebuild_rows`` chunks the legs are built anew; above, only those of new chunks and of torn segments are.
    All bytes in force are checked first. Raises ``IndexFault`` where the store's are not what was written: legs built
    from it would be wrong, and their checksums right.
    """
    current = _readable(layout)
    if current is not None:
        check_store(layout, current)
    whole = () if rebuild or current is None else tuple(s for s in current.segments if _is_whole(layout, s))
    if current is not None and not rebuild and whole == current.segments and _serves(current, store):
        return current
    store.tidy()
    segments = _segments(layout, store, whole, rebuild_rows)
    number = (current.number if current else _last_number(layout)) + 1
    manifest = Manifest(
        number=number,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        embedder=EmbedderEntry(name=store.state.embedder, checksum=store.state.checksum, dim=store.state.dim),
        chunks_version=store.state.chunks,
        documents_version=store.state.documents,
        chunks=len(store.ids()),
        files=_files(store, current),
        segments=segments,
    )
    write_atomic(layout.snapshots / f"{manifest.id}.json", _bytes(manifest))
    write_atomic(layout.current, f"{manifest.id} {_digest(manifest)}\n".encode())
    _sweep(layout, store)
    return manifest


def read_current(layout: Layout) -> Manifest:
    """The snapshot in force. Raises ``IndexFault`` where there is none, or where it is not what was written."""
    try:
        line = layout.current.read_text()
        return parse(line, lambda id: (layout.snapshots / f"{id}.json").read_bytes())[0]
    except FileNotFoundError:
        missing = "lacks the manifest that CURRENT names" if layout.current.exists() else "has no published snapshot"
        raise IndexFault(f"the index {missing}; {REPAIR}") from None
    except (OSError, ValueError):
        raise IndexFault(f"CURRENT is damaged; {REPAIR}") from None


def parse(line: str, read: Callable[[str], bytes]) -> tuple[Manifest, bytes]:
    """The manifest that a line of ``CURRENT`` names, and its bytes; ``read`` gets them by id. Raises ``ValueError`` for a
    line that is none, ``IndexFault`` for a manifest that is not what was written, and what ``read`` raises."""
    name, digest = line.split()
    data = read(name)
    if hashlib.sha256(data).hexdigest() != digest:
        raise IndexFault(f"the manifest snapshots/{name}.json has other bytes than were published; {REPAIR}")
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as e:
        raise IndexFault(
            f"the manifest snapshots/{name}.json is of another format ({e.error_count()} faults); {REPAIR}"
        ) from None
    if manifest.format != FORMAT:
        raise IndexFault(f"the index has format {manifest.format}, this version reads {FORMAT}; {REPAIR}")
    return manifest, data


def check_store(layout: Layout, manifest: Manifest) -> None:
    """Reads every byte (some 2 GB/s). Raises ``IndexFault`` for the first file that is not what was written."""
    try:
        segment.check_files(layout.root, manifest.files)
    except IndexFault as e:
        raise IndexFault(f"{e}; {RESTORE}") from None


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


def _last_number(layout: Layout) -> int:
    """Of the manifests on disk, where CURRENT cannot be read: a number is never used twice."""
    return max((_number(path) for path in layout.snapshots.glob("v*-*.json")), default=0)


def _number(manifest: Path) -> int:
    digits = manifest.stem[1:].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def _serves(manifest: Manifest, store: Store) -> bool:
    state = store.state
    return (manifest.chunks_version, manifest.documents_version) == (state.chunks, state.documents)


def _is_whole(layout: Layout, entry: SegmentEntry) -> bool:
    try:
        segment.check(layout, entry)
    except IndexFault:
        return False  # it is built anew
    return True


def _files(store: Store, current: Manifest | None) -> dict[str, FileEntry]:
    """Files that the last snapshot named keep its checksums: what happened to them since must not become right."""
    known = current.files if current else {}
    return {
        name: known.get(name) or FileEntry(bytes=path.stat().st_size, sha256=sha256(path))
        for name, path in store.files().items()
    }


def _segments(
    layout: Layout, store: Store, whole: tuple[SegmentEntry, ...], rebuild_rows: int
) -> tuple[SegmentEntry, ...]:
    live = store.ids()
    if not len(live):
        return ()
    kept, new = _reusable(layout, whole, live) if len(live) > rebuild_rows else ([], live)
    if len(kept) >= _MOST_SEGMENTS:
        kept, new = [], live
    if not len(new):
        return tuple(kept)
    table, vectors = store.rows(new)
    rows: list[dict[str, Any]] = table.select(["title", "heading", "text"]).to_pylist()
    texts = [passage_text(row["title"], row["heading"], row["text"]) for row in rows]
    ids = np.asarray(table["id"].to_numpy(), dtype=np.int64)
    return (*kept, segment.build(layout, ids, texts, vectors))


def _reusable(layout: Layout, whole: tuple[SegmentEntry, ...], live: Ids) -> tuple[list[SegmentEntry], Ids]:
    """Segments that are worth keeping, and the ids that none of them holds."""
    kept: list[SegmentEntry] = []
    held: Ids = np.zeros(0, np.int64)
    for entry in whole:
        ids = segment.read_ids(layout, entry)
        if np.isin(ids, live).mean() > 1 - _MOST_TOMBSTONES:
            kept.append(entry)
            held = np.concatenate([held, ids])
    return kept, np.setdiff1d(live, held)


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
