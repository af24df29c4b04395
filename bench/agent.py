"""The agent: what its loop finds beyond one search, when it refuses, what it costs around its models, and how it keeps time.

``--only`` runs some of the parts; the rows of the others stay in the file. What the model once said of a text is kept in
``--scores``, so that figures of quality can be repeated without it.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from assay import calibration
from assay.calibrate.cached import CachedLLM
from assay.config import AppConfig, EngineConfig
from assay.index.embed import SentenceEmbedder
from assay.models import embedder_path
from assay.templates import Prompts
from assay.tokens import ModelTokenizer
from bench import agent_quality, agent_serving
from bench.agent_parts import Parts
from bench.report import Row, kept, options, publish
from deployments.calibrate import scores_file
from deployments.engine.alone import AloneEngine

IN_PROCESS: dict[str, Callable[[Parts], Awaitable[list[Row]]]] = {
    name: partial(measure, part=name, model=model)
    for name, measure, model in (
        ("recall without a model", agent_quality.recall, False),
        ("recall", agent_quality.recall, True),
        ("abstain without a model", agent_quality.abstain, False),
        ("abstain", agent_quality.abstain, True),
    )
}
SERVED: dict[str, Callable[[Parts], list[Row]]] = {
    "one": agent_serving.one,
    "load": agent_serving.load_at_once,
    "first evidence": agent_serving.first_evidence,
    "deadline": agent_serving.deadline,
    "deadline, real model": agent_serving.deadline_real,
}
PARTS = (*IN_PROCESS, *SERVED)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to run")
    parser.add_argument("--limit", type=int, help="questions of each set, for the parts with the real model")
    parser.add_argument("--cache", type=Path, default=Path(".assay/bench/agent"), help="(default: %(default)s)")
    parser.add_argument(
        "--scores", type=Path, default=Path(".assay/calibrate"), help="that of `assay calibrate --work`"
    )


def run(args: argparse.Namespace) -> None:
    args.cache.mkdir(parents=True, exist_ok=True)
    rows = [row for row in kept(args.json) if _part(row) not in args.only]
    for name in [name for name in PARTS if name in args.only]:
        rows += _rows(name, args)
        publish("The agent", rows, args, "goals from the issue")


def _rows(name: str, args: argparse.Namespace) -> list[Row]:
    """Each part by itself: an engine that idles would take memory and time from the next."""
    alone = AloneEngine(AppConfig(engines={"small": EngineConfig()}), "small")
    parts = Parts(
        data=args.data,
        cache=args.cache,
        quick=args.quick,
        limit=args.limit,
        notes=Console(stderr=True),
        encoder=SentenceEmbedder(str(embedder_path())),
        known=CachedLLM(alone.start, scores_file(args.scores, EngineConfig(), alone.model)),
        tokenizer=ModelTokenizer(alone.model),
        reranker=calibration.apply(AppConfig(), alone.model, Prompts()).reranker,
    )
    return asyncio.run(_closing(IN_PROCESS[name], parts, alone)) if name in IN_PROCESS else SERVED[name](parts)


async def _closing(part: Callable[[Parts], Awaitable[list[Row]]], parts: Parts, alone: AloneEngine) -> list[Row]:
    try:
        return await part(parts)
    finally:
        await alone.close()


def _part(row: Row) -> str:
    return row.name.partition(" |")[0]


def main() -> None:
    args = options(__doc__ or "", more=arguments)
    run(args)


if __name__ == "__main__":
    main()
