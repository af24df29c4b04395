"""The command ``search`` with ``--json``: each hit says which legs found it, and the place in the file that it is."""

import json
import re
import subprocess
import sys
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


# Not in this process: pytest hears what is logged, which a shell shows where nobody listens.
COMMAND = """
import sys
from assay.__main__ import main
from assay.index import embed
from tests.unit.index.fakes import WordEncoder
embed.SentenceEmbedder = lambda *_: WordEncoder()
sys.exit(main(["search", *sys.argv[1:]]))
"""


def shown(index: Path, *words: str) -> "subprocess.CompletedProcess[str]":
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
    done = shown(index, "--legs", legs)
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
