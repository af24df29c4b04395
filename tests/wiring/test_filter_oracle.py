"""Filters against an oracle in plain Python: random documents in two buckets, of one passage or several, on pages or not;
random trees of tests of their metadata, of what every document has, and of pages; every path of a search."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partialmethod
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from assay import retrieve
from assay.config import Legs, RetrieverConfig
from assay.documents.names import doc_id_of
from assay.errors import NotFound
from assay.index import dense, lists, quantised
from assay.index.buckets import BucketSchema
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from assay.index.parse.parsed import Parsed
from assay.index.store import Store
from assay.retrieve import LocalRetriever
from assay.schemas import Filter
from assay.statements import blocking_parts
from assay.types import DocumentQuery, Leg, Scope, SearchQuery, SearchResult
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, retriever, search, write

Document = dict[str, Any]

TYPES = {"kind": "text", "amount": "number", "when": "date", "open": "boolean", "tags": "list"}
KINDS = ["Supply", "Lease", "supply", "100% rent_free", ""]
AMOUNTS = [-1.5, 0, 1, 2, 2.5, 1e6]
DATES = [
    "2024-01-01",
    "2024-01-01T00:00:00Z",
    "2024-01-01T02:00:00+02:00",
    "2023-12-31T23:59:59.999999Z",
    "2024-06-30T23:30:00-02:00",
    "2031-01-01",
]
TAGS = ["a", "b", "ab", "c d"]
PAGES = [(None,), (None, None), (1, 2), (1, 1, 2, 3)]
"""Of a document's passages, by its number: a format without pages, a long text in it, pages, and a long text on the first."""
PER_BATCH, DEPTH = 12, 200  # documents; and more than there are passages


