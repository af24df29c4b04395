"""Filters on real collections: contracts by type and date, invoices by date and amount. Recall as of an exact search, and no
row outside of the filter, on every path: both legs, variants, several segments, facets and lookups."""

import asyncio
import csv
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from assay.errors import NotFound
from assay.index.buckets import BucketSchema
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Source, find_sources
from assay.index.metadata import Given, MetadataTable
from assay.index.parse.parser import Parser
from assay.retrieve import LocalRetriever
from assay.schemas import Filter
from assay.types import DocumentQuery, Leg, SearchQuery
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import retriever, search

DATA = (Path(__file__).parents[3] / "shared" / "data").resolve()
CUAD, INVOICES = DATA / "contracts" / "cuad", DATA / "invoices" / "invoice2data"
pytestmark = pytest.mark.skipif(
    not (CUAD.is_dir() and INVOICES.is_dir()), reason=f"the shared data sets are not at {DATA}: nothing to filter"
)

CONTRACTS = BucketSchema.model_validate(
    {
        "fields": {
            "type": {"type": "text", "required": True},
            "law": {"type": "text"},
            "signed": {"type": "date", "format": "%m/%d/%y"},
            "parties": {"type": "list"},
        }
    }
)
BILLS = BucketSchema.model_validate(
    {
        "fields": {
            "issuer": {"type": "text", "required": True},
            "amount": {"type": "number", "required": True},
            "date": {"type": "date"},
            "currency": {"type": "text"},
        }
    }
)


def signed_on(said: str) -> datetime | None:
    try:
        return datetime.strptime(said, "%m/%d/%y").replace(tzinfo=UTC)
    except ValueError:
        return None


