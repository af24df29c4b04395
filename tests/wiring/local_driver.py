"""A ``Driver`` over a real index and the real loop, in this process; only the model is scripted."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from assay import loop
from assay import schemas as s
from assay import types as t
from assay.bound import BoundRetriever
from assay.config import RetrieverConfig
from assay.converse import Agent
from assay.documents import shapes as d
from assay.documents import types as q
from assay.errors import NotFound
from assay.events import Event, drained
from assay.hits import Search
from assay.index.uploads import Uploads
from assay.ports import AnswerStore
from assay.retrieve import LocalRetriever
from assay.run import Stages
from assay.tools import Registry, ToolContext, ToolOutput
from assay.tools.builtin import builtin_tools
from tests.wiring.loop.test_loop import ENOUGH, Bench


class LocalDriver:
    def __init__(
        self,
        retriever: LocalRetriever,
        plan: str = "{}",
        answers: AnswerStore | None = None,
        uploads: Uploads | None = None,
        agent: Agent | None = None,
    ) -> None:
        self._answers, self._uploads, self._agent = answers, uploads, agent
        self.asked: list[s.AskRequest] = []
        self._bench = Bench(ENOUGH, plan=plan)
        self._bench.llm.enqueue(*[plan] * 500)
        self._retriever, self._registry = retriever, Registry(builtin_tools())
        self._search = Search(retriever, RetrieverConfig())

    async def stream(self, request: s.AskRequest, request_id: str) -> AsyncGenerator[Event]:
        self.asked.append(request)
        bench = self._bench
        stages = Stages(
            bench.expander, self._retriever, bench.judge, bench.generator, self._agent, answers=self._answers
        )
        async with aclosing(loop.answer(request, stages, bench.config, request_id)) as events:
            async for event in events:
                yield event

    async def ask(self, request: s.AskRequest, request_id: str) -> s.AskResponse:
        return await drained(self.stream(request, request_id))

    async def search(self, request: s.SearchRequest, request_id: str) -> s.SearchResponse:
        return await self._search(request, request_id)

    async def describe(self, scope: t.Scope, request_id: str) -> tuple[t.BucketInfo, ...]:
        return await self._retriever.describe(scope)

    async def tools(self, scope: t.Scope, request_id: str) -> tuple[t.ToolSpec, ...]:
        return self._registry.specs(scope.buckets)

    async def use_tool(self, name: str, arguments: Mapping[str, Any], scope: t.Scope, request_id: str) -> ToolOutput:
        return await self._registry.call(
            name, arguments, ToolContext(BoundRetriever(self._retriever, scope), True, request_id)
        )

    async def buckets(self, scope: t.Scope, request_id: str) -> d.BucketList:
        return await self._retriever.library.buckets(scope)

    async def documents(self, query: q.DocumentsQuery, request_id: str) -> d.DocumentList:
        return await self._retriever.library.documents(query)

    async def read_document(self, query: q.ReadQuery, request_id: str) -> d.DocumentView:
        return await self._retriever.library.read(query)

    async def delete_document(self, query: q.ReadQuery, request_id: str) -> None:
        held = await self.read_document(query, request_id)
        assert self._uploads is not None
        await self._uploads.delete(held.document.bucket, query.doc_id)

    async def recall(self, answer_id: str, owner: str = "") -> s.AnswerRecord:
        record = await self._answers.get(answer_id, owner) if self._answers else None
        if record is None:
            raise NotFound("There is no such answer, or no more.", "id")
        return record

    async def readiness(self) -> s.Readiness:
        return s.Readiness(status="ready", stages={"retriever": "ready"})
