"""The LLM stages over the real engine: how well they rank, grade, answer and cite, and what that costs.

``--only`` runs some of the parts; the rows of the others stay in the file. What the engine once said of a text is kept in
``--cache``, so that figures of quality can be repeated without it; figures of speed are measured each time. Goals are those
of the issue.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from assay.calibrate.cached import CachedLLM
from assay.config import AppConfig, EngineConfig
from assay.index.embed import SentenceEmbedder
from assay.models import embedder_path
from assay.ports import LLM
from assay.tokens import ModelTokenizer
from bench import llm_answers, llm_quality, llm_quotes, llm_speed, llm_valid
from bench.llm_parts import ENGINE, Parts
from bench.report import Row, kept, options, publish
from deployments.calibrate import scores_file
from deployments.engine.alone import AloneEngine

Part = Callable[[Parts], Awaitable[list[Row]]]
PARTS: dict[str, Part] = {
    "rerank": llm_quality.rerank,
    "sufficiency": llm_quality.sufficiency,
    "extract": llm_answers.extract,
    "valid": llm_valid.valid,
    "prefix": llm_speed.prefix,
    "latency": llm_speed.latency,
    "throughput": llm_speed.throughput,  # it stops the engine
    "quotes": llm_quotes.quotes,  # it has one of its own
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to run")
    parser.add_argument("--cache", type=Path, default=Path(".assay/calibrate"), help="that of `assay calibrate --work`")


async def run(args: argparse.Namespace) -> None:
    alone = AloneEngine(AppConfig(engines={"small": ENGINE}), "small")
    started: list[LLM] = []

    async def engine() -> LLM:
        if not started:
            started.append(await alone.start())
        return started[0]

    parts = Parts(
        data=args.data,
        cache=args.cache,
        quick=args.quick,
        engine=engine,
        close=alone.close,
        known=CachedLLM(engine, scores_file(args.cache, EngineConfig(), alone.model)),
        tokenizer=ModelTokenizer(alone.model),
        encoder=SentenceEmbedder(str(embedder_path())),
        model=alone.model,
    )
    rows = [row for row in kept(args.json) if row.name.partition(" | ")[0] not in args.only]
    try:
        for name in [name for name in PARTS if name in args.only]:
            rows += [replace(row, name=f"{name} | {row.name}") for row in await PARTS[name](parts)]
            publish("LLM stages (SmolLM2-135M-Instruct)", rows, args, "goals from the issue")
    finally:
        await alone.close()


def main() -> None:
    asyncio.run(run(options(__doc__ or "", more=arguments)))


if __name__ == "__main__":
    main()