def instant(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def documents(seed: int, count: int, bucket: str) -> list[Document]:
    rng = np.random.default_rng(seed)

    def one(values: Sequence[Any]) -> Any:
        return None if rng.random() < 0.3 else values[int(rng.integers(len(values)))]

    return [
        {
            "uri": f"{number}.md",
            "bucket": bucket,
            "kind": one(KINDS),
            "amount": one(AMOUNTS),
            "when": one(DATES),
            "open": one([True, False]) if bucket == "first" else None,
            "tags": [tag for tag in TAGS if rng.random() < 0.4],
            "pages": PAGES[number % len(PAGES)],
            "title": f"Unit Nr{number}",
            "doc_id": doc_id_of(bucket, f"{number}.md"),
            "ingested_at": DATES[5 if bucket == "second" else 2 + number // PER_BATCH],
        }
        for number in range(count)
    ]


def rows_of(documents: Sequence[Document]) -> list[Document]:
    """The passages, each with what its document has."""
    return [{**document, "page": page} for document in documents for page in document["pages"]]


def holds(filters: Mapping[str, Any], document: Document) -> bool:
    """What the contract says, in plain words of Python: a test of a missing value is false, and ``not`` turns it round."""
    if "and" in filters:
        return all(holds(part, document) for part in filters["and"])
    if "or" in filters:
        return any(holds(part, document) for part in filters["or"])
    if "not" in filters:
        return not holds(filters["not"], document)
    held, op, wanted = document[filters["field"]], filters["op"], filters["value"]
    missing = held in (None, "", [])
    if op == "is_null":
        return missing == wanted
    if missing:
        return False
    if filters["field"] in ("when", "ingested_at"):
        held, wanted = instant(held), [instant(w) for w in wanted] if isinstance(wanted, list) else instant(wanted)
    if filters["field"] == "tags":
        return _of_list(held, op, wanted)
    return _of_value(held, op, wanted)


def _of_list(held: list[str], op: str, wanted: Any) -> bool:
    if op == "!=":
        return wanted not in held
    return any(_of_value(item, op, wanted) for item in held)


def _of_value(held: Any, op: str, wanted: Any) -> bool:
    if op == "like":
        inner = wanted.strip("%")
        start, end = wanted.startswith("%"), wanted.endswith("%")
        if start and end:
            return inner in held
        return held.endswith(inner) if start else held.startswith(inner) if end else held == inner
    tests: dict[str, Callable[[], bool]] = {
        "=": lambda: held == wanted,
        "!=": lambda: held != wanted,
        "<": lambda: held < wanted,
        "<=": lambda: held <= wanted,
        ">": lambda: held > wanted,
        ">=": lambda: held >= wanted,
        "in": lambda: held in wanted,
        "between": lambda: wanted[0] <= held <= wanted[1],
    }
    return bool(tests[op]())


def _tests(field: str, values: Sequence[Any], ops: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    value = st.sampled_from([v for v in values if v != ""])

    def of(op: str) -> st.SearchStrategy[dict[str, Any]]:
        given_: st.SearchStrategy[Any] = value
        if op == "in":
            given_ = st.lists(value, min_size=1, max_size=3)
        elif op == "between":
            given_ = st.lists(value, min_size=2, max_size=2)
        elif op == "is_null":
            given_ = st.booleans()
        elif op == "like":
            text = st.sampled_from(["Supply", "se", "a", "rent_free", "b", "Unit Nr1", "2.md", "r3"])
            given_ = st.tuples(st.sampled_from(["", "%"]), text, st.sampled_from(["", "%"])).map("".join)
        return st.fixed_dictionaries({"field": st.just(field), "op": st.just(op), "value": given_})

    return st.sampled_from(list(ops)).flatmap(of)


ORDER = ("=", "!=", "<", "<=", ">", ">=", "between", "in", "is_null")
TESTS = st.one_of(
    _tests("kind", KINDS, ("=", "!=", "in", "like", "is_null")),
    _tests("amount", AMOUNTS, ORDER),
    _tests("when", DATES, ORDER),
    _tests("open", [True, False], ("=", "!=", "is_null")),
    _tests("tags", TAGS, ("=", "!=", "in", "like", "is_null")),
    _tests("page", [1, 1.5, 2, 3], ORDER),
    _tests("ingested_at", DATES, ORDER),
    _tests("uri", ["2.md", "3.md", "12.md"], ("=", "!=", "in", "like", "is_null")),
    _tests("title", ["Unit Nr1", "Unit Nr3"], ("=", "!=", "in", "like", "is_null")),
    _tests("doc_id", [doc_id_of(b, f"{n}.md") for b in ("first", "second") for n in (1, 2, 3)], ("=", "!=", "in")),
    _tests("bucket", ["first", "second"], ("=", "!=", "in", "is_null")),
)
TREES = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"and": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"or": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=6,
)
BUCKETS = st.sampled_from([(), ("first",), ("first", "second")])


def file_of(document: Document) -> str:
    front = {key: document[key] for key in TYPES if document[key] not in (None, [])}
    number = int(document["uri"].split(".")[0])
    words = "pump water lease rent supply".split()[: 1 + number % 5]
    text = f"The {' '.join(words)} of {document['uri']}." if front else "A pump."
    text = f"{text} It stands by Unit Nr{(number + 7) % 30}."
    pages = document["pages"]
    twice = 240 // len(WordEncoder().token_starts(text))  # so often it fills one passage and a part of another
    parts = {page: " ".join([text] * (1 if pages.count(page) == 1 else twice)) for page in pages}
    return f"---\n{yaml.safe_dump(front)}---\n# Unit Nr{number}\n\n" + f"\n\n{PAGE}\n\n".join(parts.values()) + "\n"


PAGE = "The next page."


class PagedParser(DirectParser):
    """A page ends where the text says so; a document without such a place has none."""

    def parse(self, data: bytes, name: str) -> Parsed:
        parsed = super().parse(data, name)
        ends = [i for i in range(len(parsed.text)) if parsed.text.startswith(PAGE, i)]
        blocks = [b for b in parsed.blocks if parsed.text[b.start : b.end] != PAGE]
        return replace(parsed, blocks=blocks, pages=(0, *ends) if ends else ())


Held = tuple[LocalRetriever, list[Document]]
FIRST, SECOND = documents(1, 3 * PER_BATCH, "first"), documents(2, 20, "second")
ROWS = rows_of([*FIRST, *SECOND])


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dense.Kind, bool], Path]:
    """Of a kind of dense leg, in one segment or in several: the first bucket comes in three batches, and legs are never built
    anew."""
    everywhere = BucketSchema.model_validate({"fields": {name: {"type": kind} for name, kind in TYPES.items()}})
    fewer = BucketSchema.model_validate(
        {"fields": {name: {"type": kind} for name, kind in TYPES.items() if name != "open"}}
    )

    @cache
    def of(kind: dense.Kind, one: bool) -> Path:
        folder = tmp_path_factory.mktemp("oracle")
        for part in (*(FIRST[i : i + PER_BATCH] for i in range(0, len(FIRST), PER_BATCH)), SECOND):
            bucket = part[0]["bucket"]
            files = {d["uri"]: file_of(d) for d in part}
            source = write(folder / f"{bucket}-{part[0]['uri']}", files)
            encoder, schema = WordEncoder(dim=64), everywhere if bucket == "first" else fewer
            sources, layout = find_sources([source], source), Layout(str(folder / "index"))
            run = Ingestion(layout, bucket, sources, encoder, encoder.embed_now, PagedParser(), schema=schema)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Store, "put", partialmethod(Store.put, now=instant(part[0]["ingested_at"])))
                run.run(Legs(dense=kind), rebuild_rows=1_000 if one else 0)
        return folder / "index"

    return of


