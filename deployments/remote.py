"""Handles as ports: a stage in another replica looks like the local object. Ray's errors become ``assay.errors`` here.

Values travel between stages, never responses: a chained response can deadlock by order, or blame the wrong replica.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
from grpc import StatusCode
from grpc.aio import AioRpcError
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.context import _get_serve_request_context, _serve_request_context
from ray.serve.exceptions import (
    BackPressureError,
    RayServeException,
    ReplicaUnavailableError,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from assay import schemas as s
from assay import types as t
from assay.documents import shapes as d
from assay.documents import types as q
from assay.errors import AssayError, Overloaded, StageFault, StageUnavailable
from assay.events import CompletedEvent, ErrorEvent, Event
from assay.streams import Part
from assay.tools.base import ToolOutput

T = TypeVar("T")
_LOST = (RayActorError, ReplicaUnavailableError)
_OF_THE_CALL = (StatusCode.UNKNOWN, StatusCode.INTERNAL, StatusCode.RESOURCE_EXHAUSTED)  # sent again it fails again
log = logging.getLogger("ray.serve")

# Of a line that every call writes: it stands in Serve's files. On stderr it would go through three more processes.
IN_FILES = {"log_to_stderr": False}


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """What a stage's replica answers: the value, and the seconds that it took there; the rest of the wait was the hop."""

    value: T
    seconds: float


async def reply(work: Awaitable[T], call: str = "") -> Reply[T]:
    """Awaits a stage's work. ``call`` names it in a log line, which Serve gives the request's id and the deployment."""
    start, outcome = time.perf_counter(), "failed"
    try:
        value = await work
        outcome = "ok"
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    except AssayError as error:
        outcome = error.code
        raise
    finally:
        seconds = time.perf_counter() - start
        if call:
            log.info(call, extra={"ms": round(1000 * seconds, 1), "outcome": outcome, **IN_FILES})
    return Reply(value, seconds)


@dataclass(slots=True)
class Hops:
    """Milliseconds that one question spent between replicas, summed over its calls."""

    ms: list[float] = field(default_factory=list)


_HOPS: ContextVar[Hops | None] = ContextVar("hops", default=None)


def count_hops() -> Hops:
    """Starts to count the hops of what this task, and the tasks that it starts, call from here on.

    A function, since Serve pickles a deployment's class by value: a ``ContextVar`` that it named could not be pickled.
    """
    hops = Hops()
    _HOPS.set(hops)
    return hops


def faulted(stage: str, error: BaseException, cause: Exception | None = None) -> AssayError:
    """A bug in a stage: logged here, and met by the stage's fallback."""
    log.error("%s failed", stage, exc_info=error)
    return StageFault(f"{stage} failed: {type(cause or error).__name__}")


def translated(stage: str, error: BaseException) -> BaseException:
    """The ``AssayError`` for what a call raised: a replica's own fault comes in a ``RayTaskError``, and over gRPC as it is."""
    if isinstance(error, RayTaskError):
        return error.cause if isinstance(error.cause, AssayError) else faulted(stage, error, error.cause)
    if isinstance(error, AssayError):
        return error
    if isinstance(error, BackPressureError):
        return Overloaded(f"{stage} is at its queue limit; try again shortly.")
    if isinstance(error, asyncio.CancelledError | RequestCancelledError) and _leaving():
        return asyncio.CancelledError()
    if isinstance(error, AioRpcError) and error.code() in _OF_THE_CALL:
        return faulted(stage, error)
    if isinstance(error, asyncio.CancelledError | RayError | RayServeException | AioRpcError):
        return StageUnavailable(f"{stage} is not available: {type(error).__name__}")
    return faulted(stage, error)


@contextmanager
def _its_own() -> Iterator[None]:
    """Of a call that is made in here, Serve does not note which request makes it.

    Of a request that ends early Serve cancels the calls that it noted, but from the thread of the replica, while they belong to
    the router's: now and then (one of some 3,000) it dropped a call of gRPC that was just being made, which went out all the
    same, and then nobody could cancel it. Whoever makes a call here cancels it himself.
    """
    token = _serve_request_context.set(replace(_get_serve_request_context(), _internal_request_id=""))
    try:
        yield
    finally:
        _serve_request_context.reset(token)


def _cancel(response: Any) -> None:
    """Serve raises what sending the call has met, if it has: who leaves has no use for it."""
    with suppress(Exception):
        response.cancel()


