"""The whole graph over a small index with a fake engine that takes as long as the question says: for the doors under load.

Everything but the engine is real. The engine plans one variant, and scores a text by the words that it shares with its context.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from ray import serve
from ray.serve import Application

from assay.config import AppConfig, Placement
from assay.models import resolve_model
from assay.schemas import Usage
from assay.text import terms
from assay.types import Completion, CompletionRequest, ItemScore, ScoreItem, ScoreRequest, Scores
from deployments.remote import Reply
from graph import wire

ROOT = Path(__file__).parents[1]
ENGINE = "engine-small"
QUESTION = "What causes the ocean tides on Earth?"
# What a question may say of the engine: seconds that planning takes, and scoring.
STAYS = "Stay."  # in planning, for ever: a stream on which nothing happens
WORKS = "Work long."  # in scoring, far longer than anybody waits
TAKES_S = {STAYS: 3600.0, WORKS: 3600.0}
USUAL_S = 0.02

PAGES = {
    "moon": "The gravity of the Moon causes the ocean tides on Earth. The Moon has no air of its own.",
    "mars": "Mars has two small moons that are called Phobos and Deimos. Its soil is red from iron.",
    "sun": "The Sun is a star of hot plasma. Its light takes eight minutes to reach the Earth.",
    "venus": "Venus turns backwards and more slowly than any other planet. Its air is thick and hot.",
    "saturn": "The rings of Saturn are made of ice and dust. They are younger than the planet itself.",
}


class _FakeEngine:
    """``ports.LLM`` but for ``stream``, which no stage of this graph asks."""

    def __init__(self) -> None:
        self._running = 0

    async def complete(self, request: CompletionRequest) -> Reply[Completion]:
        async with self._taking(request.messages[-1].content, STAYS):
            return Reply(Completion('{"variants": ["why do ocean tides rise"]}', "stop", Usage(llm_calls=1)), 0.0)

    async def score(self, request: ScoreRequest) -> Reply[Scores]:
        async with self._taking(request.items[0].continuation, WORKS):
            return Reply(Scores(tuple(map(_scored, request.items)), Usage(llm_calls=1)), 0.0)

    async def ready(self) -> Reply[str]:
        return Reply("ready", 0.0)

    async def running(self) -> Reply[int]:
        """Calls in progress: what an engine would be busy with."""
        return Reply(self._running, 0.0)

    @asynccontextmanager
    async def _taking(self, text: str, word: str) -> AsyncIterator[None]:
        self._running += 1
        try:
            await asyncio.sleep(TAKES_S[word] if word in text else USUAL_S)
            yield
        finally:
            self._running -= 1


def _scored(item: ScoreItem) -> ItemScore:
    known, words = set(terms(item.context)), terms(item.continuation)
    each = tuple(-1.0 if word in known else -4.0 for word in words)
    return ItemScore(sum(each), len(each), each=each)


FakeEngine = serve.deployment(_FakeEngine, name=ENGINE, max_ongoing_requests=2000, ray_actor_options={"num_cpus": 0.01})


def build_app(args: AppConfig) -> Application:
    cache = Path(args.cache).expanduser()
    model = resolve_model("embedded:all-minilm-l6-v2", cache)  # for its tokenizer: it is small
    return wire(args, {"small": FakeEngine.bind()}, {"small": model}, resolve_model(args.index.embedder, cache))


def config(
    folder: Path, ingresses: int = 1, max_ongoing: int = 256, grace_s: float = 5, placement: Placement = "driver"
) -> Path:
    """Ingests the pages, and writes ``configs/local.yaml`` over them: room for all questions at once, no stage that gives up.

    ``placement``: of the stages that compute little themselves. Those with a deployment of their own keep its limits.
    """
    pages, index = folder / "pages", folder / "index"
    pages.mkdir(parents=True)
    for name, text in PAGES.items():
        (pages / f"{name}.md").write_text(f"# {name.title()}\n\n{text}\n")
    command = [sys.executable, "-m", "assay", "ingest", str(pages), "--index", str(index), "--base", str(pages)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    raw = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    raw["http_options"]["request_timeout_s"] = 4000
    (app,) = raw["applications"]
    app["import_path"] = "bench.doors_graph:build_app"
    for part, changed in _changed(folder, index, max_ongoing, grace_s, placement, shared=ingresses > 1).items():
        app["args"][part] = {**app["args"].get(part, {}), **changed}
    if ingresses > 1:
        app["deployments"].append({"name": "Streams", "graceful_shutdown_timeout_s": 1, "ray_actor_options": {}})
    for item in app["deployments"]:
        item |= {"max_ongoing_requests": 2 * max_ongoing, "max_queued_requests": 2 * max_ongoing}
        item["ray_actor_options"]["num_cpus"] = 0.05
        if item["name"] == "Ingress":
            item["num_replicas"] = ingresses
    path = folder / "doors.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def _changed(
    folder: Path, index: Path, max_ongoing: int, grace_s: float, placement: Placement, shared: bool
) -> dict[str, dict[str, Any]]:
    """What is other than in ``configs/local.yaml``, by part of ``AppConfig``."""
    patient = {"timeout_s": 600}
    placed = {**patient, "placement": placement}
    return {
        "index": {"uri": str(index)},
        "expander": {**placed, "skip_simple": False},
        "retriever": patient,
        "reranker": {**placed, "calibration": "none"},
        "generator": placed,
        "loop": {"mode": "agentic", "deadline_s": 3600},
        "answers": {"path": str(folder / "answers.db")},
        "ingress": {
            "max_ongoing": max_ongoing,
            "keys": str(folder / "keys.json"),
            "audit": {"folder": str(folder / "audit")},
            "conversations": {"store": "memory"},
            "documents": {"path": str(folder / "uploads")},
            "streams": {"shared": shared, "grace_s": grace_s},
        },
    }
