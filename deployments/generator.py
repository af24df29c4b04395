"""The Generator deployment: drafts cited sentences with the synthesis engine, in the style that the request asks for."""

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ray import serve
from ray.serve.handle import DeploymentHandle

from assay.config import AnyEngine, GeneratorConfig
from assay.custom import Parts, implementation
from assay.generate import ExtractGenerator, StyledGenerator, WritingGenerator
from assay.ports import Generator as Port
from assay.templates import Prompts
from assay.tokens import tokenizer_of
from assay.types import GenerateEvent, GenerateRequest
from deployments.remote import IN_FILES, RemoteLLM, RemoteRetriever, Reply, reply
from deployments.together import together

log = logging.getLogger("ray.serve")


@serve.deployment(max_ongoing_requests=64, max_queued_requests=64, ray_actor_options={"num_cpus": 0.1})
class Generator:
    def __init__(
        self,
        config: GeneratorConfig,
        engine: DeploymentHandle,
        model: str,
        prompts: Prompts,
        kind: AnyEngine,
        retriever: DeploymentHandle,
    ) -> None:
        self._llm = RemoteLLM(config.engine, engine)
        tokenizer, embedder = tokenizer_of(model), RemoteRetriever("retriever", retriever)
        builtin = StyledGenerator(
            ExtractGenerator(self._llm, embedder, tokenizer, config, prompts),
            WritingGenerator(
                self._llm,
                tokenizer,
                config,
                prompts,
                can=kind.can,
                context_tokens=kind.max_model_len,
            ),
        )
        parts = Parts(builtin, config, self._llm, tokenizer, embedder, kind.max_model_len)
        self._generator: Port = implementation("generator", config.implementation, parts)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[tuple[GenerateEvent, ...]]:
        """The events, those in one that are there at the same time."""
        start = time.perf_counter()
        try:
            async with aclosing(together(self._generator.generate(request))) as parts:
                async for part in parts:
                    yield part
        finally:
            log.info("generate", extra={"ms": round(1000 * (time.perf_counter() - start), 1), **IN_FILES})

    async def ready(self) -> Reply[str]:
        return await reply(self._llm.ready())
