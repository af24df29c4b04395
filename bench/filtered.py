"""Filters on real collections, contracts by type and invoices by date and amount: against an exact search over the passages
that the files' own metadata allows, on every path that a filter binds, and by each kind of dense leg: ``flat``, whose recall is
1 if nothing is wrong, and two that compare only a part of what a wide filter allows."""

import asyncio
import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from rich.console import Console

from assay.cli.meter import Meter
from assay.config import IndexConfig, Legs, RetrieverConfig
from assay.errors import NotFound
from assay.eval.ranking import Remembered
from assay.index.buckets import BucketSchema
from assay.index.dense import Kind
from assay.index.embed import SentenceEmbedder
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Source, find_sources
from assay.index.metadata import Given, MetadataTable
from assay.index.mirror import compact
from assay.index.parse.parser import Parser
from assay.index.reader import Reader
from assay.index.snapshot import read_current
from assay.retrieve import LocalRetriever
from assay.schemas import Filter
from assay.types import LEGS, DocumentQuery, Hit, Leg, SearchQuery
from bench.report import Row, at_least, at_most

TOP = 10
RECALL: dict[Kind, float] = {"flat": 1, "ivf": 0.95, "hnsw": 0.95}
SCHEMAS = {
    "contracts": {"type": {"type": "text", "required": True}},
    "invoices": {"date": {"type": "date"}, "amount": {"type": "number"}, "issuer": {"type": "text"}},
}
FACETS = {"contracts": "type", "invoices": "issuer"}
PATHS = ("dense leg", "sparse leg", "both with variants", "link hop", "facets", "lookups")


@dataclass(frozen=True, slots=True)
class Case:
    """``wanted``: the documents that pass, by what the files say, which nothing of Assay has looked at."""

    bucket: str
    filters: dict[str, Any]
    wanted: frozenset[str]

    @property
    def parsed(self) -> Filter:
        found: Filter = TypeAdapter[Filter](Filter).validate_python(self.filters)
        return found


@dataclass(slots=True)
class Tally:
    searches: int = 0
    by_index: int = 0
    """Searches whose dense leg did not compare all allowed passages."""
    recall: dict[Leg, list[float]] = field(default_factory=lambda: {leg: [] for leg in LEGS})
    wrong_rows: int = 0
    outside: Counter[str] = field(default_factory=Counter)
    counted: int = 0
    linked: int = 0
    linked_outside_unfiltered: int = 0


def filtered(data: Path, cache: Path, encoder: SentenceEmbedder, notes: Console) -> list[Row]:
    folder = cache / f"filters-{encoder.checksum[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    contracts, bills = (data / "contracts" / "cuad").resolve(), (data / "invoices" / "invoice2data").resolve()
    kinds = {Path(item["txt"]).name: item["category"] for item in json.loads((contracts / "manifest.json").read_text())}
    said = {p.with_suffix(".pdf").name: json.loads(p.read_text())[0] for p in sorted(bills.glob("*.json"))}
    table = folder / "types.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "type"), *kinds.items()])
    texts = [s for s in find_sources([contracts / "txt"], contracts / "txt") if s.uri in kinds]
    _ingest(folder, "contracts", texts, Given([s.path for s in texts], MetadataTable(table)), encoder, notes)
    files = [s for s in find_sources([bills], bills) if s.path.suffix in (".pdf", ".json")]
    _ingest(folder, "invoices", files, Given([s.path for s in files]), encoder, notes)
    with (contracts / "master_clauses.csv").open(newline="", encoding="utf-8-sig") as file:
        clauses = [name for name in next(csv.reader(file)) if name != "Filename" and not name.endswith("Answer")]
    clauses = [f"{clause}: what does the agreement say?" for clause in clauses]
    of_bills = ["total amount due", "date of the invoice", "hosting and cloud services", "who sells it?", "tax"]
    rows: list[Row] = []
    for kind, recall in RECALL.items():
        notes.print(kind)
        compact(Layout(str(folder / "index")), Legs(dense=kind))  # from the vectors that are there
        check, beside = _Check(folder, encoder), "" if kind == "flat" else f", {kind}"
        tally = check.all(list(_by_type(kinds)), clauses, kinds, notes)
        rows += _rows(f"cuad by type{beside}", tally, recall)
        issuers = {uri: bill["issuer"] for uri, bill in said.items()}
        tally = check.all(list(_by_date_and_amount(said)), of_bills, issuers, notes)
        rows += _rows(f"invoices by date and amount{beside}", tally, recall)
    return rows


