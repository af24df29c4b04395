"""The command ``search``: each hit says which legs found it, its place in the file, and whether a reader sees it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import openpyxl
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


def test_facets_are_counted(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facets = printed(index, ["pump", "--facet", "title", "--facet", "format", "--json"], capsys)["facets"]
    assert {name: {v["value"]: v["count"] for v in facet["values"]} for name, facet in facets.items()} == {
        "title": {"Pumps": 1, "Unit Seven": 1, "Lions": 1},
        "format": {"md": 3},
    }
    assert "format: md (3)" in shown(index, ["pump", "--facet", "format"], capsys)


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (
            {"field": "format", "op": "=", "value": "zip"},
            'No passage passes {"field":"format","op":"=","value":"zip"}; without it there are 3.',
        ),
        (
            {"and": [{"field": "title", "op": "=", "value": "Lions"}, {"field": "page", "op": ">", "value": 4000}]},
            'No passage passes {"field":"page","op":">","value":4000}; without it there is 1.',
        ),
        (
            {"and": [{"field": "format", "op": "=", "value": "zip"}, {"field": "page", "op": ">", "value": 4000}]},
            "No passage passes the whole filter, and leaving out one condition is not enough: "
            "without format = zip and page > 4000 there are 3.",
        ),
    ],
)
def test_what_left_nothing_is_said(
    index: Path, filters: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(index, ["pump", "--filter", json.dumps(filters)], capsys) == f"Nothing found.\n{said}\n"


def test_text_that_no_reader_sees_is_marked(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = openpyxl.Workbook()
    book.active.append(["zebra seen"])
    unseen = book.create_sheet()
    unseen.append(["zebra unseen"])
    unseen.sheet_state = "hidden"
    (tmp_path / "more").mkdir()
    book.save(tmp_path / "more" / "book.xlsx")
    ingest(tmp_path / "more", index)
    ask = ["zebra", "--legs", "sparse"]
    hits = printed(index, [*ask, "--json"], capsys)["hits"]
    assert {hit["heading"][0]: hit["hidden"] for hit in hits} == {"Sheet": False, "Sheet1 (hidden sheet)": True}
    heads = [line for line in shown(index, ask, capsys).splitlines() if "book.xlsx" in line]
    assert sorted("hidden text" in head for head in heads) == [False, True]


def printed(index: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(index, arguments, capsys))
    return found


def shown(index: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(["search", *arguments, "--index", str(index)])
    assert end.value.code == 0
    return capsys.readouterr().out


def searched(index: Path, question: str, legs: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    hits: list[dict[str, Any]] = printed(index, [question, "--legs", legs, "--json"], capsys)["hits"]
    return hits


# Not in this process: pytest hears what is logged, which a shell shows where nobody listens.
COMMAND = """
import sys
from assay.__main__ import main
from assay.index import embed
from tests.unit.index.fakes import WordEncoder
embed.SentenceEmbedder = lambda *_: WordEncoder()
sys.exit(main(["search", *sys.argv[1:]]))
"""


def in_a_shell(index: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", COMMAND, "pump", "--index", str(index), *words]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("torn", "legs", "code", "ends"),
    [
        ("dense.vectors.npy", "dense,sparse", 0, "run: python -m assay ingest; instead: the sparse leg alone"),
        ("sparse.values.npy", "dense,sparse", 0, "run: python -m assay ingest; instead: the dense leg alone"),
        ("dense.vectors.npy", "dense", 1, "run: python -m assay ingest"),
        ("sparse.values.npy", "sparse", 1, "run: python -m assay ingest"),
    ],
)
def test_a_torn_leg_is_told_in_one_line_with_its_file_and_what_mends_it(
    index: Path, torn: str, legs: str, code: int, ends: str
) -> None:
    file = next(index.rglob(torn))
    file.write_bytes(file.read_bytes()[:-4] + b"torn")
    done = in_a_shell(index, "--legs", legs)
    (line,) = done.stderr.strip().splitlines()
    assert (done.returncode, torn in line, line.endswith(ends)) == (code, True, True), line
    assert ("pump.md" in done.stdout) == (code == 0)


@pytest.mark.parametrize(("title", "count"), [("Pumps", "there is 1."), ("%", "there are 3.")])
def test_a_filter_that_leaves_nothing_says_what_there_is_without_it(
    index: Path, title: str, count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = {"field": "title", "op": "like", "value": "Pump%"} if title == "Pumps" else None
    narrow = {"field": "format", "op": "=", "value": "pdf"}
    with pytest.raises(SystemExit):
        main(
            [
                "search",
                "pump",
                "--index",
                str(index),
                "--filter",
                json.dumps({"and": [wide, narrow]} if wide else narrow),
            ]
        )
    assert re.search(rf"without it {re.escape(count)}", capsys.readouterr().out)
