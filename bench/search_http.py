"""``/v1/search`` of the whole graph: HTTP, ingress, driver and retriever in replicas of their own, the question embedded there.

The graph is the one of ``graph.wire`` but for the engine, which no search asks: one that only says it is ready takes its place.
"""

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
import yaml
from ray import serve
from ray.serve import Application

from assay.config import AppConfig
from assay.models import resolve_model
from assay.serve_config import load
from bench.look import looked_at
from bench.report import Row, at_most
from deployments.local import LocalGraph
from deployments.remote import Reply
from graph import wire

ROOT = Path(__file__).parents[1]
_TIMES = 5


class _NoEngine:
    async def ready(self) -> Reply[str]:
        return Reply("ready", 0.0)


NoEngine = serve.deployment(_NoEngine, ray_actor_options={"num_cpus": 0.01})


def build_app(args: AppConfig) -> Application:
    cache = Path(args.cache).expanduser()
    models = {name: resolve_model(engine.model, cache) for name, engine in args.engines.items()}
    engines = {name: NoEngine.bind() for name in args.engines}
    return wire(args, engines, models, resolve_model(args.index.embedder, cache))


def measure(
    index: Path, bucket: str, questions: Sequence[str], folder: Path, start: str, goal: float | None
) -> list[Row]:
    """Rows whose names begin with ``start``; ``goal``: p95 of one client, in ms."""
    raw = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    application = raw["applications"][0]
    application["import_path"] = "bench.search_http:build_app"
    application["args"]["index"] = {"uri": str(index)}
    (folder / "search.yaml").write_text(yaml.safe_dump(raw))
    rows = []
    with LocalGraph(load(folder / "search.yaml"), log=folder / "serve.log", port=8766) as graph:
        graph.wait_ready(300)
        warm, *others = np.array_split(questions, [len(questions) // 10, len(questions) // 2])
        _load(graph.url, bucket, warm.tolist(), 2)
        # Each is asked once: the graph remembers the vectors of questions.
        for clients, asked in zip((1, 8), others, strict=True):
            with looked_at(f"{graph.url}/healthz") as health:
                taken, seconds = _load(graph.url, bucket, asked.tolist(), clients)
            at = f"{start}through Serve and HTTP, question embedded, {clients} client{'s' if clients > 1 else ''}: "
            rows.append(Row(f"{at}questions a second", len(taken) / seconds, "1/s"))
            rows.append(Row(f"{at}p50", 1000 * statistics.median(taken), "ms"))
            p95 = 1000 * float(np.percentile(taken, 95))
            rows.append(at_most(f"{at}p95", p95, "ms", goal) if goal and clients == 1 else Row(f"{at}p95", p95, "ms"))
            rows.append(at_most(f"{at}/healthz meanwhile, slowest look", 1000 * max(health), "ms", 100))
        added, gone = _fresh(graph.url, index, folder)
        found = f"{start}a new document is found after its acknowledgement, slowest of {_TIMES}"
        rows.append(at_most(found, max(added), "s", 2.0) if goal else Row(found, max(added), "s"))
        rows.append(Row(f"{start}a deleted one is gone after its acknowledgement, slowest of {_TIMES}", max(gone), "s"))
    return rows


def _fresh(url: str, index: Path, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds from the report of ``assay ingest``, and of ``assay delete``, to the first search that shows it."""
    added, gone = [], []
    for number in range(_TIMES):
        document = folder / f"fresh-{number}.md"
        document.write_text(f"# Fresh\n\nThe password of day {number} is xylograph{number}q.\n")
        where = ["--index", str(index)]
        ingest = ["ingest", str(document), "--base", str(folder), *where]
        added.append(_until(url, f"xylograph{number}q", True, ingest))
        gone.append(_until(url, f"xylograph{number}q", False, ["delete", document.name, *where]))
    return added, gone


def _until(url: str, word: str, there: bool, command: list[str]) -> float:
    """The clock starts with the first line that the command prints: its report."""
    said = subprocess.Popen([sys.executable, "-m", "assay", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with said, httpx.Client(base_url=url, timeout=60) as http:
        assert said.stdout is not None
        if not said.stdout.readline():
            raise RuntimeError(f"{' '.join(command)} said nothing")
        acknowledged = time.perf_counter()
        while time.perf_counter() - acknowledged < 60:
            asked = time.perf_counter()
            question = {"question": word, "top_k": 1, "legs": ["sparse"]}
            hits = http.post("/v1/search", json=question).raise_for_status().json()["hits"]
            if any(word in hit["text"] for hit in hits) == there:
                said.stdout.read()
                return asked - acknowledged
            time.sleep(0.02)
    raise RuntimeError(f"{' '.join(command)} was acknowledged, and no search has shown it for a minute")


def _load(url: str, bucket: str, questions: Sequence[str], clients: int) -> tuple[list[float], float]:
    """Every question once, by so many clients at a time; seconds of each, and of all."""
    waiting = list(questions)
    taken: list[float] = []
    faults: list[str] = []

    def client() -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            while waiting and not faults:
                question = waiting.pop()
                start = time.perf_counter()
                answer = http.post("/v1/search", json={"question": question, "buckets": [bucket], "top_k": 10})
                taken.append(time.perf_counter() - start)
                if answer.status_code != 200 or len(answer.json()["hits"]) != 10:
                    faults.append(f"{answer.status_code}: {json.dumps(answer.json())[:300]}")

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise RuntimeError(f"a search failed: {faults[0]}")
    return taken, time.perf_counter() - start
