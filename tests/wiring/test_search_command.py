"""The command ``search`` with ``--json``: each hit says which legs found it, and the place in the file that it is."""

import json
from pathlib import Path
from typing import Any

import pytest

from assay.__main__ import main
from assay.index import embed
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import ingest, write

FILES = {
    "pump.md": "# Pumps\n\nThe pump of Unit Seven moves cold water.\n",
    "unit.md": "# Unit Seven\n\nIt was built of brick.\n",
    "lion.md": "# Lions\n\nThe lion sleeps.\n",
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(embed, "SentenceEmbedder", lambda *_: WordEncoder())
    ingest(write(tmp_path / "files", FILES), tmp_path / "index")
    return tmp_path / "index"


@pytest.mark.parametrize(
    ("legs", "ranks"),
    [
        ("dense", {"dense": 1}),
        ("sparse", {"sparse": 1}),
        ("dense,sparse", {"dense": 1, "sparse": 1}),
    ],
)
def test_a_hit_names_its_legs_and_its_place(
    index: Path, legs: str, ranks: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    hits = searched(index, "which pump moves water", legs, capsys)
    assert hits[0]["ranks"] == ranks
    assert all(set(hit["ranks"]) <= set(ranks) for hit in hits)
    assert ("dense" in ranks) == (hits[0]["similarity"] is not None)
    start, end = hits[0]["span"]
    assert (hits[0]["uri"], hits[0]["heading"]) == ("pump.md", ["Pumps"])
    assert FILES["pump.md"][start:end] == "The pump of Unit Seven moves cold water."
    for hit in hits:
        start, end = hit["text_span"]
        assert hit["text"] == FILES[hit["uri"]][start:end]


def test_a_hit_of_the_link_hop_says_so(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hits = searched(index, "which pump moves water", "dense,sparse,link", capsys)
    linked = [hit["uri"] for hit in hits if "link" in hit["ranks"]]
    assert linked == ["unit.md"], "which the best hit mentions by its title"


def searched(index: Path, question: str, legs: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    with pytest.raises(SystemExit) as end:
        main(["search", question, "--index", str(index), "--legs", legs, "--json"])
    assert end.value.code == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["hits"]
    return found
