"""The sparse leg of one segment: postings of BM25 over ``assay.text.index_terms``.

The part of BM25 that hangs on other documents, a term's rarity, is not in the files: it is counted over all segments that
are searched together, so that a chunk's score does not hang on the segment that holds it. The mean length is: all segments
of a snapshot are built with one, see ``assay.index.snapshot``. Scores are those of Lucene, and of bm25s by default.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from assay.errors import IndexFault
from assay.index import kernels
from assay.index.analyser import Terms as Terms
from assay.index.analyser import in_processes, terms_of
from assay.index.dense import Ids, Mask, Scores
from assay.index.files import Buffer, array_of

ROWS, VALUES, STARTS, VOCABULARY = "sparse.rows.npy", "sparse.values.npy", "sparse.starts.npy", "sparse.terms.json"
FILES = (ROWS, VALUES, STARTS, VOCABULARY)

_PIECE = 8_000  # texts that a process analyses at a time
_POOL = 4_000  # from this many texts on, processes are worth their start


class Weighted(NamedTuple):
    """A query against a segment: where the postings of its terms are, the heaviest term first."""

    begins: Ids
    ends: Ids
    weights: Scores


def analyse(texts: Iterable[Sequence[str]], processes: int = 2) -> Terms:
    """Of all texts, given in parts; with ``processes`` where there are many."""
    places: dict[str, int] = {}
    ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for part in _analysed(texts, processes):
        to = np.array([places.setdefault(name, len(places)) for name in part.names], np.int32)
        ids.append(to[part.ids])
        lengths.append(part.lengths)
    return Terms(np.concatenate(ids), np.concatenate(lengths), list(places))


def build(terms: Terms, folder: Path, k1: float, b: float, mean: float) -> None:
    """Write the leg. Row i is the i-th text; ``mean``: terms of a text, over the collection."""
    starts, rows, counts = kernels.index_terms(terms.ids, terms.lengths, len(terms.names))
    values = kernels.saturated(rows, counts, terms.lengths, k1, b, mean)
    for name, array in ((ROWS, rows), (VALUES, values), (STARTS, starts)):
        np.save(folder / name, array, allow_pickle=False)
    (folder / VOCABULARY).write_text(json.dumps(terms.names))


class Sparse:
    """A loaded leg; what it finds are positions in its segment."""

    def __init__(self, files: dict[str, Buffer], rows: int) -> None:
        """Raises ``IndexFault`` where the files are no such leg of that many rows."""
        try:
            self._rows = array_of(files[ROWS], np.int32)
            self._values = array_of(files[VALUES], np.float32)
            self._starts = array_of(files[STARTS], np.int64)
            names = json.loads(bytes(files[VOCABULARY]))
            self._places: dict[str, int] = {name: place for place, name in enumerate(names)}
        except (ValueError, KeyError, TypeError) as e:
            raise IndexFault("the sparse leg cannot be read") from e
        whole = len(self._rows) == len(self._values) == self._starts[-1] and len(self._starts) == len(names) + 1
        if not whole or (len(self._rows) and not 0 <= int(self._rows.min()) <= int(self._rows.max()) < rows):
            raise IndexFault("the sparse leg's files do not belong together")
        self._count = rows

    def __contains__(self, term: object) -> bool:
        return term in self._places

    def counts(self, alive: Mask | None) -> Ids:
        """Of each term the rows that have it, and are alive."""
        return np.diff(self._starts) if alive is None else kernels.living(self._starts, self._rows, alive)

    def place(self, term: str) -> int:
        """-1 for a term that no row has."""
        return self._places.get(term, -1)

    def weighted(self, weights: Sequence[tuple[str, float]]) -> Weighted:
        known = [(self._places[term], weight) for term, weight in weights if term in self._places and weight > 0]
        # The order of a sum decides its last bit, and must be the same in all segments.
        known.sort(key=lambda term: -term[1])
        places = np.array([place for place, _ in known], np.int64)
        given = np.array([weight for _, weight in known], np.float32)
        return Weighted(self._starts[places], self._starts[places + 1], given)

    def search(self, query: Weighted, k: int, allowed: Mask | None, count: int) -> tuple[Ids, Scores]:
        """The best k positions with ``allowed`` (None: all), which are ``count``, and a score above 0; best first, ties by
        position."""
        if (task := self.task(query, k, allowed, count)) is not None:
            return kernels.best_sums(*task)
        return np.zeros(0, np.int64), np.zeros(0, np.float32)

    def task(self, query: Weighted, k: int, allowed: Mask | None, count: int) -> tuple[Any, ...] | None:
        """What ``kernels.best_sums`` is asked for this search; None where there is nothing to look for."""
        if not len(query.begins):
            return None
        mask = _ALL if allowed is None else allowed
        few = allowed is not None and 2 * count < self._count
        return self._count, self._rows, self._values, *query, min(k, self._count), mask, few

    def scores(self, query: Weighted, positions: Ids) -> Scores:
        """BM25 of some positions; 0 where no term matches."""
        sums = kernels.sums_few if len(positions) <= kernels.HUNDREDS else kernels.sums_at
        return sums(self._rows, self._values, query.begins, query.ends, query.weights, positions)

    def some(self) -> Weighted:
        """A query, for a first search that must not wait for the compiler."""
        return self.weighted([(term, 1.0) for term in list(self._places)[:1]])

    def warm(self) -> None:
        some = self.some()
        self.search(some, 1, None, self._count)
        self.scores(some, np.zeros(1, np.int64))


_ALL = np.zeros(0, np.bool_)


def _analysed(texts: Iterable[Sequence[str]], processes: int) -> Iterator[Terms]:
    waiting: list[str] = []
    parts = iter(texts)
    for part in parts:
        waiting += part
        if len(waiting) >= _POOL and processes > 1:
            break
    else:
        yield terms_of(waiting)
        return
    yield from in_processes(_pieces(waiting, parts, processes), processes)


def _pieces(waiting: list[str], parts: Iterator[Sequence[str]], processes: int) -> Iterator[list[str]]:
    """The first texts in small ones, so that no process waits for its first."""
    first = min(_PIECE, 1 + len(waiting) // (4 * processes))
    for part, most in chain([(waiting, first)], zip(parts, repeat(_PIECE))):
        for start in range(0, len(part), most):
            yield list(part[start : start + most])
