"""The passages of one segment as they are shown: text, title, place. What the store has too, ten times faster to get at.

Each is a record in one file, encoded by MessagePack, and a search reads the few that it shows. What is in memory is where each
record lies, and a mark by which it is known: the beginning of its sha256, compared at every reading.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.errors import IndexFault
from assay.index.checksums import OTHER_BYTES
from assay.index.dense import Ids
from assay.index.files import Buffer, KeptFile, array_of
from assay.types import Chunk

FILE, PLACES = "passages.msgpack", "passages.npy"
# Of a record, in the order of the fields of ``Chunk``.
COLUMNS = ("id", "doc_id", "bucket", "title", "uri", "text", "start", "end", "ordinal", "heading", "page", "hidden")
_Record = tuple[int, str, str, str, str, str, int, int, int, tuple[str, ...], int | None, bool]
_MARK = 8  # bytes of a sha256: damage goes unseen once in 2**64 times


class Writer:
    """Writes batches of any length, in the store's order. Raises ``OSError`` where the disk is full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / FILE).open("wb")
        self._parts = [np.zeros((0, 4), np.int64)]

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *fault: object) -> None:
        self._file.close()
        if fault[0] is None:
            rows = np.concatenate(self._parts)
            np.save(self._folder / PLACES, rows[np.argsort(rows[:, 0]), 1:], allow_pickle=False)

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Rows of ``COLUMNS``."""
        encode, at, part = msgspec.msgpack.Encoder().encode, self._file.tell(), []
        for row in rows:
            self._file.write(record := encode(row))
            part.append((row[0], at, len(record), _mark(record)))
            at += len(record)
        self._parts.append(np.array(part, np.int64).reshape(-1, 4))


class Passages:
    """Positions are those of the segment."""

    def __init__(self, file: KeptFile, places: Buffer, ids: Ids) -> None:
        """``places``: of each position where its record begins, how long it is, and its mark. Raises ``IndexFault`` where they
        are not of these ``ids``."""
        try:
            self._places: NDArray[np.int64] = array_of(places, np.int64)
        except ValueError as e:
            raise IndexFault(f"{PLACES} cannot be read") from e
        if self._places.shape != (len(ids), 3):
            raise IndexFault(f"{PLACES} is of other passages")
        self._file, self._ids = file, ids
        self._decode = msgspec.msgpack.Decoder(_Record).decode

    def at(self, positions: Ids) -> Iterator[Chunk]:
        """Raises ``IndexFault`` at one that is not what was written."""
        ids, places = self._ids[positions].tolist(), self._places[positions].tolist()
        self._file.announce((begin, length) for begin, length, _ in places)
        for id, (begin, length, mark) in zip(ids, places, strict=True):
            record = self._file.read(begin, length)
            if _mark(record) != mark:
                raise IndexFault(f"{FILE} {OTHER_BYTES}")
            try:
                fields = self._decode(record)
            except msgspec.MsgspecError as e:
                raise IndexFault(f"{FILE} cannot be read") from e
            if fields[0] != id:
                raise IndexFault(f"{FILE} is of other passages")
            yield Chunk(*fields)


def _mark(record: bytes) -> int:
    return int.from_bytes(hashlib.sha256(record).digest()[:_MARK], "little", signed=True)
