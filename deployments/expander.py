"""The Expander deployment: plans a question with the planning engine."""

from ray import serve
from ray.serve.handle import DeploymentHandle

from assay.config import AnyEngine, ExpanderConfig
from assay.custom import Parts, implementation
from assay.expand import LLMExpander
from assay.ports import Expander as Port
from assay.templates import Prompts
from assay.tokens import tokenizer_of
from assay.types import Plan, PlanRequest
from deployments.remote import RemoteLLM, Reply, reply


@serve.deployment(max_ongoing_requests=64, max_queued_requests=64, ray_actor_options={"num_cpus": 0.1})
class Expander:
    def __init__(
        self, config: ExpanderConfig, engine: DeploymentHandle, model: str, prompts: Prompts, kind: AnyEngine
    ) -> None:
        self._llm = RemoteLLM(config.engine, engine)
        tokenizer = tokenizer_of(model)
        builtin = LLMExpander(
            self._llm,
            config,
            prompts,
            tokenizer=tokenizer,
            context_tokens=kind.max_model_len,
            shows_schema="json_schema" not in kind.can,
        )
        parts = Parts(builtin, config, self._llm, tokenizer, context_tokens=kind.max_model_len)
        self._expander: Port = implementation("expander", config.implementation, parts)

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        return await reply(self._expander.plan(request), "plan")

    async def ready(self) -> Reply[str]:
        return await reply(self._llm.ready())
