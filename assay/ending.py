"""The ending of one question: an answer of verified sentences, or a clarification, or a plain statement of what is missing."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ulid import ULID

from assay import events as ev
from assay.errors import AssayError
from assay.run import Run
from assay.schemas import Answer, AnswerStatus, AskResponse, Citation, EvidenceRef, Sentence, TerminatedBy
from assay.statements import no_results, nothing_found
from assay.text import sentences
from assay.types import Draft, Evidence, GenerateEvent, GenerateRequest
from assay.verify import Verifier

# The fallback's quote: sentences from the top passage's start, up to about this many characters.
QUOTE_CHARS = 400


def top_passage(evidence: Evidence) -> Draft:
    """The start of the best passage, verbatim: what is said when the generator cannot."""
    text = evidence.hit.chunk.text
    spans = sentences(text) or [(0, len(text))]
    start, end = spans[0]
    for _, until in spans[1:]:
        if until - start > QUOTE_CHARS:
            break
        end = until
    return Draft(text[start:end], (evidence.slot,), (start, end))


class Ending:
    def __init__(self, run: Run) -> None:
        self._run, self._ledger = run, run.ledger
        style = run.request.style
        self._style = run.config.generator.style if style == "auto" else style
        self._sentences: list[Sentence] = []
        self._citations: list[Citation] = []
        self._statement: str | None = None
        self._partial = False

    async def events(self) -> AsyncGenerator[ev.Event]:
        if await self._answerable():
            yield self._run.status("answering")
            async with aclosing(self._generate()) as events:
                async for event in events:
                    yield event
        if not self._sentences:
            yield self._say_why()
        yield ev.CompletedEvent(response=self._response())

    async def _answerable(self) -> bool:
        run = self._run
        if run.clarification is not None or not run.evidence.all:
            return False
        grade = run.grade or await run.measure()
        return grade.p_enough >= run.config.reranker.grade.min_answer

    def _say_why(self) -> ev.Event:
        """Clarify from facts, or say plainly that nothing was found and what was searched."""
        run = self._run
        if run.clarification is None and run.explain is not None and run.explain.blocking is not None:
            run.clarification = no_results(run.explain, run.request.filters)
        if run.clarification is not None:
            run.end = "clarify"
            return ev.ClarifyEvent(clarification=run.clarification)
        if run.end != "deadline" or run.evidence.all:
            run.end = "no_evidence"
        self._statement = nothing_found(run.searched, run.request.buckets, run.explain)
        return ev.AnswerEvent(delta=self._statement)

    async def _generate(self) -> AsyncGenerator[ev.Event]:
        """A verified sentence at a time; when the generator fails before the first, the top passage, quoted and cited."""
        evidence = self._run.best()
        verifier = Verifier(evidence, self._run.config.loop.min_support)
        dropped = 0
        try:
            async with aclosing(self._drafts(evidence)) as items:
                async for item in items:
                    if item.usage is not None:
                        self._ledger.usage += item.usage
                    if item.degraded is not None:
                        yield self._ledger.fell_back(item.degraded.stage, item.degraded.reason, item.degraded.fallback)
                    if item.reasoning:
                        yield ev.ReasoningEvent(delta=item.reasoning)
                    if item.draft is not None:
                        shown = self._show(item.draft, verifier)
                        dropped += not shown
                        for event in shown:
                            yield event
        except AssayError as error:
            if self._sentences:
                self._partial = True
                yield self._ledger.fell_back("generator", error, "the sentences so far")
            else:
                yield self._ledger.fell_back("generator", error, "the top passage, quoted")
                for event in self._show(top_passage(evidence[0]), verifier):
                    yield event
        if dropped:
            yield self._ledger.fell_back("verify", f"{dropped} sentences without support", "left out")
        self._ledger.note("generate", f"{len(self._sentences)} sentences, {len(self._citations)} citations")

    async def _drafts(self, evidence: tuple[Evidence, ...]) -> AsyncGenerator[GenerateEvent]:
        """The generator's events, under one deadline for all of them together."""
        run, clock = self._run, self._ledger.budget.clock
        request = GenerateRequest(
            question=run.plan.query,
            evidence=evidence,
            style=self._style,
            answer_tokens=self._ledger.budget.answer_tokens,
            request_id=run.id,
        )
        until = clock() + run.config.generator.timeout_s
        async with aclosing(run.stages.generator.generate(request)) as stream:
            while True:
                try:
                    item = await self._ledger.call("generate", anext(stream), until - clock(), ending=True)
                except StopAsyncIteration:
                    return
                yield item

    def _show(self, draft: Draft, verifier: Verifier) -> list[ev.Event]:
        verified = verifier.verify(draft)
        if verified is None:
            return []
        numbers = list(dict.fromkeys(c.number for c in verified.citations))
        lead = "\n" if self._sentences else ""
        self._sentences.append(Sentence(text=verified.text, citations=numbers, support=verified.support))
        self._citations.extend(verified.citations)
        delta = lead + _marked(self._sentences[-1])
        return [ev.AnswerEvent(delta=delta), *(ev.CitationEvent(citation=c) for c in verified.citations)]

    def _answer(self) -> Answer | None:
        if self._statement is not None:
            return Answer(text=self._statement, style="statement")
        if not self._sentences:
            return None
        return Answer(text="\n".join(map(_marked, self._sentences)), sentences=self._sentences, style=self._style)

    def _end(self) -> TerminatedBy:
        """A stage that the budget cut short makes it the deadline's end, whatever the loop would have done next."""
        end = self._run.end or "answered"
        return "deadline" if self._ledger.late and end in ("answered", "rounds") else end

    def _status(self) -> AnswerStatus:
        end = self._end()
        if end in ("clarify", "no_evidence"):
            return end
        return "partial" if self._partial or end == "deadline" else "answered"

    def _response(self) -> AskResponse:
        run, include = self._run, self._run.request.include
        return AskResponse(
            id=f"ans_{ULID()}",
            request_id=run.id,
            status=self._status(),
            terminated_by=self._end(),
            answer=self._answer(),
            citations=self._citations,
            clarification=run.clarification,
            degraded=self._ledger.degraded,
            index_version=run.index_version,
            rounds=run.round,
            usage=self._ledger.usage,
            timings_ms=self._ledger.timings_ms(),
            trace=self._ledger.trace if "trace" in include else None,
            tool_calls=self._ledger.tool_calls if "tool_calls" in include else None,
            evidence=[_reference(e) for e in run.evidence.all] if "evidence" in include else None,
        )


def _marked(sentence: Sentence) -> str:
    return sentence.text + "".join(f" [{number}]" for number in sentence.citations)


def _reference(evidence: Evidence) -> EvidenceRef:
    chunk = evidence.hit.chunk
    return EvidenceRef(
        slot=evidence.slot,
        chunk_id=chunk.id,
        doc_id=chunk.doc_id,
        title=chunk.title,
        score=evidence.score,
        sources=sorted(evidence.hit.ranks),
        round=evidence.round,
    )
