"""The sparse leg of one segment: BM25 over ``assay.text.index_terms``, by bm25s. Scores of all rows, so that a filter binds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import IndexFault
from assay.index.dense import Ids, Mask, Scores
from assay.text import index_terms, query_terms

FILES = ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy", "params.index.json", "vocab.index.json")


def build(texts: Sequence[str], folder: Path) -> None:
    """Write the leg. Row i is ``texts[i]``."""
    import bm25s

    vocabulary: dict[str, int] = {}
    rows = [[vocabulary.setdefault(term, len(vocabulary)) for term in index_terms(text)] for text in texts]
    if not vocabulary:  # bm25s cannot index nothing; a term that no query has stands for it
        vocabulary, rows = {"\x00": 0}, [[0] for _ in texts]
    index = bm25s.BM25()
    index.index((rows, vocabulary), show_progress=False)
    index.save(str(folder), show_progress=False)


class Sparse:
    """A loaded leg; what it finds are positions in its segment."""

    def __init__(self, folder: Path) -> None:
        import bm25s

        try:
            self._index: Any = bm25s.BM25.load(str(folder), load_corpus=False)
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise IndexFault("the sparse leg cannot be read") from e

    def __len__(self) -> int:
        return int(self._index.scores["num_docs"])

    def scores(self, query: str) -> Scores:
        """BM25 of every position; all zero for a query without a known term."""
        known = query_terms(query, self._index.vocab_dict)
        if not known:
            return np.zeros(len(self), np.float32)
        return np.asarray(self._index.get_scores(known), dtype=np.float32)[: len(self)]


def top(scores: NDArray[np.float32], k: int, allowed: Mask | None) -> Ids:
    """Positions of the best k scores above 0 (bm25s pads with zeros: those match nothing), best first, ties by position."""
    masked = scores if allowed is None else np.where(allowed, scores, 0)
    found = np.flatnonzero(masked > 0)
    if len(found) > k:
        bound = np.partition(masked[found], len(found) - k)[len(found) - k]
        found = found[masked[found] >= bound]
    return found[np.lexsort((found, -masked[found]))][:k]
