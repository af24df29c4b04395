"""A replica of an OpenAI-compatible endpoint: its connections, its key and its limits, behind ``assay.ports.LLM``."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from assay.llm.endpoint import EndpointConfig
from assay.llm.http import EndpointLLM
from assay.types import Completion, CompletionRequest, Delta, ScoreRequest, Scores
from deployments.remote import Reply, reply
from deployments.telemetry import adopt_logs


class Endpoint:
    """Its health is its process's: a restart cures no endpoint, and probing one would be paid for (docs/adr/0002)."""

    def __init__(self, config: EndpointConfig) -> None:
        adopt_logs()
        self._llm = EndpointLLM(config)

    async def complete(self, request: CompletionRequest) -> Reply[Completion]:
        return await reply(self._llm.complete(request), "complete")

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        """Closing it closes the connection to the endpoint."""
        async with aclosing(self._llm.stream(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def score(self, request: ScoreRequest) -> Reply[Scores]:
        return await reply(self._llm.score(request), "score")

    async def ready(self) -> Reply[str]:
        return Reply("ready", 0.0)

    async def __del__(self) -> None:
        if hasattr(self, "_llm"):
            await self._llm.close()