def opened(index: Path, config: RetrieverConfig, segments: int) -> LocalRetriever:
    r = retriever(index, WordEncoder(dim=64), config)
    assert r._reader is not None
    assert len(r._reader.segments) == segments
    return r


@pytest.fixture(scope="module")
def held(index: Callable[[dense.Kind, bool], Path]) -> Held:
    return opened(index("flat", False), RetrieverConfig(fetch=DEPTH), 4), [*FIRST, *SECOND]


@dataclass(frozen=True)
class World:
    """How passages are searched. ``narrow``: a leg gives three of them, and approximate ones look no further than they must."""

    kind: dense.Kind
    lead_weight: float = 0.0
    narrow: bool = False
    at_once: bool = False
    """Two searches over one segment, whose legs are one compiled loop in another thread."""
    beside: bool = False
    """One search, whose dense leg is in another thread."""


WORLDS = {
    "all rows": World("flat"),
    "lists": World("ivf"),
    "lists, narrow": World("ivf", narrow=True),
    "lists, beside": World("ivf", beside=True),
    "lists, at once": World("ivf", at_once=True),
    "lists, at once, narrow": World("ivf", narrow=True, at_once=True),
    "codes": World("sq8"),
    "codes, narrow": World("sq8", narrow=True),
    "graph": World("hnsw"),
    "graph, narrow": World("hnsw", narrow=True),
    "leads": World("flat", 1.0),
    "leads, narrow": World("flat", 1.0, narrow=True),
    "leads over lists, narrow": World("ivf", 1.0, narrow=True),
}


@pytest.fixture(scope="module", params=WORLDS)
def world(
    request: pytest.FixtureRequest, index: Callable[[dense.Kind, bool], Path]
) -> Iterator[tuple[World, LocalRetriever]]:
    """The thresholds are those of large collections; here nothing is too small for lists, codes and other threads."""
    one = WORLDS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((dense, "_INDEXED"), (lists, "FEW"), (quantised, "FEW"), (quantised, "_SHARE")):
            patch.setattr(module, name, 0)
        if one.narrow:
            for module in (lists, quantised):
                patch.setattr(module, "wanted_rows", lambda count, k: min(count, k))
        if one.beside:
            patch.setattr(retrieve, "_BESIDE_ALONE", 0)
        if one.at_once:
            patch.setattr(retrieve, "_BESIDE", 0)
            patch.setattr(retrieve, "_BESIDE_OTHERS", 0)
        config = RetrieverConfig(lead_weight=one.lead_weight, lead_documents=2, fetch=3 if one.narrow else DEPTH)
        yield one, opened(index(one.kind, one.at_once), config, 1 if one.at_once else 4)


# Of a page or else of a document, and what neither is: the one is asked of passages, the other of documents.
EITHER = {"or": [{"field": "page", "op": "=", "value": 2}, {"field": "kind", "op": "=", "value": "Lease"}]}
NEITHER = {"not": {"or": [{"field": "page", "op": ">", "value": 1}, {"field": "title", "op": "like", "value": "%r1%"}]}}


def parsed(filters: Mapping[str, Any]) -> Filter:
    found: Filter = TypeAdapter[Filter](Filter).validate_python(filters)
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=TREES,
    buckets=st.sampled_from([(), ("first",), ("first", "second")]),
    legs=st.sampled_from([("dense",), ("sparse",), ("dense", "sparse")]),
    link_hop=st.booleans(),
)
@example(tree=EITHER, buckets=(), legs=("dense", "sparse"), link_hop=True)
@example(tree=NEITHER, buckets=("first",), legs=("dense", "sparse"), link_hop=False)
def test_every_path_finds_what_the_filter_allows_and_nothing_else(
    world: tuple[World, LocalRetriever],
    tree: dict[str, Any],
    buckets: tuple[str, ...],
    legs: tuple[Leg, ...],
    link_hop: bool,
) -> None:
    of, r = world
    wanted = [row for row in ROWS if (not buckets or row["bucket"] in buckets) and holds(tree, row)]
    places = Counter((row["bucket"], row["uri"], row["page"]) for row in wanted)
    within = {row["doc_id"]: row for row in wanted}.values()
    queries = ("pump", "water of the lease", "rent supply")  # a question and its variants
    facets = () if of.at_once or of.narrow else ("kind", "tags", "page")
    query = SearchQuery(queries, buckets, parsed(tree), legs=legs, top_k=DEPTH, facets=facets, link_hop=link_hop)
    for result in asyncio.run(asked(r, query, 2 if of.at_once else 1)):
        found = Counter((hit.chunk.bucket, hit.chunk.uri, hit.chunk.page) for hit in result.hits)
        assert found <= places
        assert len({hit.chunk.id for hit in result.hits}) == len(result.hits)
        assert result.explain.allowed_rows == len(wanted)
        assert result.explain.methods["dense"] == method(of, legs, len(wanted))
        if not of.narrow:
            assert found == places  # every passage holds a word of the queries: both legs reach each
        for leg in legs:
            assert sum(leg in hit.ranks for hit in result.hits) >= min(3 if of.narrow else DEPTH, len(wanted))
        if facets:
            counts = {name: {v.value: v.count for v in facet.values} for name, facet in result.facets.items()}
            assert counts["kind"] == Counter(d["kind"] for d in within if d["kind"])
            assert counts["tags"] == Counter(tag for d in within for tag in d["tags"])
            # A document counts once for each of its pages that are allowed.
            paged = {(row["doc_id"], row["page"]) for row in wanted if row["page"]}
            assert counts["page"] == Counter(page for _, page in paged)
            assert result.facets["page"].missing == len(within) - len({doc_id for doc_id, _ in paged})
        if not wanted:
            assert result.explain.blocking is not None
        elif of.lead_weight:
            assert result.explain.methods["lead"] == "exact"


