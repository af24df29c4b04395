"""The real ingress before a driver that answers each question with itself after a moment: real Ray and Serve, no model."""

import asyncio
from typing import Any

from ray import serve
from ray.serve import Application

from assay.config import IngressConfig
from assay.errors import Overloaded, UnknownBucket
from assay.schemas import Answer, AskRequest, AskResponse, Readiness, Usage
from deployments.ingress import Ingress
from deployments.remote import Reply, reply

SECONDS = 0.4


class Answering:
    def __init__(self) -> None:
        self._running = 0
        self._refused = False

    async def ask(self, request: AskRequest, request_id: str) -> Reply[AskResponse]:
        return await reply(self._ask(request, request_id))

    async def _ask(self, request: AskRequest, request_id: str) -> AskResponse:
        if request.buckets:
            raise UnknownBucket("there is no such bucket", "buckets", ("docs",))
        if not self._refused:  # the first caller finds a full queue
            self._refused = True
            raise Overloaded("full")
        self._running += 1
        try:
            await asyncio.sleep(SECONDS)
            text = f"{request.question} [{self._running} at once]"
        finally:
            self._running -= 1
        return AskResponse(
            id=request_id,
            request_id=request_id,
            status="answered",
            terminated_by="answered",
            answer=Answer(text=text, style="extract"),
            usage=Usage(llm_calls=1),
        )

    async def readiness(self) -> Reply[Readiness]:
        return Reply(Readiness(status="ready", stages={"driver": "ready"}), 0.0)


def build_app(args: dict[str, Any]) -> Application:
    options = {"num_cpus": 0.1}
    driver: Any = serve.deployment(Answering, ray_actor_options=options, max_ongoing_requests=64).bind()
    return Ingress.bind(IngressConfig(), driver)  # type: ignore[attr-defined]
