"""Each drafted sentence before it is shown: verified, re-cited, searched for once more, or removed."""

import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from assay import events as ev
from assay.errors import AssayError
from assay.evidence import added_event, in_order
from assay.inert import commands, headings
from assay.run import Run
from assay.schemas import Citation
from assay.searching import arguments_of, called, tool_of
from assay.text import content_terms, query_key, terms
from assay.types import Claim, Draft, Evidence, Plan, SearchResult, SupportRequest, Verified
from assay.verify import Verifier, coverage

# Searches that one answer's sentences may cause, and the passages that each may bring.
SEARCHES, PASSAGES = 2, 3


class Checking:
    """Of the sentences of one answer, in order. ``removed`` counts those that nothing bears out."""

    def __init__(self, run: Run, evidence: Sequence[Evidence]) -> None:
        self._run = run
        self._verifier = Verifier(evidence, run.config.loop.min_support, run.config.reranker.support_weights)
        self._searches = 0
        self._fault: AssayError | None = None  # of the judge, who is then asked no more
        self._told = False
        self.removed = 0

    def header(self, draft: Draft) -> Draft:
        """A table's header, without names where they say more than the question and the evidence."""
        if self._verifier.is_heading(draft, self._run.plan.query):
            return draft
        return Draft("| " + " | ".join([""] * (draft.text.count("|") - 1)) + " |", (), form="header")

    async def check(self, draft: Draft) -> AsyncGenerator[Verified | ev.Event]:
        """The sentence as it may be shown, last, unless it is removed; before it what was done about it."""
        verified = await self._verified(draft)
        if verified is None and self._may_search(draft.text):
            async for event in self._search(draft.text):
                yield event
            verified = await self._verified(draft)
        if self._fault is not None and not self._told:
            self._told = True
            yield self._run.ledger.fell_back("reranker", self._fault, "support by words alone")
        if verified is None:
            self.removed += 1
        else:
            yield verified

    async def _verified(self, draft: Draft) -> Verified | None:
        """Verified by its words, and by the evaluating model where the config asks for that: then citations that the model does
        not find to bear the sentence are left out. What stands in its source letter by letter needs no judge."""
        numbers = dict(self._verifier.numbers)
        verified = self._verifier.verify(draft)
        literal = verified is not None and all(c.quote == verified.text for c in verified.citations)
        if verified is None or literal or self._run.config.reranker.support == "words" or self._fault is not None:
            return verified
        judged = await self._judged(verified)
        if len(judged) < len(verified.citations):
            self._verifier.numbers = numbers  # a number that is not shown is not used up
            judged = [c.model_copy(update={"number": self._verifier.number(c.doc_id)}) for c in judged]
        return replace(verified, citations=tuple(judged), support=max(c.support for c in judged)) if judged else None

    async def _judged(self, verified: Verified) -> list[Citation]:
        """The citations that bear the sentence, with the model's support. One that it cannot judge, and all where it fails,
        stay as the words have them."""
        reranker, ledger = self._run.config.reranker, self._run.ledger
        claims = tuple(
            Claim(verified.text, c.quote, " > ".join(headings(c.title, *c.heading))) for c in verified.citations
        )
        try:
            ledger.check_tokens(ending=True)
            work = self._run.stages.reranker.support(SupportRequest(claims, self._run.id, self._run.request.cache_salt))
            judged = await ledger.call("verify", work, reranker.timeout_s, ending=True)
        except AssayError as error:
            self._fault = error
            return list(verified.citations)
        ledger.usage += judged.usage
        if unknown := sum(map(math.isnan, judged.values)):
            ledger.note("verify", f"{unknown} of {len(claims)} quotes could not be judged by the model: by their words")
        return [
            c if math.isnan(value) else c.model_copy(update={"support": value})
            for c, value in zip(verified.citations, judged.values, strict=True)
            if not value < self._run.config.loop.min_support
        ]

    def _may_search(self, claim: str) -> bool:
        if query_key(claim) in self._run.tried or commands(claim):  # an order that a model repeats claims nothing
            return False
        run, budget = self._run, self._run.ledger.budget
        return (
            run.request.options.self_correct
            and self._searches < SEARCHES
            and run.ledger.calls_left() > 0
            and budget.left_for_answer() > 0
        )

    async def _search(self, claim: str) -> AsyncGenerator[ev.Event]:
        """What the claim itself finds becomes evidence, under the same bounds as every search."""
        run, ledger = self._run, self._run.ledger
        self._searches += 1
        run.tried.add(query_key(claim))
        query = run.query((claim,))
        yield ev.ToolCallStart(tool=tool_of(query), arguments=arguments_of(query))
        start, found, outcome = ledger.budget.clock(), None, "ok"
        try:
            work = run.stages.retriever.search(query)
            found = await ledger.call("verify", work, run.config.retriever.timeout_s, ending=True)
        except AssayError as error:
            outcome = error.code
            yield ledger.fell_back("retriever", error, "no second search for a sentence")
        call = called(query, found, ledger.budget.clock() - start, outcome)
        ledger.tool_calls.append(call)
        ledger.note("verify", f"searched for a sentence without support: {call.hits} hits, {outcome}")
        yield ev.ToolCallResult(tool=call.tool, hits=call.hits, duration_ms=call.duration_ms, outcome=outcome)
        if found and (added := self._added(found)):
            self._verifier.add(added)
            yield added_event(added)

    def _added(self, found: SearchResult) -> tuple[Evidence, ...]:
        run = self._run
        new = run.evidence.new(found.hits)
        added = run.evidence.add(in_order(new), PASSAGES, run.round)
        # What was in the evidence and not among the answer's passages may bear the sentence as well.
        held = {hit.chunk.id for hit in found.hits[:PASSAGES]}
        self._verifier.add([e for e in run.evidence.all if e.hit.chunk.id in held])
        return added


def not_covered(plan: Plan, quotes: Sequence[str]) -> list[str]:
    """What was asked and no quote speaks of: whole sub-questions, or else the question's own words."""
    read = " ".join(quotes)
    if plan.sub_questions:
        return [part for part in plan.sub_questions if coverage(part, read) <= 0.5]
    known = set(terms(read))
    words = [word.strip("?!.,;:'\"()") for word in plan.query.split()]
    asked = set(content_terms(plan.query))
    return [word for word in words if (stems := set(terms(word))) & asked and not stems & known]