@pytest.fixture(scope="module")
def contracts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What is known of the contracts, by file name."""
    kinds = {Path(item["txt"]).name: item["category"] for item in json.loads((CUAD / "manifest.json").read_text())}
    with (CUAD / "master_clauses.csv").open(newline="", encoding="utf-8-sig") as file:
        clauses = {Path(row["Filename"]).stem: row for row in csv.DictReader(file)}
    return {
        name: {
            "type": kind,
            "law": clauses[Path(name).stem]["Governing Law-Answer"] if Path(name).stem in clauses else "",
            "signed": clauses[Path(name).stem]["Agreement Date-Answer"] if Path(name).stem in clauses else "",
            "parties": clauses[Path(name).stem]["Parties-Answer"] if Path(name).stem in clauses else "",
        }
        for name, kind in kinds.items()
        if (CUAD / "txt" / name).is_file()
    }


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, contracts: dict[str, dict[str, Any]]) -> LocalRetriever:
    folder = tmp_path_factory.mktemp("real")
    with (folder / "contracts.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["path", "type", "law", "signed", "parties"])
        writer.writeheader()
        writer.writerows({"path": name, **known} for name, known in contracts.items())
    encoder = WordEncoder(dim=256)

    def ingest(bucket: str, sources: list[Source], schema: BucketSchema, given: Given) -> None:
        with Parser() as parser:
            layout = Layout(str(folder / "index"))
            run = Ingestion(layout, bucket, sources, encoder, encoder.embed_now, parser, schema=schema, given=given)
            report = run.run(rebuild_rows=0)
        assert report.count("failed") == 0, [row for row in report.rows if row.outcome == "failed"]

    texts = find_sources([CUAD / "txt"], CUAD / "txt")
    for part in (texts[::3], texts[1::3], texts[2::3]):  # in several segments
        ingest("contracts", part, CONTRACTS, Given([s.path for s in part], MetadataTable(folder / "contracts.csv")))
    bills = [s for s in find_sources([INVOICES], INVOICES) if s.path.suffix in (".pdf", ".json")]
    ingest("invoices", bills, BILLS, Given([s.path for s in bills]))
    opened = retriever(folder / "index", encoder)
    assert opened._reader is not None
    assert len(opened._reader.segments) >= 2
    return opened


def parsed(filters: dict[str, Any]) -> Filter:
    found: Filter = TypeAdapter[Filter](Filter).validate_python(filters)
    return found


LEGS: tuple[Leg, ...] = ("dense", "sparse")
QUERIES = ("termination on written notice", "either party may terminate this agreement", "governing law and payment")


def check(r: LocalRetriever, bucket: str, filters: dict[str, Any], wanted: set[str]) -> None:
    """All paths against an exact search over the allowed passages alone."""
    reader = r._reader
    assert reader is not None
    known = {row["doc_id"]: row["uri"] for row in reader.catalog._documents.select(["doc_id", "uri"]).to_pylist()}
    allowed = reader.catalog.allowed((bucket,), None, parsed(filters))
    rows = reader.catalog.rows(allowed)
    inside = {chunk.uri for chunk in reader.chunks(rows)}
    assert inside == wanted
    vectors = WordEncoder(dim=256).embed_now(QUERIES)
    exact = np.array([reader.cosines(vector, rows) for vector in vectors])
    for leg in LEGS:
        for number, question in enumerate(QUERIES):
            hits = search(r, SearchQuery((question,), (bucket,), parsed(filters), legs=(leg,), top_k=10)).hits
            assert {hit.chunk.uri for hit in hits} <= wanted
            if leg == "dense":
                best = np.sort(exact[number])[::-1][: len(hits)]
                assert len(hits) == min(10, len(rows))
                np.testing.assert_allclose(np.array([hit.similarity for hit in hits], dtype=float), best, atol=2e-3)
    together = search(r, SearchQuery(QUERIES, (bucket,), parsed(filters), top_k=100, facets=("format", "title")))
    assert {hit.chunk.uri for hit in together.hits} <= wanted
    assert sum(v.count for v in together.facets["format"].values) <= len(wanted)
    for doc_id, uri in list(known.items())[::5]:
        try:
            asyncio.run(r.get_document_metadata(DocumentQuery(doc_id, (bucket,), parsed(filters))))
            assert uri in wanted
        except NotFound:
            assert uri not in wanted


def test_contracts_by_type(index: LocalRetriever, contracts: dict[str, dict[str, Any]]) -> None:
    kinds = Counter(known["type"] for known in contracts.values())
    for kind in [*list(kinds)[:6], "Supply"]:
        wanted = {name for name, known in contracts.items() if known["type"] == kind}
        check(index, "contracts", {"field": "type", "op": "=", "value": kind}, wanted)
    facets = search(index, SearchQuery(("agreement",), ("contracts",), top_k=1, facets=("type",))).facets["type"]
    assert {v.value for v in facets.values} <= set(kinds)


def test_contracts_by_type_and_date(index: LocalRetriever, contracts: dict[str, dict[str, Any]]) -> None:
    kinds = ["Supply", "Outsourcing", "Hosting", "Service", "Reseller", "Distributor"]
    turn = datetime(2010, 1, 1, tzinfo=UTC)
    wanted = {
        name
        for name, known in contracts.items()
        if known["type"] in kinds and (moment := signed_on(known["signed"])) and moment < turn
    }
    assert wanted
    both = {
        "and": [
            {"field": "type", "op": "in", "value": kinds},
            {"field": "signed", "op": "<", "value": "2010-01-01"},
        ]
    }
    check(index, "contracts", both, wanted)
    undated = {name for name, known in contracts.items() if signed_on(known["signed"]) is None}
    check(index, "contracts", {"field": "signed", "op": "is_null", "value": True}, undated)


def test_invoices_by_date_and_amount(index: LocalRetriever) -> None:
    said = {p.with_suffix(".pdf").name: json.loads(p.read_text())[0] for p in INVOICES.glob("*.json")}
    said = {name: bill for name, bill in said.items() if (INVOICES / name).is_file()}
    assert len(said) >= 5
    dated = {name for name, bill in said.items() if "2014-01-01" <= bill.get("date", "") <= "2014-12-31"}
    large = {name for name, bill in said.items() if bill["amount"] > 100}
    in_2014 = {"field": "date", "op": "between", "value": ["2014-01-01", "2014-12-31T23:59:59Z"]}
    above = {"field": "amount", "op": ">", "value": 100}
    check(index, "invoices", in_2014, dated)
    check(index, "invoices", above, large)
    check(index, "invoices", {"and": [in_2014, above]}, dated & large)
    assert dated & large
    never = {"field": "date", "op": ">", "value": "2031-01-01"}
    nothing = search(index, SearchQuery(("invoice",), ("invoices",), parsed(never)))
    assert nothing.hits == ()
    assert nothing.explain.count_without == search(index, SearchQuery(("invoice",), ("invoices",))).explain.allowed_rows
