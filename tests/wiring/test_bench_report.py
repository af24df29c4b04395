"""The rows of a measurement say at which commit each was measured, also beside rows that an earlier run has measured."""

import json
from dataclasses import asdict
from pathlib import Path

from bench.report import Row, kept, options, write


def test_a_row_that_is_kept_keeps_its_commit(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    old = asdict(Row("told", 1, "ms", commit="abc1234"))
    untold = {name: value for name, value in asdict(Row("untold", 2, "ms")).items() if name != "commit"}
    path.write_text(json.dumps({"machine": {"commit": "def5678"}, "rows": [old, untold]}))
    write([*kept(path), Row("new", 3, "ms")], options("", ["--json", str(path)]))
    found = json.loads(path.read_text())
    assert {row["name"]: row["commit"] for row in found["rows"]} == {
        "told": "abc1234",
        "untold": None,
        "new": found["machine"]["commit"],
    }