async def asked(r: LocalRetriever, query: SearchQuery, times: int) -> list[SearchResult]:
    return await asyncio.gather(*(r.search(query) for _ in range(times)))


def method(of: World, legs: Sequence[Leg], allowed: int) -> str:
    """What the dense leg of a world does; the approximate ones never compare all rows."""
    if "dense" not in legs or not allowed:
        return "skipped"
    return "exact" if of.kind == "flat" else "index"


def test_the_link_hop_is_among_the_paths(held: Held) -> None:
    hits = search(held[0], SearchQuery(("pump",), link_hop=True, top_k=100)).hits
    assert any("link" in hit.ranks for hit in hits)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES)
@example(tree=EITHER)
@example(tree=NEITHER)
def test_lookups_are_bound_by_the_same_set(held: Held, tree: dict[str, Any]) -> None:
    """Of a document, and of one of its pages."""
    r, all_documents = held
    for document in all_documents[::5]:
        inside = {row["page"] for row in rows_of([document]) if holds(tree, row)}
        for page in (None, 1, 2, 3):
            try:
                part = asyncio.run(
                    r.document_lookup(DocumentQuery(document["doc_id"], filters=parsed(tree), page=page))
                )
                found = part.document.uri == document["uri"]
            except NotFound:
                found = False
            assert found == (bool(inside) if page is None else page in inside)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES, buckets=st.sampled_from([(), ("first",), ("first", "second")]))
@example(tree=EITHER, buckets=())
@example(tree=NEITHER, buckets=())
def test_a_description_counts_what_the_filter_allows(
    held: Held, tree: dict[str, Any], buckets: tuple[str, ...]
) -> None:
    told = asyncio.run(held[0].describe(Scope(buckets, parsed(tree))))
    wanted = [row for row in ROWS if (not buckets or row["bucket"] in buckets) and holds(tree, row)]
    assert {bucket.name: (bucket.documents, bucket.chunks) for bucket in told} == {
        name: (len({row["doc_id"] for row in rows}), len(rows))
        for name in ("first", "second")
        if (rows := [row for row in wanted if row["bucket"] == name])
    }


KIND, AMOUNT = {"field": "kind", "op": "=", "value": "Nothing"}, {"field": "amount", "op": ">", "value": 1e9}
LEASE, SUPPLY = ({"field": "kind", "op": "=", "value": kind} for kind in ("Lease", "Supply"))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(TESTS, min_size=1, max_size=5))
@example(parts=[KIND, AMOUNT])
@example(parts=[LEASE, KIND, AMOUNT])
@example(parts=[LEASE, SUPPLY, AMOUNT])
@example(parts=[KIND, AMOUNT, {"field": "when", "op": ">", "value": "2999-01-01"}])
@example(parts=[KIND, KIND])
def test_what_is_blocking_is_the_fewest_parts_without_which_the_most_are_left(
    held: Held, parts: list[dict[str, Any]]
) -> None:
    r, _ = held
    explain = search(r, SearchQuery(("pump",), (), parsed({"and": parts}))).explain
    if explain.allowed_rows:
        assert (explain.blocking, explain.count_without) == (None, None)
        return
    without = {
        some: sum(all(holds(p, row) for i, p in enumerate(parts) if i not in some) for row in ROWS)
        for size in range(1, len(parts) + 1)
        for some in combinations(range(len(parts)), size)
    }
    fewest = min(len(some) for some, count in without.items() if count)
    most = max(count for some, count in without.items() if len(some) == fewest)
    best = [some for some, count in without.items() if (len(some), count) == (fewest, most)]
    assert explain.count_without == most > 0
    assert explain.blocking is not None
    said = [part.model_dump(by_alias=True) for part in blocking_parts(explain.blocking)]
    assert said in [[parsed(parts[i]).model_dump(by_alias=True) for i in some] for some in best]
