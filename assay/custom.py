"""Stages of one's own: a class named in the config as ``module:Class`` stands in for the built-in one of its port."""

import importlib
import inspect
from dataclasses import dataclass
from typing import Any, Literal

from assay import ports
from assay.config import AppConfig
from assay.errors import SetupError

Stage = Literal["expander", "retriever", "reranker", "generator"]
PORTS: dict[Stage, type] = {
    "expander": ports.Expander,
    "retriever": ports.Retriever,
    "reranker": ports.Reranker,
    "generator": ports.Generator,
}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a stage's class is made of, its only argument: ``Class(parts)``.

    ``builtin`` is the stage that it stands in for, to be used or not; ``config`` is the stage's; ``llm`` its engine (the
    retriever has none), and ``context_tokens`` what that takes at once, prompt and output together; ``tokenizer`` and
    ``embedder`` are there where the built-in stage has them.
    """

    builtin: Any
    config: Any
    llm: ports.LLM | None = None
    tokenizer: ports.Tokenizer | None = None
    embedder: ports.Embedder | None = None
    context_tokens: int | None = None


def check_implementations(config: AppConfig) -> None:
    """Loads every class that the config names, before any replica starts. Raises ``SetupError`` with the field."""
    for stage in PORTS:
        if ref := getattr(config, stage).implementation:
            load_class(stage, ref)


def implementation(stage: Stage, ref: str | None, parts: Parts) -> Any:
    """The stage as the config has it: the built-in one, or an object of the class that it names."""
    return load_class(stage, ref)(parts) if ref else parts.builtin


def load_class(stage: Stage, ref: str) -> type:
    """The class of ``module:Class``, with every method that the stage's port has, of the same kind and arguments."""
    field = f"{stage}.implementation"
    found = load(field, ref)
    for method, port in inspect.getmembers(PORTS[stage], inspect.isfunction):
        if not method.startswith("_"):
            _check_method(field, ref, found, method, port)
    return found


def load(field: str, ref: str) -> type:
    """The class of ``module:Class``. Raises ``SetupError`` with the config's ``field``."""
    module, _, name = ref.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SetupError(f"{field}: '{ref}' cannot be loaded: {error}", field) from error
    if not inspect.isclass(found):
        raise SetupError(f"{field}: '{ref}' is no class.", field)
    return found


def _check_method(field: str, ref: str, found: type, method: str, port: Any) -> None:
    own = getattr(found, method, None)
    wanted = f"{'async def' if inspect.iscoroutinefunction(port) else 'an async generator,'} {method}(self, request)"
    if not inspect.isfunction(own):
        raise SetupError(f"{field}: '{ref}' lacks the method {method}; it must have {wanted}.", field)
    right = inspect.iscoroutinefunction(own) if inspect.iscoroutinefunction(port) else inspect.isasyncgenfunction(own)
    try:
        inspect.signature(own).bind(None, None)
    except TypeError:
        right = False
    if not right:
        raise SetupError(f"{field}: {method} of '{ref}' must be {wanted}.", field)
