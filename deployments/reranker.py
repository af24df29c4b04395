"""The Reranker deployment: the evaluating engine orders passages, and measured features grade the evidence."""

from ray import serve
from ray.serve.handle import DeploymentHandle

from assay.config import AnyEngine, RerankerConfig
from assay.custom import Parts, implementation
from assay.ports import Reranker as Port
from assay.rerank import LLMReranker
from assay.templates import Prompts
from assay.tokens import tokenizer_of
from assay.types import Grade, GradeRequest, RerankRequest, Support, SupportRequest
from deployments.remote import RemoteLLM, Reordered, Reply, reply


@serve.deployment(max_ongoing_requests=64, max_queued_requests=64, ray_actor_options={"num_cpus": 0.1})
class Reranker:
    def __init__(
        self, config: RerankerConfig, engine: DeploymentHandle, model: str, prompts: Prompts, kind: AnyEngine
    ) -> None:
        self._llm = RemoteLLM(config.engine, engine)
        tokenizer = tokenizer_of(model)
        builtin = LLMReranker(
            self._llm,
            tokenizer,
            config,
            prompts,
            context_tokens=kind.max_model_len,
            shows_schema="json_schema" not in kind.can,
        )
        parts = Parts(builtin, config, self._llm, tokenizer, context_tokens=kind.max_model_len)
        self._reranker: Port = implementation("reranker", config.implementation, parts)

    async def rerank(self, request: RerankRequest) -> Reply[Reordered]:
        return await reply(self._rerank(request), "rerank")

    async def _rerank(self, request: RerankRequest) -> Reordered:
        return Reordered.of(await self._reranker.rerank(request), request)

    async def grade(self, request: GradeRequest) -> Reply[Grade]:
        return await reply(self._reranker.grade(request), "grade")

    async def support(self, request: SupportRequest) -> Reply[Support]:
        return await reply(self._reranker.support(request), "support")

    async def ready(self) -> Reply[str]:
        return await reply(self._llm.ready())