def _leaving() -> bool:
    """Whether it is this task that was cancelled. Else it was the call, in its replica."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Here:
    """A stage in this process (``deployments.placement``), asked for what its replica would be: no hop, and the same faults."""

    def __init__(self, stage: str, made: object) -> None:
        self._stage, self._made = stage, made

    async def call(self, method: str, *args: Any) -> Any:
        with self._faults():
            return await getattr(self._made, method)(*args)

    async def stream(self, method: str, *args: Any) -> AsyncGenerator[Any]:
        with self._faults():
            async with aclosing(getattr(self._made, method)(*args)) as items:
                async for item in items:
                    yield item

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except AssayError:
            raise
        except Exception as error:
            raise faulted(self._stage, error) from error


class _Remote:
    """Calls of one deployment, or of a stage that is none."""

    def __init__(self, stage: str, handle: DeploymentHandle | Here) -> None:
        self._stage = stage
        self._handle: Any = handle

    async def _call(self, method: str, *args: Any, again: bool = True) -> Any:
        """All unary calls are idempotent: one whose replica died is sent once more. What a living replica says stands."""
        try:
            return await self._once(method, *args)
        except _LOST as lost:
            if not again:
                raise translated(self._stage, lost) from None
        return await self._call(method, *args, again=False)

    async def _once(self, method: str, *args: Any) -> Any:
        if isinstance(self._handle, Here):
            return (await self._handle.call(method, *args)).value
        start = time.perf_counter()
        with _its_own():
            response = getattr(self._handle, method).remote(*args)
        try:
            answer = await response
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError):
                _cancel(response)
            elif isinstance(error, _LOST) and not isinstance(error, RayTaskError):
                raise
            raise translated(self._stage, error) from None
        if (hops := _HOPS.get()) is not None:
            hops.ms.append(1000 * (time.perf_counter() - start - answer.seconds))
        return answer.value

    async def _stream(
        self, method: str, *args: Any, last: Callable[[Any], bool] = lambda _: False
    ) -> AsyncGenerator[Any]:
        """Items as they come; closing it cancels the call in the replica, but for one that has given its ``last`` item."""
        if isinstance(self._handle, Here):
            async with aclosing(self._handle.stream(method, *args)) as items:
                async for item in items:
                    yield item
            return
        with _its_own():
            response = getattr(self._handle.options(stream=True), method).remote(*args)
        done = False
        try:
            async for item in response:
                done = last(item)
                yield item
            done = True
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # whatever it is becomes one of ours
            raise translated(self._stage, error) from None
        finally:
            if not done:
                _cancel(response)

    async def ready(self) -> str:
        return str(await self._call("ready"))


class RemoteLLM(_Remote):
    async def complete(self, request: t.CompletionRequest) -> t.Completion:
        return await self._call("complete", request)  # type: ignore[no-any-return]

    def stream(self, request: t.CompletionRequest) -> AsyncGenerator[t.Delta]:
        return self._stream("stream", request)

    async def score(self, request: t.ScoreRequest) -> t.Scores:
        return await self._call("score", request)  # type: ignore[no-any-return]


class RemoteExpander(_Remote):
    async def plan(self, request: t.PlanRequest) -> t.Plan:
        return await self._call("plan", request)  # type: ignore[no-any-return]


class RemoteRetriever(_Remote):
    """``ports.Retriever``, ``ports.Library`` and ``ports.Embedder``."""

    async def search(self, query: t.SearchQuery) -> t.SearchResult:
        return await self._call("search", query)  # type: ignore[no-any-return]

    async def describe(self, scope: t.Scope) -> tuple[t.BucketInfo, ...]:
        return await self._call("describe", scope)  # type: ignore[no-any-return]

    async def document_lookup(self, query: t.DocumentQuery) -> t.DocumentText:
        return await self._call("document_lookup", query)  # type: ignore[no-any-return]

    async def get_document_metadata(self, query: t.DocumentQuery) -> t.DocumentInfo:
        return await self._call("get_document_metadata", query)  # type: ignore[no-any-return]

    async def buckets(self, scope: t.Scope) -> d.BucketList:
        return await self._call("buckets", scope)  # type: ignore[no-any-return]

    async def documents(self, query: q.DocumentsQuery) -> d.DocumentList:
        return await self._call("documents", query)  # type: ignore[no-any-return]

    async def read(self, query: q.ReadQuery) -> d.DocumentView:
        return await self._call("read", query)  # type: ignore[no-any-return]

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return await self._call("embed", tuple(texts))  # type: ignore[no-any-return]

    async def index_state(self) -> tuple[str | None, tuple[str, ...]]:
        """``index_version`` and what is wrong with it."""
        return await self._call("index_state")  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Reordered:
    """``Reranked``, with the places of hits in the request instead of hits: their texts are where it came from."""

    ranked: tuple[tuple[int | t.Hit, float, t.Gain | None], ...]
    usage: s.Usage
    faults: int

    @classmethod
    def of(cls, found: t.Reranked, request: t.RerankRequest) -> "Reordered":
        """A hit that a reranker of one's own has made itself is sent whole."""
        places = {id(hit): place for place, hit in enumerate(request.hits)}
        ranked = tuple((places.get(id(each.hit), each.hit), each.score, each.gain) for each in found.ranked)
        return cls(ranked, found.usage, found.faults)

    def with_hits(self, request: t.RerankRequest) -> t.Reranked:
        hits = ((request.hits[at] if isinstance(at, int) else at, score, gain) for at, score, gain in self.ranked)
        return t.Reranked(tuple(t.Ranked(*each) for each in hits), self.usage, self.faults)


