"""Documents that are looked into by where they begin: what is asked stands deep inside, and who it is about at the top."""

from pathlib import Path
from typing import Any

import pytest

from assay.config import RetrieverConfig
from assay.schemas import Predicate
from assay.types import Leg, SearchQuery
from tests.wiring.index.builders import found, ingest, retriever, search, write
from tests.wiring.index.pdf import pdf

FILLER = "\n\n".join(f"# Part {n}\n\n{'General words about a matter that nobody asks for. ' * 12}" for n in range(6))
NAMES = ("acme", "bolt", "zeta", "yota", "omega")
FILES = {
    f"{name}.md": f"# Contract\n\nThis contract is made by {name} and a customer.\n\n{FILLER}\n\n"
    f"# Law\n\nThe governing law is that of state number {number}."
    for number, name in enumerate(NAMES)
}
QUESTION = "governing law of the contract made by zeta"
LED = RetrieverConfig(lead_weight=1.0, lead_documents=2)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leads")
    ingest(write(folder / "a", FILES), folder / "index", "docs")
    ingest(write(folder / "b", {"zeta2.md": FILES["zeta.md"]}), folder / "index", "private")
    return folder / "index"


def clauses(index: Path, config: RetrieverConfig, **rest: Any) -> list[str]:
    """The documents of the passages about the law, best first."""
    result = search(retriever(index, config=config), SearchQuery((QUESTION,), top_k=20, **rest))
    return [hit.chunk.uri for hit in result.hits if "governing law" in hit.chunk.text]


def test_the_document_that_is_named_at_its_beginning_comes_first(index: Path) -> None:
    assert clauses(index, LED, buckets=("docs",))[0] == "zeta.md"
    assert clauses(index, RetrieverConfig(), buckets=("docs",))[0] != "zeta.md", "or this shows nothing"


def test_a_passage_is_found_that_no_leg_had_among_its_candidates(index: Path) -> None:
    narrow = RetrieverConfig(fetch=2)
    assert "zeta.md" not in clauses(index, narrow, buckets=("docs",))
    assert clauses(index, narrow.model_copy(update={"lead_weight": 1.0}), buckets=("docs",))[0] == "zeta.md"


@pytest.mark.parametrize("legs", [("dense",), ("sparse",), ("dense", "sparse")])
@pytest.mark.parametrize("fusion", ["rrf", "minmax", "weighted"])
def test_filters_and_buckets_bind_it(index: Path, legs: Any, fusion: Any) -> None:
    r = retriever(index, config=LED)
    asked = SearchQuery((QUESTION, "law"), top_k=200, legs=legs, fusion=fusion)
    everything = set(found(search(r, asked)))
    assert {"zeta.md", "zeta2.md"} <= everything
    for rest, allowed in (
        ({"buckets": ("docs",)}, {f"{name}.md" for name in NAMES}),
        ({"buckets": ("private",)}, {"zeta2.md"}),
        ({"filters": Predicate(field="uri", op="!=", value="zeta.md")}, everything - {"zeta.md"}),
    ):
        query = SearchQuery((QUESTION, "law"), top_k=200, legs=legs, fusion=fusion, **rest)
        result = search(r, query)
        assert result.hits
        assert set(found(result)) <= allowed
        assert result.explain.methods["lead"] == "exact"


@pytest.mark.parametrize(("first", "last"), [(1, 2), (2, 4), (4, 6), (3, 3)])
def test_a_filter_on_pages_binds_what_is_looked_into(tmp_path: Path, first: int, last: int) -> None:
    """A document of which a part is allowed leads to that part alone."""
    (tmp_path / "files").mkdir()
    for name in ("zeta", "yota"):
        (tmp_path / "files" / f"{name}.pdf").write_bytes(pdf(f"(The law of the contract by {name}.) Tj", pages=6))
    ingest(tmp_path / "files", tmp_path / "index")
    r = retriever(tmp_path / "index", config=LED.model_copy(update={"fetch": 1}))
    legs: list[tuple[Leg, ...]] = [("dense",), ("sparse",), ("dense", "sparse")]
    for of in legs:
        pages = Predicate(field="page", op="between", value=[first, last])
        hits = search(r, SearchQuery(("contract by zeta",), filters=pages, legs=of, top_k=50)).hits
        found_pages = {hit.chunk.page for hit in hits}
        assert found_pages <= set(range(first, last + 1))
        assert first > 3 or found_pages == set(range(first, last + 1)), "the whole of it is looked into"


def test_within_one_document_it_changes_nothing(index: Path) -> None:
    plain = search(retriever(index), SearchQuery((QUESTION,), top_k=5)).hits[0].chunk.doc_id
    query = SearchQuery((QUESTION,), doc_id=plain, top_k=20)
    assert search(retriever(index, config=LED), query) == search(retriever(index), query)


def test_a_hit_has_its_rank_in_each_leg_and_no_unmatched_one_comes_in(index: Path) -> None:
    r = retriever(index, config=LED)
    hits = search(r, SearchQuery((QUESTION,), top_k=200, legs=("sparse",))).hits
    assert all("sparse" in hit.ranks for hit in hits)
    assert search(r, SearchQuery(("zzqq",), top_k=20, legs=("sparse",))).hits == ()


def test_what_is_deleted_leads_nowhere(index: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", FILES)
    ingest(folder, tmp_path / "index", "docs")
    write(folder, {"zeta.md": "# Other\n\nNothing about any law."})
    ingest(folder, tmp_path / "index", "docs")
    assert clauses(tmp_path / "index", LED) != []
    assert "zeta.md" not in clauses(tmp_path / "index", LED)
