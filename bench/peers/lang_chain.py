"""LangChain's EnsembleRetriever over its FAISS vector store and its BM25Retriever (rank_bm25), with equal weights."""

import time
from pathlib import Path
from typing import Any, ClassVar

from langchain_classic.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bench.peers.worker import DEPTH, TOP, Data, Hits, Query, Where


class Known(Embeddings):
    """Looks vectors up. The vector store's own index is exact, as it is by default."""

    def __init__(self, queries: list[Query]) -> None:
        self._vectors = {query.text: query.vector.tolist() for query in queries}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise NotImplementedError("the documents come with their vectors")

    def embed_query(self, text: str) -> list[float]:
        return list(self._vectors[text])


class System:
    persists: ClassVar[bool] = False  # the BM25 retriever is made from the documents at every start
    filters: ClassVar[bool] = False  # nor has it filters

    def __init__(self) -> None:
        self._store: Any = None
        self._ensemble: Any = None

    def build(self, data: Data, folder: Path) -> dict[str, float]:
        known, documents = Known(data.asked()), []
        start = time.perf_counter()
        for block in data.blocks():
            metadatas = [{"row": block.start + i, "tag": tag} for i, tag in enumerate(block.tags)]
            pairs = list(zip(block.texts, block.vectors.tolist(), strict=True))
            if self._store is None:
                self._store = FAISS.from_embeddings(pairs, known, metadatas=metadatas)
            else:
                self._store.add_embeddings(pairs, metadatas=metadatas)
            documents += [Document(text, metadata=m) for text, m in zip(block.texts, metadatas, strict=True)]
        dense = time.perf_counter() - start
        start = time.perf_counter()
        sparse = BM25Retriever.from_documents(documents, k=DEPTH)
        near = self._store.as_retriever(search_kwargs={"k": DEPTH})
        self._ensemble = EnsembleRetriever(retrievers=[sparse, near], weights=[0.5, 0.5])
        return {"dense": dense, "sparse": time.perf_counter() - start}

    def open(self, data: Data, folder: Path) -> None:
        raise NotImplementedError

    def search(self, query: Query, where: Where | None) -> Hits:
        return [(d.metadata["row"], d.page_content) for d in self._ensemble.invoke(query.text)[:TOP]]

    def dense(self, query: Query, where: Where | None) -> list[int]:
        return [d.metadata["row"] for d in self._store.similarity_search(query.text, k=TOP)]
