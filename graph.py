"""All wiring on one screen: ``serve run graph:build_app``, or ``serve run configs/local.yaml``."""

from collections.abc import Mapping
from pathlib import Path

from ray.serve import Application

from assay import calibration
from assay.audit import Audit
from assay.config import AnyEngine, AppConfig
from assay.custom import check_implementations
from assay.keys import keyring_of
from assay.models import resolve_model
from assay.templates import Prompts
from assay.tools import Registry
from deployments.database import check_databases
from deployments.driver import Driver
from deployments.engine import build_engine, model_of
from deployments.expander import Expander
from deployments.generator import Generator
from deployments.ingester import Ingester
from deployments.ingress import Ingress
from deployments.placement import placed
from deployments.reranker import Reranker
from deployments.retriever import Retriever
from deployments.streams import Streams

Engines = Mapping[str, Application]


def build_app(args: AppConfig) -> Application:
    """Resolves the models first: what is wrong with the config is said here, not by replicas that restart."""
    keyring_of(args.ingress)
    Audit(args.ingress.audit).close()
    check_databases(args)
    cache = Path(args.cache).expanduser()
    models = {name: model_of(engine, cache) for name, engine in args.engines.items()}
    engines = {name: build_engine(name, engine, models[name]) for name, engine in args.engines.items()}
    return wire(args, engines, models, resolve_model(args.index.embedder, cache))


def wire(args: AppConfig, engines: Engines, models: Mapping[str, str], embedder: str) -> Application:
    """Stages that name the same engine share it. ``models``: engine -> model folder or id, for its tokenizer."""
    check_implementations(args)
    prompts = Prompts.load(args.prompts)
    args = calibration.apply(args, models[args.reranker.engine], prompts)
    retriever = Retriever.bind(args.index, args.retriever, embedder, Ingester.name, args.niceness)

    def engine(name: str) -> tuple[Application, str, Prompts, AnyEngine]:
        return engines[name], models[name], prompts, args.engines[name]

    expander = placed(args.expander.placement, Expander, args.planning, *engine(args.expander.engine))
    reranker = placed(args.reranker.placement, Reranker, args.reranker, *engine(args.reranker.engine))
    generator = placed(args.generator.placement, Generator, args.generator, *engine(args.generator.engine), retriever)
    Registry.of(args.tools)  # a fault in a tool is said here
    agent = (engines[args.agent], models[args.agent]) if args.agent else None
    reads = args.extraction.engine
    reader = engine(reads) if reads else ()
    ingester = Ingester.bind(args.ingress.documents, args.index, embedder, retriever, args.extraction, *reader)
    driver = Driver.bind(args, expander, retriever, reranker, generator, *(agent or (None, "")), prompts, ingester)
    streams = Streams.bind(args.ingress.streams) if args.ingress.streams.shared else None
    return Ingress.bind(args.ingress, driver, streams)
