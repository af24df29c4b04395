"""The HTTP door: routes, admission, request ids and error statuses around a ``Driver``.

Plain FastAPI, no ray: the ingress binds it to Serve, and tests run it in-process.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Body, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from ulid import ULID

from assay import __version__
from assay.audit import Audit, Trail
from assay.config import IngressConfig
from assay.errors import AssayError, InvalidRequest, StageTimeout
from assay.keys import keyring_of
from assay.ports import Driver
from assay.schemas import AnswerRecord, AskRequest, Readiness, SearchRequest, SearchResponse
from assay.streams import MemoryStreams, MirroredStreams, Streams
from deployments import openapi
from deployments.body import admitted, json_route
from deployments.chat import add_chat
from deployments.conversations import add_conversations, open_store
from deployments.documents import add_documents
from deployments.events import told
from deployments.gate import Gate, bound
from deployments.mcp_door import add_tools
from deployments.openapi_finish import finish
from deployments.page import add_page
from deployments.problems import MethodNotAllowed, NoRoute, body_of, internal, public_text, response_of
from deployments.resumable import Resumables, add_streams
from deployments.sse import Slots, while_connected

log = logging.getLogger("assay.api")

READY_TIMEOUT_S = 5
QUIET = ("/healthz", "/readyz")  # asked every few seconds by whoever watches; the log is for what people do

_SANE_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def make_api(driver: Driver, config: IngressConfig, shared: Streams | None = None) -> FastAPI:
    """The app. ``driver`` is all that it knows of the graph; ``shared`` is where other replicas find its streams.

    Raises ``SetupError``: conversations have no database, keys are missing, or the audit log cannot be written."""
    store = open_store(config.conversations)
    audit = Audit(config.audit)
    kept = MemoryStreams(config.streams.kept_s, config.streams.max_chars)
    runs = Resumables(MirroredStreams(kept, shared) if shared else kept, config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await runs.close()
        await store.close()
        await asyncio.to_thread(audit.close)

    app = FastAPI(
        lifespan=lifespan,
        title="Assay",
        version=__version__,
        description=openapi.DESCRIPTION,
        docs_url=None,  # both pages load their scripts from a public CDN
        redoc_url=None,
        redirect_slashes=False,
    )
    app.router.route_class = json_route(config.max_body_bytes)
    app.add_middleware(Gate, keyring=keyring_of(config), audit=audit)
    app.add_middleware(Guard, audit=audit)
    app.add_exception_handler(AssayError, _on_fault)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_parameter)
    questions = Slots(config.max_ongoing, "questions")
    _add_questions(app, driver, runs, questions)
    add_streams(app, driver, runs)
    add_chat(app, driver, config, questions)
    add_tools(app, driver, config, questions)
    add_documents(app, driver, config)
    add_conversations(app, driver, runs, questions, store)
    _add_search(app, driver, config)
    _add_health(app, driver, audit)
    finish(app)
    add_page(app)
    return app


def _add_questions(app: FastAPI, driver: Driver, runs: Resumables, slots: Slots) -> None:
    @app.post("/v1/answers", tags=["questions"], response_model=None, **openapi.ANSWERS)
    @admitted(slots.check)
    async def ask(request: Request, body: Annotated[AskRequest, Body(openapi_examples=openapi.ASK)]) -> Response:
        """Ask a question. With `"stream": true` the answer arrives as Server-Sent Events while it is being made."""
        request_id: str = request.state.request_id
        return runs.respond(request, lambda: told(bound(driver, request), body, request_id), slots, body)

    @app.get("/v1/answers/{id}", tags=["questions"], response_model=None, **openapi.RECALL)
    async def recall(request: Request, id: Annotated[str, Path(max_length=100)]) -> Response:
        """An answer with its trace, evidence, tool calls and state, as long as it is kept."""
        record = await while_connected(request.receive, bound(driver, request).recall(id))
        return _json(record)


def _add_search(app: FastAPI, driver: Driver, config: IngressConfig) -> None:
    slots = Slots(config.max_ongoing, "searches")

    @app.post("/v1/search", tags=["questions"], response_model=None, **openapi.SEARCH)
    @admitted(slots.check)
    async def search(request: Request, body: Annotated[SearchRequest, Body(openapi_examples=openapi.FIND)]) -> Response:
        """Search: the passages that fit, each with its place, and how they were found. `rerank` asks a model."""
        with slots.one():
            found = await while_connected(
                request.receive, bound(driver, request).search(body, request.state.request_id)
            )
        return _json(found.model_copy(update={"request_id": request.state.request_id}))


def _add_health(app: FastAPI, driver: Driver, audit: Audit) -> None:
    @app.get("/healthz", tags=["health"], response_model=None, **openapi.HEALTH)
    async def healthz() -> dict[str, str]:
        """The process answers. It asks nobody else."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["health"], response_model=None, **openapi.READY)
    async def readyz(request: Request) -> Response:
        """Can questions be answered? `degraded` still serves, and says what is missing."""
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                ready = await driver.readiness()
        except TimeoutError:
            ready = _unavailable(StageTimeout("The graph did not answer in time."), request.state.request_id)
        except AssayError as fault:
            ready = _unavailable(fault, request.state.request_id)
        audit.retry()
        if audit.fault is not None:
            status = "degraded" if ready.status == "ready" else ready.status
            ready = ready.model_copy(update={"status": status, "reasons": [*ready.reasons, audit.fault]})
        return _json(_public(ready), 503 if ready.status == "unavailable" else 200)


