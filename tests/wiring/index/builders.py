"""Small real indexes for tests."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from assay.config import IndexConfig, Legs, RetrieverConfig
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Report, find_sources
from assay.index.parse import parse
from assay.index.parse.parsed import FORMATS, Parsed
from assay.index.parse.parser import Parser
from assay.index.segment import FileEntry, Sha256File
from assay.index.snapshot import FORMAT, REBUILD_ROWS, Manifest, read_current
from assay.retrieve import LocalRetriever
from assay.types import DocumentQuery, SearchQuery, SearchResult
from tests.unit.index.fakes import WordEncoder

# Names of a file outside of an index in ``{folder}``, as somebody who wants it deleted would send them.
OUTSIDE = (
    "../outside.txt",
    "../../outside.txt",
    "%2e%2e/outside.txt",
    "..\\outside.txt",
    "{folder}/outside.txt",
    "file://{folder}/outside.txt",
    "03.md\0/../outside.txt",
    "03.md\0",
    "chunks.lance",
    "CURRENT",
)


WORDS = [f"w{i}" for i in range(300)]


class DirectParser(Parser):
    """Parses in this process: no child to wait for."""

    def parse(self, data: bytes, name: str) -> Parsed:
        return parse(data, FORMATS[Path(name).suffix], Path(name).stem)


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def ingest(
    folder: Path,
    index: Path,
    bucket: str = "docs",
    encoder: WordEncoder | None = None,
    rebuild_rows: int = REBUILD_ROWS,
    rebuild: bool = False,
    legs: Legs | None = None,
) -> Report:
    encoder = encoder or WordEncoder()
    sources = find_sources([folder], folder)
    return Ingestion(Layout(str(index)), bucket, sources, encoder, encoder.embed_now, DirectParser()).run(
        legs, rebuild=rebuild, rebuild_rows=rebuild_rows
    )


def retriever(index: Path, encoder: WordEncoder | None = None, config: RetrieverConfig | None = None) -> LocalRetriever:
    return LocalRetriever(IndexConfig(uri=str(index)), config or RetrieverConfig(), encoder or WordEncoder())


def search(over: LocalRetriever, query: SearchQuery | str) -> SearchResult:
    return asyncio.run(over.search(SearchQuery((query,)) if isinstance(query, str) else query))


def found(result: SearchResult) -> list[str]:
    return [hit.chunk.uri for hit in result.hits]


def text_of(over: LocalRetriever, doc_id: str) -> str:
    """A document's text, in which spans count."""
    return asyncio.run(over.document_lookup(DocumentQuery(doc_id, max_chars=10**9))).text


def flipped(path: Path, at: int = -1) -> None:
    """One bit of one byte, in place: whoever has the file open sees it."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def made_old(layout: Layout) -> Manifest:
    """The snapshot in force, as if it had been published in the format before, which knew files by their SHA-256."""

    def old(folder: Path, files: Iterable[str]) -> dict[str, FileEntry]:
        held = {name: (folder / name).read_bytes() for name in files}
        return {n: Sha256File(bytes=len(data), sha256=hashlib.sha256(data).hexdigest()) for n, data in held.items()}

    now = read_current(layout)
    segments = tuple(s.model_copy(update={"files": old(layout.segments / s.id, s.files)}) for s in now.segments)
    files = old(layout.root, now.files)
    manifest = now.model_copy(update={"format": FORMAT - 1, "files": files, "segments": segments})
    data = manifest.model_dump_json(indent=1).encode()
    (layout.snapshots / f"{now.id}.json").unlink()
    (layout.snapshots / f"{manifest.id}.json").write_bytes(data)
    layout.current.write_text(f"{manifest.id} {hashlib.sha256(data).hexdigest()}")
    return manifest


def some_texts(count: int, seed: int = 0) -> list[str]:
    """Word frequencies as in language: few are everywhere, many are rare."""
    rng = np.random.default_rng(seed)
    odds = 1 / np.arange(1, len(WORDS) + 1)
    lengths = rng.integers(3, 40, size=count)
    return [" ".join(rng.choice(WORDS, size=n, p=odds / odds.sum())) for n in lengths]
