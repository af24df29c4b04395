"""The Ingress deployment: HTTP for everybody, and typed methods for Python callers by handle."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from ray import serve
from ray.serve.context import _get_serve_request_context
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from ulid import ULID

from assay.config import IngressConfig
from assay.errors import Overloaded
from assay.events import Event
from assay.schemas import AnswerRecord, AskRequest, AskResponse, SearchRequest, SearchResponse
from deployments.api import make_api
from deployments.remote import RemoteDriver, RemoteStreams
from deployments.telemetry import adopt_logs


@serve.deployment(max_ongoing_requests=384, max_queued_requests=256, ray_actor_options={"num_cpus": 0.1})
@serve.ingress()
class Ingress:
    """``serve.get_app_handle("assay")`` reaches ``ask``, ``stream`` and ``search``; the HTTP app is built in each replica."""

    def __init__(
        self, config: IngressConfig, driver: DeploymentHandle, streams: DeploymentHandle | None = None
    ) -> None:
        adopt_logs()
        self._config = config
        self._streams = RemoteStreams("streams", streams) if streams is not None else None
        self._driver = RemoteDriver("driver", driver)
        self._by_handle = 0

    def __serve_build_asgi_app__(self) -> Any:
        return _OneRequestId(make_api(self._driver, self._config, self._streams))

    async def ask(self, request: AskRequest) -> AskResponse:
        """Raises ``Overloaded`` where ``ingress.max_ongoing`` questions of handles are in progress."""
        with self._place():
            return await self._driver.ask(request, _request_id())

    async def stream(self, request: AskRequest) -> AsyncGenerator[Event]:
        """As ``ask``."""
        streamed = request.model_copy(update={"stream": True})
        with self._place():
            async with aclosing(self._driver.stream(streamed, _request_id())) as events:
                async for event in events:
                    yield event

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Of those for handles, beside those for HTTP: whatever a batch takes, those at a screen keep theirs."""
        if self._by_handle >= self._config.max_ongoing:
            raise Overloaded(f"{self._by_handle} questions of handles are in progress; ask again in a moment")
        self._by_handle += 1
        try:
            yield
        finally:
            self._by_handle -= 1

    async def recall(self, answer_id: str) -> AnswerRecord:
        return await self._driver.recall(answer_id)

    async def search(self, request: SearchRequest) -> SearchResponse:
        return await self._driver.search(request, _request_id())


class _OneRequestId:
    """Serve adds the request's id to every response; ours, where it is the same, would be there twice."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serves = next((value for name, value in scope.get("headers", ()) if name == b"x-request-id"), None)

        async def send_once(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [h for h in message["headers"] if h != (b"x-request-id", serves)]
            await send(message)

        await self._app(scope, receive, send_once)


def _request_id() -> str:
    """Serve's own id of this call, so that the log lines of every stage and the answer have the same one."""
    return _get_serve_request_context().request_id or f"req_{ULID()}"
