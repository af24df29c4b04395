"""A judged collection through the real index and retriever, once for each configuration."""

import asyncio
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from assay.config import IndexConfig
from assay.errors import ParseFault, SetupError
from assay.eval.collection import Collection
from assay.eval.compare import Ranking, compared
from assay.eval.formats import Document
from assay.eval.metrics import Values, measured
from assay.eval.setups import Setup
from assay.index.embed import Encoder
from assay.index.files import Layout, interrupt_after, write_atomic
from assay.index.ingest import Ingestion, Progress, Report, Source
from assay.index.mirror import compact
from assay.index.parse.md import parse_plain
from assay.index.parse.parsed import Parsed
from assay.index.parse.parser import Parser
from assay.retrieve import LocalRetriever
from assay.types import SearchQuery

BUCKET = "eval"
_ALL = 10_000  # passages: more than any search finds, so that documents are counted after their passages are joined
_STEP = 256  # questions that are embedded and kept at a time

Vectors = NDArray[np.float32]
Show = Callable[[str, int, int], None]
"""What is worked at, how many are done, of how many."""


class BulkEncoder(Encoder, Protocol):
    def embed_now(self, texts: Sequence[str]) -> Vectors: ...


class Bench:
    """One collection, its index in a folder of its own under ``cache``, and its questions' vectors beside it.

    What the folder holds is kept: a run that was broken off goes on, and a second one only compares.
    """

    def __init__(self, collection: Collection, cache: Path, encoder: BulkEncoder) -> None:
        self.collection = collection
        self.folder = cache / f"{_digest(collection.documents)}-{encoder.checksum[:8]}"
        self._encoder = encoder

    def index(self, progress: Callable[[Progress], None] = lambda _: None) -> Report:
        """Ingest the documents as files are: divided, embedded, published. Raises ``SetupError`` where one cannot be
        indexed: a figure over a part of the corpus would be of another corpus."""
        documents = self.collection.documents
        sources = [
            Source(Path(f"{number}.txt"), document.id, len(document.title) + len(document.text))
            for number, document in enumerate(documents)
        ]
        encoder = self._encoder
        layout = Layout(str(self.folder))
        report = Ingestion(layout, BUCKET, sources, encoder, encoder.embed_now, _Texts(documents), progress).run()
        if failed := [row for row in report.rows if row.outcome == "failed"]:
            raise SetupError(f"{len(failed)} documents cannot be indexed, such as {failed[0].uri}: {failed[0].message}")
        return report

    def compare(
        self,
        setups: Sequence[Setup],
        metrics: Sequence[str],
        show: Show = lambda *_: None,
        done: Callable[[str, Values], None] = lambda *_: None,
    ) -> Ranking:
        """Every setup over all questions; the first one is the baseline. ``done`` hears of each that is finished."""
        remembered = Remembered(self._encoder, self._vectors(show))
        values: dict[str, Values] = {}
        for setup in setups:
            compact(Layout(str(self.folder)), setup.index)  # other legs are built anew; nothing is embedded
            retriever = LocalRetriever(IndexConfig(uri=str(self.folder)), setup.config, remembered)
            found = asyncio.run(self._run(retriever, setup, show))
            values[setup.name] = measured(metrics, self.collection.judged, found)
            done(setup.name, values[setup.name])
        return compared(values, setups[0].name)

    async def _run(self, retriever: LocalRetriever, setup: Setup, show: Show) -> dict[str, list[str]]:
        """Query -> documents, best first: a document stands where its best passage does. A leg that could not answer
        fails the measurement (``SetupError``): a degraded figure is not the configuration's."""
        found: dict[str, list[str]] = {}
        for name, text in self.collection.queries.items():
            query = SearchQuery((text,), (BUCKET,), legs=setup.legs, link_hop=setup.link_hop, top_k=_ALL)
            result = await retriever.search(query)
            if result.degraded:
                raise SetupError(f"{setup.name}: the query '{name}' was degraded: {result.degraded[0].reason}")
            found[name] = list(dict.fromkeys(hit.chunk.uri for hit in result.hits))
            show(f"queries, {setup.name}", len(found), len(self.collection.queries))
        return found

    def _vectors(self, show: Show) -> dict[str, Vectors]:
        """Of the questions, kept step by step."""
        texts = list(dict.fromkeys(self.collection.queries.values()))
        path = self.folder / f"questions-{hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]}.npy"
        held: Vectors = np.load(path) if path.exists() else np.zeros((0, self._encoder.dim), np.float32)
        for start in range(len(held), len(texts), _STEP):
            held = np.concatenate([held, self._encoder.embed_now(texts[start : start + _STEP])])
            with interrupt_after():
                write_atomic(path, _npy(held))
            show("questions embedded", len(held), len(texts))
        return dict(zip(texts, held, strict=True))


class _Texts(Parser):
    """Documents that are in memory already: nothing to read, nothing to distrust; the paths are their numbers."""

    def __init__(self, documents: Sequence[Document]) -> None:
        super().__init__()
        self._documents = documents

    def read(self, path: Path) -> bytes:
        document = self._documents[int(path.stem)]
        return json.dumps([document.title, document.text]).encode()

    def parse(self, data: bytes, name: str) -> Parsed:
        """A document without a text is its title; one that has neither is skipped, as an empty file is."""
        title, text = json.loads(data)
        try:
            return parse_plain(text.strip() or title, title)
        except ParseFault as e:
            raise ParseFault("the document has neither title nor text", e.reason) from None


class Remembered:
    """An encoder that knows the vectors of questions that are asked again and again; others it leaves to ``encoder``."""

    def __init__(self, encoder: Encoder, vectors: Mapping[str, Vectors]) -> None:
        self.name, self.checksum = encoder.name, encoder.checksum
        self.dim, self.max_tokens, self.token_starts = encoder.dim, encoder.max_tokens, encoder.token_starts
        self._encoder, self._vectors = encoder, vectors

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if all(text in self._vectors for text in texts):
            return np.stack([self._vectors[text] for text in texts])
        return await self._encoder.embed(texts)


def _digest(documents: Sequence[Document]) -> str:
    """Another corpus never meets this one's index."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(json.dumps([document.id, document.title, document.text]).encode())
    return digest.hexdigest()[:16]


def _npy(array: Vectors) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()
