"""A ``Driver`` that plays a script: events to yield, faults to raise, seconds to wait. It remembers what it saw."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from assay import events as ev
from assay import schemas as s
from assay import types as t
from assay.bound import BoundRetriever
from assay.documents import shapes as d
from assay.documents import types as q
from assay.errors import NotFound
from assay.tools import Registry, ToolContext, ToolOutput
from assay.tools.builtin import builtin_tools
from tests.fakes import ListRetriever, chunk

PASSAGES = (
    chunk(1, "Either party may terminate on thirty days' written notice.", "Supply Agreement", "contracts", page=5),
    chunk(2, "Rent is due on the first day of each month.", "Lease", "contracts"),
)

Step = ev.Event | BaseException | float

CITATION = s.Citation(
    number=1,
    slot="E1",
    doc_id="doc_7",
    chunk_id=4711,
    bucket="contracts",
    title="Supply Agreement",
    uri="contracts/supply-7.pdf",
    page=5,
    heading=["12 Term", "12.2 Termination"],
    span=(1042, 1106),
    quote="Either party may terminate on thirty (30) days' written notice.",
)
# Separators that a text decoder would take for the end of a line.
ANSWER = "Either party may terminate\u2028on thirty\u0085(30) days' notice. [1]"


def response(status: s.AnswerStatus = "answered") -> s.AskResponse:
    return s.AskResponse(
        id="ans_1",
        request_id="",
        status=status,
        terminated_by="answered",
        answer=s.Answer(text=ANSWER, style="extract"),
        citations=[CITATION],
        degraded=[s.Degraded(stage="reranker", reason="timeout after 8.0 s", fallback="fused order")],
        index_version="v1",
        rounds=1,
        timings_ms={"total": 12.5},
    )


def whole() -> list[Step]:
    """A question that is answered."""
    return [
        ev.StatusEvent(state="searching", round=1),
        ev.PlanEvent(mode="agentic", query="termination", variants=["notice"], buckets=["contracts"]),
        ev.ToolCallStart(tool="search_hybrid", arguments={"queries": ["termination", "notice"]}),
        ev.ToolCallResult(tool="search_hybrid", hits=17, duration_ms=44, outcome="ok"),
        ev.EvidenceEvent(added=["E1"], titles=["Supply Agreement"]),
        ev.GradeEvent(p_enough=0.8, p_more=0.15, p_clarify=0.05, p_about=0.9),
        ev.AnswerEvent(delta=ANSWER),
        ev.CitationEvent(citation=CITATION),
        ev.CompletedEvent(response=response()),
    ]


DOCUMENT = d.DocumentRow(
    **CITATION.model_dump(include={"doc_id", "bucket", "title", "uri"}),
    format="pdf",
    bytes=61234,
    chunks=31,
    ingested_at="2026-01-05T00:00:00Z",
)


class ScriptedDriver:
    def __init__(self, *script: Step) -> None:
        self.script: list[Step] = list(script) or whole()
        self.asked: list[s.AskRequest] = []
        self.request_ids: list[str] = []
        self.recalled: list[tuple[str, str]] = []
        self.searched: list[s.SearchRequest] = []
        self.running = 0
        self.closed = 0
        self.registry, self.retriever = Registry(builtin_tools()), ListRetriever(*PASSAGES)
        self.used: list[tuple[str, t.Scope]] = []
        self.search_waits: asyncio.Event | None = None
        self.search_fault: BaseException | None = None
        self.describe_fault: BaseException | None = None
        self.described = (t.BucketInfo("contracts", 60, 4000, "Agreements"), t.BucketInfo("secret", 1, 2))
        self.ready_now: Callable[[], s.Readiness] = lambda: s.Readiness(status="ready", stages={"retriever": "ready"})

    async def stream(self, request: s.AskRequest, request_id: str) -> AsyncGenerator[ev.Event]:
        self.asked.append(request)
        self.request_ids.append(request_id)
        self.running += 1
        try:
            for step in self.script:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, BaseException):
                    raise step
                else:
                    yield step
        finally:
            await asyncio.sleep(0)  # closing takes its turn, and must be awaited
            self.running -= 1
            self.closed += 1

    async def ask(self, request: s.AskRequest, request_id: str) -> s.AskResponse:
        raise AssertionError("the door uses stream for both")

    async def search(self, request: s.SearchRequest, request_id: str) -> s.SearchResponse:
        self.request_ids.append(request_id)
        self.searched.append(request)
        if self.search_waits is not None:
            await self.search_waits.wait()
        if self.search_fault:
            raise self.search_fault
        hit = s.SearchHit(
            **CITATION.model_dump(include={"chunk_id", "doc_id", "bucket", "title", "uri", "page", "heading", "span"}),
            score=0.83,
            ranks={"dense": 1},
            text=CITATION.quote,
            text_span=CITATION.span,
        )
        explain = s.SearchExplain(allowed_rows=60, total_rows=4000, methods={"dense": "exact"})
        degraded = [s.Degraded(stage="reranker", reason="reranker: timeout", fallback="fused order")] * request.rerank
        return s.SearchResponse(request_id="", hits=[hit], explain=explain, degraded=degraded, index_version="v1")

    async def describe(self, scope: t.Scope, request_id: str) -> tuple[t.BucketInfo, ...]:
        if self.describe_fault:
            raise self.describe_fault
        if isinstance(scope.filters, s.Predicate) and scope.filters.field == "doc_id":
            asked = scope.filters.value if isinstance(scope.filters.value, list) else [scope.filters.value]
            return (t.BucketInfo("contracts", len(asked), len(asked)),)
        return tuple(b for b in self.described if not scope.buckets or b.name in scope.buckets)

    async def seen(self, answers: Sequence[s.AskResponse], request_id: str) -> list[bool]:
        return [True for _ in answers]

    def replayed(self, answer: s.AskResponse) -> None: ...

    async def recall(self, answer_id: str, owner: str = "") -> s.AnswerRecord:
        self.recalled.append((answer_id, owner))
        if answer_id != "ans_1":
            raise NotFound("There is no such answer, or no more.", "id")
        request = s.AskRequest(question="When?")
        return s.AnswerRecord(created_at="2026-01-05T00:00:00.000+00:00", request=request, response=response())

    async def tools(self, scope: t.Scope, request_id: str) -> tuple[t.ToolSpec, ...]:
        return self.registry.specs(scope.buckets)

    async def use_tool(self, name: str, arguments: Mapping[str, Any], scope: t.Scope, request_id: str) -> ToolOutput:
        self.used.append((name, scope))
        return await self.registry.call(
            name, arguments, ToolContext(BoundRetriever(self.retriever, scope), False, request_id)
        )

    async def buckets(self, scope: t.Scope, request_id: str) -> d.BucketList:
        seen = [b for b in self.described if not scope.buckets or b.name in scope.buckets]
        rows = [d.BucketRow(name=b.name, documents=b.documents, chunks=b.chunks) for b in seen]
        return d.BucketList(buckets=rows, index_version="v1")

    async def documents(self, query: q.DocumentsQuery, request_id: str) -> d.DocumentList:
        return d.DocumentList(documents=[DOCUMENT], total=1, index_version="v1")

    async def read_document(self, query: q.ReadQuery, request_id: str) -> d.DocumentView:
        if query.doc_id != DOCUMENT.doc_id:
            raise NotFound("there is no such document", "doc_id")
        part = d.DocumentPart(text=CITATION.quote, span=CITATION.span, chunk_id=CITATION.chunk_id)
        return d.DocumentView(document=DOCUMENT, parts=[part], span=CITATION.span, chars=5200, index_version="v1")

    async def delete_document(self, query: q.ReadQuery, request_id: str) -> None:
        await self.read_document(query, request_id)

    async def readiness(self) -> s.Readiness:
        return self.ready_now()
