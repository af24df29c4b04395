"""``calibrate``: fits how one engine's model reranks and grades, judges the fit, and writes the model's calibration."""

import asyncio
import hashlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, cast, get_args

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from assay import serve_config
from assay.calibrate import cases, claims, grading, ranking
from assay.calibrate.cached import CachedLLM
from assay.calibration import (
    FOLDER,
    FORMAT,
    Calibration,
    Figure,
    Reranking,
    model_name,
    prompt_checksum,
    weights_checksum,
)
from assay.config import AnyEngine, AppConfig, GradeConfig, RerankerConfig, RerankMethod, SupportConfig
from assay.errors import InvalidRequest, SetupError
from assay.eval.ranking import Bench
from assay.index.embed import SentenceEmbedder
from assay.index.files import write_atomic
from assay.llm import http
from assay.llm.endpoint import EndpointConfig
from assay.models import resolve_model
from assay.relevance import GRADED, MEASURING
from assay.rerank import LLMReranker
from assay.templates import Prompts
from assay.tokens import tokenizer_of
from deployments.engine import score
from deployments.engine.alone import AloneEngine


def calibrate(
    engine: Annotated[str, typer.Option(help="The engine's name in the config.")],
    data: Annotated[
        Path,
        typer.Option(help="Folder of labelled data: docs/calibration.md says which files are looked for."),
    ],
    config: Annotated[Path, typer.Option(help="The Serve config that has the engine.")] = Path("configs/local.yaml"),
    methods: Annotated[
        str, typer.Option(help="Methods of reranking to choose from, cheapest first.")
    ] = "title,likelihood",
    queries: Annotated[int, typer.Option(min=10, help="Queries of each judged collection.")] = 60,
    top: Annotated[int, typer.Option(min=2, max=100, help="Documents of each query that are reranked.")] = 20,
    work: Annotated[
        Path, typer.Option(help="Folder for the engine's scores and the collections' indexes: a second run only fits.")
    ] = Path(".assay/calibrate"),
    out: Annotated[Path | None, typer.Option(help="File to write instead of configs/calibration/<model>.json.")] = None,
) -> None:
    """Fit how the model of an engine reranks and grades, on labelled data, and judge it on questions that it was not fitted on.

    Goes on where an earlier run was interrupted. The engine is started only for what it has not been asked before.
    """
    app = serve_config.load(config).app
    kinds = _methods(methods)
    if "score" not in _engine(app, engine).can and (needs := [kind for kind in kinds if kind != "listwise"]):
        message = (
            f"the engine '{engine}' cannot do 'score', which the method '{needs[0]}' needs; choose --methods listwise"
        )
        raise InvalidRequest(message, "methods")
    work_on = _Calibration(app, engine, kinds, work / model_name(_engine(app, engine)))
    found = asyncio.run(work_on.run(data, queries, top))
    file = out or FOLDER / f"{found.model}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(found.text())
    show(found)
    typer.echo(f"written: {file}")


def _engine(app: AppConfig, name: str):  # type: ignore[no-untyped-def]
    if name not in app.engines:
        raise SetupError(f"the config has no engine '{name}'", "engine", tuple(app.engines))
    return app.engines[name]


