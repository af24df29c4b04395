"""One immutable segment: the same chunks in both legs, and the ids of their rows. Derived from the store, never changed."""

import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from assay.errors import IndexFault
from assay.index import dense, passages, sparse
from assay.index.cuda import Card
from assay.index.dense import Dense, Ids, Kind, Mask
from assay.index.files import (
    REPAIR,
    Buffer,
    KeptFile,
    Layout,
    array_of,
    describe,
    fault_of,
    folder_atomic,
    read_checked,
)
from assay.index.passages import Passages
from assay.index.sparse import Sparse, Terms
from assay.types import Chunk

Loaded = TypeVar("Loaded")

IDS = "ids.npy"


class Blake3File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    blake3: str


class Sha256File(BaseModel):
    """Of a manifest of a format before 5: a writer must be able to fetch the store that it names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


FileEntry = Blake3File | Sha256File
"""What a manifest keeps of a file."""


class Torn(NamedTuple):
    """What a snapshot serves without: a leg of a segment, or a whole segment (``leg`` is None); ``passages`` of one are
    slower to get without their file, and as right."""

    leg: str | None
    reason: str


class Bm25(BaseModel):
    """What a segment's scores were computed with. Scores of segments with different ones cannot be compared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    k1: float
    b: float
    mean: float
    """Terms of a text, over the collection when it was last measured."""


