"""The link hop over a real index: a second document that the question's words alone don't find."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from assay.config import RetrieverConfig
from assay.errors import InvalidRequest
from assay.types import SearchQuery, SearchResult
from tests.wiring.index.builders import found, ingest, retriever, search, write

FILES = {
    "radium.md": "# Radium\n\nRadium was discovered by Marie Curie in a shed.\n",
    "curie.md": "# Marie Curie\n\nWho discovered polonium in her home? She was born in Warsaw.\n",
    "warsaw.md": "# Warsaw\n\nThe capital lies on a wide river.\n",
    **{f"other{i}.md": f"# Other {i}\n\nShelf {i} holds discovered radium in this shed.\n" for i in range(8)},
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("links")
    ingest(write(folder / "a", FILES), folder / "index")
    ingest(
        write(folder / "b", {"secret.md": "# Marie Curie\n\nThe secret of the tenant.\n"}), folder / "index", "private"
    )
    return folder / "index"


def ask(index: Path, question: str, config: RetrieverConfig | None = None, **more: Any) -> SearchResult:
    query = SearchQuery((question,), **{"link_hop": True, "top_k": 3, "buckets": ("docs",), **more})
    return search(retriever(index, config=config), query)


QUESTION = "Who discovered radium in a shed?"


def test_what_the_best_hit_mentions_comes_up(index: Path) -> None:
    without, result = ask(index, QUESTION, link_hop=False, top_k=50), ask(index, QUESTION, top_k=50)
    assert "link" not in {leg for hit in without.hits for leg in hit.ranks}
    hop, plain = (next(hit for hit in r.hits if hit.chunk.uri == "curie.md") for r in (result, without))
    assert hop.score > plain.score
    assert hop.ranks["link"] >= 1
    assert result.explain.methods["link"] == "index"
    assert len({hit.chunk.id for hit in result.hits}) == len(result.hits)


def test_what_the_question_mentions_comes_up(index: Path) -> None:
    hits = ask(index, "radium of marie curie").hits
    assert "link" in next(hit for hit in hits if hit.chunk.uri == "curie.md").ranks


@pytest.mark.parametrize("method", ["rrf", "minmax", "weighted"])
def test_it_goes_with_every_fusion(index: Path, method: Any) -> None:
    hits = ask(index, QUESTION, RetrieverConfig(fusion=method), top_k=50).hits
    assert "link" in next(hit for hit in hits if hit.chunk.uri == "curie.md").ranks
    assert all(a.score >= b.score for a, b in pairwise(hits))


def test_the_allowed_set_binds_it(index: Path) -> None:
    everything = [ask(index, QUESTION, top_k=50, buckets=(bucket,)) for bucket in ("docs", "private")]
    assert "secret.md" not in found(everything[0])
    assert set(found(everything[1])) == {"secret.md"}
    radium = everything[0].hits[0].chunk.doc_id
    assert found(ask(index, QUESTION, doc_id=radium)) == ["radium.md"]


def test_a_new_snapshot_has_new_titles(tmp_path: Path) -> None:
    index = tmp_path / "index"
    ingest(
        write(tmp_path / "a", {**FILES, "radium.md": "# Radium\n\nRadium in a shed, by the Old Hand.\n"}),
        index,
    )
    r, query = retriever(index), SearchQuery((QUESTION,), link_hop=True, top_k=50)

    def linked() -> set[str]:
        return {hit.chunk.uri for hit in search(r, query).hits if "link" in hit.ranks}

    before = linked()
    for name, title in (("hands.md", "Old Hands"), ("hand.md", "Old Hand")):
        ingest(write(tmp_path / name, {name: f"# {title}\n\nNobody knows who discovered the name.\n"}), index)
        assert r.reload()
    assert linked() - before == {"hand.md"}


def test_a_title_of_common_words_names_nothing(tmp_path: Path) -> None:
    """More than fifty passages hold its word, so that a question with it is not about the page of that title."""
    pages = {f"page{i}.md": f"# Page {i}\n\nThe overview of shelf {i} is short.\n" for i in range(60)}
    named = {"overview.md": "# Overview\n\nShelves are listed here.\n", "atlas.md": "# Atlas\n\nShelves of maps.\n"}
    ingest(write(tmp_path / "a", pages | named), tmp_path / "index")

    def linked(question: str) -> set[str]:
        hits = search(retriever(tmp_path / "index"), SearchQuery((question,), link_hop=True, top_k=100)).hits
        return {hit.chunk.uri for hit in hits if "link" in hit.ranks}

    assert linked("which shelves are in the overview") == set()
    assert linked("which shelves are in the atlas") == {"atlas.md"}


def test_it_can_be_switched_off_for_all(index: Path) -> None:
    off = RetrieverConfig(link_hop=False)
    assert found(ask(index, QUESTION, off, link_hop=False))
    with pytest.raises(InvalidRequest, match="switched off"):
        ask(index, QUESTION, off)


def test_without_the_dense_leg_it_has_no_measure(index: Path) -> None:
    result = ask(index, QUESTION, legs=("sparse",))
    assert result.explain.methods["link"] == "skipped"
    assert all("link" not in hit.ranks for hit in result.hits)
