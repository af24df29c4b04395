"""The kinds ``flat`` and ``ivf`` of the dense leg: float16 vectors in inverted lists, compared as float32.

A small segment has one list, so that all its rows are compared; a large one has lists around centres (k-means, by FAISS),
and the nearest are read until enough allowed rows were seen, however narrow the filter, and the best of them were not the last
to come. What is read are 8-bit codes, since reading is what takes the time; the best of these, and some more, are then compared
by the stored vectors, whose scores are given. Codes are made when a leg is loaded (a million rows in half a second), so that no
file holds them.
"""

from collections.abc import Iterator, Mapping
from math import cbrt, isqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import IndexFault
from assay.index import kernels
from assay.index.files import Buffer, array_of, in_threads

Mask = NDArray[np.bool_]
Ids = NDArray[np.int64]
Scores = NDArray[np.float32]

VECTORS, POSITIONS, STARTS, CENTRES = "dense.vectors.npy", "dense.rows.npy", "dense.starts.npy", "dense.centres.npy"
FILES = (VECTORS, POSITIONS, STARTS, CENTRES)

_TRAINED = 64  # rows for each centre that the centres are computed from
_ROUNDS = 8
_BLOCK = 65_536
# Rows that are compared by their vectors beyond those asked for: a code moves a cosine by some .0005, and around the hundredth
# hit a few rows lie within that.
_SPARE = 28
# Up to this many allowed rows are compared one by one: as fast as any index, and right however they are spread.
FEW = 2_500


def build(vectors: NDArray[np.float16], folder: Path, *, clustered: bool) -> None:
    """Write the leg, in many lists or in one. ``vectors``: shape (n, d), unit; row i is position i."""
    centres, lists = _clustered(vectors) if clustered else (vectors[:1], np.zeros(len(vectors), np.int64))
    order = np.argsort(lists, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(lists, minlength=len(centres)))])
    for name, array in ((POSITIONS, order.astype(np.int32)), (STARTS, starts.astype(np.int64)), (CENTRES, centres)):
        np.save(folder / name, array, allow_pickle=False)
    np.save(folder / VECTORS, vectors[order], allow_pickle=False)


class Lists:
    """``dense.Dense`` over them."""

    def __init__(self, files: Mapping[str, Buffer], rows: int) -> None:
        """Raises ``IndexFault`` where the files are no such leg of that many rows."""
        try:
            self._vectors = array_of(files[VECTORS], np.float16)
            self._positions = array_of(files[POSITIONS], np.int32)
            self._starts = array_of(files[STARTS], np.int64)
            self._centres = array_of(files[CENTRES], np.float16)
        except (ValueError, KeyError) as e:
            raise IndexFault("the dense leg cannot be read") from e
        whole = len(self._vectors) == len(self._positions) == self._starts[-1] == rows
        if not whole or len(self._starts) != len(self._centres) + 1:
            raise IndexFault("the dense leg's files do not belong together")
        self._slots = np.empty(rows, np.int32)
        self._slots[self._positions] = np.arange(rows, dtype=np.int32)
        self._packed: tuple[Mask | None, NDArray[np.uint8]] = None, _ALL
        self._codes, self._steps = self._nearby = np.zeros((0, 0), np.int8), np.zeros(0, np.float32)
        if len(self._centres) > 1:
            self._codes, self._steps = np.empty(self._vectors.shape, np.int8), np.empty(rows, np.float32)
            bits, lists = self._vectors.view(np.uint16), len(self._centres)
            self._nearby = np.empty(self._centres.shape, np.int8), np.empty(lists, np.float32)
            kernels.bytes_of(self._centres.view(np.uint16), *self._nearby, 0, lists)
            in_threads(
                lambda at: kernels.bytes_of(bits, self._codes, self._steps, at, min(rows, at + _BLOCK)),
                range(0, rows, _BLOCK),
            )

    def search(self, query: Scores, k: int, allowed: Mask | None, count: int) -> tuple[Ids, Scores]:
        """The best k positions for one unit vector of shape (d,), best first, and their cosines.

        Only positions with ``allowed``, which are ``count``; fewer than k where there are fewer.
        """
        if (task := self.task(query, k, allowed, count)) is not None:
            return kernels.scan(*task)
        query = compiled(query)
        if allowed is not None and count <= FEW:
            positions = np.flatnonzero(allowed)
            return kernels.best_of(positions, self.cosines(query, positions), k)
        return kernels.scan_all(
            self._vectors.view(np.uint16), self._positions, query, min(k, count), self._bits(allowed)
        )

    def task(self, query: Scores, k: int, allowed: Mask | None, count: int) -> tuple[Any, ...] | None:
        """What ``kernels.scan`` is asked for this search; None where it is not what searches."""
        if len(self._centres) == 1 or (allowed is not None and count <= FEW):
            return None
        k, vectors = min(k, count), self._vectors.view(np.uint16)
        lists = vectors, self._codes, self._steps, self._positions, self._starts, *self._nearby
        return *lists, compiled(query), k, min(_SPARE, count - k), self._bits(allowed), wanted_rows(count, k)

    def _bits(self, allowed: Mask | None) -> NDArray[np.uint8]:
        """Kept for the next search, which mostly has the same filter. Masks are not written to."""
        if allowed is None:
            return _ALL
        held = self._packed
        if held[0] is not allowed:
            held = self._packed = allowed, np.packbits(allowed, bitorder="little")
        return held[1]

    def cosines(self, query: Scores, positions: Ids) -> Scores:
        """Cosine of one unit vector with the chunks at some positions."""
        dots = kernels.dots_few if len(positions) <= kernels.HUNDREDS else kernels.dots
        return dots(self._vectors.view(np.uint16), self._slots[positions], compiled(query))

    def vectors(self, positions: Ids) -> NDArray[np.float16]:
        """Shape (n, d)."""
        return self._vectors[self._slots[positions]]

    def warm(self) -> None:
        query, none = np.zeros(self._vectors.shape[1], np.float32), np.zeros(len(self._vectors), np.bool_)
        self.search(query, 1, None, 1)
        self.search(query, 1, none, 0)

    def is_exact(self, count: int) -> bool:
        """Whether a search among this many allowed rows compares them all."""
        return len(self._centres) == 1 or count <= FEW


