"""A stage in another replica: what Ray raises becomes an error of ours by its kind, and nothing costly is sent twice."""

import asyncio
import copy
import pickle
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.context import _get_serve_request_context, _set_request_context
from ray.serve.exceptions import BackPressureError, ReplicaUnavailableError, RequestCancelledError

from assay.errors import AssayError, InvalidFilter, Overloaded, StageFault, StageUnavailable
from assay.events import CompletedEvent, Event, StatusEvent
from assay.schemas import AskRequest, Usage
from assay.types import (
    Context,
    Evidence,
    Gain,
    Hit,
    ItemScore,
    Ranked,
    Reranked,
    RerankRequest,
    Scope,
    ScoreItem,
    SearchQuery,
)
from deployments.remote import Here, RemoteDriver, RemoteGenerator, RemoteReranker, RemoteRetriever, Reordered, Reply
from deployments.together import together, whole
from tests.fakes import chunk
from tests.wiring.scripted_driver import response

pytestmark = pytest.mark.anyio


class Response:
    """Of one call: an answer, a fault, or nothing at all."""

    def __init__(self, said: Any) -> None:
        self._said, self.cancelled = said, False

    def __await__(self) -> Any:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        if self._said is None:
            await asyncio.Event().wait()
        if isinstance(self._said, BaseException):
            raise self._said
        return Reply(self._said, 0.0)

    async def __aiter__(self) -> Any:
        yield (await self._answer()).value

    def cancel(self) -> None:
        self.cancelled = True


class Parts(Response):
    """Of one stream: its items, one after another."""

    async def __aiter__(self) -> Any:
        for part in self._said:
            yield part


class Handle:
    """A deployment's handle whose calls are answered in order, by whatever method."""

    def __init__(self, *said: Any) -> None:
        self.responses = [each if isinstance(each, Response) else Response(each) for each in said]
        self.sent: list[Response] = []
        self.by: list[tuple[str, str]] = []

    def options(self, **_: Any) -> "Handle":
        return self

    def __getattr__(self, method: str) -> Any:
        return type("Method", (), {"remote": staticmethod(self._send)})

    def _send(self, *_: Any) -> Response:
        self.sent.append(self.responses.pop(0))
        context = _get_serve_request_context()
        self.by.append((context.request_id, context._internal_request_id))
        return self.sent[-1]


def remote(kind: Any, *said: Any) -> tuple[Any, Handle]:
    handle = Handle(*said)
    return kind("retriever", handle), handle


QUERY = SearchQuery(("pumps",))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (BackPressureError(3, 1), Overloaded),
        (RayTaskError("search", "", InvalidFilter("no")), InvalidFilter),
        (RayTaskError("search", "", KeyError("x")), StageFault),
        (RequestCancelledError("req"), StageUnavailable),
        # As they come over gRPC, where nothing is wrapped: of the replica's own code, of its end, and of gRPC itself.
        (InvalidFilter("no"), InvalidFilter),
        (KeyError("x"), StageFault),
        (asyncio.CancelledError(), StageUnavailable),
        (AioRpcError(StatusCode.UNAUTHENTICATED, Metadata(), Metadata(), "no token"), StageUnavailable),
        (AioRpcError(StatusCode.RESOURCE_EXHAUSTED, Metadata(), Metadata(), "too large"), StageFault),
    ],
)
async def test_a_fault_is_told_by_its_kind_and_not_sent_again(fault: BaseException, kind: type[AssayError]) -> None:
    retriever, handle = remote(RemoteRetriever, fault)
    with pytest.raises(kind) as caught:
        await retriever.search(QUERY)
    assert len(handle.sent) == 1
    assert (caught.value.status, caught.value.retryable) == (kind.status, kind.retryable)
    generator, _ = remote(RemoteGenerator, fault)
    with pytest.raises(kind):
        await anext(generator.generate(QUERY))


