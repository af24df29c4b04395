"""Mode ``tools``: the model calls tools in one conversation until it calls none; that turn is the answer.

The question's own search stands at its beginning, so that a simple question takes one turn. What tools find becomes evidence
in slots, appended and never rewritten, so that each turn's prompt begins with the one before. The last turn may not call.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from assay import events as ev
from assay.bound import BoundRetriever
from assay.errors import AssayError, InvalidRequest, StageTimeout
from assay.evidence import added_event, in_order
from assay.expand import CARDS, described
from assay.inert import inert, passage
from assay.llm.wire import tool_body
from assay.ports import LLM, Tokenizer
from assay.run import Run, top_k
from assay.schemas import TerminatedBy, ToolCall
from assay.searching import DEPTH
from assay.templates import Prompts
from assay.text import query_key
from assay.tokens import CHARS, MESSAGE_TOKENS, room
from assay.tools import Registry, ToolContext, ToolOutput
from assay.types import (
    BucketInfo,
    Completion,
    CompletionRequest,
    Hit,
    Message,
    SearchQuery,
    SearchResult,
    ToolSpec,
    ToolUse,
)
from assay.window import Bounds, recent, shortened, stepped

# How a passage is cut off and shown says nothing new, so that another size of it is no other query.
_SIZES = ("top_k", "context_chars", "max_chars")
MOST_MESSAGES = 200  # of a history: the tokens decide
LEAST_SHARE = 16  # tokens of a message that is shortened
# Room for less evidence than this is none.
LEAST_TOKENS = 100
# What templates say of tools before their schemas, and around each call and its result.
TOOLS_TOKENS, CALL_TOKENS = 100, 32
LEAST_RESULT = 4  # of what a call found, where there is no room for more


@dataclass(frozen=True, slots=True)
class Agent:
    """Who holds the conversation, and with what."""

    llm: LLM
    tokenizer: Tokenizer
    tools: Registry
    prompts: Prompts = Prompts()
    context_tokens: int | None = None
    """Of the engine's prompt and output together, where they are known."""
    indent: int | None = 4
    """Of tools' schemas in the model's own chat template."""


@dataclass(slots=True)
class _Done:
    """A call that was made, or that was not since it would only repeat one."""

    use: ToolUse
    output: ToolOutput
    outcome: str
    duration_ms: float


