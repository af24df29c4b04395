"""The graph of ``graph.wire`` with models that take their time and compute next to nothing: what is measured is the rest.

The engine answers after so many seconds as a likelihood or a planner would; the embedder is a real model folder whose
vectors are means of random word vectors.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ray import serve
from ray.serve import Application

from assay.config import AppConfig
from assay.models import embedder_path, resolve_model
from assay.schemas import Usage
from assay.types import Completion, CompletionRequest, ItemScore, ScoreItem, ScoreRequest, Scores
from deployments.remote import Reply
from graph import wire

DELAY = "ASSAY_BENCH_ENGINE_S"
"""Environment of the graph: seconds of one call of the engine."""
_DIM = 64


class FakeEngine:
    """``ports.LLM`` but for ``stream``: plans for a question, and scores by shared words."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    async def complete(self, request: CompletionRequest) -> Completion:
        await asyncio.sleep(self._delay_s)
        words = request.messages[-1].content.split()
        half = max(1, len(words) // 2)
        variants = [" ".join(part)[:60] for part in (words[:half], words[half:])]
        text = json.dumps({"variants": variants})
        return Completion(text, "stop", Usage(llm_calls=1, prompt_tokens=len(words), completion_tokens=len(words)))

    async def score(self, request: ScoreRequest) -> Scores:
        await asyncio.sleep(self._delay_s)
        items = tuple(map(_score, request.items))
        return Scores(items, Usage(llm_calls=len(items), prompt_tokens=sum(i.tokens for i in items)))


def _score(item: ScoreItem) -> ItemScore:
    known = set(item.context.casefold().split())
    each = tuple(-1.0 if word in known else -4.0 for word in item.continuation.casefold().split())
    return ItemScore(sum(each), len(each), each=each)


class _Replica:
    def __init__(self, delay_s: float) -> None:
        self._engine = FakeEngine(delay_s)

    async def complete(self, request: CompletionRequest) -> Reply[Completion]:
        return Reply(await self._engine.complete(request), 0.0)

    async def score(self, request: ScoreRequest) -> Reply[Scores]:
        return Reply(await self._engine.score(request), 0.0)

    async def ready(self) -> Reply[str]:
        return Reply("ready", 0.0)


Replica = serve.deployment(_Replica, ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=1000)


def build_app(args: AppConfig) -> Application:
    models = {name: resolve_model(engine.model, Path(args.cache).expanduser()) for name, engine in args.engines.items()}
    engines: Mapping[str, Any] = {
        name: Replica.options(name=f"engine-{name}").bind(float(os.environ[DELAY])) for name in args.engines
    }
    return wire(args, engines, models, args.index.embedder)


def tiny_embedder(folder: Path) -> str:
    """A model folder: a BERT of no layers with MiniLM's words, whose texts are similar where they share words."""
    from safetensors.numpy import save_file

    real = embedder_path()
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "modules.json", "sentence_bert_config.json"):
        shutil.copyfile(real / name, folder / name)
    pooling = json.loads((real / "1_Pooling" / "config.json").read_text()) | {"word_embedding_dimension": _DIM}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    config = json.loads((real / "config.json").read_text()) | {"hidden_size": _DIM, "num_hidden_layers": 0}
    (folder / "config.json").write_text(json.dumps(config))
    draw = np.random.default_rng(7)
    weights = {
        "embeddings.word_embeddings.weight": draw.normal(size=(config["vocab_size"], _DIM)),
        "embeddings.position_embeddings.weight": np.zeros((config["max_position_embeddings"], _DIM)),
        "embeddings.token_type_embeddings.weight": np.zeros((2, _DIM)),
        "embeddings.LayerNorm.weight": np.ones(_DIM),
        "embeddings.LayerNorm.bias": np.zeros(_DIM),
    }
    save_file({name: value.astype(np.float32) for name, value in weights.items()}, folder / "model.safetensors")
    return str(folder)
