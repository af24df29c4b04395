"""Files of questions through a running graph: killed, stopped, gone on with, and none lost or answered twice."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay import batch as door
from assay.serve_config import load
from deployments import batch as commands
from deployments.local import LocalGraph

ROOT = Path(__file__).parents[2]
COUNT = 12
SHOWN = {"citations", "degraded", "usage"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, free_tcp_port_factory: Any) -> Iterator[LocalGraph]:
    folder = tmp_path_factory.mktemp("graph")
    raw = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    application = raw["applications"][0]
    application["import_path"], application["args"] = "tests.wiring.answering_graph:build_app", {}
    application.pop("deployments", None)
    (folder / "local.yaml").write_text(yaml.safe_dump(raw))
    environ = {"PYTHONPATH": str(ROOT)}
    with LocalGraph(
        load(folder / "local.yaml"), log=folder / "log", port=free_tcp_port_factory(), environ=environ
    ) as graph:
        graph.wait_ready(120)
        yield graph


def started(graph: LocalGraph, *words: str | Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "assay", "batch", *map(str, words), "--address", graph.address]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_killed_stopped_and_gone_on_with(graph: LocalGraph, tmp_path: Path) -> None:
    source, out, partial = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    rows: list[dict[str, Any]] = [{"id": f"q{n}", "question": f"What is {n}?", "gold": n} for n in range(COUNT)]
    rows.insert(2, {"id": "bad", "question": "Why?", "top_k": -1})
    rows.insert(4, {"id": "elsewhere", "question": "Why?", "buckets": ["nowhere"]})
    source.write_text("\n".join(map(json.dumps, rows)))
    for sign, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        had = partial.read_bytes().count(b"\n") if partial.exists() else 0
        with started(graph, source, out, "--concurrency", "2") as run:
            deadline = time.monotonic() + 120
            while not partial.exists() or partial.read_bytes().count(b"\n") < max(2, had + 1):
                assert time.monotonic() < deadline and run.poll() is None, run.communicate()
                time.sleep(0.02)
            run.send_signal(sign)
            _, err = run.communicate(timeout=60)
        assert run.returncode == code, err
        assert not out.exists()
    assert "the same command goes on" in err
    kept = {line["row"]: line for line in lines(partial)[1:]}
    assert 2 <= len(kept) < len(rows)
    with started(graph, source, out, "--concurrency", "2") as run:
        _, err = run.communicate(timeout=120)
    assert run.returncode == 4 and f"{COUNT} of {len(rows)} rows answered, 2 failed" in err, err
    assert f"going on: {len(kept)} of {len(rows)}" in err
    assert re.search(rf"{len(rows)} of {len(rows)} rows, 2 failed, \d+\.\d a minute, 0 s left", err), err
    done = lines(out)
    assert [line["id"] for line in done] == [row["id"] for row in rows], "each row once, in the order of the file"
    assert all(done[n - 1] == line for n, line in kept.items()), "what was kept was not asked again"
    assert list(tmp_path.glob("*.partial")) == []
    by_id = {line["id"]: line for line in done}
    assert by_id["bad"]["error"]["field"] == "top_k"
    assert by_id["elsewhere"]["error"]["code"] == "unknown_bucket"
    for n in range(COUNT):
        line = by_id[f"q{n}"]
        assert line["error"] is None and line["extra"] == {"gold": n} and line["usage"]["llm_calls"] == 1
        assert set(line) >= SHOWN and line["citations"] == line["degraded"] == []
        question, _, at_once = line["answer"].partition(" [")
        assert question == f"What is {n}?" and int(at_once.split()[0]) <= 2, "no more at once than was allowed"


@pytest.mark.parametrize(("name", "written"), [("in.csv", "out.parquet"), ("in.parquet", "out.jsonl")])
def test_formats(graph: LocalGraph, tmp_path: Path, name: str, written: str) -> None:
    if name.endswith(".csv"):
        (tmp_path / name).write_text('question,top_k,gold\n"Why, then?",3,x\n')
    else:
        door.write_rows(tmp_path / name, [{"question": "Why, then?", "top_k": 3, "gold": "x", "row": 7}] * 2)
    with started(graph, tmp_path / name, tmp_path / written) as run:
        _, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert re.search(r"rows, 0 failed, \d+\.\d a minute", err), err
    rows = door.read_rows(tmp_path / written)
    assert all(set(row) >= SHOWN for row in rows)
    assert all(row["answer"].startswith("Why, then?") and row["error"] is None for row in rows)
    assert [row["row"] for row in rows] == [*range(1, len(rows) + 1)], "whatever a column of that name says"


def test_a_run_that_stands_still_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that left no room for the reading once stalled a run without a word."""
    monkeypatch.setattr(commands, "_SILENCE_S", 1.0)
    told = commands.Progress(2, 0, 300.0, lambda: "0 of Ray's 2 processors are free")
    with door.Journal(tmp_path / "out.jsonl", [], {}) as journal, told as progress:
        until = time.monotonic() + 30
        while (said := capsys.readouterr().err).count("no row") == 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert "fails after 300 s; 0 of Ray's 2 processors are free" in said
        for _ in range(150):  # rows that move
            progress.show(journal)
            time.sleep(0.01)
        assert "no row" not in capsys.readouterr().err
    time.sleep(1.5)
    assert "no row" not in capsys.readouterr().err


def test_as_a_dataset(graph: LocalGraph) -> None:
    """From a driver of one's own, as the docs say."""
    code = (
        "import sys, ray; from assay import batch; ray.init(address=sys.argv[1], namespace='serve', log_to_driver=False);"
        "rows = ray.data.from_items([{'question': f'What is {n}?', 'gold': n} for n in range(5)]);"
        "print([(r['outcome']['answer'][:9], r['outcome']['extra']) for r in batch.answers(rows, concurrency=2).take_all()])"
    )
    command = [sys.executable, "-c", code, graph.address]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    said = sorted(eval(run.stdout.strip().splitlines()[-1]))
    assert said == [(f"What is {n}", {"gold": n}) for n in range(5)]


def test_what_cannot_be_is_one_line(graph: LocalGraph, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"question": "Why?"}')
    for words, said in [
        (("in.jsonl", "out.txt"), "no format that can be written"),
        (("none.jsonl", "out.jsonl"), "No such file"),
        (("in.jsonl", "out.jsonl", "--address", "127.0.0.1:1"), "no graph 'assay' can be reached"),
        (("in.jsonl", "out.jsonl", "--address", graph.address, "--app", "other"), "no graph 'other' can be reached"),
    ]:
        command = [sys.executable, "-m", "assay", "batch", *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert run.returncode == 1 and said in run.stderr.splitlines()[-1], (words, run.stderr)
