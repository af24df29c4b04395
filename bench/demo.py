"""The demo's speed: start-up to ready, first event, first token, whole answers, the driver's own share and the hops'.

The graph of configs/local.yaml over the KServe documentation; ten questions, one after the other, on an idle machine.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from assay.client import Client
from assay.events import AnswerEvent, CompletedEvent
from assay.schemas import AskRequest, AskResponse
from assay.serve_config import load
from bench.report import Row, at_most, options, publish
from deployments.local import LocalGraph, Status

ROOT = Path(__file__).parents[1]
QUESTIONS = ROOT / "tests" / "integration" / "kserve_questions.json"


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds from the request to its first event, to the first delta of the answer, and to its end."""

    first_event: float
    first_token: float | None
    total: float
    response: AskResponse


def ask(client: Client, question: str) -> Timed:
    start = time.perf_counter()
    first_event, first_token = 0.0, None
    for event in client.stream(AskRequest(question=question, mode="agentic")):
        first_event = first_event or time.perf_counter() - start
        if isinstance(event, AnswerEvent) and first_token is None:
            first_token = time.perf_counter() - start
        if isinstance(event, CompletedEvent):
            return Timed(first_event, first_token, time.perf_counter() - start, event.response)
    raise RuntimeError("the stream ended without its answer")


def ingest(data: Path, index: Path) -> float:
    folder, start = data / "markdown" / "kserve_docs", time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "assay",
        "ingest",
        str(folder),
        "--index",
        str(index),
        "--bucket",
        "kserve",
        "--base",
        str(folder),
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def median_ms(answers: Sequence[Timed], stage: str) -> float:
    return statistics.median(a.response.timings_ms.get(stage, 0.0) for a in answers)


def measure(data: Path, folder: Path, quick: bool) -> list[Row]:
    rows = [Row("ingest of 141 pages, 1.9 MB", ingest(data, folder / "index"), "s")]
    raw = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    raw["applications"][0]["args"]["index"] = {"uri": str(folder / "index")}
    (folder / "local.yaml").write_text(yaml.safe_dump(raw))
    questions = [q["question"] for q in json.loads(QUESTIONS.read_text())][: 3 if quick else 10]
    healthy: dict[str, float] = {}
    start = time.perf_counter()

    def watch(status: Status) -> None:
        for name in status.ready:
            healthy.setdefault(name, time.perf_counter() - start)

    with LocalGraph(load(folder / "local.yaml"), log=folder / "serve.log", port=8765) as graph:
        graph.wait_ready(300, watch)
        ready = time.perf_counter() - start
        with Client(graph.url, timeout_s=120) as client:
            cold = ask(client, questions[0])
            answers = [ask(client, question) for question in questions]
    rows.append(at_most("serve run to ready", ready, "s", 90))
    rows += [Row(f"  {name} healthy", seconds, "s") for name, seconds in sorted(healthy.items(), key=lambda i: i[1])]
    rows.append(Row("first question after the start, whole answer", cold.total, "s"))
    rows.append(at_most("first event, median", statistics.median(a.first_event for a in answers), "s", 1))
    rows.append(at_most("first event, slowest", max(a.first_event for a in answers), "s", 1))
    tokens = [a.first_token for a in answers if a.first_token is not None]
    rows.append(at_most("first token of the answer, median", statistics.median(tokens), "s", 10))
    rows.append(at_most("first token of the answer, slowest", max(tokens), "s", 10))
    # Most take two or three rounds: what the goal allows to one, all keep to.
    rows.append(
        at_most("whole agentic answer, any rounds, median", statistics.median(a.total for a in answers), "s", 20)
    )
    rows.append(at_most("driver's own code per question, median", median_ms(answers, "driver"), "ms", 10))
    rows.append(Row("hops between replicas per question, median", median_ms(answers, "hops"), "ms"))
    rows += [
        Row(f"  {stage}, median", median_ms(answers, stage) / 1000, "s")
        for stage in ("plan", "retrieve", "rerank", "grade", "generate")
    ]
    rows.append(Row("answers without a fallback", sum(not a.response.degraded for a in answers), f"of {len(answers)}"))
    rows.append(
        Row("answered (not 'no evidence')", sum(a.response.status == "answered" for a in answers), f"of {len(answers)}")
    )
    return rows


def main() -> None:
    args = options(__doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args.data, Path(folder), args.quick)
    publish("Assay, the demo", rows, args, "a measurement of Assay alone; goals from the issue")


if __name__ == "__main__":
    main()
