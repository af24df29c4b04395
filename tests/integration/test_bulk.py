"""The bulk path on a Ray of its own: the same index as a run on one machine, and each goes on where the other stopped."""

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lance
import numpy as np
import psutil
import pytest
from msoffcrypto.format.ooxml import OOXMLFile

from assay.index.files import Layout
from assay.index.store import State, read_state
from deployments.local import descendants
from tests.integration.conftest import ROOT, assay
from tests.wiring.index.test_formats import workbook

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_FILES = 40  # of twenty passages each, where a commit has 256


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for i in range(20):
        (folder / f"{i:02}.md").write_text(
            f"# Part {i}\n\nThe marker of part {i} is word{i}.\n\n## More\n\nText {i}.\n"
        )
    (folder / "rows.csv").write_text("name,city\n" + "\n".join(f"n{i},c{i}" for i in range(200)))
    (folder / "torn.pdf").write_bytes(b"%PDF-1.7 torn")
    (folder / "empty.txt").write_text("")
    with (folder / "locked.xlsx").open("wb") as locked:
        OOXMLFile(io.BytesIO(workbook())).encrypt("sesame", locked)


def run(folder: Path, index: Path, *more: str) -> dict[str, Any]:
    report = index.parent / f"{index.name}.json"
    done = assay(
        "ingest", folder, "--index", index, "--base", folder, "--report", report, "--password", "sesame", *more
    )
    assert done.returncode == 1, done.stderr  # one file is torn
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def chunks(index: Path) -> list[dict[str, Any]]:
    columns = ["uri", "ordinal", "text", "heading", "vector"]
    rows: list[dict[str, Any]] = lance.dataset(str(index / "chunks.lance")).to_table(columns=columns).to_pylist()
    return sorted(rows, key=lambda row: (row["uri"], row["ordinal"]))


def documents(index: Path) -> list[dict[str, Any]]:
    columns = ["doc_id", "uri", "title", "sha256", "text"]
    rows: list[dict[str, Any]] = lance.dataset(str(index / "documents.lance")).to_table(columns=columns).to_pylist()
    return sorted(rows, key=lambda row: row["uri"])


def same(one: Path, other: Path) -> None:
    """The same passages and documents, each as often; their vectors but for the last digits."""
    assert documents(one) == documents(other)
    ours, theirs = chunks(one), chunks(other)
    near, far = (np.array([row.pop("vector") for row in rows], np.float32) for rows in (ours, theirs))
    assert ours == theirs
    assert np.allclose(near, far, atol=5e-3)


def test_a_cluster_makes_the_same_index_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write(folder)
    plain, bulk = run(folder, tmp_path / "plain"), run(folder, tmp_path / "bulk", "--ray", "local")
    for key in ("files", "outcomes", "reasons", "bytes", "chunks"):
        assert plain[key] == bulk[key], key
    assert {r["uri"]: r for r in plain["rows"]} == {r["uri"]: r for r in bulk["rows"]}
    same(tmp_path / "plain", tmp_path / "bulk")
    assert "| north | 1.5 |" in next(row["text"] for row in chunks(tmp_path / "bulk") if row["uri"] == "locked.xlsx")

    (folder / "03.md").write_text("# Part 3\n\nNow it says zebra.\n")
    (folder / "new.md").write_text("# New\n\nA new file.\n")
    again = run(folder, tmp_path / "plain", "--ray", "local")
    assert again["outcomes"] == {"unchanged": 21, "replaced": 1, "ingested": 1, "failed": 1, "skipped": 1}
    assert run(folder, tmp_path / "plain")["outcomes"] == {"unchanged": 23, "failed": 1, "skipped": 1}


def test_a_run_on_a_cluster_that_is_killed_is_ended_by_the_plain_command(tmp_path: Path) -> None:
    """With SIGKILL, after its first commit and before its last: nothing is lost, and nothing is there twice."""
    folder, index = tmp_path / "files", tmp_path / "bulk"
    folder.mkdir()
    for i in range(_FILES):
        parts = "".join(f"## Part {n}\n\n{'The pump moves water. ' * 12}It is word{i}x{n}.\n\n" for n in range(20))
        (folder / f"{i:02}.md").write_text(f"# Unit {i}\n\n{parts}")
    what = ("ingest", folder, "--base", folder, "--index")
    command = [sys.executable, "-m", "assay", *map(str, what), str(index), "--ray", "local"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bulk:
        stored = first_commit(bulk, index)
        others = descendants(bulk.pid)
        bulk.send_signal(signal.SIGKILL)
        assert bulk.wait(30) == -signal.SIGKILL
    for process in psutil.wait_procs(others, 5)[1]:  # agents of Ray's, which take their time
        process.kill()
    assert not (index / "CURRENT").exists()
    done = assay(*what, index, "--report", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    outcomes = json.loads((tmp_path / "report.json").read_text())["outcomes"]
    assert outcomes["unchanged"] > 0, "what was committed is not read again"
    assert outcomes["ingested"] > 0, "or it was killed too late"
    assert outcomes["unchanged"] + outcomes["ingested"] == _FILES
    assert assay(*what, tmp_path / "plain").returncode == 0
    same(index, tmp_path / "plain")
    state = read_state(Layout(str(index)))
    assert state is not None and state.next_id > stored.next_id
    found = json.loads(assay("search", "word7x3", "--index", index, "--json", "--legs", "sparse").stdout)
    assert [hit["uri"] for hit in found["hits"]] == ["07.md"]


def first_commit(run: "subprocess.Popen[bytes]", index: Path) -> State:
    until = time.monotonic() + 240
    while (state := read_state(Layout(str(index)))) is None or state.next_id == 1:
        assert run.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    return state
