"""Assay in process: the real store, published, behind ``LocalRetriever``; texts, filters and access included."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from assay.config import IndexConfig, RetrieverConfig
from assay.index.chunk import Passage
from assay.index.files import Layout
from assay.index.snapshot import publish
from assay.index.store import Entry, Store
from assay.models import embedder_path
from assay.retrieve import LocalRetriever
from assay.schemas import Predicate
from assay.types import SearchQuery
from bench.peers.worker import TOP, Block, Data, Hits, Query, Vector, Where

BUCKET, HIDDEN = "open", "hidden"
_DOCUMENT = 8  # passages
_BATCH = 8192  # passages that are committed together


class Known:
    """An ``Encoder`` with the name of the one that made the vectors; the queries' vectors are looked up, as the peers' are."""

    dim = 384
    max_tokens = 256

    def __init__(self, name: str, checksum: str, queries: Sequence[Query]) -> None:
        self.name, self.checksum = name, checksum
        self._vectors = {query.text: query.vector for query in queries}
        self._tokenizer = Tokenizer.from_file(str(embedder_path() / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def token_starts(self, text: str) -> NDArray[np.int64]:
        """Not looked up: Assay counts the tokens of a question, and that time is its own."""
        return np.array(
            [start for start, _ in self._tokenizer.encode(text, add_special_tokens=False).offsets], np.int64
        )

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self._vectors[text] for text in texts])


class System:
    persists: ClassVar[bool] = True
    filters: ClassVar[bool] = True

    def __init__(self) -> None:
        self._retriever: LocalRetriever | None = None

    def build(self, data: Data, folder: Path) -> dict[str, float]:
        """A hundredth of the rows is there twice, the second time in a bucket that no search may see: access must bind."""
        layout, settings = Layout(str(folder)), data.settings
        start = time.perf_counter()
        with layout.writer():
            store = Store(layout, settings["embedder"], settings["checksum"], 384)
            for block in data.blocks(_BATCH):
                store.put(list(_entries(block, BUCKET, len(block.texts))))
            block = next(data.blocks(_BATCH))
            store.put(list(_entries(block, HIDDEN, min(len(block.texts), data.rows // 100))))
            stored = time.perf_counter()
            publish(layout, store)
        return {"store": stored - start, "publish": time.perf_counter() - stored}

    def open(self, data: Data, folder: Path) -> None:
        known = Known(data.settings["embedder"], data.settings["checksum"], data.asked())
        config = RetrieverConfig(**data.settings.get("retriever", {}))
        self._retriever = LocalRetriever(IndexConfig(uri=str(folder)), config, known)
        if self._retriever.reasons:
            raise RuntimeError("; ".join(self._retriever.reasons))

    async def search(self, query: Query, where: Where | None) -> Hits:
        return [(row, text) for row, text in await self._found(query, where, ("dense", "sparse"))]

    async def dense(self, query: Query, where: Where | None) -> list[int]:
        return [row for row, _ in await self._found(query, where, ("dense",))]

    async def search_exact(self, query: Query, nearest: list[int]) -> list[int]:
        """The same search of the same reader, but that its dense leg's list is given."""
        assert self._retriever is not None
        reader, rows = self._retriever._open(), np.array(nearest)

        def given(query: Vector, k: int, mask: NDArray[np.bool_] | None) -> tuple[NDArray[np.int64], Vector]:
            return rows, reader.cosines(query, rows)

        def beside(queries: Vector, *_: Any) -> Callable[[], list[tuple[NDArray[np.int64], Vector]]]:
            return lambda: [given(query, 0, None) for query in queries]

        reader.search_dense, reader.dense_beside = given, beside  # type: ignore[assignment, method-assign]
        try:
            return [row for row, _ in await self._found(query, None, ("dense", "sparse"))]
        finally:
            del reader.search_dense, reader.dense_beside

    async def _found(self, query: Query, where: Where | None, legs: tuple[Any, ...]) -> list[tuple[int, str]]:
        assert self._retriever is not None
        result = await self._retriever.search(
            SearchQuery((query.text,), buckets=(BUCKET,), filters=_filter(where), legs=legs, top_k=TOP)
        )
        if result.degraded:
            raise RuntimeError(str(result.degraded))
        # Ids count from 1 in the order of the rows; the hidden rows came last.
        return [(hit.chunk.id - 1, hit.chunk.text) for hit in result.hits]


def _filter(where: Where | None) -> Predicate | None:
    if where is None:
        return None
    if where.low == where.high:
        return Predicate(field="page", op="=", value=where.low + 1)
    return Predicate(field="page", op="between", value=[where.low + 1, where.high + 1])


def _entries(block: Block, bucket: str, most: int) -> Iterator[Entry]:
    for first in range(0, most, _DOCUMENT):
        texts = block.texts[first : min(most, first + _DOCUMENT)]
        starts = np.cumsum([0, *(len(text) + 1 for text in texts)]).tolist()
        yield Entry(
            doc_id=f"{bucket}-{block.start + first}",
            bucket=bucket,
            uri=f"{bucket}/{block.start + first}.txt",
            title="",
            format="txt",
            sha256="",
            size=starts[-1],
            text="\n".join(texts),
            passages=[
                Passage(start, start + len(text), (), tag + 1)
                for start, text, tag in zip(starts, texts, block.tags[first:], strict=False)
            ],
            vectors=block.vectors[first : first + len(texts)],
        )