def _ingest(
    folder: Path, bucket: str, sources: Sequence[Source], given: Given, encoder: SentenceEmbedder, notes: Console
) -> None:
    schema = BucketSchema.model_validate({"fields": SCHEMAS[bucket]})
    layout = Layout(str(folder / "index"))
    with Parser() as parser, Meter(notes) as meter:
        run = Ingestion(
            layout, bucket, sources, encoder, encoder.embed_now, parser, meter.show, schema=schema, given=given
        )
        if failed := [row for row in run.run().rows if row.outcome == "failed"]:
            raise RuntimeError(f"{failed[0].uri}: {failed[0].message}")


def _by_type(kinds: dict[str, str]) -> Iterator[Case]:
    names = sorted(set(kinds.values()))
    for name in names:
        one = {"field": "type", "op": "=", "value": name}
        yield Case("contracts", one, frozenset(uri for uri, kind in kinds.items() if kind == name))
        yield Case("contracts", {"not": one}, frozenset(uri for uri, kind in kinds.items() if kind != name))
    for start in range(0, len(names), 5):
        some = names[start : start + 5]
        among = {"field": "type", "op": "in", "value": some}
        yield Case("contracts", among, frozenset(uri for uri, kind in kinds.items() if kind in some))


def _by_date_and_amount(said: dict[str, dict[str, Any]]) -> Iterator[Case]:
    """Every bound that divides the invoices, of each field alone and of both together."""
    dates, amounts = sorted(bill["date"] for bill in said.values()), sorted(bill["amount"] for bill in said.values())
    since = [{"field": "date", "op": ">=", "value": date} for date in dates]
    above = [{"field": "amount", "op": ">", "value": amount} for amount in amounts[:-1]]
    in_date = [frozenset(uri for uri, bill in said.items() if bill["date"] >= date) for date in dates]
    in_amount = [frozenset(uri for uri, bill in said.items() if bill["amount"] > amount) for amount in amounts[:-1]]
    by_date, by_amount = list(zip(since, in_date, strict=True)), list(zip(above, in_amount, strict=True))
    for filters, wanted in (*by_date, *by_amount):
        yield Case("invoices", filters, wanted)
    for one, these in by_date:
        for other, those in by_amount:
            if these & those:
                yield Case("invoices", {"and": [one, other]}, these & those)
    between = {"field": "date", "op": "between", "value": [dates[1], dates[-2]]}
    yield Case("invoices", between, frozenset(u for u, bill in said.items() if dates[1] <= bill["date"] <= dates[-2]))