@pytest.mark.parametrize("lost", [RayActorError(), ReplicaUnavailableError("r1")])
async def test_what_a_dead_replica_was_asked_is_asked_once_more_but_for_a_question(lost: Exception) -> None:
    retriever, handle = remote(RemoteRetriever, lost, ())
    assert await retriever.describe(Scope()) == () and len(handle.sent) == 2
    retriever, handle = remote(RemoteRetriever, lost, lost)
    with pytest.raises(StageUnavailable):
        await retriever.search(QUERY)
    driver, handle = remote(RemoteDriver, lost, ())
    with pytest.raises(StageUnavailable):
        await driver.ask(AskRequest(question="When?"), "req")
    assert len(handle.sent) == 1


class Refusing(Response):
    """Serve's, whose call was never sent: to cancel it raises why."""

    def cancel(self) -> None:
        raise BackPressureError(3, 1)


async def test_who_is_cancelled_is_cancelled_whatever_its_call_has_met() -> None:
    retriever, _ = remote(RemoteRetriever, Refusing(None))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await retriever.search(QUERY)


async def test_who_is_cancelled_cancels_what_it_asked() -> None:
    retriever, handle = remote(RemoteRetriever, None)
    task = asyncio.create_task(retriever.search(QUERY))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert handle.sent[0].cancelled


async def test_serve_notes_of_no_call_which_request_made_it() -> None:
    """It would cancel the call from the replica's thread, and drop one that is just being made. Logs still tell the request."""
    _set_request_context(request_id="req_1", _internal_request_id="noted")
    retriever, handle = remote(RemoteRetriever, ())
    await retriever.describe(Scope())
    generator, streamed = remote(RemoteGenerator, Parts([("first",)]))
    assert [event async for event in generator.generate(QUERY)] == ["first"]
    assert handle.by == streamed.by == [("req_1", "")]
    assert _get_serve_request_context()._internal_request_id == "noted"


# ---- a stage in this process ----------------------------------------------------------------------------------------


class Stage:
    """Does what it is told, and knows how it was left."""

    def __init__(self, said: Any) -> None:
        self._said, self.left = said, ""

    async def search(self, query: SearchQuery) -> Reply[Any]:
        try:
            return Reply(await Response(self._said)._answer(), 0.0)
        except asyncio.CancelledError:
            self.left = "cancelled"
            raise

    async def generate(self, request: Any) -> AsyncGenerator[Any]:
        try:
            for part in self._said:
                if isinstance(part, BaseException):
                    raise part
                yield part
        finally:
            self.left = "closed"


@pytest.mark.parametrize(("fault", "kind"), [(InvalidFilter("no"), InvalidFilter), (KeyError("x"), StageFault)])
async def test_a_fault_in_this_process_is_told_as_a_replicas_is(fault: Exception, kind: type[AssayError]) -> None:
    with pytest.raises(kind) as caught:
        await RemoteRetriever("retriever", Here("retriever", Stage(fault))).search(QUERY)
    assert kind is not StageFault or str(caught.value) == "retriever failed: KeyError"
    generator = RemoteGenerator("generator", Here("generator", Stage([("first",), fault])))
    events = generator.generate(Any)  # type: ignore[arg-type]
    assert await anext(events) == "first"
    with pytest.raises(kind):
        await anext(events)


async def test_who_leaves_a_stage_in_this_process_ends_its_work() -> None:
    """Else its engine would go on."""
    stage = Stage(None)
    task = asyncio.create_task(RemoteRetriever("retriever", Here("retriever", stage)).search(QUERY))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.left == "cancelled"
    stage = Stage([("first",), ("second",)])
    async with aclosing(RemoteGenerator("generator", Here("generator", stage)).generate(Any)) as events:  # type: ignore[arg-type]
        assert await anext(events) == "first"
        assert stage.left == ""
    assert stage.left == "closed"


# ---- values on their way --------------------------------------------------------------------------------------------


