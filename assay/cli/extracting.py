"""Who reads metadata out of documents during an ingest: an endpoint that the command line names, or an engine of the config."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay import serve_config
from assay.config import AppConfig
from assay.errors import SetupError
from assay.llm.endpoint import EndpointConfig
from assay.llm.http import EndpointLLM
from assay.models import resolve_model
from assay.ports import LLM
from assay.templates import Prompts
from assay.tokens import tokenizer_of

if TYPE_CHECKING:
    from assay.index.buckets import FieldSchema
    from assay.index.extract import Document, Extraction, Extractor
    from assay.index.ingest import Extract


@dataclass(frozen=True, slots=True)
class Extracting:
    """What the command line says about it."""

    config: Path | None = None
    url: str | None = None
    model: str | None = None
    key_env: str | None = None

    @contextmanager
    def extract(self) -> "Iterator[Extract | None]":
        """None where no model is named. Raises ``SetupError``: a config or options that are wrong, or no running graph."""
        app = serve_config.load(self.config).app if self.config else AppConfig()
        engine = self._endpoint() or (app.engines[app.extraction.engine] if app.extraction.engine else None)
        if engine is None:
            yield None
            return
        from assay.index.extract import Extractor

        cache, named = (
            Path(app.cache).expanduser(),
            engine.tokenizer if isinstance(engine, EndpointConfig) else engine.model,
        )
        tokenizer = tokenizer_of(resolve_model(named, cache) if named else "")
        with asyncio.Runner() as runner:
            parts = tokenizer, app.extraction, Prompts.load(app.prompts)
            made = partial(Extractor, context_tokens=engine.max_model_len, shows_schema="json_schema" not in engine.can)
            if isinstance(engine, EndpointConfig):
                endpoint = EndpointLLM(engine)
                try:
                    yield _blocking(runner, made(endpoint, *parts))
                finally:
                    runner.run(endpoint.close())
                return
            # Named by a text: the core imports nothing of the shell.
            with import_module("deployments.running").engine(app.extraction.engine) as llm:
                running: LLM = llm
                yield _blocking(runner, made(running, *parts))

    def _endpoint(self) -> EndpointConfig | None:
        if self.url is None and self.model is None and self.key_env is None:
            return None
        if self.url is None or self.model is None:
            raise SetupError("give --extract-url and --extract-model together", "extract_url")
        try:
            return EndpointConfig(kind="openai", base_url=self.url, model=self.model, key_env=self.key_env)
        except ValidationError as e:
            first = e.errors()[0]
            name = {"base_url": "--extract-url", "key_env": "--extract-key-env"}.get(
                str(first["loc"][0]), "--extract-model"
            )
            raise SetupError(f"{name} is wrong: {first['msg']}", "extract_url") from None


def _blocking(runner: asyncio.Runner, extractor: "Extractor") -> "Extract":
    def extract(asked: "Sequence[tuple[Document, Mapping[str, FieldSchema]]]") -> "Sequence[Extraction]":
        return runner.run(extractor.extract(asked))

    return extract
