"""The written styles: a capable model writes sentences, list items or table rows, and each comes as it is finished."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from assay.config import GeneratorConfig
from assay.errors import BadModelOutput
from assay.generate.extract import fell_back
from assay.generate.grammar import NOT_FOUND, finds_nothing, lark, regex
from assay.generate.split import Splitter
from assay.inert import inert, passage
from assay.llm.endpoint import Capability
from assay.ports import LLM, Tokenizer
from assay.templates import Prompts
from assay.tokens import MESSAGE_TOKENS, room
from assay.tongues import name_of
from assay.types import CompletionRequest, Evidence, GenerateEvent, GenerateRequest, Message
from assay.window import Bounds, recent, shortened, stepped

# Less evidence than this says nothing.
LEAST_TOKENS = 16
BETWEEN_TOKENS = 3  # two passages: two line breaks, in some vocabularies joined to what stands around them
# Of the conversation, which a plain answer may be about.
HISTORY = Bounds(messages=8, tokens=3_000)


class _Shown(NamedTuple):
    """A passage as the model reads it; not ``whole`` where only its beginning fits."""

    evidence: Evidence
    text: str
    whole: bool


class WritingGenerator:
    """``NOT_FOUND``, and what begins with it, gives no draft at all: the loop then says that the documents do not answer."""

    def __init__(
        self,
        llm: LLM,
        tokenizer: Tokenizer,
        config: GeneratorConfig,
        prompts: Prompts = Prompts(),
        *,
        can: frozenset[Capability] = frozenset({"regex"}),
        context_tokens: int | None = None,
    ) -> None:
        """``can``: without ``regex`` or ``grammar``, citations are read as they come, and a slot that does not exist is
        dropped. ``context_tokens``: of prompt and answer together, where the engine's limit is known."""
        self._llm, self._tokenizer, self._config = llm, tokenizer, config
        self._can, self._context_tokens = can, context_tokens
        self._systems = {style: prompts[style].fill() for style in ("prose", "list", "table", "plain")}

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        """Raises ``BadModelOutput`` when the model was cut off before its first unit, or broke off."""
        completion, shown = self._completion(request)
        slots = [e.slot for e, _, _ in shown]
        left_out = tuple(e.slot for e in request.evidence if e.slot not in slots)
        cut = next((e.slot for e, _, whole in shown if not whole), None)
        if left_out or cut is not None:
            yield GenerateEvent(left_out=left_out, cut=cut)
        splitter = Splitter(request.style, slots)
        drafted, reason, started = 0, None, ""
        async with aclosing(self._llm.stream(completion)) as deltas:
            async for delta in deltas:
                if delta.reasoning:
                    yield GenerateEvent(reasoning=delta.reasoning)
                if len(started) < 2 * len(NOT_FOUND):
                    started = (started + delta.text).lstrip()
                for draft in () if finds_nothing(started) else splitter.feed(delta.text):
                    yield GenerateEvent(draft=draft)
                    drafted += 1
                reason = delta.finish_reason or reason
                if delta.usage is not None:
                    yield GenerateEvent(usage=delta.usage)
        if reason in ("stop", "length") and finds_nothing(started):
            return
        if reason == "stop":
            for draft in splitter.end():
                yield GenerateEvent(draft=draft)
                drafted += 1
        for fault in splitter.faults() if request.evidence else ():
            yield fault
        if reason == "length" and drafted:
            yield fell_back(f"cut off after {completion.max_tokens} tokens", "what was complete")
        elif reason != "stop":
            limit = f" within {completion.max_tokens} tokens" if reason == "length" else f" ({reason or 'broken off'})"
            raise BadModelOutput(f"The model did not finish its answer{limit}.")
        elif not drafted:
            raise BadModelOutput("The model wrote no answer.")

    def _completion(self, request: GenerateRequest) -> tuple[CompletionRequest, list[_Shown]]:
        system, asked = Message("system", self._systems[request.style]), Message("user", _asked(request.question))
        tokens = request.answer_tokens
        if self._context_tokens is not None:  # an answer that took all of it would leave nothing to be read
            tokens = min(tokens, self._context_tokens // 2)
        left = room(self._tokenizer, self._context_tokens, tokens, (system, asked))
        if left < (LEAST_TOKENS if request.evidence else 0):
            beside = f"{' and evidence' if request.evidence else ''} beside an answer of {tokens} tokens"
            limit = f"the {self._context_tokens} tokens of the model (max_model_len)"
            raise BadModelOutput(f"There is no room for the question{beside} in {limit}.")
        shown = self._shown(request.evidence, min(left, self._config.evidence_tokens))
        evidence = "Evidence:\n" + "\n\n".join(text for _, text, _ in shown) + "\n\n" if shown else ""
        turns = self._turns(request.history, left - sum(self._tokenizer.count(text) for _, text, _ in shown))
        messages = (system, *turns, replace(asked, content=evidence + asked.content))
        completion = CompletionRequest(messages, tokens, request_id=request.request_id, cache_salt=request.cache_salt)
        return self._bound(completion, request, [e for e, _, _ in shown]), shown

    def _bound(
        self, completion: CompletionRequest, request: GenerateRequest, shown: Sequence[Evidence]
    ) -> CompletionRequest:
        """Under the grammar that the engine can hold, if it can hold one."""
        if request.style not in ("prose", "list", "table"):
            return completion
        most = self._config.sentences if request.style == "prose" else self._config.items
        if "grammar" in self._can:
            return replace(completion, grammar=lark(request.style, shown, most))
        if "regex" in self._can:
            return replace(completion, regex=regex(request.style, [e.slot for e in shown], most))
        return completion

    def _turns(self, history: Sequence[Message], left: int) -> tuple[Message, ...]:
        """Of the conversation what there is room for. An earlier question is as it stood in its own prompt: this one then
        begins with that, which the prefix cache holds."""
        said = [replace(m, content=(_asked if m.role == "user" else inert)(m.content)) for m in history]
        bounds = replace(HISTORY, tokens=stepped(HISTORY.tokens, left))
        said = shortened(said, bounds.tokens - 2 * MESSAGE_TOKENS, self._tokenizer)
        return recent(said, bounds, lambda text: self._tokenizer.count(text) + MESSAGE_TOKENS)

    def _shown(self, evidence: Sequence[Evidence], left: int) -> list[_Shown]:
        """The passages that fit, best first, as the model reads them. The question is never cut, the last passage may be."""
        shown: list[_Shown] = []
        for e in evidence:
            where = " > ".join(dict.fromkeys([e.hit.chunk.title, *e.hit.chunk.heading]))
            whole = f"[{e.slot}] {passage(where)}\n{passage(e.hit.chunk.text)}"
            text = self._tokenizer.truncate(whole, left)
            left -= self._tokenizer.count(text) + BETWEEN_TOKENS
            shown.append(_Shown(e, text, text == whole))
            if left < LEAST_TOKENS:
                break
        return shown


def _asked(question: str) -> str:
    return f"Question: {inert(question)}\nAnswer in {name_of(question)}."