class _Fair(BoundRetriever):
    """Gives as many hits as it is asked for, but looks deeper for them, as the loop does: else near-copies, or one large
    document, take all places before the evidence's caps are asked."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.stages.retriever, run.scope)
        self._run = run

    async def search(self, query: SearchQuery) -> SearchResult:
        depth = max(query.top_k, min(self._run.config.retriever.fetch, DEPTH * query.top_k))
        found = await super().search(replace(query, top_k=depth))
        return replace(found, hits=self._run.evidence.chosen(found.hits, query.top_k))


class Conversation:
    def __init__(self, run: Run, agent: Agent) -> None:
        self._run, self._agent, self._config = run, agent, run.config.tools
        self._ledger = run.ledger
        self._context = ToolContext(_Fair(run), run.may_link, run.id)
        self._tried = {_key("search_hybrid", {"query": run.request.question})}
        self._tokens_left = self._config.evidence_tokens
        self._spare = 0  # tokens of the model's context beyond them
        self._faulty = 0
        self._specs: tuple[ToolSpec, ...] = ()

    async def events(self) -> AsyncGenerator[ev.Event]:
        """Leaves the evidence in the run, and in ``run.said`` what the model answers with, if it came to that."""
        run = self._run
        yield run.status("searching")
        async for event in run.search():
            yield event
        buckets: tuple[BucketInfo, ...] = ()
        try:
            work = run.stages.retriever.describe(run.scope)
            buckets = await self._ledger.call("describe", work, self._config.timeout_s)
        except AssayError as error:  # a bucket that does not exist is then told by the tool
            yield self._ledger.fell_back("retriever", error, "tools without the buckets' names")
        self._specs = self._agent.tools.specs([bucket.name for bucket in buckets])
        opening, context_left = self._opened(buckets)
        self._tokens_left = min(self._config.evidence_tokens, context_left)
        self._spare = context_left - self._tokens_left
        first = run.evidence.chosen(run.found.hits, top_k(run.request, run.config)) if run.found else ()
        if self._tokens_left < LEAST_TOKENS:  # whatever it would be shown: nothing fits
            if fresh := run.evidence.new(first):
                yield self._added(fresh)
            why = f"a context of {self._agent.context_tokens} tokens has no room for passages beside the tools"
            yield self._ledger.fell_back("agent", why, "an answer from the evidence so far")
            return
        hits = self._fitting(first, self._tokens_left // 2)
        if hits:
            yield self._added(hits)
        shown = self._shown(hits)
        self._tokens_left -= self._agent.tokenizer.count(shown)
        first_found = opening.pop()
        messages = [*opening, replace(first_found, content=f"{first_found.content}{shown or 'nothing'}")]
        ended: TerminatedBy | None = None
        for turn in range(1, self._ledger.budget.rounds + 1):
            ended = ended or self._bound(turn)
            yield run.status("answering" if ended else "planning")
            try:
                said = await self._say(messages, ended is not None)
            except AssayError as error:
                run.end = "deadline" if self._ledger.late else ended
                yield self._ledger.fell_back("agent", error, "an answer from the evidence so far")
                return
            if said.reasoning:
                yield ev.ReasoningEvent(delta=said.reasoning)
            if ended or not said.tool_uses:
                run.why = run.why or "the model calls no more tools"
                run.said, run.end = said.text, ended or "answered"
                run.cut_off = said.finish_reason != "stop"
                if run.cut_off:
                    yield self._ledger.fell_back("agent", "the answer was cut off", "its complete sentences")
                return
            run.round += 1
            self._append(messages, Message("assistant", said.text, said.tool_uses, reasoning=said.reasoning))
            before = len(run.evidence.all)
            noted = False
            for use in said.tool_uses:
                yield ev.ToolCallStart(tool=use.name, arguments=dict(use.arguments))
            done = await self._call_all(said.tool_uses)
            for each in done:
                for event in self._told(each):
                    yield event
                hits = self._fitting(each.output.hits)
                known = [e.slot for e in run.evidence.all if e.hit.chunk.id in {h.chunk.id for h in each.output.hits}]
                if hits:
                    yield self._added(hits)
                noted = noted or (each.outcome == "ok" and not each.output.hits and not each.output.empty)
                self._append(messages, Message("tool", self._result(each, hits, known), tool_use_id=each.use.id))
            ended = self._idle(done, len(run.evidence.all) > before or noted)

    # ---- bounds -----------------------------------------------------------------------------------------------------

    def _bound(self, turn: int) -> TerminatedBy | None:
        """The bound that makes this turn the last one."""
        if turn == self._ledger.budget.rounds:
            return self._because("rounds", f"{turn} rounds are all")
        if self._ledger.budget.left_for_search() <= 0:
            return self._because("deadline", "the time for searching is over")
        # A turn that is not the last one may write as much as an answer, and what it calls for says something.
        context_left = self._tokens_left + self._spare - self._ledger.budget.answer_tokens - LEAST_TOKENS
        if (
            self._ledger.calls_left() <= 0
            or min(self._tokens_left, self._ledger.tokens_left(), context_left) < LEAST_TOKENS
        ):
            return self._because("tool_budget", "no more tool calls, or no more tokens for what they bring")
        return None

    def _because(self, end: TerminatedBy, why: str) -> TerminatedBy:
        self._run.why = why
        return end

    def _opened(self, buckets: tuple[BucketInfo, ...]) -> tuple[list[Message], int]:
        """The conversation up to what the first search found, and the tokens that the engine's context then leaves: with the
        buckets' descriptions as long as they take no more than half of it, and a share of the rest for older turns."""
        tokenizer, context = self._agent.tokenizer, self._agent.context_tokens
        tools = "\n".join(json.dumps(tool_body(spec), indent=self._agent.indent) for spec in self._specs)
        output = self._ledger.budget.answer_tokens + TOOLS_TOKENS
        question = Message("user", f"Question: {inert(self._run.request.question)}\n\nA first search for it found:\n")

        def beside(most: int) -> tuple[Message, int]:
            cards = described(buckets, with_fields=True, most=most)
            system = Message("system", self._agent.prompts["agent"].fill(buckets=cards))
            return system, room(tokenizer, context, output, (system, question), tools)

        system, left = beside(CARDS[-1])
        enough = min(self._config.evidence_tokens, left // 2)
        for most in CARDS[:-1]:
            described_by, rest = beside(most)
            if rest >= enough:
                system, left = described_by, rest
                break
        history = self._history(left)
        left -= sum(tokenizer.count(message.content) + MESSAGE_TOKENS for message in history)
        return [system, *history, question], left

    def _written(self, *texts: str) -> int:
        return sum(map(self._agent.tokenizer.count, texts))

    def _append(self, messages: list[Message], message: Message) -> None:
        messages.append(message)
        calls = [text for use in message.tool_uses for text in (use.name, use.written)]
        marks = MESSAGE_TOKENS + CALL_TOKENS * len(message.tool_uses)
        self._tokens_left -= self._written(message.content, message.reasoning, *calls) + marks

    def _idle(self, done: list[_Done], brought: bool) -> TerminatedBy | None:
        """A round that brings nothing is the last one: "answered" by what is there. One of nothing but faults may be tried
        again once."""
        self._faulty = self._faulty + 1 if all(each.outcome not in ("ok", "repeated") for each in done) else 0
        return None if brought or self._faulty == 1 else self._because("answered", "a round brought nothing")

    # ---- the model --------------------------------------------------------------------------------------------------

    async def _say(self, messages: list[Message], last: bool) -> Completion:
        run = self._run
        self._ledger.check_tokens(ending=last)
        request = CompletionRequest(
            messages=tuple(messages),
            max_tokens=self._ledger.budget.answer_tokens,
            tools=self._specs,
            tool_choice="none" if last else "auto",
            request_id=run.id,
            cache_salt=run.request.cache_salt,
        )
        said = await self._ledger.call("agent", self._agent.llm.complete(request), self._config.turn_s, ending=last)
        self._ledger.usage += said.usage
        self._ledger.note("agent", _summary(said))
        return said

    def _history(self, left: int) -> tuple[Message, ...]:
        """The last turns, within a quarter of the evidence's tokens, and of those that are ``left``."""
        most = stepped(self._config.evidence_tokens // 4, max(0, left) // 4)
        tokenizer = self._agent.tokenizer
        # What is counted has few characters: to count all takes long.
        held = [replace(message, content=message.content[: CHARS * most]) for message in self._run.history]
        near = recent(shortened(held, most, tokenizer, LEAST_SHARE), Bounds(MOST_MESSAGES, 2 * CHARS * most))
        said = [replace(message, content=inert(message.content)) for message in near]
        return recent(shortened(said, most, tokenizer, LEAST_SHARE), Bounds(MOST_MESSAGES, most), tokenizer.count)

    # ---- the tools --------------------------------------------------------------------------------------------------

    async def _call_all(self, uses: tuple[ToolUse, ...]) -> list[_Done]:
        """Every call's result or fault in their order, side by side; what is over the budget or only repeats is not made."""
        left, made = self._ledger.calls_left(), list[_Done | asyncio.Task[_Done]]()
        async with asyncio.TaskGroup() as group:
            with self._ledger.timed("tools"):
                for number, use in enumerate(uses):
                    key = self._key(use)
                    if number >= left:
                        note = "Not run: no more calls are allowed. Answer now."
                        made.append(_Done(use, ToolOutput(note=note), "tool_budget", 0.0))
                    elif use.fault is not None:
                        made.append(_Done(use, ToolOutput(note=use.fault), "invalid_request", 0.0))
                    elif key in self._tried:
                        made.append(_Done(use, ToolOutput(note="This was asked before; see above."), "repeated", 0.0))
                    else:
                        self._tried.add(key)
                        made.append(group.create_task(self._call(use)))
                return [each if isinstance(each, _Done) else await each for each in made]

    def _key(self, use: ToolUse) -> str:
        """To name the only bucket that may be asked says nothing."""
        only = self._run.scope.buckets == (use.arguments.get("bucket"),)
        return _key(use.name, {**use.arguments, "bucket": None} if only else use.arguments)

    async def _call(self, use: ToolUse) -> _Done:
        clock, start = self._ledger.budget.clock, self._ledger.budget.clock()
        limit = min(self._config.timeout_s, max(0.0, self._ledger.budget.left_for_search()))
        try:
            async with asyncio.timeout(limit):
                output, outcome = await self._agent.tools.call(use.name, use.arguments, self._context), "ok"
        except TimeoutError:
            fault: AssayError = StageTimeout(f"timeout after {limit:.1f} s")
            output, outcome = ToolOutput(note=str(fault)), fault.code
            self._tried.discard(self._key(use))  # what may pass by itself may be tried again
        except AssayError as error:
            if error.retryable:
                self._tried.discard(self._key(use))
            allowed = f" Allowed: {', '.join(error.allowed)}." if error.allowed else ""
            output, outcome = ToolOutput(note=f"{error}{allowed}"), error.code
        return _Done(use, output, outcome, round(1000 * (clock() - start), 2))

    def _told(self, done: _Done) -> list[ev.Event]:
        """The call in the audit log, and what went wrong with it."""
        run, use, output = self._run, done.use, done.output
        run.index_version = output.index_version or run.index_version
        if (query := use.arguments.get("query")) and done.outcome != "repeated":
            run.searched.append(str(query))
            run.tried.add(query_key(str(query)))
        if done.outcome != "tool_budget":
            self._ledger.tool_calls.append(
                ToolCall(
                    tool=use.name,
                    arguments=dict(use.arguments),
                    filters=output.filters,
                    index_version=output.index_version,
                    hits=len(output.hits),
                    duration_ms=done.duration_ms,
                    outcome=done.outcome,
                )
            )
        self._ledger.note("tool", f"{use.name}: {len(output.hits)} hits, {done.outcome}")
        result = ev.ToolCallResult(
            tool=use.name, hits=len(output.hits), duration_ms=done.duration_ms, outcome=done.outcome
        )
        told: list[ev.Event] = [result]
        told += [self._ledger.fell_back(d.stage, d.reason, d.fallback) for d in output.degraded]
        if done.outcome not in ("ok", "repeated"):
            told.append(self._ledger.fell_back("tools", f"{use.name}: {output.note}", "told to the model"))
        return told

    # ---- evidence ---------------------------------------------------------------------------------------------------

    def _fitting(self, hits: tuple[Hit, ...], most: int | None = None) -> tuple[Hit, ...]:
        """The new hits that the evidence's tokens have room for, of ``most`` tokens together, in the order in which the
        evidence takes them: what its caps put last is what finds no room."""
        evidence, count = self._run.evidence, self._agent.tokenizer.count
        fresh = evidence.new(evidence.chosen(hits, len(hits)))
        room = self._tokens_left if most is None else min(most, self._tokens_left)
        kept: list[Hit] = []
        for hit in fresh:
            room -= count(_passage("E00", hit, self._agent.tokenizer, self._most))
            if room < 0:
                break
            kept.append(hit)
        if left := len(fresh) - len(kept):
            self._ledger.note("prune", f"{left} passages left out: evidence_tokens is {self._config.evidence_tokens}")
        return tuple(kept)

    @property
    def _most(self) -> int:
        return max(64, self._config.evidence_tokens // 4)

    def _added(self, hits: tuple[Hit, ...]) -> ev.EvidenceEvent:
        run = self._run
        added = run.evidence.add(in_order(hits), len(hits), run.round)
        return added_event(added)

    def _shown(self, hits: tuple[Hit, ...]) -> str:
        ids = {hit.chunk.id for hit in hits}
        slots = [e for e in self._run.evidence.all if e.hit.chunk.id in ids]
        return "\n\n".join(_passage(e.slot, e.hit, self._agent.tokenizer, self._most) for e in slots)

    def _result(self, done: _Done, hits: tuple[Hit, ...], known: list[str]) -> str:
        """Within the tokens that are left; where none are, a word."""
        shown, count = self._shown(hits), self._agent.tokenizer.count
        parts = [passage(done.output.note)] if done.output.note else []
        parts += [f"Already above: {', '.join(known)}."] if known else []
        left_out = len(done.output.hits) - len(hits) - len(known)
        parts += [f"{left_out} more passages do not fit."] if left_out > 0 else []
        left = max(LEAST_RESULT, min(self._most, self._tokens_left - count(shown)))
        parts = [self._agent.tokenizer.truncate("\n\n".join(parts), left), shown]
        return "\n\n".join(part for part in parts if part) or "Nothing."


def check_tools(run: Run) -> Agent:
    """Raises ``InvalidRequest`` where nobody can hold the conversation, or its answer is to have another form."""
    if run.request.style not in ("auto", "prose"):
        raise InvalidRequest("In mode 'tools' the model answers in prose.", "style", ("auto", "prose"))
    agent = run.stages.agent
    if not isinstance(agent, Agent):
        message = "Mode 'tools' needs an engine that can call tools, and tools.engine names none."
        raise InvalidRequest(message, "mode", ("auto", "pipeline", "agentic"))
    return agent


def _passage(slot: str, hit: Hit, tokenizer: Tokenizer, most: int) -> str:
    chunk = hit.chunk
    where = " > ".join(dict.fromkeys((chunk.title, *chunk.heading)))
    page = f", page {chunk.page}" if chunk.page is not None else ""
    why = "from the web" if chunk.untrusted else "hidden text" if chunk.hidden else ""
    mark = f" ({why}, not trusted)" if why else ""
    head = f"[{slot}] {passage(where)} (doc_id {inert(chunk.doc_id)}, bucket {chunk.bucket}{page}){mark}"
    return f"{head}\n{tokenizer.truncate(passage(chunk.text), most)}"


def _key(name: str, arguments: Mapping[str, Any]) -> str:
    """Equal for calls that would find the same."""
    rest = {k: v for k, v in arguments.items() if k not in (*_SIZES, "query") and v not in (None, [], "")}
    return json.dumps([name, query_key(str(arguments.get("query", ""))), rest], sort_keys=True, default=str)


def _summary(said: Completion) -> str:
    calls = ", ".join(use.name for use in said.tool_uses)
    return f"calls {calls}" if calls else f"answers in {len(said.text.split())} words"
