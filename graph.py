"""All wiring on one screen: ``serve run graph:build_app``, or ``serve run configs/local.yaml``."""

from pathlib import Path

from ray.serve import Application

from assay.config import AppConfig
from assay.models import resolve_model
from deployments.driver import Driver
from deployments.engine import build_engine
from deployments.expander import Expander
from deployments.generator import Generator
from deployments.ingress import Ingress
from deployments.reranker import Reranker
from deployments.retriever import Retriever


def build_app(args: AppConfig) -> Application:
    cache = Path(args.cache).expanduser()
    models = {name: resolve_model(engine.model, cache) for name, engine in args.engines.items()}
    engines = {name: build_engine(name, engine, models[name]) for name, engine in args.engines.items()}

    def engine_of(stage_engine: str) -> tuple[Application, str]:
        return engines[stage_engine], models[stage_engine]

    retriever = Retriever.bind(args.index, args.retriever, resolve_model(args.index.embedder, cache))
    expander = Expander.bind(args.expander, engines[args.expander.engine])
    reranker = Reranker.bind(args.reranker, *engine_of(args.reranker.engine))
    generator = Generator.bind(args.generator, *engine_of(args.generator.engine), retriever)
    driver = Driver.bind(args, expander, retriever, reranker, generator)
    return Ingress.bind(args.ingress, driver)
