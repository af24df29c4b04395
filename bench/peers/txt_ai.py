"""txtai's hybrid embeddings with content: FAISS and its own BM25 terms, weighed equally, rows and texts in SQLite."""

import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from txtai import Embeddings

from bench.peers.worker import DIM, TOP, Data, Hits, Query, Where


class System:
    persists: ClassVar[bool] = True
    filters: ClassVar[bool] = True

    def __init__(self) -> None:
        self._vectors: dict[str, Any] = {}
        self._embeddings: Any = None
        self._turn = threading.Lock()  # two threads at once are an error: they share cursors of SQLite

    def build(self, data: Data, folder: Path) -> dict[str, float]:
        self._embeddings = Embeddings(self._config())
        self._embeddings.index(self._documents(data))
        self._embeddings.config.pop("transform")  # a function cannot be saved
        self._embeddings.save(str(folder / "index"))
        return {}

    def open(self, data: Data, folder: Path) -> None:
        self._vectors = {query.text: query.vector for query in data.asked()}
        self._embeddings = Embeddings()
        self._embeddings.load(str(folder / "index"), config=self._config())

    def search(self, query: Query, where: Where | None) -> Hits:
        return [(int(hit["id"]), hit["text"]) for hit in self._found(query, where, None)]

    def dense(self, query: Query, where: Where | None) -> list[int]:
        return [int(hit["id"]) for hit in self._found(query, where, 1.0)]

    def _found(self, query: Query, where: Where | None, weights: float | None) -> list[dict[str, Any]]:
        """It takes ten times as many candidates of each leg as it returns: 100."""
        if where is None:
            with self._turn:
                return list(self._embeddings.search(query.text, TOP, weights=weights))
        # It drops what the filter forbids from the candidates: twenty are to be left on average.
        candidates = round(2 * TOP * 100 / (where.high - where.low + 1))
        sql = f"select id, text, score from txtai where similar(:q, {candidates}) and tag >= :low and tag <= :high"
        parameters = {"q": query.text, "low": where.low, "high": where.high}
        with self._turn:
            return list(self._embeddings.search(sql, TOP, weights=weights, parameters=parameters))

    def _config(self) -> dict[str, Any]:
        return {"method": "external", "transform": lambda texts: self._lookup(texts), "hybrid": True, "content": True}

    def _lookup(self, texts: Any) -> Any:
        return np.stack([self._vectors[text] for text in texts]).reshape(-1, DIM)

    def _documents(self, data: Data) -> Any:
        for block in data.blocks():
            self._vectors = {
                **dict(list(self._vectors.items())[-8192:]),
                **dict(zip(block.texts, block.vectors, strict=True)),
            }
            for i, (text, tag) in enumerate(zip(block.texts, block.tags, strict=True)):
                yield block.start + i, {"text": text, "tag": tag}, None
