"""The bulk path on a Ray of its own: the same index as a run on one machine, and each goes on where the other stopped."""

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from tests.integration.conftest import assay

pytestmark = pytest.mark.integration


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for i in range(20):
        (folder / f"{i:02}.md").write_text(
            f"# Part {i}\n\nThe marker of part {i} is word{i}.\n\n## More\n\nText {i}.\n"
        )
    (folder / "rows.csv").write_text("name,city\n" + "\n".join(f"n{i},c{i}" for i in range(200)))
    (folder / "torn.pdf").write_bytes(b"%PDF-1.7 torn")
    (folder / "empty.txt").write_text("")


def run(folder: Path, index: Path, *more: str) -> dict[str, Any]:
    report = index.parent / f"{index.name}.json"
    done = assay("ingest", folder, "--index", index, "--base", folder, "--report", report, *more)
    assert done.returncode == 1, done.stderr  # one file is torn
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def chunks(index: Path) -> list[dict[str, Any]]:
    columns = ["uri", "ordinal", "text", "heading", "vector"]
    rows: list[dict[str, Any]] = lance.dataset(str(index / "chunks.lance")).to_table(columns=columns).to_pylist()
    return sorted(rows, key=lambda row: (row["uri"], row["ordinal"]))


def test_a_cluster_makes_the_same_index_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write(folder)
    plain, bulk = run(folder, tmp_path / "plain"), run(folder, tmp_path / "bulk", "--ray", "local")
    for key in ("files", "outcomes", "reasons", "bytes", "chunks"):
        assert plain[key] == bulk[key], key
    assert {r["uri"]: r for r in plain["rows"]} == {r["uri"]: r for r in bulk["rows"]}
    ours, theirs = chunks(tmp_path / "plain"), chunks(tmp_path / "bulk")
    one, other = (np.array([row.pop("vector") for row in rows], np.float32) for rows in (ours, theirs))
    assert ours == theirs
    assert np.allclose(one, other, atol=5e-3)

    (folder / "03.md").write_text("# Part 3\n\nNow it says zebra.\n")
    (folder / "new.md").write_text("# New\n\nA new file.\n")
    again = run(folder, tmp_path / "plain", "--ray", "local")
    assert again["outcomes"] == {"unchanged": 20, "replaced": 1, "ingested": 1, "failed": 1, "skipped": 1}
    assert run(folder, tmp_path / "plain")["outcomes"] == {"unchanged": 22, "failed": 1, "skipped": 1}
