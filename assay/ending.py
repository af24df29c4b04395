"""The ending of one question: an answer of verified sentences, or a clarification, or a plain statement of what is missing."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, get_args

from ulid import ULID

from assay import conflicts
from assay import events as ev
from assay.checking import Checking, not_covered
from assay.clarify import no_results, resume_id
from assay.errors import AssayError, BadModelOutput, StageFault, StageTimeout
from assay.evidence import EvidenceSet
from assay.generate.grammar import finds_nothing
from assay.generate.split import Splitter
from assay.inert import commands, stated
from assay.reconcile import Dating, citing, standing, told
from assay.run import Run
from assay.schemas import (
    Answer,
    AnswerRecord,
    AnswerStatus,
    AskResponse,
    Citation,
    Conflict,
    EvidenceRef,
    Include,
    Sentence,
    Source,
    TerminatedBy,
)
from assay.statements import CUT_SHORT, disagree, left_out, not_written, nothing_found
from assay.text import sentences
from assay.tongues import language_of
from assay.types import Draft, Evidence, GenerateEvent, GenerateRequest, GenerateStyle, Verified
from assay.window import Bounds, recent

log = logging.getLogger(__name__)

# The fallback's quote: sentences from the top passage's start, up to about this many characters.
QUOTE_CHARS = 400
KEEP_S = 1.0
# A plain answer may be about the conversation itself.
HISTORY = Bounds(messages=8, tokens=12_000)  # tokens: here characters


def top_passage(evidence: Evidence) -> Draft:
    """The start of what the best passage states, verbatim: what is said when the generator cannot. It states something, and no
    order to a model is quoted with it."""
    text = evidence.hit.chunk.text
    spans, said = sentences(text), stated(text)
    start, end = said[0]
    for span in spans[spans.index(said[0]) + 1 :]:
        if span not in said or commands(text[end : span[0]]) or span[1] - start > QUOTE_CHARS:
            break
        end = span[1]
    return Draft(text[start:end], (evidence.slot,), (start, end))


class Ending:
    def __init__(self, run: Run) -> None:
        self._run, self._ledger = run, run.ledger
        self._id = f"ans_{ULID()}"
        self._style: GenerateStyle = "prose" if run.said is not None else _style(run)
        self._text = ""
        self._header: Draft | None = None
        self._sentences: list[Sentence] = []
        self._citations: list[Citation] = []
        self._conflicts: list[Conflict] = []
        self._missing: list[str] = []
        self._statement: str | None = None
        self._partial = False
        self._nothing = False

    async def events(self) -> AsyncGenerator[ev.Event]:
        if not self._run.plan.search:
            async with aclosing(self._plain()) as events:
                async for event in events:
                    yield event
        elif await self._answerable():
            yield self._run.status("answering")
            async with aclosing(self._generate()) as events:
                async for event in events:
                    yield event
            if self._unfounded():
                async with aclosing(self._instead()) as events:
                    async for event in events:
                        yield event
        if not self._text and self._run.plan.search:
            yield self._say_why()
        self._ledger.note("end", f"{self._end()}: {self._run.why}" if self._run.why else self._end())
        if fault := await self._keep():
            yield self._ledger.fell_back("answers", fault, "an answer that is not kept")
        yield ev.CompletedEvent(response=self._response(self._run.request.include))

    async def _keep(self) -> AssayError | None:
        """Puts the whole answer where it can be read again; what went wrong, if anything did. It may take a moment beyond the
        deadline: an answer that is there and not kept cannot be looked into."""
        store = self._run.stages.answers
        if store is None:
            return None
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = AnswerRecord(created_at=now, request=self._run.sent, response=self._response(get_args(Include)))
        try:
            with self._ledger.timed("keep"):
                async with asyncio.timeout(KEEP_S):
                    await store.put(record, self._run.sent.owner)
        except TimeoutError:
            return StageTimeout(f"timeout after {KEEP_S:.1f} s")
        except AssayError as error:
            return error
        return None

    async def _answerable(self) -> bool:
        run = self._run
        if run.clarification is not None or not run.evidence.all:
            return False
        if run.said is not None:
            return True  # the model has weighed it
        grade, bounds = run.grade or await run.measure(), run.config.reranker.grade
        holds = grade.p_holds >= bounds.min_holds or grade.p_enough >= bounds.enough  # in steps, if in no sentence
        if grade.p_about < bounds.min_answer:
            run.why = f"about the question with probability {grade.p_about:.2f}, of {bounds.min_answer:g} asked for"
        elif not holds:
            run.why = f"holds what is asked with probability {grade.p_holds:.2f}, of {bounds.min_holds:g} asked for"
        return holds and grade.p_about >= bounds.min_answer

    def _unfounded(self) -> bool:
        """Whether the model of the conversation answers, and nothing of it stands on the evidence."""
        said = self._run.said
        return said is not None and not self._sentences and not finds_nothing(said)

    async def _instead(self) -> AsyncGenerator[ev.Event]:
        reason = "no sentence of its answer is borne out by the evidence"
        yield self._ledger.fell_back("agent", reason, "the generator's answer")
        self._run.said, self._style = None, _style(self._run)
        if await self._answerable():
            async with aclosing(self._generate()) as events:
                async for event in events:
                    yield event

    async def _plain(self) -> AsyncGenerator[ev.Event]:
        """An answer to what needs no documents. It is not verified, and marked as what it is by its style."""
        self._run.end = "answered"
        yield self._run.status("answering")
        try:
            async with aclosing(self._drafts((), "plain")) as items:
                async for item in items:
                    for event in self._told(item):
                        yield event
                    if item.draft is not None:
                        yield self._say(item.draft.text, "\n")
        except AssayError as error:
            self._partial = True
            yield self._ledger.fell_back("generator", error, "the part so far" if self._text else "no answer")
        if not self._text:
            self._partial = True
            self._statement = not_written(self._run.plan.reason)
            yield self._say(self._statement)
        self._ledger.note("generate", f"without a search: {self._run.plan.reason}")

    def _say_why(self) -> ev.Event:
        """Clarify from facts, or say plainly that nothing was found and what was searched."""
        run = self._run
        if run.may_ask and run.clarification is None and run.explain is not None and run.explain.blocking is not None:
            run.clarification = no_results(run.explain, run.request.filters, run.plan.filters)
            run.why = "a condition leaves no passage"
        if run.clarification is not None:
            run.end = "clarify"
            if run.stages.answers is not None:
                run.clarification = run.clarification.model_copy(update={"resume": resume_id(self._id)})
            return ev.ClarifyEvent(clarification=run.clarification)
        self._nothing = True
        if self._end() not in CUT_SHORT:
            run.end = "no_evidence"
        self._statement = nothing_found(run.searched, run.scope.buckets, run.explain, self._end())
        return self._say(self._statement)

    async def _generate(self) -> AsyncGenerator[ev.Event]:
        """A verified sentence at a time; when the generator fails before the first, the top passage, quoted and cited."""
        evidence = self._run.best() if self._run.said is None else self._run.evidence.all
        if self._run.said is None:
            kept = {e.slot for e in evidence}
            if left := [e.slot for e in self._run.evidence.all if e.slot not in kept]:
                yield self._prune(left, "left out of the answer's evidence")
        checking = Checking(self._run, evidence)
        try:
            async with aclosing(self._drafts(evidence, self._style)) as items:
                async for item in items:
                    for event in self._told(item):
                        yield event
                    if item.draft is not None and item.draft.form == "header":
                        self._header = checking.header(item.draft)
                    elif item.draft is not None:
                        async for event in self._checked(checking, item.draft):
                            yield event
        except AssayError as error:
            if self._sentences:
                self._partial = True
                yield self._ledger.fell_back("generator", error, "the sentences so far")
            else:
                top = next((e for e in evidence if stated(e.hit.chunk.text)), None)
                yield self._ledger.fell_back("generator", error, "the top passage, quoted" if top else "no answer")
                if top is not None:
                    async for event in self._checked(checking, top_passage(top)):
                        yield event
        async for event in self._disagreements(checking, evidence):
            yield event
        if checking.removed:
            yield self._ledger.fell_back("verify", f"{checking.removed} sentences without support", "left out")
            if self._sentences:
                self._missing = not_covered(self._run.plan, [c.quote for c in self._citations])
                yield self._say(left_out(checking.removed, self._missing), "\n\n")
        self._ledger.note("generate", f"{len(self._sentences)} sentences, {len(self._citations)} citations")

    async def _checked(self, checking: Checking, draft: Draft) -> AsyncGenerator[ev.Event]:
        async for found in checking.check(draft):
            for event in self._show(draft, found) if isinstance(found, Verified) else [found]:
                yield event

    async def _disagreements(self, checking: Checking, evidence: tuple[Evidence, ...]) -> AsyncGenerator[ev.Event]:
        """Where the answer rests on what another document says otherwise, that one is cited too, and both are said."""
        dating = Dating(self._run)
        found: tuple[conflicts.Conflict, ...] = ()
        try:
            found = standing(self._run.plan.query, evidence, self._citations)
        except Exception as bug:  # whatever a text does to the look at it, the answer is there and stays
            log.exception("no conflicts are looked for in the answer %s", self._id)
            fault = StageFault(f"looking for conflicts failed: {type(bug).__name__}")
            yield self._ledger.fell_back("conflicts", fault, "an answer not compared with the other documents")
        for conflict in found:
            for side in conflict.sides:
                if citing(side, self._citations) is None:
                    async for event in self._checked(checking, Draft(side.text, (side.evidence.slot,), side.span)):
                        yield event
            async for event in dating.look(conflict):
                yield event
            self._conflicts.append(told(conflict, self._citations, dating.infos))
            self._ledger.note("conflict", statement := disagree(self._conflicts[-1]))
            yield self._say(statement, "\n\n")

    def _told(self, item: GenerateEvent) -> list[ev.Event]:
        """What the generator says beside its drafts."""
        if item.usage is not None:
            self._ledger.usage += item.usage
        if item.cut is not None:
            self._ledger.note("prune", f"{item.cut} cut: the prompt has room for its beginning alone")
        if item.left_out:
            return [self._prune(list(item.left_out), "left out: the prompt has no room for them")]
        if item.degraded is not None:
            return [self._ledger.fell_back(item.degraded.stage, item.degraded.reason, item.degraded.fallback)]
        return [ev.ReasoningEvent(delta=item.reasoning)] if item.reasoning else []

    def _prune(self, slots: list[str], why: str) -> ev.EvidenceEvent:
        self._ledger.note("prune", f"{', '.join(slots)} {why}")
        return ev.EvidenceEvent(pruned=slots)

    def _say(self, text: str, lead: str = "") -> ev.AnswerEvent:
        """What is streamed is, to the character, the text of the answer."""
        delta = (lead if self._text else "") + text
        self._text += delta
        return ev.AnswerEvent(delta=delta)

    async def _drafts(self, evidence: tuple[Evidence, ...], style: GenerateStyle) -> AsyncGenerator[GenerateEvent]:
        """The generator's events, under one deadline for all of them together; or what the conversation ended with."""
        if self._run.said is not None and style != "plain":
            if finds_nothing(self._run.said):
                return
            splitter = Splitter("prose", [e.slot for e in evidence])
            whole = splitter.feed(self._run.said)
            if self._run.cut_off and not whole:  # whoever is asked next would write a whole answer once more
                raise BadModelOutput("the answer was cut off within its first sentence")
            for draft in whole if self._run.cut_off else (*whole, *splitter.end()):
                yield GenerateEvent(draft=draft)
            for fault in splitter.faults():
                yield fault
            return
        run, clock = self._run, self._ledger.budget.clock
        request = GenerateRequest(
            question=run.plan.query,
            evidence=evidence,
            style=style,
            history=recent(run.history, HISTORY) if style == "plain" else (),
            answer_tokens=min(self._ledger.budget.answer_tokens, max(1, self._ledger.tokens_left(ending=True))),
            request_id=run.id,
            cache_salt=run.request.cache_salt,
        )
        self._ledger.check_tokens(ending=True)
        until = clock() + run.config.generator.timeout_s
        async with aclosing(run.stages.generator.generate(request)) as stream:
            while True:
                try:
                    item = await self._ledger.call("generate", anext(stream), until - clock(), ending=True)
                except StopAsyncIteration:
                    return
                yield item

    def _show(self, draft: Draft, verified: Verified) -> list[ev.Event]:
        numbers = list(dict.fromkeys(c.number for c in verified.citations))
        apart = self._style in ("list", "table") and draft.form == "sentence"
        lead = " " if self._style == "prose" else "\n\n" if apart else "\n"
        text = f"- {verified.text}" if draft.form == "item" else verified.text
        said: list[ev.Event] = []
        if self._header is not None:
            said.append(self._say(_header(self._header)))
            self._header = None
        self._sentences.append(Sentence(text=verified.text, citations=numbers, support=verified.support))
        self._citations.extend(verified.citations)
        said.append(self._say(_marked(text, numbers), lead))
        return [*said, *(ev.CitationEvent(citation=c) for c in verified.citations)]

    def _answer(self) -> Answer | None:
        if not self._text:
            return None
        style: Any = self._style if self._run.plan.search else "plain"
        return Answer(
            text=self._text,
            sentences=self._sentences,
            style="statement" if self._statement is not None else style,
            language=language_of(self._text),
            missing=self._missing,
        )

    def _end(self) -> TerminatedBy:
        """A stage that the budget cut short makes it the deadline's end, whatever the loop would have done next."""
        end = self._run.end or "answered"
        return "deadline" if self._ledger.late and end in ("answered", "rounds", "no_evidence") else end

    def _status(self) -> AnswerStatus:
        end = self._end()
        if end == "clarify":
            return end
        if self._nothing and (end != "deadline" or self._run.evidence.all):
            return "no_evidence"
        return "partial" if self._partial or end == "deadline" else "answered"

    def _response(self, include: Sequence[Include]) -> AskResponse:
        run = self._run
        return AskResponse(
            id=self._id,
            request_id=run.id,
            status=self._status(),
            terminated_by=self._end(),
            answer=self._answer(),
            citations=self._citations,
            sources=_sources(self._citations),
            conflicts=self._conflicts,
            clarification=run.clarification,
            degraded=self._ledger.degraded,
            index_version=run.index_version,
            rounds=run.round,
            usage=self._ledger.usage,
            timings_ms=self._ledger.timings_ms(),
            trace=self._ledger.trace if "trace" in include else None,
            tool_calls=self._ledger.tool_calls if "tool_calls" in include else None,
            evidence=_references(run.evidence) if "evidence" in include else None,
            state=run.state() if "state" in include else None,
        )


