"""Conflicts that bear on an answer: which of them do, which document is the newest, and what is told of it.

A conflict stands where the answer rests on one of its sides; the ending then cites the others too.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence

from assay import conflicts
from assay import events as ev
from assay.bound import BoundRetriever
from assay.errors import AssayError
from assay.run import Run
from assay.schemas import Citation, Conflict, ConflictSide, ToolCall
from assay.sentences import Span
from assay.types import DocumentInfo, DocumentQuery, Evidence

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def citing(side: conflicts.Side, citations: Sequence[Citation]) -> Citation | None:
    """The citation that rests on a side's sentence."""
    chunk = side.evidence.hit.chunk
    start, end = chunk.start + side.span[0], chunk.start + side.span[1]
    return next((c for c in citations if c.chunk_id == chunk.id and c.span[0] < end and start < c.span[1]), None)


def standing(
    question: str, evidence: Sequence[Evidence], citations: Sequence[Citation]
) -> tuple[conflicts.Conflict, ...]:
    starts = {e.hit.chunk.id: e.hit.chunk.start for e in evidence}
    rests_on: dict[int, list[Span]] = {}
    for c in citations:
        if (start := starts.get(c.chunk_id)) is not None:
            rests_on.setdefault(c.chunk_id, []).append((c.span[0] - start, c.span[1] - start))
    return conflicts.find(question, evidence, rests_on) if rests_on else ()


def told(conflict: conflicts.Conflict, citations: Sequence[Citation], infos: Mapping[str, DocumentInfo]) -> Conflict:
    """As the response has it. ``infos``: of the documents, by id, as far as they are known."""
    cited = [(side, c) for side in conflict.sides if (c := citing(side, citations)) is not None]
    dates = dates_of([infos.get(c.doc_id) for _, c in cited])
    sides = [
        ConflictSide(number=c.number, slot=side.evidence.slot, value=side.value, quote=side.text, date=date)
        for (side, c), date in zip(cited, dates, strict=True)
    ]
    ordered = sorted((side for side in sides if side.date), key=lambda side: side.date or "", reverse=True)
    sure = len(ordered) == len(sides) and ordered[0].date != ordered[1].date
    return Conflict(kind=conflict.kind, sides=sides, newest=ordered[0].number if sure else None)


def dates_of(infos: Sequence[DocumentInfo | None]) -> list[str | None]:
    """The day of each document by a date field that all of them have; none where there is no such field, or where several put
    them in different orders: nobody knows then which is the newer one."""
    nothing: list[str | None] = [None] * len(infos)
    held = [{k: v for k, v in info.metadata.items() if isinstance(v, str)} if info else {} for info in infos]
    fields = [name for name in (held[0] if held else ()) if all(_DATE.match(each.get(name, "")) for each in held)]
    orders = [sorted(range(len(held)), key=lambda n, name=name: held[n][name]) for name in fields]  # type: ignore[misc]
    if not orders or any(order != orders[0] for order in orders):
        return nothing
    return [each[fields[0]][:10] for each in held]


class Dating:
    """Looks up what is known of documents, as calls of the question's budget. ``infos``: what was found, by id."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.infos: dict[str, DocumentInfo] = {}

    async def look(self, conflict: conflicts.Conflict) -> AsyncGenerator[ev.Event]:
        """Not where the budget does not reach for all of them: a part says nothing. Nor what is not of the collection."""
        run, ledger = self._run, self._run.ledger
        chunks = [side.evidence.hit.chunk for side in conflict.sides]
        wanted = [chunk.doc_id for chunk in chunks if chunk.doc_id not in self.infos]
        if any(chunk.untrusted for chunk in chunks) or len(wanted) > ledger.calls_left():
            return
        for doc_id in wanted:
            name, arguments = "get_document_metadata", {"doc_id": doc_id}
            yield ev.ToolCallStart(tool=name, arguments=arguments)
            start, outcome = ledger.budget.clock(), "ok"
            query = DocumentQuery(doc_id, request_id=run.id)
            try:
                work = BoundRetriever(run.stages.retriever, run.scope).get_document_metadata(query)
                self.infos[doc_id] = await ledger.call("verify", work, run.config.retriever.timeout_s, ending=True)
            except AssayError as error:
                outcome = error.code
                yield ledger.fell_back("retriever", error, "which of the documents is newer is not said")
            spent = round(1000 * (ledger.budget.clock() - start), 2)
            filters = run.scope.filters
            ledger.tool_calls.append(
                ToolCall(tool=name, arguments=arguments, filters=filters, hits=0, duration_ms=spent, outcome=outcome)
            )
            yield ev.ToolCallResult(tool=name, hits=0, duration_ms=spent, outcome=outcome)
            if outcome != "ok":
                return