_ALL = np.zeros(0, np.uint8)


def compiled(query: Scores) -> Scores:
    """The compiled loops know one kind of array. What is one already is told ten times faster than ``np.require`` would."""
    flags = query.flags
    if query.dtype == np.float32 and flags.c_contiguous and flags.writeable:
        return query
    return np.require(query, np.float32, ["C", "W"])


def wanted_rows(count: int, k: int) -> int:
    """How many allowed rows are compared of ``count`` at the least: so many more in a larger index that .98 of the exact best
    ten are found at a hundred thousand rows as at a million, by measurement (``bench.search_peers``)."""
    return max(20 * k, round(50 * cbrt(count)))


def centres_of(vectors: NDArray[np.float16]) -> Any:
    """FAISS's index of 4 sqrt(n) centres, unit vectors in float32."""
    import faiss

    rows, dim = vectors.shape
    count = 4 * isqrt(rows)
    sample = np.random.default_rng(0).permutation(rows)[: _TRAINED * count]
    means = faiss.Kmeans(
        dim, count, niter=_ROUNDS, spherical=True, seed=0, min_points_per_centroid=1, max_points_per_centroid=_TRAINED
    )
    means.train(vectors[np.sort(sample)].astype(np.float32))
    return means.index


def blocks(vectors: NDArray[np.float16]) -> Iterator[tuple[int, Scores]]:
    """As float32, piece by piece: all together would be twice the memory."""
    for start in range(0, len(vectors), _BLOCK):
        yield start, vectors[start : start + _BLOCK].astype(np.float32)


def _clustered(vectors: NDArray[np.float16]) -> tuple[NDArray[np.float16], Ids]:
    """The centres, and the list of each row."""
    centres = centres_of(vectors)
    lists = np.empty(len(vectors), np.int64)
    for start, part in blocks(vectors):
        lists[start : start + len(part)] = centres.search(part, 1)[1][:, 0]
    return held_by(centres).astype(np.float16), lists


def held_by(index: Any) -> Scores:
    """The vectors of one of FAISS's indexes. Into an array: without one it may be a tensor (``assay.index.cuda``)."""
    vectors: Scores = index.reconstruct_n(0, index.ntotal, np.empty((index.ntotal, index.d), np.float32))
    return vectors