class SegmentEntry(BaseModel):
    """What a manifest keeps of a segment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    rows: int
    terms: int
    """Of all texts together."""
    dense: Kind
    bm25: Bm25
    files: dict[str, FileEntry]


class Content(NamedTuple):
    """Of the chunks of a segment, in the order of their ids: what the legs are built from."""

    terms: Terms
    vectors: NDArray[np.float16]


def build(
    layout: Layout, ids: Ids, read: Callable[[Path], Content], kind: Kind, bm25: Callable[[Terms], Bm25]
) -> SegmentEntry:
    """Write a segment's folder, whole or not at all. Row i of both legs is the chunk ``ids[i]``; ids ascend.

    ``read`` gets the chunks, and writes their passages into the folder on the way.
    """
    name = f"s-{secrets.token_hex(6)}"
    with folder_atomic(layout.segments / name) as folder:
        terms, vectors = read(folder)
        scored = bm25(terms)
        np.save(folder / IDS, ids, allow_pickle=False)
        dense.build(vectors, folder, kind)
        sparse.build(terms, folder, scored.k1, scored.b, scored.mean)
        files = describe(folder)
    return SegmentEntry(
        id=name,
        rows=len(ids),
        terms=int(terms.lengths.sum()),
        dense=kind,
        bm25=scored,
        files={k: Blake3File(**v) for k, v in files.items()},
    )


def read_ids(layout: Layout, entry: SegmentEntry) -> Ids:
    """Raises ``IndexFault`` where the file is not the one that was written."""
    return _ids(entry, read(layout, entry, IDS))


def read(layout: Layout, entry: SegmentEntry, name: str) -> Buffer:
    """Raises ``IndexFault`` that names the file where it is not what was written."""
    if name not in entry.files:
        raise IndexFault(f"{name} is not in the manifest")
    return read_checked(layout.segments / entry.id / name, entry.files[name].model_dump())


def open_passages(layout: Layout, entry: SegmentEntry, *, whole: bool) -> KeptFile:
    """Raises ``IndexFault`` that names the file where it has another length than was written; ``whole``: or other bytes."""
    if (name := passages.FILE) not in entry.files:
        raise IndexFault(f"{name} is not in the manifest")
    path, expected = layout.segments / entry.id / name, entry.files[name].model_dump()
    if whole and (fault := fault_of(path, expected)):
        raise IndexFault(f"{name} {fault}")
    return KeptFile(path, expected)


class Segment:
    """A loaded segment. A leg whose files are not what was written is None, and ``torn`` says which file; of passages that may
    be seen later than at loading."""

    def __init__(
        self,
        entry: SegmentEntry,
        files: Mapping[str, Buffer | IndexFault | None],
        shown: Callable[[], KeptFile],
        card: Card | None = None,
    ) -> None:
        """``files``: what ``read`` gave for each, or its fault; ``shown``: opens that of the passages; ``card``: the GPU of the
        dense leg, if any.

        Raises ``IndexFault`` where no id can be read."""
        self.entry = entry
        self.torn: list[Torn] = []
        self.ids = _ids(entry, _whole(files, (IDS,))[IDS])
        self._lock = threading.Lock()
        self._passages = self._opened(files, shown)
        self.dense: Dense | None = self._load(
            "dense", lambda whole: dense.load(entry.dense, whole, entry.rows, card), files
        )
        self.sparse: Sparse | None = self._load("sparse", lambda whole: Sparse(whole, entry.rows), files)

    def warm(self) -> None:
        """The first search must not wait for the compiler."""
        for leg in (self.dense, self.sparse):
            if leg is not None and len(self.ids):
                leg.warm()

    def passages(self, positions: Ids) -> list[Chunk] | None:
        """None from the first on that is not what was written: the store has them too."""
        if (held := self._passages) is None:
            return None
        try:
            return list(held.at(positions))
        except IndexFault as e:
            with self._lock:  # several searches may see it at once
                if self._passages is not None:
                    self._passages = None
                    self._tear("passages", e)
            return None

    def _opened(
        self, files: Mapping[str, Buffer | IndexFault | None], shown: Callable[[], KeptFile]
    ) -> Passages | None:
        try:
            return Passages(shown(), _whole(files, (passages.PLACES,))[passages.PLACES], self.ids)
        except IndexFault as e:
            self._tear("passages", e)
            return None

    def _tear(self, what: str, why: IndexFault) -> None:
        self.torn.append(Torn(what, f"segment {self.entry.id}: {why}; {REPAIR}"))

    def _load(
        self, leg: str, load: Callable[[dict[str, Buffer]], Loaded], files: Mapping[str, Buffer | IndexFault | None]
    ) -> Loaded | None:
        names = sparse.FILES if leg == "sparse" else dense.files_of(self.entry.dense)
        try:
            return load(_whole(files, names))
        except IndexFault as e:
            self.torn.append(Torn(leg, f"segment {self.entry.id}, {leg} leg: {e}; {REPAIR}"))
            return None


class Placed:
    """A segment within a snapshot: which of its positions are which rows there."""

    def __init__(self, segment: Segment, live: Ids) -> None:
        """``live``: the ids of the snapshot's rows, ascending."""
        self.segment = segment
        ids = segment.ids
        place = np.searchsorted(live, ids).clip(max=max(0, len(live) - 1))
        alive = live[place] == ids if len(live) else np.zeros(len(ids), bool)
        # The row of each position; -1 for a chunk that is gone from the store (a tombstone).
        self.rows: Ids = np.where(alive, place, -1)
        self.count = int(alive.sum())
        self.alive: Mask | None = None if self.count == len(ids) else alive
        self._together = self.alive is None and len(ids) > 0 and int(place[-1] - place[0]) + 1 == len(ids)

    def select(self, allowed: Mask | None) -> tuple[Mask | None, int]:
        """``allowed`` over the snapshot's rows -> over these positions, and how many; None where all are allowed."""
        if allowed is None:
            return self.alive, self.count
        allowed = np.require(allowed, np.bool_, ["C", "W"])  # the compiled loops know one kind of array
        if self._together:
            mask = allowed[self.rows[0] : self.rows[-1] + 1]
        else:
            mask = allowed[self.rows.clip(min=0)]
            if self.alive is not None:
                mask &= self.alive
        return mask, int(np.count_nonzero(mask))


def _ids(entry: SegmentEntry, data: Buffer) -> Ids:
    try:
        ids: Ids = array_of(data, np.int64)
    except ValueError as e:
        raise IndexFault(f"{IDS} cannot be read") from e
    if len(ids) != entry.rows or (np.diff(ids) <= 0).any():
        raise IndexFault(f"{IDS} is not of {entry.rows} ascending ids")
    return ids


def _whole(files: Mapping[str, Buffer | IndexFault | None], names: tuple[str, ...]) -> dict[str, Buffer]:
    whole = {}
    for name in names:
        data = files.get(name)
        if data is None or isinstance(data, IndexFault):
            raise data or IndexFault(f"{name} is not in the manifest")
        whole[name] = data
    return whole
