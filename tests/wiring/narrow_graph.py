"""The graph of ``bench.doors_graph`` with an engine that thinks for a while about each plan: for calls that find it full."""

import asyncio
from pathlib import Path

from ray import serve
from ray.serve import Application

from assay.config import AppConfig
from assay.models import resolve_model
from assay.types import Completion, CompletionRequest
from bench import doors_graph
from deployments.remote import Reply
from graph import wire

PLAN_S = 3.0


class SlowEngine(doors_graph._FakeEngine):
    async def complete(self, request: CompletionRequest) -> Reply[Completion]:
        await asyncio.sleep(PLAN_S)
        return await super().complete(request)


def build_app(args: AppConfig) -> Application:
    engine = serve.deployment(SlowEngine, name=doors_graph.ENGINE, ray_actor_options={"num_cpus": 0.01})
    cache = Path(args.cache).expanduser()
    model = resolve_model("embedded:all-minilm-l6-v2", cache)
    return wire(args, {"small": engine.bind()}, {"small": model}, resolve_model(args.index.embedder, cache))
