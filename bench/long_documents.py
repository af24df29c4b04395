"""Whether looking at where documents begin finds passages in long ones: clauses of contracts, asked by what the contract is
called and who its parties are, which stands on its first page alone.

The contracts and the labelled clauses are CUAD's; a question's right passages are those that the clause stands in. Each is
indexed twice: under its file's name, in which its company stands, and under a number, as scans are called. What is embedded
stays in ``--cache``.
"""

import argparse
import ast
import asyncio
import csv
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from bench.report import Row, options, publish

METRICS = ("R@10", "nDCG@10")
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.8)
DOCUMENTS = (3, 10)
_LONG = 20  # passages: contracts with less are searched among, and not asked about
CLAUSES = {
    "Governing Law": "Which law governs",
    "Expiration Date": "When ends the term of",
    "Anti-Assignment": "Who may assign rights under",
    "Cap On Liability": "What is the limit of liability under",
    "License Grant": "Which license is granted by",
    "Renewal Term": "For how long is renewed",
    "Termination For Convenience": "Who may terminate without cause",
    "Audit Rights": "Who may inspect books and records under",
    "Minimum Commitment": "What is the least that must be bought under",
    "Insurance": "Which insurance is required by",
    "Notice Period To Terminate Renewal": "How long before must notice of non-renewal be given under",
    "Revenue/Profit Sharing": "How are revenues shared under",
    "Exclusivity": "What is exclusive under",
    "Post-Termination Services": "What has to be done after the end of",
    "Non-Compete": "Which competition is forbidden by",
}
_COMPANY = re.compile(
    r"\b(?:inc|llc|ltd|limited|corp|corporation|company|gmbh|plc|l\.p|b\.v|s\.a|incorporated)\b", re.I
)


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    contract: str
    clauses: tuple[str, ...]


def questions(cuad: Path) -> list[Question]:
    """Of contracts that no other one shares its name and parties with."""
    txt = {
        Path(item["filename"]).stem: Path(item["txt"]).name for item in json.loads((cuad / "manifest.json").read_text())
    }
    found = []
    with (cuad / "master_clauses.csv").open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            named, parties = ast.literal_eval(row["Document Name"]), ast.literal_eval(row["Parties"])
            companies = [p for p in parties if len(p) <= 60 and "\n" not in p and _COMPANY.search(p)][:2]
            if not named or not companies or Path(row["Filename"]).stem not in txt:
                continue
            called = f"the {' '.join(named[0].split()).lower()} between {' and '.join(companies)}"
            for clause, asked in CLAUSES.items():
                if parts := tuple(
                    p for text in ast.literal_eval(row[clause]) for p in text.split("<omitted>") if p.strip()
                ):
                    found.append(Question(f"{asked} {called}?", txt[Path(row["Filename"]).stem], parts))
    times = Counter(q.text for q in found)
    return [q for q in found if times[q.text] == 1]


def right(question: Question, text: str, chunks: Sequence[Chunk]) -> list[int]:
    """The passages that a labelled clause stands in, in part at least."""
    spans = []
    for clause in question.clauses:
        words = r"\s+".join(map(re.escape, clause.split()))
        spans += [found.span() for found in re.finditer(words, text)]
    return [c.id for c in chunks if any(c.start < end and start < c.end for start, end in spans)]