def _methods(given: str) -> tuple[RerankMethod, ...]:
    known, wanted = get_args(RerankMethod), [name.strip() for name in given.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise InvalidRequest(f"'{unknown[0]}' is no method of reranking", "methods", known)
    return tuple(cast(RerankMethod, name) for name in wanted)


class _Calibration:
    def __init__(self, app: AppConfig, engine: str, methods: tuple[RerankMethod, ...], work: Path) -> None:
        self._alone, self._engine, self._methods, self._work = (
            AloneEngine(app, engine),
            app.engines[engine],
            methods,
            work,
        )
        self._prompts = Prompts.load(app.prompts)
        self._base = app.reranker
        self._llm = CachedLLM(self._alone.start, scores_file(work.parent, self._engine, self._alone.model))
        self._tokenizer = tokenizer_of(self._alone.model)
        self._encoder = SentenceEmbedder(resolve_model(app.index.embedder, Path(app.cache).expanduser()))

    async def run(self, data: Path, queries: int, top: int) -> Calibration:
        labelled = cases.read(data)
        try:
            rerank, ranked = await self._rerank(data, queries, top)
            grade, graded = await self._grade(labelled, data, rerank)
            support, supported = self._support(data)
        finally:
            await self._alone.close()
        tasks = [q.task for q in labelled]
        return Calibration(
            format=FORMAT,
            model=model_name(self._engine),
            checksum=weights_checksum(self._alone.model),
            prompt=prompt_checksum(rerank.method, self._prompts),
            rerank=rerank,
            grade=grade,
            support=support,
            questions={name: tasks.count(name) for name in dict.fromkeys(tasks)},
            figures=tuple(_rounded(f) for f in (*graded, *supported, *ranked)),
        )

    async def _rerank(self, data: Path, queries: int, top: int) -> tuple[Reranking, list[Figure]]:
        size = self._base.passage_tokens
        found: list[ranking.Candidates] = []
        for name, collection in ranking.collections(data).items():
            bench = Bench(collection, self._work.parent, self._encoder)
            bench.index()
            found += await ranking.candidates(name, bench, self._encoder, queries, top)
        if not found:
            typer.echo("no judged collection: the model has no say in the order (a weight of 0)", err=True)
            return Reranking(method=self._methods[0], weight=0.0, passage_tokens=size), []
        values: dict[RerankMethod, Sequence[ranking.Scored]] = {}
        for kind in self._methods:
            values[kind], tokens = await ranking.scored(
                found, kind, self._llm, self._tokenizer, size, self._prompts, self._show()
            )
            typer.echo(
                f"{kind}: {tokens / max(1, sum(len(c.hits) for c in found)):.0f} prompt tokens a passage", err=True
            )
        return ranking.chosen(found, values, size)

    async def _grade(
        self, labelled: Sequence[cases.Labelled], data: Path, rerank: Reranking
    ) -> tuple[GradeConfig, list[Figure]]:
        found = await grading.cases(labelled, data, lambda texts: vectors(texts, self._encoder, self._work.parent))
        gains = rerank.method in MEASURING
        config = RerankerConfig(candidates=GRADED, passage_tokens=rerank.passage_tokens)
        context = self._engine.max_model_len
        reranker = None
        if gains:
            reranker = LLMReranker(self._llm, self._tokenizer, config, self._prompts, context_tokens=context)
        measured = await grading.samples(found, reranker, self._show())
        return grading.fitted(found, measured, GradeConfig().min_answer, model=gains)

    @staticmethod
    def _support(data: Path) -> tuple[SupportConfig, list[Figure]]:
        found = claims.claims(data)
        return claims.fitted(found) if found else (SupportConfig(), [])

    def _show(self) -> Callable[[str, int, int], None]:
        def show(what: str, done: int, of: int) -> None:
            if done % 25 == 0 or done == of:
                typer.echo(f"{what}: {done} of {of}", err=True)

        return show


def scores_file(work: Path, engine: AnyEngine, model: str) -> Path:
    """Of one model's weights, or of one endpoint's model, and of how texts are put to it: what another one said is not its own,
    nor what it took to be asked in another way."""
    own = weights_checksum(model) or hashlib.sha256(engine.model_dump_json().encode()).hexdigest()
    asked = http.__file__ if isinstance(engine, EndpointConfig) else score.__file__
    way = hashlib.sha256(Path(asked).read_bytes()).hexdigest()
    return work / f"{model_name(engine)}-{own[:16]}-{way[:8]}" / "scores.jsonl"


async def vectors(texts: Sequence[str], encoder: SentenceEmbedder, folder: Path) -> NDArray[np.float32]:
    """Kept in the folder: two cores embed some 50 passages a second."""
    digest = hashlib.sha256(json.dumps([encoder.checksum, *texts]).encode()).hexdigest()[:16]
    file = folder / f"vectors-{digest}.npy"
    if not file.exists():
        found = await encoder.embed(texts)
        file.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        np.save(buffer, found)
        write_atomic(file, buffer.getvalue())
    return np.asarray(np.load(file))


def _rounded(figure: Figure) -> Figure:
    return figure.model_copy(update={name: round(getattr(figure, name), 4) for name in ("value", "low", "high")})


def show(found: Calibration) -> None:
    table = Table(title=f"Calibration of {found.model}")
    for column in ("figure", "value", "95 % interval", "questions"):
        table.add_column(column, overflow="fold")
    for figure in found.figures:
        table.add_row(
            figure.name, f"{figure.value:.3f}", f"{figure.low:.3f} to {figure.high:.3f}", str(figure.questions)
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
