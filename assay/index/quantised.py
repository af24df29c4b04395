"""The kinds ``sq8`` and ``hnsw`` of the dense leg: FAISS names candidates by 8-bit codes, whose float16 vectors are compared.

FAISS's selectors alone would lose matches of a filter: lists are probed by their number, however few of their rows are
allowed, and a graph gives the allowed rows among those that it came by. So lists are probed until enough *allowed* rows are
in them, and the best of those were not the last to come. The graph is asked for so many rows that enough of them should be
allowed, and not at all where a tenth or less is. Where either names fewer than was asked for, since what is allowed lies
elsewhere, all allowed rows are compared.

What is asked with parameters is asked by FAISS's ``..._c``: its wrappers take none, or do no longer where a replica with a GPU
has imported ``faiss.contrib.torch_utils``, which replaces them in the whole process.
"""

from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from assay.errors import IndexFault
from assay.index import kernels
from assay.index.files import Buffer, array_of
from assay.index.lists import FEW, Ids, Mask, Scores, blocks, centres_of, held_by, wanted_rows

VECTORS, CODES = "dense.vectors.npy", "dense.codes.faiss"
FILES = (VECTORS, CODES)

_REFINED = 2  # candidates for each result: an 8-bit code moves a cosine by some .002
_LINKS = 32  # of a node of the graph
_BUILT = 80  # nodes that are looked at to link a new one
_SPARE = 1.5  # rows that the graph is asked for, for each that should be allowed
_SHARE = 0.1  # of the rows; with fewer allowed the graph is left alone
_STEPS = 3  # more than the first, until all rows that are wanted were seen


def build(vectors: NDArray[np.float16], folder: Path, *, graph: bool) -> None:
    """Write the leg. ``vectors``: shape (n, d), unit; row i is position i."""
    import faiss

    dim, metric, kind = vectors.shape[1], faiss.METRIC_INNER_PRODUCT, faiss.ScalarQuantizer.QT_8bit
    if graph:
        index = faiss.IndexHNSWSQ(dim, kind, _LINKS, metric)
        index.hnsw.efConstruction = _BUILT
    else:
        centres = centres_of(vectors)
        index = faiss.IndexIVFScalarQuantizer(centres, dim, centres.ntotal, kind, metric)
    sample = np.random.default_rng(0).permutation(len(vectors))[:_TRAINED]
    index.train(vectors[np.sort(sample)].astype(np.float32))
    for _, part in blocks(vectors):
        index.add(part)
    np.save(folder / VECTORS, vectors, allow_pickle=False)
    faiss.serialize_index(index).tofile(folder / CODES)


_TRAINED = 65_536  # rows that the range of each dimension's codes is taken from


class _Quantised:
    """``dense.Dense``, but for how candidates are found."""

    def __init__(self, files: Mapping[str, Buffer], rows: int) -> None:
        """Raises ``IndexFault`` where the files are no such leg of that many rows."""
        import faiss

        try:
            self._vectors = array_of(files[VECTORS], np.float16)
            self._index: Any = faiss.deserialize_index(files[CODES])
        except (ValueError, KeyError, RuntimeError) as e:
            raise IndexFault("the dense leg cannot be read") from e
        if not rows == len(self._vectors) == self._index.ntotal or self._index.d != self._vectors.shape[1]:
            raise IndexFault("the dense leg's files do not belong together")

    def search(self, query: Scores, k: int, allowed: Mask | None, count: int) -> tuple[Ids, Scores]:
        query = np.require(query, np.float32, ["C", "W"])  # the compiled loops know one kind of array
        k = min(k, count)
        found = None if self.is_exact(count) else self._candidates(query, min(count, _REFINED * k), allowed, count)
        if found is None or len(found) < k:
            found = np.arange(len(self._vectors)) if allowed is None else np.flatnonzero(allowed)
        return kernels.best_of(found, self.cosines(query, found), k)

    def cosines(self, query: Scores, positions: Ids) -> Scores:
        return kernels.dots(self._vectors.view(np.uint16), positions, np.require(query, np.float32, ["C", "W"]))

    def vectors(self, positions: Ids) -> NDArray[np.float16]:
        return self._vectors[positions]

    def is_exact(self, count: int) -> bool:
        return count <= FEW

    def warm(self) -> None:
        rows, query = len(self._vectors), np.zeros(self._vectors.shape[1], np.float32)
        self._candidates(query, 1, np.ones(rows, np.bool_), rows)
        self.search(query, 1, np.zeros(rows, np.bool_), 0)

    def _candidates(self, query: Scores, k: int, allowed: Mask | None, count: int) -> Ids:
        """Up to k allowed positions, the nearest by their codes."""
        raise NotImplementedError


