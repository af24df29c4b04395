"""Filters against an oracle in plain Python: random documents in two buckets, random trees of tests, every path of a search."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
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
from assay.errors import NotFound
from assay.index import dense, lists, quantised
from assay.index.buckets import BucketSchema
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from assay.retrieve import LocalRetriever
from assay.schemas import Filter
from assay.statements import blocking_parts
from assay.types import DocumentQuery, Leg, SearchQuery, SearchResult
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
        }
        for number in range(count)
    ]


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
    if filters["field"] == "when":
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
            text = st.sampled_from(["Supply", "se", "a", "rent_free", "b"])
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
    return f"---\n{yaml.safe_dump(front)}---\n# Unit Nr{number}\n\n{text} It stands by Unit Nr{(number + 7) % 30}.\n"


Held = tuple[LocalRetriever, list[Document]]
FIRST, SECOND = documents(1, 60, "first"), documents(2, 30, "second")


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
        for part in (FIRST[:20], FIRST[20:40], FIRST[40:], SECOND):
            bucket = part[0]["bucket"]
            files = {d["uri"]: file_of(d) for d in part}
            source = write(folder / f"{bucket}-{part[0]['uri']}", files)
            encoder, schema = WordEncoder(dim=64), everywhere if bucket == "first" else fewer
            sources, layout = find_sources([source], source), Layout(str(folder / "index"))
            run = Ingestion(layout, bucket, sources, encoder, encoder.embed_now, DirectParser(), schema=schema)
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
    return opened(index("flat", False), RetrieverConfig(), 4), [*FIRST, *SECOND]


@dataclass(frozen=True)
class World:
    """How passages are searched. ``narrow``: a leg gives three of them, and approximate ones look no further than they must."""

    kind: dense.Kind
    lead_weight: float = 0.0
    narrow: bool = False
    at_once: bool = False
    """Two searches over one segment, whose legs are one compiled loop in another thread."""


WORLDS = {
    "all rows": World("flat"),
    "lists": World("ivf"),
    "lists, narrow": World("ivf", narrow=True),
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
        if one.at_once:
            patch.setattr(retrieve, "_BESIDE", 0)
            patch.setattr(retrieve, "_BESIDE_OTHERS", 0)
        config = RetrieverConfig(lead_weight=one.lead_weight, lead_documents=2, fetch=3 if one.narrow else 100)
        yield one, opened(index(one.kind, one.at_once), config, 1 if one.at_once else 4)


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
def test_every_path_finds_what_the_filter_allows_and_nothing_else(
    world: tuple[World, LocalRetriever],
    tree: dict[str, Any],
    buckets: tuple[str, ...],
    legs: tuple[Leg, ...],
    link_hop: bool,
) -> None:
    of, r = world
    all_documents = [*FIRST, *SECOND]
    wanted = {
        (d["bucket"], d["uri"]) for d in all_documents if (not buckets or d["bucket"] in buckets) and holds(tree, d)
    }
    queries = ("pump", "water of the lease", "rent supply")  # a question and its variants
    facets = () if of.at_once or of.narrow else ("kind", "tags")
    query = SearchQuery(queries, buckets, parsed(tree), legs=legs, top_k=100, facets=facets, link_hop=link_hop)
    for result in asyncio.run(asked(r, query, 2 if of.at_once else 1)):
        found = {(hit.chunk.bucket, hit.chunk.uri) for hit in result.hits}
        assert found <= wanted
        assert result.explain.allowed_rows == len(wanted)
        assert result.explain.methods["dense"] == method(of, legs, len(wanted))
        if not of.narrow:
            assert found == wanted  # every document holds a word of the queries: both legs reach each
        for leg in legs:
            assert sum(leg in hit.ranks for hit in result.hits) >= min(3 if of.narrow else 100, len(wanted))
        if facets:
            kinds = Counter(d["kind"] for d in all_documents if (d["bucket"], d["uri"]) in wanted and d["kind"])
            assert {v.value: v.count for v in result.facets["kind"].values} == kinds
            tags = Counter(tag for d in all_documents if (d["bucket"], d["uri"]) in wanted for tag in d["tags"])
            assert {v.value: v.count for v in result.facets["tags"].values} == tags
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
def test_lookups_are_bound_by_the_same_set(held: Held, tree: dict[str, Any]) -> None:
    r, all_documents = held
    ids = {
        (hit.chunk.bucket, hit.chunk.uri): hit.chunk.doc_id for hit in search(r, SearchQuery(("pump",), top_k=100)).hits
    }
    for document in all_documents[::7]:
        query = DocumentQuery(ids[document["bucket"], document["uri"]], filters=parsed(tree))
        try:
            found = asyncio.run(r.document_lookup(query)).document.uri == document["uri"]
        except NotFound:
            found = False
        assert found == holds(tree, document)


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
    r, all_documents = held
    explain = search(r, SearchQuery(("pump",), (), parsed({"and": parts}))).explain
    if explain.allowed_rows:
        assert (explain.blocking, explain.count_without) == (None, None)
        return
    without = {
        some: sum(all(holds(p, d) for i, p in enumerate(parts) if i not in some) for d in all_documents)
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
