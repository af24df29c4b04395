"""Whether looking at where documents begin finds passages in long ones: clauses of contracts, asked by what the contract is
called and who its parties are, which stands on its first page alone; and what it does in collections where one document has
hundreds of passages (``bench.long_collections``). What is embedded stays in ``--cache``.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from assay.cli.meter import Meter
from assay.config import AppConfig, IndexConfig, RetrieverConfig
from assay.eval.compare import compared
from assay.eval.metrics import measured
from assay.eval.ranking import Remembered
from assay.index.embed import SentenceEmbedder
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from assay.index.parse.parser import Parser
from assay.index.reader import Reader
from assay.index.snapshot import read_current
from assay.models import resolve_model
from assay.retrieve import LocalRetriever
from assay.types import Chunk, SearchQuery
from bench.long_collections import Collection, Held, collections
from bench.report import Row, options, publish

METRICS = ("R@5", "R@10", "nDCG@10")
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.8)
DOCUMENTS = (3, 10)


class Searched:
    """A collection in an index, and what is asked of it. A question whose passages nobody knows is left out."""

    def __init__(self, collection: Collection, folder: Path, encoder: SentenceEmbedder, notes: Console) -> None:
        layout = Layout(str(folder / "index"))
        sources = find_sources([collection.folder], collection.folder)
        with Parser() as parser, Meter(notes) as meter:
            run = Ingestion(layout, "long", sources, encoder, encoder.embed_now, parser, meter.show)
            if failed := [row for row in run.run().rows if row.outcome == "failed"]:
                raise RuntimeError(f"{failed[0].uri}: {failed[0].message}")
        self._index, self._encoder = IndexConfig(uri=str(folder / "index")), encoder
        held = _held(Reader(layout, read_current(layout)))
        self.passages = sorted((len(chunks) for _, chunks in held.values()), reverse=True)
        self.asked = [asked for asked in collection.ask(held) if asked.ids]
        texts = list({asked.text for asked in self.asked})
        self._remembered = Remembered(encoder, dict(zip(texts, encoder.embed_now(texts), strict=True)))
        self._document = {c.id: c.doc_id for _, chunks in held.values() for c in chunks}

    async def run(self, config: RetrieverConfig) -> tuple[dict[str, list[str]], float]:
        """Query -> its passages, best first; and the median milliseconds of a search. A leg that could not answer fails the
        measurement: its figure would not be the configuration's."""
        retriever, found, ms = LocalRetriever(self._index, config, self._remembered), dict[str, list[str]](), []
        for number, asked in enumerate(self.asked):
            begun = time.perf_counter()
            result = await retriever.search(SearchQuery((asked.text,), top_k=10))
            ms.append(1000 * (time.perf_counter() - begun))
            if result.degraded:
                raise RuntimeError(f"degraded: {result.degraded[0].reason}")
            ids = [hit.chunk.id for hit in result.hits]
            found[str(number)] = self._first_of(asked.ids, ids) if asked.whole else list(map(str, ids))
        return found, float(np.median(ms))

    def _first_of(self, right: Sequence[int], ids: Sequence[int]) -> list[str]:
        """The document's first passage stands for all of it, at its rank among all passages."""
        place = next((rank for rank, id in enumerate(ids) if id in right), None)
        return [str(right[0]) if rank == place else f"other {rank}" for rank, _ in enumerate(ids)]

    @property
    def judged(self) -> dict[str, dict[str, int]]:
        return {
            str(number): {str(id): 1 for id in (asked.ids[:1] if asked.whole else asked.ids)}
            for number, asked in enumerate(self.asked)
        }

    def of(self, kind: str) -> list[str]:
        return [str(number) for number, asked in enumerate(self.asked) if asked.kind == kind]


def _held(reader: Reader) -> Held:
    chunks: dict[str, list[Chunk]] = {}
    for c in reader.chunks(np.arange(len(reader.ids))):
        chunks.setdefault(c.uri, []).append(c)
    return {uri: (reader.document(of[0].doc_id), of) for uri, of in chunks.items()}


def setups(quick: bool) -> Iterator[tuple[str, RetrieverConfig]]:
    for weight in (0.0, 0.3) if quick else WEIGHTS:
        for documents in DOCUMENTS[-1:] if quick or not weight else DOCUMENTS:
            name = f"leads {weight:g}, {documents} documents" if weight else "no leads"
            yield name, RetrieverConfig(lead_weight=weight, lead_documents=documents, timeout_s=60)


def measure(data: Path, cache: Path, quick: bool, notes: Console) -> Iterator[Row]:
    encoder = SentenceEmbedder(resolve_model(IndexConfig().embedder, Path(AppConfig().cache)))
    folder = cache / encoder.checksum[:8]
    for called, make in collections(data, folder / "files").items():
        searched = Searched(make(), folder / called.replace(" ", "-"), encoder, notes)
        yield Row(f"{called} | passages of a document, mean", float(np.mean(searched.passages)), "passages")
        yield Row(f"{called} | passages of the longest document", searched.passages[0], "passages")
        yield Row(
            f"{called} | documents of 200 passages and more", sum(n >= 200 for n in searched.passages), "documents"
        )
        found = {name: asyncio.run(searched.run(config)) for name, config in setups(quick)}
        for kind in dict.fromkeys(asked.kind for asked in searched.asked):
            yield from _compared(f"{called} | {kind}", searched, searched.of(kind), found, notes)
        for name, (_, ms) in found.items():
            yield Row(f"{called} | {name} | a search, median", ms, "ms")


def _compared(
    called: str, searched: Searched, queries: Sequence[str], found: dict[str, tuple[dict[str, list[str]], float]],
    notes: Console,
) -> Iterator[Row]:  # fmt: skip
    yield Row(f"{called} | questions", len(queries), "questions")
    values = {
        name: measured(METRICS, searched.judged, {query: run[query] for query in queries})
        for name, (run, _) in found.items()
    }
    ranking = compared(values, "no leads")
    for name, estimates in ranking.estimates.items():
        means = ", ".join(f"{metric} {estimate.mean:.4f}" for metric, estimate in estimates.items())
        notes.print(f"{called}, {name}: {means}", highlight=False)
        for metric in METRICS:
            yield Row(f"{called} | {name} | {metric}", estimates[metric].mean, metric)
            if against := ranking.against.get(name, {}).get(metric):
                gained = against.difference
                yield Row(f"{called} | {name} | {metric} gained, from", gained.low, metric)
                yield Row(f"{called} | {name} | {metric} gained, to", gained.high, metric)


def main(argv: Sequence[str] | None = None) -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cache", type=Path, default=Path(".assay/bench/long"), help="(default: %(default)s)")

    args = options(__doc__ or "", argv, more)
    if not (args.data / "contracts" / "cuad").is_dir():
        sys.exit(f"bench.long_documents: the contracts are not at {args.data}: name their folder with --data")
    rows = list(measure(args.data, args.cache, args.quick, Console(stderr=True)))
    publish("Passages of long documents", rows, args, "gained: bounds of 95 % of the paired difference")


if __name__ == "__main__":
    main()