class RemoteReranker(_Remote):
    async def rerank(self, request: t.RerankRequest) -> t.Reranked:
        found: Reordered = await self._call("rerank", request)
        return found.with_hits(request)

    async def grade(self, request: t.GradeRequest) -> t.Grade:
        return await self._call("grade", request)  # type: ignore[no-any-return]

    async def support(self, request: t.SupportRequest) -> t.Support:
        return await self._call("support", request)  # type: ignore[no-any-return]


class RemoteGenerator(_Remote):
    async def generate(self, request: t.GenerateRequest) -> AsyncGenerator[t.GenerateEvent]:
        async with aclosing(self._stream("generate", request)) as parts:
            async for part in parts:
                for event in part:
                    yield event


class RemoteStreams(_Remote):
    """``assay.streams.Streams``."""

    async def append(
        self, id: str, owner: str, at: int, frames: Sequence[str], ended: bool = False, group: str = ""
    ) -> float:
        return await self._call("append", id, owner, at, tuple(frames), ended, group)  # type: ignore[no-any-return]

    async def read(self, id: str, owner: str, after: int, wait_s: float) -> Part:
        return await self._call("read", id, owner, after, wait_s)  # type: ignore[no-any-return]

    async def drop(self, id: str, owner: str) -> None:
        await self._call("drop", id, owner)

    async def drop_group(self, owner: str, group: str) -> None:
        await self._call("drop_group", owner, group)


class RemoteIngester(_Remote):
    async def delete(self, bucket: str, doc_id: str) -> None:
        await self._call("delete", bucket, doc_id, again=False)

    async def told(self, replica: str, version: str | None) -> None:
        await self._call("told", replica, version, again=False)


def _is_last(part: Sequence[Event]) -> bool:
    return isinstance(part[-1], CompletedEvent | ErrorEvent)


class RemoteDriver(_Remote):
    """``ports.Driver``. A question is not idempotent in cost: it is never sent twice."""

    async def stream(self, request: s.AskRequest, request_id: str) -> AsyncGenerator[Event]:
        async with aclosing(self._stream("stream", request, request_id, last=_is_last)) as parts:
            async for part in parts:
                for event in part:
                    yield event

    async def ask(self, request: s.AskRequest, request_id: str) -> s.AskResponse:
        return await self._call("ask", request, request_id, again=False)  # type: ignore[no-any-return]

    async def search(self, request: s.SearchRequest, request_id: str) -> s.SearchResponse:
        return await self._call("search", request, request_id)  # type: ignore[no-any-return]

    async def describe(self, scope: t.Scope, request_id: str) -> tuple[t.BucketInfo, ...]:
        return await self._call("describe", scope, request_id)  # type: ignore[no-any-return]

    async def recall(self, answer_id: str, owner: str = "") -> s.AnswerRecord:
        return await self._call("recall", answer_id, owner)  # type: ignore[no-any-return]

    async def tools(self, scope: t.Scope, request_id: str) -> tuple[t.ToolSpec, ...]:
        return await self._call("tools", scope, request_id)  # type: ignore[no-any-return]

    async def use_tool(self, name: str, arguments: Mapping[str, Any], scope: t.Scope, request_id: str) -> ToolOutput:
        return await self._call("use_tool", name, dict(arguments), scope, request_id)  # type: ignore[no-any-return]

    async def buckets(self, scope: t.Scope, request_id: str) -> d.BucketList:
        return await self._call("buckets", scope, request_id)  # type: ignore[no-any-return]

    async def documents(self, query: q.DocumentsQuery, request_id: str) -> d.DocumentList:
        return await self._call("documents", query, request_id)  # type: ignore[no-any-return]

    async def read_document(self, query: q.ReadQuery, request_id: str) -> d.DocumentView:
        return await self._call("read_document", query, request_id)  # type: ignore[no-any-return]

    async def delete_document(self, query: q.ReadQuery, request_id: str) -> None:
        await self._call("delete_document", query, request_id, again=False)

    async def readiness(self) -> s.Readiness:
        return await self._call("readiness")  # type: ignore[no-any-return]
