"""The floor: bm25s (numba) and FAISS IVF with reciprocal rank fusion, rows alone: no texts, no filters, no access, no store."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import bm25s
import faiss
import numpy as np
import Stemmer

from bench.peers.worker import DEPTH, DIM, TOP, Data, Hits, Query, Where, cheapest

PROBES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # of FAISS's lists


class System:
    persists: ClassVar[bool] = True
    filters: ClassVar[bool] = False

    def __init__(self) -> None:
        self._stemmer = Stemmer.Stemmer("english")
        self._dense: Any = None
        self._sparse: Any = None

    def build(self, data: Data, folder: Path) -> dict[str, float]:
        texts: list[str] = []
        parts = []
        for block in data.blocks():
            texts += block.texts
            parts.append(block.vectors.astype(np.float16))
        start = time.perf_counter()
        index = _ivf(np.concatenate(parts))
        parts.clear()
        faiss.write_index(index, str(folder / "dense.faiss"))
        dense = time.perf_counter() - start
        start = time.perf_counter()
        tokens = bm25s.tokenize(texts, stopwords="en", stemmer=self._stemmer, show_progress=False)
        sparse = bm25s.BM25(backend="numba")
        sparse.index(tokens, show_progress=False)
        sparse.save(str(folder), show_progress=False)
        return {"dense": dense, "sparse": time.perf_counter() - start}

    def open(self, data: Data, folder: Path) -> None:
        self._dense = faiss.read_index(str(folder / "dense.faiss"))
        self._sparse = bm25s.BM25.load(str(folder), load_corpus=False)
        self._sparse.backend = "numba"

    def tune(self, examples: Sequence[tuple[Query, set[int]]]) -> dict[str, int]:
        def dense(choice: dict[str, int], query: Query) -> list[int]:
            self._dense.nprobe = choice["probes"]
            return self._nearest(query, TOP)

        chosen = cheapest([{"probes": probes} for probes in PROBES], examples, dense)
        self._dense.nprobe = chosen["probes"]
        return chosen

    def search(self, query: Query, where: Where | None) -> Hits:
        return [(row, None) for row in self.search_exact(query, self._nearest(query, DEPTH))]

    def search_exact(self, query: Query, nearest: list[int]) -> list[int]:
        tokens = bm25s.tokenize(
            [query.text], stopwords="en", stemmer=self._stemmer, return_ids=False, show_progress=False
        )
        rows, scores = self._sparse.retrieve(tokens, k=DEPTH, show_progress=False, n_threads=0)
        total: dict[int, float] = {}
        for found in (nearest, rows[0][scores[0] > 0].tolist()):
            for rank, row in enumerate(found, start=1):
                total[row] = total.get(row, 0.0) + 1 / (60 + rank)
        return sorted(total, key=lambda row: (-total[row], row))[:TOP]

    def dense(self, query: Query, where: Where | None) -> list[int]:
        return self._nearest(query, TOP)

    def _nearest(self, query: Query, k: int) -> list[int]:
        _, rows = self._dense.search(query.vector[None, :], k)
        found: list[int] = rows[0][rows[0] >= 0].tolist()
        return found


def _ivf(vectors: Any) -> Any:
    """As FAISS's own guidance has it: some 4 sqrt(n) cells, trained on a sample."""
    cells = int(4 * np.sqrt(len(vectors)))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(DIM), DIM, cells, faiss.METRIC_INNER_PRODUCT)
    sample = np.random.default_rng(0).choice(len(vectors), min(len(vectors), 40 * cells), replace=False)
    index.train(vectors[np.sort(sample)].astype(np.float32))
    for start in range(0, len(vectors), 100_000):
        index.add(vectors[start : start + 100_000].astype(np.float32))
    return index