def _style(run: Run) -> GenerateStyle:
    """The request's; else the plan's, where the model writes at all."""
    usual = run.config.generator.style
    if run.request.style != "auto":
        return run.request.style
    return run.plan.style if run.plan.style is not None and usual != "extract" else usual


def _marked(text: str, numbers: list[int]) -> str:
    """With the marks of its sources, which in a table stand in the last cell."""
    marks = "".join(f" [{number}]" for number in numbers)
    return f"{text[:-2]}{marks} |" if text.startswith("| ") and text.endswith(" |") else text + marks


def _header(draft: Draft) -> str:
    columns = draft.text.count("|") - 1
    return f"{draft.text}\n|{' --- |' * columns}"


def _sources(citations: list[Citation]) -> list[Source]:
    """In the order of their numbers."""
    first = {c.number: c for c in reversed(citations)}
    return [
        Source(number=number, doc_id=c.doc_id, bucket=c.bucket, title=c.title, uri=c.uri)
        for number, c in sorted(first.items())
    ]


def _references(found: EvidenceSet) -> list[EvidenceRef]:
    """In the order of their slots."""
    rank = {e.slot: number for number, e in enumerate(found.best(len(found.all)), start=1)}
    return [
        EvidenceRef(
            slot=e.slot,
            chunk_id=e.hit.chunk.id,
            doc_id=e.hit.chunk.doc_id,
            title=e.hit.chunk.title,
            uri=e.hit.chunk.uri,
            span=(e.hit.chunk.start, e.hit.chunk.end),
            rank=rank[e.slot],
            score=e.score,
            sources=sorted(e.hit.ranks),
            round=e.round,
            untrusted=e.hit.chunk.untrusted,
            hidden=e.hit.chunk.hidden,
        )
        for e in found.all
    ]
