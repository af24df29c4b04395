"""Haystack's hybrid pipeline over its in-memory store: BM25 and embedding retriever, joined by reciprocal rank fusion."""

from pathlib import Path
from typing import Any, ClassVar

from haystack import Document, Pipeline
from haystack.components.joiners import DocumentJoiner
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever, InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from bench.peers.worker import DEPTH, TOP, Data, Hits, Query, Where


class System:
    persists: ClassVar[bool] = False  # its file is one JSON text with every vector in digits
    filters: ClassVar[bool] = True

    def __init__(self) -> None:
        self._near: Any = None
        self._pipeline = Pipeline()

    def build(self, data: Data, folder: Path) -> dict[str, float]:
        store = InMemoryDocumentStore(embedding_similarity_function="dot_product")
        for block in data.blocks():
            rows = range(block.start, block.start + len(block.texts))
            store.write_documents(
                [
                    Document(id=str(row), content=text, embedding=vector, meta={"row": row, "tag": tag})
                    for row, text, vector, tag in zip(
                        rows, block.texts, block.vectors.tolist(), block.tags, strict=True
                    )
                ]
            )
        self._near = InMemoryEmbeddingRetriever(store, top_k=TOP)
        self._pipeline.add_component("dense", InMemoryEmbeddingRetriever(store, top_k=DEPTH))
        self._pipeline.add_component("sparse", InMemoryBM25Retriever(store, top_k=DEPTH))
        self._pipeline.add_component("joiner", DocumentJoiner(join_mode="reciprocal_rank_fusion", top_k=TOP))
        self._pipeline.connect("dense", "joiner")
        self._pipeline.connect("sparse", "joiner")
        return {}

    def open(self, data: Data, folder: Path) -> None:
        raise NotImplementedError

    def search(self, query: Query, where: Where | None) -> Hits:
        filters = _filter(where)
        found = self._pipeline.run(
            {
                "dense": {"query_embedding": query.vector.tolist(), "filters": filters},
                "sparse": {"query": query.text, "filters": filters},
            }
        )
        return [(d.meta["row"], d.content) for d in found["joiner"]["documents"]]

    def dense(self, query: Query, where: Where | None) -> list[int]:
        found = self._near.run(query_embedding=query.vector.tolist(), filters=_filter(where))
        return [d.meta["row"] for d in found["documents"]]


def _filter(where: Where | None) -> dict[str, Any] | None:
    if where is None:
        return None
    bounds = ((">=", where.low), ("<=", where.high))
    return {
        "operator": "AND",
        "conditions": [{"field": "meta.tag", "operator": op, "value": value} for op, value in bounds],
    }
