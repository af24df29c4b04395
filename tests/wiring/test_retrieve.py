import asyncio
import threading
import time
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest
from pydantic import TypeAdapter

from assay import retrieve
from assay.config import Legs, RetrieverConfig
from assay.errors import IndexFault, InvalidFilter, NotFound, StageUnavailable, UnknownBucket, UnknownField
from assay.index import dense, kernels
from assay.index.buckets import BucketSchema
from assay.index.files import Layout
from assay.index.filters import FIELDS
from assay.index.ingest import Ingestion
from assay.schemas import OPS, Filter, Fusion
from assay.types import Scope, SearchQuery, SearchResult
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, found, ingest, retriever, search, some_texts, text_of, write

FILES = {
    "pump.md": "# Pumps\n\nThe pump B-120 moves cold water.",
    "lease.md": "# Lease\n\nThe tenant pays rent each month.",
    "c.txt": "C is a language.",
    "tokyo.txt": "東京は日本の首都です",
    "naive.txt": "A nai\u0308ve idea.",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    ingest(write(folder / "a", FILES), folder / "index", "docs")
    ingest(write(folder / "b", {"secret.md": "# Pumps\n\nThe pump B-120 is a secret."}), folder / "index", "private")
    return folder / "index"


def where(field: str, op: str, value: object) -> dict[str, Any]:
    return {"field": field, "op": op, "value": value}


def asked(text: str, filters: dict[str, Any] | None = None, **rest: Any) -> SearchQuery:
    parsed = TypeAdapter[Filter](Filter).validate_python(filters) if filters else None
    return SearchQuery((text,), filters=parsed, **rest)


@pytest.mark.parametrize(
    ("query", "uri"),
    [("東京", "tokyo.txt"), ("C", "c.txt"), ("naive", "naive.txt"), ("b120", "pump.md"), ("monthly rents", "lease.md")],
)
@pytest.mark.parametrize("leg", ["dense", "sparse"])
def test_each_leg_finds(index: Path, query: str, uri: str, leg: Any) -> None:
    hits = search(retriever(index), asked(query, legs=(leg,), buckets=("docs",))).hits
    assert hits[0].chunk.uri == uri
    assert hits[0].ranks == {leg: 1}


def test_a_request_may_say_how_the_lists_become_one(index: Path) -> None:
    """Under each config, what is asked for counts; and no two of the methods score alike."""
    methods: tuple[Fusion, ...] = get_args(Fusion)
    scores: dict[Fusion, list[list[float]]] = {asked_for: [] for asked_for in methods}
    for configured in methods:
        r = retriever(index, config=RetrieverConfig(fusion=configured))
        for wanted in methods:
            hits = search(r, asked("pump water", fusion=wanted)).hits
            scores[wanted].append([hit.score for hit in hits])
        assert [hit.score for hit in search(r, asked("pump water")).hits] == scores[configured][-1]
    assert all(rows[0] == rows[1] == rows[2] for rows in scores.values())
    assert len({tuple(rows[0]) for rows in scores.values()}) == 3


def test_a_hit_is_whole(index: Path) -> None:
    r = retriever(index)
    result = search(r, asked("B-120", buckets=("docs",)))
    hit = result.hits[0]
    text = text_of(r, hit.chunk.doc_id)
    assert text[hit.chunk.start : hit.chunk.end] == hit.chunk.text == "The pump B-120 moves cold water."
    assert (hit.chunk.title, hit.chunk.heading, hit.chunk.page, hit.chunk.bucket) == ("Pumps", ("Pumps",), None, "docs")
    assert hit.ranks == {"dense": 1, "sparse": 1}
    assert hit.similarity is not None
    assert 0 < hit.similarity <= 1
    assert result.index_version == r.index_version
    assert result.explain.methods == {"dense": "exact", "sparse": "index"}


def test_more_than_there_is(index: Path) -> None:
    result = search(retriever(index), asked("water", top_k=50))
    assert len(result.hits) == len({hit.chunk.id for hit in result.hits}) == 6


@pytest.mark.parametrize("query", ["the of and", "zzqq"])
def test_nothing_to_match_leaves_the_sparse_leg_out(index: Path, query: str) -> None:
    assert search(retriever(index), asked(query, legs=("sparse",))).hits == ()
    both = search(retriever(index), asked(query))
    assert both.hits
    assert both.explain.methods["sparse"] == "skipped"
    assert all("sparse" not in hit.ranks for hit in both.hits)


@pytest.mark.parametrize("leg", ["dense", "sparse"])
def test_a_bucket_binds_both_legs_and_all_variants(index: Path, leg: Any) -> None:
    query = SearchQuery(("pump B-120", "secret", "tenant"), buckets=("private",), legs=(leg,), top_k=50)
    result = search(retriever(index), query)
    assert found(result) == ["secret.md"]
    assert (result.explain.allowed_rows, result.explain.total_rows) == (1, 6)


def test_filter_and_document_are_intersected(index: Path) -> None:
    r = retriever(index)
    doc = search(r, asked("B-120", buckets=("docs",))).hits[0].chunk.doc_id
    assert found(search(r, asked("B-120", doc_id=doc))) == ["pump.md"]
    both = search(r, asked("B-120", where("format", "=", "txt"), doc_id=doc))
    assert both.hits == ()
    assert both.explain.count_without == 3


@pytest.mark.parametrize("outer", ["and", "or"])
def test_the_largest_filter_runs(index: Path, outer: str) -> None:
    groups = [[where("title", "=", f"x{i}{j}") for j in range(32)] for i in range(2)]
    r, filters = retriever(index), {outer: [{"or": groups[0]}, {"not": {"and": groups[1]}}]}
    result = search(r, asked("pump", filters))
    assert result.explain.allowed_rows == (0 if outer == "and" else 6)


def test_an_empty_document_is_no_document(index: Path) -> None:
    assert search(retriever(index), asked("pump", doc_id="")).explain.allowed_rows == 0


def test_an_empty_set_names_what_emptied_it(index: Path) -> None:
    filters = {"and": [where("format", "=", "md"), where("ingested_at", ">", "2199-01-01")]}
    result = search(retriever(index), asked("pump", filters, buckets=("docs",)))
    assert result.hits == ()
    assert result.explain.blocking is not None
    assert result.explain.blocking.model_dump(by_alias=True) == where("ingested_at", ">", "2199-01-01")
    assert result.explain.count_without == 2
    assert result.explain.methods == {"dense": "skipped", "sparse": "skipped"}


def test_an_empty_set_names_all_that_had_to_go(index: Path) -> None:
    """Without either of the two alone there would still be nothing, which helps nobody."""
    nothing = [where("format", "=", "zip"), where("page", ">", 4000)]
    explain = search(retriever(index), asked("pump", {"and": [where("title", "=", "Pumps"), *nothing]})).explain
    assert explain.blocking is not None
    assert explain.blocking.model_dump(by_alias=True) == {"and": nothing}
    assert explain.count_without == 2


def test_a_bucket_that_holds_nothing_is_no_fault_of_the_filter(tmp_path: Path) -> None:
    ingest(write(tmp_path / "a", FILES), tmp_path / "index")
    encoder, schema = WordEncoder(), BucketSchema.model_validate({"fields": {"kind": {"type": "text"}}})
    Ingestion(
        Layout(str(tmp_path / "index")), "new", [], encoder, encoder.embed_now, DirectParser(), schema=schema
    ).run()
    explain = search(retriever(tmp_path / "index"), asked("pump", where("format", "=", "md"), buckets=("new",))).explain
    assert (explain.allowed_rows, explain.blocking, explain.count_without) == (0, None, None)


def test_a_document_can_be_what_emptied_it(index: Path) -> None:
    typed = search(retriever(index), asked("secret", where("format", "=", "md"), doc_id="doc_nowhere")).explain
    assert typed.blocking is not None
    assert (typed.blocking.model_dump()["field"], typed.count_without) == ("doc_id", 3)


def test_an_empty_result_tells_nothing_of_other_buckets(index: Path) -> None:
    """The buckets may be all that the caller can see: they are never what is given up to explain."""
    r = retriever(index)
    doc = search(r, asked("secret", buckets=("private",))).hits[0].chunk.doc_id
    hidden = search(r, asked("secret", doc_id=doc, buckets=("docs",))).explain
    absent = search(r, asked("secret", doc_id="doc_nowhere", buckets=("docs",))).explain
    assert hidden.blocking is not None
    assert absent.blocking is not None
    assert (hidden.blocking.model_dump()["field"], hidden.count_without) == ("doc_id", 5)
    assert (absent.blocking.model_dump()["field"], absent.count_without) == ("doc_id", 5)
    titled = {"and": [where("title", "=", "Pumps"), where("uri", "like", "secret%")]}
    assert search(r, asked("x", titled, buckets=("docs",))).explain.count_without == 1, "the page of 'docs' alone"


def test_wrong_questions_are_errors(index: Path) -> None:
    r = retriever(index)
    with pytest.raises(UnknownBucket) as bucket:
        search(r, asked("x", buckets=("docs", "contrcats")))
    assert bucket.value.allowed == ("docs", "private")
    with pytest.raises(UnknownField):
        search(r, asked("x", where("collection_ids", "=", "1")))
    with pytest.raises(InvalidFilter):
        search(r, asked("x", where("format", "in", [])))
    with pytest.raises(NotFound):
        text_of(r, "doc_unknown")


def test_buckets(index: Path) -> None:
    infos = asyncio.run(retriever(index).describe(Scope()))
    assert [(i.name, i.documents, i.chunks) for i in infos] == [("docs", 5, 5), ("private", 1, 1)]


def test_the_embedder_fails_and_the_words_answer(index: Path) -> None:
    encoder = WordEncoder()
    r = retriever(index, encoder)
    encoder.fault = RuntimeError("out of memory")
    result = search(r, asked("B-120"))
    assert result.hits[0].chunk.text.startswith("The pump B-120")
    assert result.hits[0].similarity is None
    assert result.explain.methods == {"dense": "failed", "sparse": "index"}
    assert [d.model_dump() for d in result.degraded] == [
        {"stage": "retriever", "reason": "the dense leg failed: RuntimeError", "fallback": "the sparse leg alone"}
    ]
    with pytest.raises(StageUnavailable):
        search(r, asked("B-120", legs=("dense",)))


def test_a_bug_is_not_degraded(index: Path) -> None:
    encoder = WordEncoder()
    r = retriever(index, encoder)
    encoder.fault = TypeError("a bug")
    with pytest.raises(TypeError):
        search(r, asked("B-120"))


@pytest.mark.parametrize("more", [{"link_hop": True}, {"facets": ("title",)}, {"context_chars": 50}])
def test_what_may_take_long_is_done_beside_the_loop(index: Path, more: dict[str, Any]) -> None:
    """So that nobody else waits for it: the work is a search thread's wherever it is not sure to be short."""
    before = set(threading.enumerate())  # the threads themselves: the number of one that ended is given again
    r = retriever(index)
    search(r, SearchQuery(("pump water",), buckets=("docs",)))
    assert not _searchers(before), "a quick one needs no thread"
    search(r, SearchQuery(("pump water",), buckets=("docs",), **more))
    assert _searchers(before)


class Slow:
    """A dense leg whose every search takes a while of its thread."""

    def __init__(self, leg: Any) -> None:
        self._leg = leg

    def __getattr__(self, name: str) -> Any:
        def slowly(*args: Any, **kwargs: Any) -> Any:
            time.sleep(0.5)
            return found(*args, **kwargs)

        found = getattr(self._leg, name)
        return slowly if name.startswith("search") else found


@pytest.mark.parametrize("many", [False, True], ids=["a link hop", "many rows"])
def test_a_search_that_takes_long_holds_up_nobody_else_on_its_loop(
    index: Path, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if many:
        monkeypatch.setattr(retrieve, "_QUICK", 0)

    async def beside() -> tuple[SearchResult, float]:
        r = retriever(index)
        segment = r._open().segments[0].segment
        segment.dense = Slow(segment.dense)
        asking = asyncio.create_task(r.search(SearchQuery(("pump water",), buckets=("docs",), link_hop=not many)))
        longest, before = 0.0, time.monotonic()
        while not asking.done():
            await asyncio.sleep(0.01)
            longest, before = max(longest, (now := time.monotonic()) - before), now
        return asking.result(), longest

    result, longest = asyncio.run(beside())
    assert result.hits and result.explain.methods["dense"] == "exact"
    assert longest < 0.4, "the slow leg's half a second was waited for by the loop"


def _searchers(before: set[threading.Thread]) -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread not in before and thread.name.startswith("search")
    ]


def test_legs_of_many_rows_are_searched_at_the_same_time(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are two cores."""
    query = asked("pump water B-120")
    alone = search(retriever(index), query)
    monkeypatch.setattr(retrieve, "_BESIDE_ALONE", 0)
    before = set(threading.enumerate())
    monkeypatch.setattr(retrieve, "_THREADS", 1)
    assert search(retriever(index), query) == alone
    assert not [t.name for t in threading.enumerate() if t not in before and t.name.startswith("leg")]
    monkeypatch.setattr(retrieve, "_THREADS", 2)
    r = retriever(index)
    assert search(r, query) == alone
    assert [t.name for t in threading.enumerate() if t not in before and t.name.startswith("leg")]
    r._open().segments[0].segment.dense = Failing()
    result = search(r, query)
    assert result.explain.methods == {"dense": "failed", "sparse": "index"}
    assert [d.fallback for d in result.degraded] == ["the sparse leg alone"]


@pytest.mark.parametrize("rebuilt", [True, False])
def test_several_searches_at_once_find_what_each_finds_alone(
    rebuilt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over one segment, whose legs are then one loop, and over several; also where a leg cannot answer."""
    monkeypatch.setattr(retrieve, "_BESIDE", 0)
    monkeypatch.setattr(retrieve, "_BESIDE_OTHERS", 0)
    monkeypatch.setattr(dense, "_INDEXED", 50)
    files, folder, legs = tmp_path / "files", tmp_path / "index", Legs(dense="ivf")
    for half in (0, 1):
        write(files, {f"{n}.txt": text for n, text in enumerate(some_texts(240)) if n % 2 == half})
        ingest(files, folder, legs=legs, rebuild_rows=0)
    if rebuilt:
        ingest(files, folder, legs=legs, rebuild=True)
    r = retriever(folder, config=RetrieverConfig(fetch=20))
    assert len(r._open().segments) == (1 if rebuilt else 2)
    both = Mock(wraps=kernels.both)
    monkeypatch.setattr(kernels, "both", both)
    queries = [SearchQuery((f"w{n} w{3 * n} w{n % 7}",)) for n in range(12)]
    queries.append(SearchQuery(("nowhere",)))
    alone = [search(r, query) for query in queries]

    async def at_once() -> list[SearchResult]:
        return await asyncio.gather(*map(r.search, queries))

    assert asyncio.run(at_once()) == alone
    assert both.call_count == (len(queries) - 2 if rebuilt else 0), (
        "the first does not know yet, and the last has no term"
    )
    r._open().segments[0].segment.dense = Failing()
    for result in asyncio.run(at_once())[:-1]:
        assert result.explain.methods == {"dense": "failed", "sparse": "index"}
        assert [d.fallback for d in result.degraded] == ["the sparse leg alone"]


class Failing:
    """A dense leg that cannot answer."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("out of memory")


# ---- how much each list weighs --------------------------------------------------------------------------------------

# The cosine is best for the short one, whose words are everywhere; BM25 for the long one, which alone has the rare word.
SHORT, LONG = "short.txt", "long.txt"
WEIGHED = {
    SHORT: "The water pump moves water.",
    LONG: f"The flange of the {' '.join(f'part{i}' for i in range(25))} holds water.",
    **{f"other{i}.txt": f"Shelf {i} of the water works holds item{i} and box{i}." for i in range(14)},
}
DIVIDED = "which water flange"


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weighed")
    ingest(write(folder / "a", WEIGHED), folder / "index")
    return folder / "index"


def test_the_dense_leg_weighs_what_the_config_says(weighed: Path) -> None:
    def best(share: float) -> str:
        r = retriever(weighed, config=RetrieverConfig(fusion="minmax", dense_weight=share))
        return found(search(r, asked(DIVIDED, top_k=1)))[0]

    assert [best(share) for share in (0, 0.1, RetrieverConfig().dense_weight, 1)] == [LONG, LONG, SHORT, SHORT]


def test_a_query_has_a_share_of_its_own(weighed: Path) -> None:
    """With the configured share the dense leg's best passage would come first, as above; but here BM25's leads by far."""
    assert found(search(retriever(weighed), asked(DIVIDED, top_k=1))) == [LONG]


@pytest.mark.parametrize("leg", ["dense", "sparse"])
@pytest.mark.parametrize("fusion", get_args(Fusion))
def test_all_variants_together_weigh_less_than_the_question(weighed: Path, fusion: Fusion, leg: Any) -> None:
    """Two that agree, and that would outvote the question if each counted as much."""
    question, variants = "flange", ("pump moves", "moves the pump")
    r = retriever(weighed)
    assert found(search(r, SearchQuery((question, *variants), legs=(leg,), fusion=fusion, top_k=1))) == [LONG]
    assert found(search(r, SearchQuery(variants, legs=(leg,), fusion=fusion, top_k=1))) == [SHORT]


@pytest.mark.parametrize("k", [1, 60, 1000])
def test_ranks_are_fused_with_the_configs_k(weighed: Path, k: int) -> None:
    r = retriever(weighed, config=RetrieverConfig(fusion="rrf", rrf_k=k))
    hit = search(r, asked("pump moves water", top_k=1)).hits[0]
    assert hit.ranks == {"dense": 1, "sparse": 1}
    assert hit.score == pytest.approx(2 / (k + 1))


def test_bad_variants_do_not_hurt(index: Path) -> None:
    query = SearchQuery(("tenant rent", "language language language", "pump water B-120"), buckets=("docs",))
    assert search(retriever(index), query).hits[0].chunk.uri == "lease.md"


def test_another_embedder_is_refused_by_name(index: Path) -> None:
    r = retriever(index, WordEncoder("others"))
    assert r.index_version is None
    assert "made by the embedder 'words'" in r.reasons[0]
    with pytest.raises(IndexFault, match="'words'"):
        search(r, "x")


def test_no_index_yet(tmp_path: Path) -> None:
    r = retriever(tmp_path / "index")
    with pytest.raises(IndexFault, match="no published snapshot"):
        search(r, "x")
    ingest(write(tmp_path / "a", FILES), tmp_path / "index")
    assert r.reload()
    assert r.reasons == ()
    assert found(search(r, "B-120"))[0] == "pump.md"
    assert not r.reload()


VALUES: dict[str, Any] = {"text": "md", "number": 2, "date": "2030-01-01", "boolean": True}


@pytest.mark.parametrize(("field", "op"), [(name, op) for name, f in FIELDS.items() for op in OPS[f.type]])
def test_every_operator_runs(index: Path, field: str, op: str) -> None:
    """A filter and its negation share out all rows."""
    value = VALUES[FIELDS[field].type]
    given = {"in": [value], "between": [value, value], "is_null": True}.get(op, value)
    r, test = retriever(index), where(field, op, given)
    counts = [search(r, asked("pump", filters)).explain.allowed_rows for filters in (test, {"not": test})]
    assert sum(counts) == search(r, "pump").explain.total_rows
