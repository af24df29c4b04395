"""The Driver deployment: runs the loop over the other stages' handles, and tells operators what happened."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeVar

from ray import serve
from ray.serve.handle import DeploymentHandle

from assay import loop
from assay.bound import BoundRetriever
from assay.config import AppConfig, GradeConfig, RerankerConfig
from assay.converse import Agent
from assay.documents.shapes import BucketList, DocumentList, DocumentView
from assay.documents.types import DocumentsQuery, ReadQuery
from assay.errors import AssayError, NotFound, StageTimeout, StageUnavailable
from assay.events import CompletedEvent, Event, drained
from assay.grade import FeatureGrader
from assay.hits import Search
from assay.run import Stages
from assay.schemas import AnswerRecord, AskRequest, AskResponse, Readiness, SearchRequest, SearchResponse
from assay.templates import Prompts
from assay.tokens import tokenizer_of, tools_indent
from assay.tools import Registry, ToolContext, ToolOutput
from assay.types import BucketInfo, Grade, GradeRequest, Scope, ToolSpec
from deployments.database import answers_of
from deployments.placement import Inside, reached
from deployments.priority import stand_back
from deployments.remote import (
    Here,
    Hops,
    RemoteExpander,
    RemoteGenerator,
    RemoteIngester,
    RemoteLLM,
    RemoteReranker,
    RemoteRetriever,
    Reply,
    count_hops,
    reply,
)
from deployments.telemetry import Telemetry, adopt_logs
from deployments.together import together, whole

T = TypeVar("T")

# A stage that cannot say so within this is not ready.
READY_S = 3.0


@serve.deployment(max_ongoing_requests=64, max_queued_requests=64, ray_actor_options={"num_cpus": 0.1})
class Driver:
    def __init__(
        self,
        config: AppConfig,
        expander: DeploymentHandle | Inside,
        retriever: DeploymentHandle,
        reranker: DeploymentHandle | Inside,
        generator: DeploymentHandle | Inside,
        agent: DeploymentHandle | None = None,
        model: str = "",
        prompts: Prompts = Prompts(),
        ingester: DeploymentHandle | None = None,
    ) -> None:
        """``agent``: an engine that can call tools, and ``model`` its folder or id.
        ``ingester``: without it nothing can be uploaded or deleted."""
        adopt_logs()
        stand_back(config.niceness)
        self._config = config
        self._tools = Registry.of(config.tools)
        self._stages = Stages(
            expander := RemoteExpander("expander", reached("expander", expander)),
            retriever := RemoteRetriever("retriever", retriever),
            reranker := _reranker(config.reranker, reached("reranker", reranker)),
            generator := RemoteGenerator("generator", reached("generator", generator)),
            None if agent is None else _agent(config, agent, model, prompts),
            answers := answers_of(config.answers),
        )
        self._answers = answers
        self._retriever = retriever
        self._search = Search(retriever, config.retriever, reranker, config.reranker.timeout_s)
        self._ready = {"expander": expander, "retriever": retriever, "reranker": reranker, "generator": generator}
        self._ingester = None if ingester is None else RemoteIngester("ingester", ingester)
        self._telemetry = Telemetry(config.telemetry)

    async def stream(self, request: AskRequest, request_id: str) -> AsyncGenerator[tuple[Event, ...]]:
        """The events, those in one that are there at the same time; all in one where nobody wants a stream."""
        in_parts = together if request.stream else whole
        async with aclosing(in_parts(self._events(request, request_id))) as parts:
            async for part in parts:
                yield part

    async def _events(self, request: AskRequest, request_id: str) -> AsyncGenerator[Event]:
        hops, question = count_hops(), self._telemetry.question(request_id)
        try:
            async with aclosing(loop.answer(request, self._stages, self._config, request_id)) as events:
                async for event in events:
                    if isinstance(event, CompletedEvent):
                        event = _with_hops(event, hops)
                    question.observe(event)
                    yield event
        except BaseException as error:
            question.close(error)
            raise
        question.close()

    async def ask(self, request: AskRequest, request_id: str) -> Reply[AskResponse]:
        return await reply(drained(self._events(request, request_id)))

    async def search(self, request: SearchRequest, request_id: str) -> Reply[SearchResponse]:
        return await reply(self._search(request, request_id), "search")

    async def describe(self, scope: Scope, request_id: str) -> Reply[tuple[BucketInfo, ...]]:
        return await reply(self._in_time(self._retriever.describe(scope)))

    async def _in_time(self, work: Awaitable[T]) -> T:
        """What is asked of the retriever."""
        timeout_s = self._config.retriever.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except TimeoutError:
            raise StageTimeout(f"retriever: timeout after {timeout_s:.1f} s") from None

    async def buckets(self, scope: Scope, request_id: str) -> Reply[BucketList]:
        return await reply(self._in_time(self._retriever.buckets(scope)))

    async def documents(self, query: DocumentsQuery, request_id: str) -> Reply[DocumentList]:
        return await reply(self._in_time(self._retriever.documents(query)))

    async def read_document(self, query: ReadQuery, request_id: str) -> Reply[DocumentView]:
        return await reply(self._in_time(self._retriever.read(query)))

    async def delete_document(self, query: ReadQuery, request_id: str) -> Reply[None]:
        return await reply(self._delete(query), "delete")

    async def _delete(self, query: ReadQuery) -> None:
        """A document that the scope does not have is not deleted."""
        if self._ingester is None:
            raise StageUnavailable("This graph has no ingester.")
        held = await self._in_time(self._retriever.read(query))
        await self._ingester.delete(held.document.bucket, query.doc_id)

    async def recall(self, answer_id: str, owner: str = "") -> Reply[AnswerRecord]:
        return await reply(self._recall(answer_id, owner))

    async def _recall(self, answer_id: str, owner: str) -> AnswerRecord:
        record = await self._answers.get(answer_id, owner) if self._answers is not None else None
        if record is None:
            raise NotFound("There is no such answer, or no more.", "id")
        return record

    async def tools(self, scope: Scope, request_id: str) -> Reply[tuple[ToolSpec, ...]]:
        return Reply(self._tools.specs(scope.buckets), 0.0)

    async def use_tool(
        self, name: str, arguments: Mapping[str, Any], scope: Scope, request_id: str
    ) -> Reply[ToolOutput]:
        return await reply(self._use_tool(name, arguments, scope, request_id), "tool")

    async def _use_tool(self, name: str, arguments: Mapping[str, Any], scope: Scope, request_id: str) -> ToolOutput:
        config, timeout_s = self._config, self._config.retriever.timeout_s
        context = ToolContext(BoundRetriever(self._retriever, scope), config.retriever.link_hop, request_id)
        if config.tools.web.endpoint is not None:
            timeout_s = max(timeout_s, config.tools.web.timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._tools.call(name, arguments, context)
        except TimeoutError:
            raise StageTimeout(f"tool: timeout after {timeout_s:.1f} s") from None

    async def readiness(self) -> Reply[Readiness]:
        return await reply(self._readiness())

    async def _readiness(self) -> Readiness:
        states = await asyncio.gather(*(_state(stage) for stage in self._ready.values()))
        stages = dict(zip(self._ready, states, strict=True))
        version: str | None = None
        reasons: tuple[str, ...] = ()
        if stages["retriever"] == "ready":
            version, reasons = await self._retriever.index_state()
        return Readiness(
            status=_status(states, version, reasons), stages=stages, index_version=version, reasons=list(reasons)
        )


class _GradesHere(RemoteReranker):
    """The built-in grade measures words and asks no model: a hop would take longer than it does."""

    def __init__(self, stage: str, handle: DeploymentHandle | Here, config: GradeConfig) -> None:
        super().__init__(stage, handle)
        self._grader = FeatureGrader(config)

    async def grade(self, request: GradeRequest) -> Grade:
        return await self._grader.grade(request)


def _reranker(config: RerankerConfig, handle: DeploymentHandle | Here) -> RemoteReranker:
    """One of one's own may grade as it likes."""
    own = config.implementation is not None
    return RemoteReranker("reranker", handle) if own else _GradesHere("reranker", handle, config.grade)


def _agent(config: AppConfig, engine: DeploymentHandle, model: str, prompts: Prompts) -> Agent:
    kind = config.engines[config.agent or ""]
    tools = Registry.of(config.tools)
    tokenizer, llm = tokenizer_of(model), RemoteLLM("agent", engine)
    return Agent(llm, tokenizer, tools, prompts, kind.max_model_len, tools_indent(model))


def _status(
    states: Sequence[str], version: str | None, reasons: Sequence[str]
) -> Literal["ready", "degraded", "unavailable"]:
    if version is None or any(state != "ready" for state in states):
        return "unavailable"
    return "degraded" if reasons else "ready"


async def _state(stage: RemoteExpander | RemoteRetriever | RemoteReranker | RemoteGenerator) -> str:
    try:
        async with asyncio.timeout(READY_S):
            return await stage.ready()
    except TimeoutError:
        return f"no answer within {READY_S:.0f} s"
    except AssayError as error:
        return str(error)


def _with_hops(event: CompletedEvent, hops: Hops) -> CompletedEvent:
    timings = {**event.response.timings_ms, "hops": round(sum(hops.ms), 2)}
    return event.model_copy(update={"response": event.response.model_copy(update={"timings_ms": timings})})
