"""The Ingress deployment: HTTP for everybody, and typed methods for Python callers by handle."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from ulid import ULID

from assay.config import IngressConfig
from assay.events import Event
from assay.schemas import AskRequest, AskResponse, SearchRequest, SearchResponse
from deployments.api import make_api
from deployments.remote import RemoteDriver


@serve.deployment(max_ongoing_requests=256)
@serve.ingress()
class Ingress:
    """``serve.get_app_handle("assay")`` reaches ``ask``, ``stream`` and ``search``; the HTTP app is built in each replica."""

    def __init__(self, config: IngressConfig, driver: DeploymentHandle) -> None:
        self._config = config
        self._driver = RemoteDriver("driver", driver)

    def __serve_build_asgi_app__(self) -> Any:
        return make_api(self._driver, self._config)

    async def ask(self, request: AskRequest) -> AskResponse:
        return await self._driver.ask(request, _request_id())

    async def stream(self, request: AskRequest) -> AsyncGenerator[Event]:
        async with aclosing(self._driver.stream(request, _request_id())) as events:
            async for event in events:
                yield event

    async def search(self, request: SearchRequest) -> SearchResponse:
        return await self._driver.search(request, _request_id())


def _request_id() -> str:
    return f"req_{ULID()}"