def _unavailable(fault: AssayError, request_id: str) -> Readiness:
    return Readiness(status="unavailable", reasons=[body_of(fault, request_id).message])


def _public(ready: Readiness) -> Readiness:
    hidden = "see the server's log"
    return ready.model_copy(
        update={
            "stages": {stage: public_text(state, hidden) for stage, state in ready.stages.items()},
            "reasons": [public_text(reason, hidden) for reason in ready.reasons],
        }
    )


def _json(shape: SearchResponse | Readiness | AnswerRecord, status: int = 200) -> Response:
    return Response(shape.model_dump_json(by_alias=True), status, media_type="application/json")


# ---- request ids and faults -----------------------------------------------------------------------------------------


class Guard:
    """Outermost but for Starlette's own: gives each request its id, and turns what nobody handled into a plain 500."""

    def __init__(self, app: ASGIApp, audit: Audit) -> None:
        self.app, self._audit = app, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        address = (scope.get("client") or ("",))[0]
        trail = Trail(self._audit, request_id, address=address, method=scope["method"], path=scope["path"][:300])
        scope["state"]["trail"] = trail
        with trail:
            await self._answer(scope, receive, send, request_id)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        started, begun, status = False, time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal started, status
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["x-content-type-options"] = "nosniff"
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except ClientDisconnect:
            log.info("the client went away", extra={"question_id": request_id})
        except Exception as fault:  # noqa: BLE001 - the last one before the server, whose own 500 would have no id
            body = internal(fault, request_id)
            if not started:
                await response_of(body, path=scope["path"])(scope, receive, send_with_id)
        finally:
            if scope["path"] not in QUIET:
                told = {"method": scope["method"], "path": scope["path"], "status": status, "ms": _ms_since(begun)}
                if grant := scope["state"].get("grant"):
                    told["key"] = grant.key_id
                log.info("request", extra={**told, "question_id": request_id})
            scope["state"]["trail"].note(status=status, ms=_ms_since(begun))


def _ms_since(begun: float) -> float:
    return round(1000 * (time.perf_counter() - begun), 1)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) else f"req_{ULID()}"


async def _on_fault(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, AssayError)
    return response_of(body_of(fault, request.state.request_id), path=request.url.path)


async def _on_parameter(request: Request, fault: Exception) -> Response:
    """A query parameter or a header; bodies are read by ``deployments.body``."""
    assert isinstance(fault, RequestValidationError)
    first = fault.errors()[0]
    name = str(first["loc"][-1])
    bounds = {"ge": ">= ", "le": "<= ", "gt": "> ", "lt": "< ", "max_length": "characters <= ", "pattern": ""}
    allowed = tuple(f"{bounds[key]}{value}" for key, value in first.get("ctx", {}).items() if key in bounds)
    wrong = InvalidRequest(f"'{name}': {first['msg'][:200]}.", name, allowed)
    return response_of(body_of(wrong, request.state.request_id), path=request.url.path)


def _methods(request: Request) -> tuple[str, ...]:
    """Of all routes of this path; the framework names those of the first one."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] != Match.NONE:
            found |= route.methods or set()
    return tuple(sorted(found))


async def _on_http(request: Request, fault: Exception) -> Response:
    """The framework's own: no such route, or not this method."""
    assert isinstance(fault, HTTPException)
    request_id, path = request.state.request_id, request.url.path
    if fault.status_code == 405:
        methods = _methods(request)
        wrong = MethodNotAllowed(f"Use {' or '.join(methods)} here.", field="method", allowed=methods)
        return response_of(body_of(wrong, request_id), {"allow": ", ".join(methods)}, path)
    if fault.status_code == 404:
        return response_of(body_of(NoRoute("There is no such route.", allowed=openapi.ROUTES), request_id), path=path)
    return response_of(body_of(AssayError(f"HTTP {fault.status_code}: {fault.detail}"), request_id), path=path)
