"""LanceDB's hybrid search: its full-text index, its vector index, and its reciprocal rank fusion."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import FTS, BTree, HnswSq, IvfFlat
from lancedb.rerankers import RRFReranker

from bench.peers.worker import DEPTH, DIM, TOP, Data, Hits, Query, Where, cheapest

# The fastest of its vector indexes, of those that are built within the limit: for few rows none, all are compared; then HNSW
# with scalar quantisation, which would take too long for a million, so that there it is IVF.
_INDEXED, _MANY = 50_000, 500_000
HNSW = [{"probes": 1, "refine": refine} for refine in (1, 2, 3, 4, 6, 8, 12, 16)]
IVF = [{"probes": probes, "refine": 1} for probes in (4, 8, 12, 16, 24, 32, 48, 64, 96)]


class System:
    persists: ClassVar[bool] = True
    filters: ClassVar[bool] = True

    def __init__(self) -> None:
        self._table: Any = None
        self._reranker = RRFReranker()
        self._chosen = {"probes": 20, "refine": 1}

    def build(self, data: Data, folder: Path) -> dict[str, float]:
        start = time.perf_counter()
        schema = pa.schema(
            [("row", pa.int64()), ("text", pa.string()), ("tag", pa.int64()), ("vector", pa.list_(pa.float32(), DIM))]
        )
        table = lancedb.connect(str(folder)).create_table("passages", _batches(data, schema), schema=schema)
        stored = time.perf_counter()
        if data.rows >= _INDEXED:
            kind = HnswSq if data.rows < _MANY else IvfFlat
            table.create_index("vector", config=kind(distance_type="dot"))
        dense = time.perf_counter()
        table.create_index("text", config=FTS())
        sparse = time.perf_counter()
        table.create_index("tag", config=BTree())
        return {"store": stored - start, "dense": dense - stored, "sparse": sparse - dense}

    def open(self, data: Data, folder: Path) -> None:
        self._table = lancedb.connect(str(folder)).open_table("passages")

    def tune(self, examples: Sequence[tuple[Query, set[int]]]) -> dict[str, int]:
        rows = self._table.count_rows()
        if rows < _INDEXED:
            return {}

        def dense(choice: dict[str, int], query: Query) -> list[int]:
            self._chosen = choice
            return self.dense(query, None)

        self._chosen = cheapest(HNSW if rows < _MANY else IVF, examples, dense)
        return self._chosen

    def search(self, query: Query, where: Where | None) -> Hits:
        """Each leg's depth is the query's limit here."""
        found = self._hybrid(query, where).to_arrow().slice(0, TOP)
        return [(row["row"], row["text"]) for row in found.to_pylist()]

    def search_exact(self, query: Query, nearest: list[int]) -> list[int]:
        return [
            row["row"] for row in self._hybrid(query, None).bypass_vector_index().to_arrow().slice(0, TOP).to_pylist()
        ]

    def dense(self, query: Query, where: Where | None) -> list[int]:
        search = self._table.search(query.vector, vector_column_name="vector").limit(TOP).select(["row"])
        return [row["row"] for row in self._tuned(search, where).to_list()]

    def _hybrid(self, query: Query, where: Where | None) -> Any:
        search = self._table.search(query_type="hybrid", vector_column_name="vector", fts_columns="text")
        search = search.vector(query.vector).text(query.text).limit(DEPTH).select(["row", "text"])
        return self._tuned(search, where).rerank(self._reranker)

    def _tuned(self, search: Any, where: Where | None) -> Any:
        search = search.distance_type("dot").nprobes(self._chosen["probes"]).refine_factor(self._chosen["refine"])
        if where is not None:
            search = search.where(f"tag >= {where.low} AND tag <= {where.high}", prefilter=True)
        return search


def _batches(data: Data, schema: Any) -> Iterator[Any]:
    for block in data.blocks():
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(np.arange(block.start, block.start + len(block.texts))),
                pa.array(block.texts),
                pa.array(block.tags),
                pa.FixedSizeListArray.from_arrays(pa.array(block.vectors.reshape(-1)), DIM),
            ],
            schema=schema,
        )