class Contracts:
    """The contracts in an index, under their names or numbers, and what is asked of them."""

    def __init__(self, cuad: Path, folder: Path, numbered: bool, encoder: SentenceEmbedder, notes: Console) -> None:
        sources = find_sources([cuad / "txt"], cuad / "txt")
        name_of = {s.uri: f"contract-{number:03}.txt" if numbered else s.uri for number, s in enumerate(sources)}
        if numbered:  # the name is the file's, so the file needs another one
            (folder / "txt").mkdir(parents=True, exist_ok=True)
            for source in sources:
                (folder / "txt" / name_of[source.uri]).write_bytes(source.path.read_bytes())
            sources = find_sources([folder / "txt"], folder / "txt")
        layout = Layout(str(folder / "index"))
        with Parser() as parser, Meter(notes) as meter:
            run = Ingestion(layout, "contracts", sources, encoder, encoder.embed_now, parser, meter.show)
            if failed := [row for row in run.run().rows if row.outcome == "failed"]:
                raise RuntimeError(f"{failed[0].uri}: {failed[0].message}")
        self._index, self._encoder = IndexConfig(uri=str(folder / "index")), encoder
        reader = Reader(layout, read_current(layout))
        chunks: dict[str, list[Chunk]] = {}
        for c in reader.chunks(np.arange(len(reader.ids))):
            chunks.setdefault(c.uri, []).append(c)
        self.passages = [len(held) for held in chunks.values()]
        self.asked: list[tuple[Question, list[int]]] = []
        for question in questions(cuad):
            held = chunks[name_of[question.contract]]
            if len(held) >= _LONG and (ids := right(question, reader.document(held[0].doc_id), held)):
                self.asked.append((replace(question, contract=held[0].doc_id), ids))
        texts = [question.text for question, _ in self.asked]
        self._remembered = Remembered(encoder, dict(zip(texts, encoder.embed_now(texts), strict=True)))

    async def run(self, config: RetrieverConfig) -> tuple[dict[str, list[str]], float]:
        """Query -> its passages, best first; and the median milliseconds of a search. A leg that could not answer fails the
        measurement: its figure would not be the configuration's."""
        retriever, found, ms = LocalRetriever(self._index, config, self._remembered), dict[str, list[str]](), []
        for number, (question, _) in enumerate(self.asked):
            begun = time.perf_counter()
            result = await retriever.search(SearchQuery((question.text,), top_k=10))
            ms.append(1000 * (time.perf_counter() - begun))
            if result.degraded:
                raise RuntimeError(f"degraded: {result.degraded[0].reason}")
            found[str(number)] = [str(hit.chunk.id) for hit in result.hits]
        return found, float(np.median(ms))

    @property
    def judged(self) -> dict[str, dict[str, int]]:
        return {str(number): {str(id): 1 for id in ids} for number, (_, ids) in enumerate(self.asked)}


def setups(quick: bool) -> Iterator[tuple[str, RetrieverConfig]]:
    for weight in (0.0, 0.3) if quick else WEIGHTS:
        for documents in DOCUMENTS[-1:] if quick or not weight else DOCUMENTS:
            name = f"leads {weight:g}, {documents} documents" if weight else "no leads"
            yield name, RetrieverConfig(lead_weight=weight, lead_documents=documents, timeout_s=60)


def measure(data: Path, cache: Path, quick: bool, notes: Console) -> list[Row]:
    encoder = SentenceEmbedder(resolve_model(IndexConfig().embedder, Path(AppConfig().cache)))
    rows = []
    for numbered in (True, False):
        called = "by number" if numbered else "by name"
        folder = cache / f"{'numbered' if numbered else 'named'}-{encoder.checksum[:8]}"
        contracts = Contracts((data / "contracts" / "cuad").resolve(), folder, numbered, encoder, notes)
        rows.append(Row(f"{called} | questions", len(contracts.asked), "questions"))
        rows.append(Row(f"{called} | passages of a contract, mean", float(np.mean(contracts.passages)), "passages"))
        values, ms = {}, {}
        for name, config in setups(quick):
            found, ms[name] = asyncio.run(contracts.run(config))
            values[name] = measured(METRICS, contracts.judged, found)
            means = ", ".join(f"{metric} {np.mean(list(of.values())):.4f}" for metric, of in values[name].items())
            notes.print(f"{called}, {name}: {means}, {ms[name]:.2f} ms", highlight=False)
        ranking = compared(values, "no leads")
        for name, estimates in ranking.estimates.items():
            for metric in METRICS:
                rows.append(Row(f"{called} | {name} | {metric}", estimates[metric].mean, metric))
                if against := ranking.against.get(name, {}).get(metric):
                    gained = against.difference
                    rows.append(Row(f"{called} | {name} | {metric} gained, from", gained.low, metric))
                    rows.append(Row(f"{called} | {name} | {metric} gained, to", gained.high, metric))
            rows.append(Row(f"{called} | {name} | a search, median", ms[name], "ms"))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cache", type=Path, default=Path(".assay/bench/long"), help="(default: %(default)s)")

    args = options(__doc__ or "", argv, more)
    if not (args.data / "contracts" / "cuad").is_dir():
        sys.exit(f"bench.long_documents: the contracts are not at {args.data}: name their folder with --data")
    rows = measure(args.data, args.cache, args.quick, Console(stderr=True))
    publish(
        "Clauses of contracts, asked by who the parties are",
        rows,
        args,
        "gained: bounds of 95 % of the paired difference",
    )


if __name__ == "__main__":
    main()