class _Check:
    def __init__(self, folder: Path, encoder: SentenceEmbedder) -> None:
        layout = Layout(str(folder / "index"), reading=True)
        self._reader = Reader(layout, read_current(layout))
        self._index, self._encoder = IndexConfig(uri=str(folder / "index")), encoder
        self._chunks = self._reader.chunks(np.arange(len(self._reader.ids)))

    def all(self, cases: Sequence[Case], asked: Sequence[str], labels: Mapping[str, str], notes: Console) -> Tally:
        """``labels``: what each document has in the field whose values are counted."""
        tally = Tally()
        vectors = self._encoder.embed_now(asked)
        remembered = Remembered(self._encoder, dict(zip(asked, vectors, strict=True)))
        self._retriever = LocalRetriever(self._index, RetrieverConfig(timeout_s=60), remembered)
        with Meter(notes) as meter:
            for number, case in enumerate(cases, start=1):
                asyncio.run(self._case(case, asked, vectors, tally))
                asyncio.run(self._facets(case, asked[0], labels, tally))
                meter.count("filters", number, len(cases))
        return tally

    async def _case(self, case: Case, asked: Sequence[str], vectors: NDArray[np.float32], tally: Tally) -> None:
        inside = np.array(
            [n for n, c in enumerate(self._chunks) if c.bucket == case.bucket and c.uri in case.wanted], int
        )
        if {self._chunks[n].uri for n in inside.tolist()} != case.wanted:
            raise RuntimeError(f"{case.filters}: documents that it wants are not in the index")
        allowed = self._reader.catalog.rows(self._reader.catalog.allowed((case.bucket,), None, case.parsed))
        tally.wrong_rows += len(np.setxor1d(inside, allowed))
        for question, vector in zip(asked, vectors, strict=True):
            exact: dict[Leg, NDArray[np.float32]] = {
                "dense": self._reader.cosines(vector, inside),
                "sparse": self._reader.bm25(self._reader.sparse_query(question), inside),
            }
            for leg in LEGS:
                hits = await self._search(case, tally, f"{leg} leg", (question,), legs=(leg,))
                tally.recall[leg] += _recall(exact[leg], inside, self._reader.rows_of([h.chunk.id for h in hits]), leg)
            await self._search(case, tally, "both with variants", (question, asked[0], asked[-1]), top_k=100)
        await self._linked(case, asked[0], tally)
        await self._lookups(case, tally)

    async def _search(
        self, case: Case, tally: Tally, path: str, queries: tuple[str, ...], **more: Any
    ) -> tuple[Hit, ...]:
        query = SearchQuery(queries, (case.bucket,), case.parsed, **{"top_k": TOP, **more})
        result = await self._retriever.search(query)
        if result.degraded:
            raise RuntimeError(f"degraded: {result.degraded[0].reason}")
        tally.searches += 1
        tally.by_index += result.explain.methods["dense"] == "index"
        tally.outside[path] += sum(self._is_outside(case, hit) for hit in result.hits)
        return result.hits

    def _is_outside(self, case: Case, hit: Hit) -> bool:
        return hit.chunk.bucket != case.bucket or hit.chunk.uri not in case.wanted

    async def _linked(self, case: Case, question: str, tally: Tally) -> None:
        """Questions that name documents of both sides: without the filter, the hop reaches what is outside of it."""
        titles = {c.uri: c.title for c in self._chunks if c.bucket == case.bucket}
        outside = [title for uri, title in titles.items() if uri not in case.wanted]
        for title in (*outside[:2], *(titles[uri] for uri in sorted(case.wanted)[:2])):
            named = (f"{question} {title}",)
            hits = await self._search(case, tally, "link hop", named, link_hop=True, top_k=100)
            tally.linked += sum("link" in hit.ranks for hit in hits)
            free = await self._retriever.search(SearchQuery(named, (case.bucket,), link_hop=True, top_k=100))
            tally.linked_outside_unfiltered += sum("link" in h.ranks and self._is_outside(case, h) for h in free.hits)

    async def _facets(self, case: Case, question: str, labels: Mapping[str, str], tally: Tally) -> None:
        """No value that no allowed document has, and none more often than they have it."""
        name = FACETS[case.bucket]
        query = SearchQuery((question,), (case.bucket,), case.parsed, facets=(name,))
        facet = (await self._retriever.search(query)).facets[name]
        counted = Counter({str(value.value): value.count for value in facet.values})
        tally.counted += counted.total()
        tally.outside["facets"] += (counted - Counter(labels[uri] for uri in case.wanted)).total() + facet.missing

    async def _lookups(self, case: Case, tally: Tally) -> None:
        """Every document of the index, by its id: what the filter leaves out is not there."""
        for doc_id, uri in {c.doc_id: c.uri for c in self._chunks}.items():
            query = DocumentQuery(doc_id, (case.bucket,), case.parsed)
            for look in (self._retriever.document_lookup, self._retriever.get_document_metadata):
                try:
                    await look(query)
                    tally.outside["lookups"] += uri not in case.wanted
                except NotFound:
                    tally.wrong_rows += uri in case.wanted


def _recall(
    scores: NDArray[np.float32], rows: NDArray[np.int64], found: NDArray[np.int64], leg: Leg
) -> Iterable[float]:
    """Of the best rows by comparing all, the share that was found. A row that scores as the last of them counts as it."""
    there = scores if leg == "dense" else scores[scores > 0]
    best = np.sort(there)[::-1][:TOP]
    if not len(best):
        return []
    score_of = dict(zip(rows.tolist(), scores.tolist(), strict=True))
    return [sum(score_of.get(row, -np.inf) >= best[-1] - 1e-6 for row in found.tolist()[: len(best)]) / len(best)]


def _rows(name: str, tally: Tally, recall: float) -> list[Row]:
    """``recall``: what the dense leg is to have; the sparse one has no other than 1."""
    recalls = [
        at_least(
            f"{name} | {leg} leg | recall of the exact top {TOP}",
            float(np.mean(held)),
            "share",
            recall if leg == "dense" else 1,
        )
        for leg, held in tally.recall.items()
    ]
    return [
        Row(f"{name} | searches", tally.searches, "searches"),
        Row(f"{name} | dense leg | searches that compared a part of the allowed", tally.by_index, "searches"),
        *recalls,
        at_most(f"{name} | allowed set | passages and documents wrong", tally.wrong_rows, "rows", 0),
        *(at_most(f"{name} | {path} | outside of the filter", tally.outside[path], "rows", 0) for path in PATHS),
        at_least(f"{name} | facets | documents counted", tally.counted, "documents", 1),
        at_least(f"{name} | link hop | hits by a link, inside", tally.linked, "hits", 1),
        at_least(f"{name} | link hop | outside, were there no filter", tally.linked_outside_unfiltered, "hits", 1),
    ]
