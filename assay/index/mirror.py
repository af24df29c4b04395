"""Where an index in an object store meets its local mirror; for a local index these are what they are called, and no more.

A retriever's mirror follows the snapshot in force. A writer's holds what it has stored and not yet published: it goes on there
after an interruption, unless somebody else has published meanwhile; then it starts again from what they published.
"""

import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from assay.config import Legs
from assay.errors import IndexFault
from assay.index import snapshot
from assay.index.checksums import known_by
from assay.index.files import REPAIR, Layout, fault_of, remove_stale, write_atomic
from assay.index.remote import Files, Remote
from assay.index.segment import FileEntry
from assay.index.snapshot import Manifest
from assay.index.store import Store, read_state

log = logging.getLogger(__name__)

_GRACE_S = 3600.0  # a reader may still be opening what the last snapshot named


@contextmanager
def writing(layout: Layout) -> Iterator[None]:
    """Hold the index for writing, on the state that was published last. Raises ``IndexFault``: another writer, a store that
    cannot be reached, or one that is damaged."""
    with layout.writer():
        if layout.remote is None:
            snapshot.check_versions(layout)
            yield
            return
        with layout.remote.lease():
            _take_up(layout, layout.remote)
            snapshot.check_versions(layout)
            yield


def publish(layout: Layout, store: Store, legs: Legs | None = None, **how: Any) -> Manifest:
    """``snapshot.publish``, and into the object store. Where that fails, the next call does it."""
    manifest = snapshot.publish(layout, store, legs, **how)
    if layout.remote is not None:
        _push(layout, layout.remote, manifest)
    return manifest


def compact(layout: Layout, legs: Legs | None = None) -> Manifest | None:
    """``snapshot.compact``, and into the object store. Holds the index for writing.

    None where nothing is published."""
    with writing(layout):
        state = read_state(layout)
        if state is None:
            raise IndexFault(f"there is no index at {layout.root}; {REPAIR}")
        manifest = snapshot.compact(layout, Store(layout, state.embedder, state.checksum, state.dim), legs)
        if layout.remote is not None and manifest is not None:
            _push(layout, layout.remote, manifest)
        return manifest


def current(layout: Layout, *, verify: bool = False) -> str | None:
    """``snapshot.current_name``, after bringing a mirror up to its store; ``verify`` also reads what it has already.

    Raises ``IndexFault`` where the store cannot be reached; what the mirror has can be served on.
    """
    if layout.remote is not None:
        layout.root.mkdir(parents=True, exist_ok=True)
        with FileLock(layout.root / "mirror.lock"):  # replicas on one machine share the mirror
            line = layout.remote.current()
            if line is not None and (verify or line != snapshot.current_name(layout)):
                _pull(layout, layout.remote, line)
                _sweep(layout)
    return snapshot.current_name(layout)


def _take_up(layout: Layout, remote: Remote) -> None:
    line = remote.current()
    if line == _base(layout):
        return
    # Versions of the store that were never published have the numbers of those that were: they must not mix.
    for folder in (layout.chunks, layout.documents):
        shutil.rmtree(folder, ignore_errors=True)
    for path in (layout.current, layout.state, _base_path(layout), *layout.snapshots.glob("v*-*.json")):
        path.unlink(missing_ok=True)
    if line is not None:
        manifest = _pull(layout, remote, line, any_format=True)  # legs of an old one are built anew from its store
        write_atomic(layout.state, remote.read(f"states/{manifest.id}.json"))
        write_atomic(_base_path(layout), line.encode())


def _pull(layout: Layout, remote: Remote, line: str, *, any_format: bool = False) -> Manifest:
    """Everything that a snapshot names, and then ``CURRENT``. What is here and whole is not fetched again."""
    try:
        manifest, data = snapshot.parse(line, lambda id: remote.read(f"snapshots/{id}.json"), any_format=any_format)
    except ValueError:
        raise IndexFault(f"CURRENT of {remote.uri} is damaged; {REPAIR}") from None
    files = files_of(manifest)
    missing = {name: entry for name, entry in files.items() if fault_of(layout.root / name, entry.model_dump())}
    if missing:
        size, begun = sum(entry.bytes for entry in missing.values()), time.monotonic()
        log.info("fetching %s: %d files, %.1f MB", manifest.id, len(missing), size / 1e6)
        remote.fetch(_plain(missing), layout.root)
        log.info("fetched %s in %.1f s", manifest.id, time.monotonic() - begun)
    write_atomic(layout.snapshots / f"{manifest.id}.json", data)
    write_atomic(layout.current, line.encode())
    return manifest


def _push(layout: Layout, remote: Remote, manifest: Manifest) -> None:
    line, base = snapshot.current_name(layout), _base(layout)
    if line is None or line == base:
        return
    files = _plain(files_of(manifest))
    data = (layout.snapshots / f"{manifest.id}.json").read_bytes()
    remote.publish(manifest.id, line, data, layout.state.read_bytes(), files, layout.root)
    write_atomic(_base_path(layout), line.encode())
    # What is here beside these two was never published, however high its number: retrievers are on one of the two.
    try:
        kept = [manifest, *([] if base is None else [snapshot.read(layout, base, any_format=True)])]
    except FileNotFoundError:
        return  # nothing is deleted where it is not known what is served
    remote.sweep({m.id for m in kept}, {known_by(e)[0] for m in kept for e in _plain(files_of(m)).values()})


def files_of(manifest: Manifest) -> dict[str, FileEntry]:
    """All files of a snapshot, by their path in the index."""
    legs = {f"segments/{s.id}/{name}": entry for s in manifest.segments for name, entry in s.files.items()}
    return {**manifest.files, **legs}


def _plain(files: Mapping[str, FileEntry]) -> Files:
    return {name: entry.model_dump() for name, entry in files.items()}


def _sweep(layout: Layout) -> None:
    named = {layout.root / name for m in snapshot.newest(layout, 2) for name in files_of(m)}
    for top in (Path(layout.chunks), Path(layout.documents), layout.segments):
        for folder, _, names in os.walk(top):
            remove_stale([Path(folder) / name for name in names], named, _GRACE_S)


def _base_path(layout: Layout) -> Path:
    return layout.root / "BASE"


def _base(layout: Layout) -> str | None:
    """The published line that a writer's mirror goes on from."""
    try:
        return _base_path(layout).read_text()
    except FileNotFoundError:
        return None