async def test_a_reranker_sends_places_and_no_texts_but_of_hits_that_are_its_own() -> None:
    hits = tuple(Hit(chunk(n, f"Pump {n} " + "x" * 500), 1.0 / n, {"dense": n}) for n in (1, 2, 3))
    own = replace(hits[0], score=7.0)
    found = Reranked(
        (Ranked(hits[2], 3.0, Gain(0.5, (-1.0, 2.0))), Ranked(own, 2.0, None), Ranked(hits[0], 1.0, None)), Usage(), 1
    )
    request = RerankRequest("pumps", hits, 3)
    sent = Reordered.of(found, request)
    assert pickle.dumps(sent).count(b"x" * 500) == 1
    reranker, _ = remote(RemoteReranker, pickle.loads(pickle.dumps(sent)))
    assert await reranker.rerank(request) == found


def test_what_is_pickled_as_its_fields_comes_out_as_it_was() -> None:
    hit = Hit(
        replace(chunk(4, "text"), heading=("a", "b"), page=3, hidden=True),
        0.5,
        {"dense": 2},
        0.25,
        Context("t", (0, 1)),
    )
    evidence = Evidence("E1", hit, 0.5, 2, Gain(0.1, (-2.0,)))
    for value in (evidence, Ranked(hit, 1.0, None), ScoreItem("a", "b"), ItemScore(-1.0, 2, None, (-0.5, -0.5))):
        for same in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
            assert same == value and same is not value and type(same) is type(value)


# ---- a stream's items, those in one that are there at the same time -------------------------------------------------

SAID: list[Event] = [StatusEvent(state="planning"), StatusEvent(state="searching"), CompletedEvent(response=response())]


async def test_a_stream_that_has_ended_is_not_cancelled() -> None:
    for parts, taken, cancelled in (
        ([SAID], 3, False),
        ([SAID[:2], SAID[2:]], 3, False),
        ([SAID[:2], SAID[2:]], 2, True),
    ):
        driver, handle = remote(RemoteDriver, Parts(parts))
        async with aclosing(driver.stream(AskRequest(question="When?"), "req")) as events:
            assert [await anext(events) for _ in range(taken)] == SAID[:taken]
        assert handle.sent[0].cancelled == cancelled


class Source:
    """Numbers, with a wait where None stands and a fault where there is one."""

    def __init__(self, *said: int | Exception | None) -> None:
        self._said, self.given, self.closed = said, 0, False

    async def items(self) -> AsyncGenerator[int]:
        try:
            for each in self._said:
                if isinstance(each, Exception):
                    raise each
                if each is None:
                    await asyncio.sleep(0.01)
                else:
                    self.given += 1
                    yield each
        finally:
            await asyncio.sleep(0)
            self.closed = True


async def test_what_is_there_at_the_same_time_comes_in_one() -> None:
    source = Source(1, 2, None, 3, None, None, 4, 5, 6)
    assert [part async for part in together(source.items())] == [(1, 2), (3,), (4, 5, 6)] and source.closed
    assert [part async for part in together(Source().items())] == []


async def test_what_nobody_streams_comes_in_one_or_as_its_fault_and_who_goes_ends_it() -> None:
    source = Source(1, None, 2)
    assert [part async for part in whole(source.items())] == [(1, 2)] and source.closed
    with pytest.raises(StageFault):
        await anext(whole(Source(1, None, StageFault("no")).items()))
    source = Source(1, *[None] * 100)
    waiting = asyncio.ensure_future(anext(whole(source.items())))
    await asyncio.sleep(0.02)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert source.given == 1 and source.closed


async def test_a_fault_comes_after_what_came_before_it() -> None:
    parts = together(Source(1, None, 2, StageFault("no")).items())
    assert [await anext(parts) for _ in range(2)] == [(1,), (2,)]
    with pytest.raises(StageFault):
        await anext(parts)


async def test_who_takes_slowly_is_not_run_away_from_and_who_goes_ends_it() -> None:
    source = Source(*range(100))
    async with aclosing(together(source.items(), most=10)) as parts:
        assert await anext(parts) == tuple(range(10))
        await asyncio.sleep(0.01)
        assert (source.given, source.closed) == (20, False)
        assert await anext(parts) == tuple(range(10, 20))
    assert source.closed
    assert [n for part in [part async for part in together(Source(*range(100)).items(), most=7)] for n in part] == [
        *range(100)
    ]
