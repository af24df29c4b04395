"""The loop's own cost of a question, beside LangGraph, Haystack and LlamaIndex: the same steps with the same fakes.

What the steps are is in ``bench.loops.steps``; each system is written as its documentation shows, in a process of its own,
where the times are taken. They take turns, a few questions each, after a warm-up; the median of all counts. The peers have
their environment: ``make peers``. None of them is asked for what it does not do by itself; ``bench.loops.assay_loop`` says what
Assay does beyond the steps within its time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.loops.worker import SYSTEMS
from bench.report import Row, at_most, options, publish

ROOT = Path(__file__).parents[1]
WARM_UP, TURN = 30, 10
GOAL_MS, GOAL_SHARE = 5.0, 0.5


class Worker:
    def __init__(self, python: str, name: str) -> None:
        environ = {**os.environ, "HAYSTACK_TELEMETRY_ENABLED": "False", "LANGSMITH_TRACING": "false"}
        self._name = name
        self._child = subprocess.Popen(
            [python, "-m", "bench.loops.worker", name],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, count: int) -> dict[str, Any]:
        assert self._child.stdin and self._child.stdout
        with suppress(BrokenPipeError):  # it has ended: then it answers nothing either
            self._child.stdin.write(json.dumps({"count": count}).encode() + b"\n")
            self._child.stdin.flush()
        line = self._child.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"fault": "the process ended"}
        if "fault" in answer:
            raise SystemExit(f"{self._name}: {answer['fault']}")
        return answer

    def end(self) -> None:
        self._child.kill()
        self._child.wait()


def measure(peers: Path, turns: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Milliseconds of each question by system, and what was measured."""
    peer = str(peers / "bin" / "python")
    workers = {name: Worker(sys.executable if name == "assay" else peer, name) for name in SYSTEMS}
    taken: dict[str, list[float]] = {name: [] for name in workers}
    versions: dict[str, str] = {}
    try:
        for worker in workers.values():
            versions |= worker.ask(WARM_UP)["versions"]
        for turn in range(turns):
            names = list(workers)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                taken[name] += workers[name].ask(TURN)["ms"]
    finally:
        for worker in workers.values():
            worker.end()
    return taken, versions


def rows_of(taken: dict[str, list[float]]) -> list[Row]:
    medians = {name: statistics.median(ms) for name, ms in taken.items()}
    fastest = min((name for name in medians if name != "assay"), key=lambda name: medians[name])
    rows = [at_most("assay: the loop's own time of a question, median", medians["assay"], "ms", GOAL_MS)]
    for name, ms in taken.items():
        rows += [Row(f"{name}: median", medians[name], "ms")] if name != "assay" else []
        tenths = statistics.quantiles(ms, n=10)
        rows += [Row(f"{name}: 10th percentile", tenths[0], "ms"), Row(f"{name}: 90th percentile", tenths[-1], "ms")]
    return [
        *rows,
        at_most(f"assay: share of the fastest, {fastest}", medians["assay"] / medians[fastest], "", GOAL_SHARE),
    ]


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--peers", type=Path, default=Path(".venv-peers"), help="their environment (default: %(default)s)"
        )

    args = options(__doc__ or "", more=more)
    if not (args.peers / "bin" / "python").exists():
        sys.exit(f"the peers' environment {args.peers} is missing: run 'make peers', or name one with --peers")
    taken, versions = measure(args.peers, 5 if args.quick else 50)
    count = len(taken["assay"])
    beside = ", ".join(f"{name} {version}" for name, version in versions.items())
    publish(f"The loop's own cost, {count} questions each", rows_of(taken), args, beside)


if __name__ == "__main__":
    main()
