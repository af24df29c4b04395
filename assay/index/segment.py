"""One immutable segment: the same chunks in both legs, and the ids of their rows. Derived from the store, never changed."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from assay.errors import IndexFault
from assay.index import dense, sparse
from assay.index.dense import Dense, Ids, Mask, Scores
from assay.index.files import REPAIR, Layout, describe, fault_of, folder_atomic
from assay.index.sparse import Sparse

IDS = "ids.npy"


class FileEntry(BaseModel):
    """What a manifest keeps of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


class Torn(NamedTuple):
    """What a snapshot serves without: a leg of a segment, or a whole segment (``leg`` is None)."""

    leg: str | None
    reason: str


class SegmentEntry(BaseModel):
    """What a manifest keeps of a segment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    rows: int
    files: dict[str, FileEntry]


def build(layout: Layout, ids: Ids, texts: Sequence[str], vectors: NDArray[np.float32]) -> SegmentEntry:
    """Write a segment's folder, whole or not at all. Row i of both legs is the chunk ``ids[i]``."""
    name = f"s-{secrets.token_hex(6)}"
    with folder_atomic(layout.segments / name) as folder:
        np.save(folder / IDS, ids, allow_pickle=False)
        dense.build(vectors, folder)
        sparse.build(texts, folder)
        files = describe(folder)
    return SegmentEntry(id=name, rows=len(ids), files={k: FileEntry(**v) for k, v in files.items()})


def read_ids(layout: Layout, entry: SegmentEntry) -> Ids:
    """Raises ``IndexFault`` where the file is not the one that was written."""
    folder = layout.segments / entry.id
    check_files(folder, entry.files, (IDS,))
    ids: Ids = np.load(folder / IDS, allow_pickle=False)
    return ids


def check(layout: Layout, entry: SegmentEntry) -> None:
    """Reads every byte. Raises ``IndexFault`` where a file is not the one that was written."""
    check_files(layout.segments / entry.id, entry.files)


def check_files(folder: Path, files: Mapping[str, FileEntry], names: Iterable[str] | None = None) -> None:
    """Raises ``IndexFault`` that names the first of the files (all, unless told) that is not what was written."""
    for name in files if names is None else names:
        expected = files.get(name)
        fault = "is not in the manifest" if expected is None else fault_of(folder / name, expected.model_dump())
        if fault is not None:
            raise IndexFault(f"{name} {fault}")


class Segment:
    """A loaded segment. A leg whose files are not what was written is None, and ``torn`` says which file."""

    def __init__(self, layout: Layout, entry: SegmentEntry, live: Ids) -> None:
        """``live``: the ids of the snapshot's rows, ascending. Raises ``IndexFault`` where no id can be read."""
        self.id = entry.id
        self.torn: list[Torn] = []
        self.ids = read_ids(layout, entry)
        place = np.searchsorted(live, self.ids).clip(max=max(0, len(live) - 1))
        alive = live[place] == self.ids if len(live) else np.zeros(len(self.ids), bool)
        # The row of each position; -1 for a chunk that is gone from the store (a tombstone).
        self.rows: Ids = np.where(alive, place, -1)
        folder = layout.segments / entry.id
        self.dense: Dense | None = self._load(Dense, folder, entry, dense.FILES)
        self.sparse: Sparse | None = self._load(Sparse, folder, entry, sparse.FILES)

    def mask(self, allowed: Mask | None) -> Mask | None:
        """``allowed`` over the snapshot's rows -> over this segment's positions; None where all are allowed."""
        alive = self.rows >= 0
        if allowed is None:
            return None if bool(alive.all()) else alive
        return alive & allowed[np.where(alive, self.rows, 0)]

    def search_dense(self, query: NDArray[np.float32], k: int, allowed: Mask | None) -> tuple[Ids, Scores]:
        """Rows of the snapshot and cosines, best first. Every row is allowed, whatever the index returned."""
        assert self.dense is not None
        mask = self.mask(allowed)
        positions, scores = self.dense.search(query, k, mask)
        kept = np.ones(len(positions), bool) if mask is None else mask[positions]
        return self.rows[positions[kept]], scores[kept]

    def search_sparse(self, query: str, k: int, allowed: Mask | None) -> tuple[Ids, Scores, Scores]:
        """Rows of the snapshot and BM25 scores above 0, best first; and the scores of all positions."""
        assert self.sparse is not None
        scores = self.sparse.scores(query)
        positions = sparse.top(scores, k, self.mask(allowed))
        return self.rows[positions], scores[positions], scores

    def _load(self, leg: Any, folder: Path, entry: SegmentEntry, names: Sequence[str]) -> Any:
        try:
            check_files(folder, entry.files, names)
            loaded = leg(folder)
            if len(loaded) != len(self.ids):
                raise IndexFault(f"{names[0]} has {len(loaded)} rows for {len(self.ids)} ids")
        except IndexFault as e:
            name = leg.__name__.lower()
            self.torn.append(Torn(name, f"segment {entry.id}, {name} leg: {e}; {REPAIR}"))
            return None
        return loaded