class Codes(_Quantised):
    """Inverted lists of codes, which say how a vector departs from its list's centre."""

    def __init__(self, files: Mapping[str, Buffer], rows: int) -> None:
        super().__init__(files, rows)
        import faiss

        lists = getattr(self._index, "invlists", None)
        if lists is None:
            raise IndexFault("the dense leg's index has no lists")
        sizes = [lists.list_size(number) for number in range(lists.nlist)]
        self._centres = held_by(self._index.quantizer)
        self._starts = np.cumsum([0, *sizes])
        self._members = np.empty(rows, np.int32)
        for number, size in enumerate(sizes):
            if size:
                ids = faiss.rev_swig_ptr(lists.get_ids(number), size)
                self._members[self._starts[number] : self._starts[number + 1]] = ids

    def _candidates(self, query: Scores, k: int, allowed: Mask | None, count: int) -> Ids:
        near = self._centres @ query
        order = np.argsort(-near)
        selector, scores, found = _selector(allowed), np.empty(0, np.float32), np.empty(0, np.int64)
        # As ``kernels.scan`` does, in steps: the first sees .4 of the rows that are wanted, three more see all of them.
        rows, probed, quiet = kernels.LATE * wanted_rows(count, k // _REFINED), 0, 0
        while quiet < _STEPS and probed < len(order):
            probes = _probes(order, self._starts, self._members, _ALL if allowed is None else allowed, round(rows))
            lists, known = order[probed:probes], len(found)
            more, named = self._nearest(query, k, lists, near[lists], selector)
            scores, found, probed = np.append(scores, more), np.append(found, named), probes
            best = np.argsort(-scores, kind="stable")[:k]
            scores, found = scores[best], found[best]
            quiet = 0 if (best[: kernels.FIRST] >= known).any() else quiet + 1
            rows *= kernels.LATE ** (-1 / _STEPS)
        return found

    def _nearest(self, query: Scores, k: int, lists: Ids, near: Scores, selector: Any) -> tuple[Scores, Ids]:
        """The best of some lists by their codes: their scores, and positions. ``near``: of the lists' centres."""
        import faiss

        pointer = faiss.swig_ptr
        scores, found = np.empty(k, np.float32), np.full(k, -1, np.int64)
        if len(lists):
            how = faiss.SearchParametersIVF(nprobe=len(lists), sel=selector)
            self._index.search_preassigned_c(
                1, pointer(query), k, pointer(lists), pointer(near), pointer(scores), pointer(found), False, how
            )
        return scores[found >= 0], found[found >= 0]


class Graph(_Quantised):
    """A graph of neighbours (HNSW) over codes."""

    def __init__(self, files: Mapping[str, Buffer], rows: int) -> None:
        super().__init__(files, rows)
        if not hasattr(self._index, "hnsw"):
            raise IndexFault("the dense leg's index is no graph")

    def is_exact(self, count: int) -> bool:
        return count <= max(FEW, _SHARE * len(self._vectors))

    def _candidates(self, query: Scores, k: int, allowed: Mask | None, count: int) -> Ids:
        import faiss

        rows = len(self._vectors)
        k = min(rows, k if allowed is None else int(_SPARE * k * rows / count))
        scores, found, pointer = np.empty(k, np.float32), np.empty(k, np.int64), faiss.swig_ptr
        how = faiss.SearchParametersHNSW(efSearch=max(k, isqrt(rows)))
        self._index.search_c(1, pointer(query), k, pointer(scores), pointer(found), how)
        found = found[found >= 0]
        return found if allowed is None else found[allowed[found]]


_ALL = np.zeros(0, np.bool_)


def _selector(allowed: Mask | None) -> Any:
    import faiss

    return None if allowed is None else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


@njit(nogil=True, cache=True)
def _probes(order, starts, members, allowed, wanted):  # type: ignore[no-untyped-def]
    """How many lists, the nearest first, hold ``wanted`` allowed rows (any, where ``allowed`` is empty)."""
    seen, filtered = 0, len(allowed) > 0
    for number in range(len(order)):
        start, end = starts[order[number]], starts[order[number] + 1]
        if filtered:
            for slot in range(start, end):
                seen += allowed[members[slot]]
        else:
            seen += end - start
        if seen >= wanted:
            return number + 1
    return len(order)
