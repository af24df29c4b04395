"""The expander's job: from a question (and its history) to a standalone query, variants that differ from it, and, where the
model is capable of it, the rest of a plan: whether to search at all, where, under which filters, and in which parts.

One call where one can serve, and none for a simple lookup.
"""

import asyncio
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import accumulate

from pydantic import ValidationError

from assay.config import ExpanderConfig
from assay.inert import inert
from assay.llm.longest import FILLED, rate_of
from assay.llm.tools import schema_fault
from assay.llm.wire import AS_JSON
from assay.plan import Fitting, Planned, Size, filters_of, fitting_schema, usable, wide
from assay.ports import LLM, Tokenizer
from assay.schemas import Step, Usage
from assay.simple import simple
from assay.templates import Prompts
from assay.text import content_terms, names, query_key, terms
from assay.tokens import EstimatedTokenizer, room
from assay.types import BucketInfo, CompletionRequest, Entity, Message, Plan, PlanRequest
from assay.window import Bounds, recent, stepped

HISTORY = Bounds(messages=8, tokens=1_200)
SAID_CHARS, SAID_TOKENS = 600, 150  # of one message of it
# Characters of each description, and of each list of values: the longest for which the prompt has room.
CARDS = (sys.maxsize, 1_000, 160, 40, 0)

LEAST_TOKENS = 96  # of a plan

# A small model imitates better than it obeys: with examples it paraphrases where it had copied the schema's own words.
EXAMPLES = (
    ("can I get money back", "refund policy", "how to return a purchase and be reimbursed"),
    ("What happens when a worker crashes?", "worker failure handling", "restart of a crashed worker process"),
    ("Which file holds the database password?", "where the database password is", "file with database credentials"),
)


def distinct(question: str, candidates: Sequence[str], *, alike: bool = True) -> tuple[str, ...]:
    """Those of ``candidates`` that can find something new: not the question nor each other in other words' order or case;
    ``alike``: and with at least one of its content words, which a small model's is only then about the same thing."""
    topic, seen, kept = set(content_terms(question)), {query_key(question)}, []
    for candidate in (" ".join(c.split()) for c in candidates):
        key, words = query_key(candidate), content_terms(candidate)
        stutters = len(set(words)) < 0.6 * len(words)  # "stream_stream_stream": a model in a loop
        if key in seen or stutters or not words or (alike and not topic & set(words)):
            continue
        seen.add(key)
        kept.append(candidate)
    return tuple(kept)


def grounded(rewrite: str, request: PlanRequest) -> bool:
    """Whether a rewritten question only says what was said: every name of it, and most of its words, come from the
    conversation. A small model's rewrite may be about something else altogether."""
    said = {term for text in (request.question, *(m.content for m in request.history)) for term in terms(text)}
    words = set(content_terms(rewrite))
    return bool(words) and set(names(rewrite)) <= said and len(words & said) >= 0.6 * len(words)


class LLMExpander:
    """``ports.Expander`` over a language model."""

    def __init__(
        self,
        llm: LLM,
        config: ExpanderConfig,
        prompts: Prompts = Prompts(),
        *,
        tokenizer: Tokenizer | None = None,
        context_tokens: int | None = None,
        shows_schema: bool = False,
    ) -> None:
        """``tokenizer``: of the model; none: an estimate. ``context_tokens``: of prompt and plan together, where the engine's
        limit is known. ``shows_schema``: the engine is told the plan's schema in its prompt."""
        self._llm, self._config = llm, config
        self._tokenizer = tokenizer or EstimatedTokenizer()
        self._context_tokens, self._shows_schema = context_tokens, shows_schema
        # Buckets seldom change, and many with many fields and values are long in counting.
        self._sized = lru_cache(64)(self._size)
        self._plan, self._rewrite, self._decide = prompts["plan"], prompts["rewrite"], prompts["decide"]

    async def plan(self, request: PlanRequest) -> Plan:
        """A plan that cannot be used comes back as the question alone, with ``fault`` and what it cost."""
        steps = self._steps(request)
        if not steps or self._is_simple(request):
            return Plan(query=request.question)
        if {"filters", "route"} <= steps:
            many = _fields(request.buckets) > self._config.fields_per_call
            if many or not (await asyncio.to_thread(self._schema, request, steps)).ends:
                return await self._in_two(request, steps)
        return await self._in_one(request, steps)

    @property
    def _tokens(self) -> int:
        """Of a plan: of a small context there is a quarter for it."""
        limit = self._context_tokens or sys.maxsize
        return min(self._config.tokens, max(limit // 4, LEAST_TOKENS))

    def _size(self, steps: frozenset[Step], buckets: tuple[BucketInfo, ...], variants: int, rate: float) -> Fitting:
        count = cache(self._tokenizer.count)  # of names and signs, which recur
        return fitting_schema(steps, buckets, variants, int(FILLED * self._tokens), rate, count)

    def _is_simple(self, request: PlanRequest) -> bool:
        return self._config.skip_simple and not request.history and simple(request.question, request.buckets)

    def _steps(self, request: PlanRequest) -> set[Step]:
        """What there is to decide for this request."""
        without: dict[Step, bool] = {
            "rewrite": not request.history,
            "route": len(request.buckets) < 2,
            "filters": not usable(request.buckets),
            "expand": self._variants(request) == 0,
        }
        return {step for step in self._config.decided & set(request.steps) if not without.get(step)}

    def _variants(self, request: PlanRequest) -> int:
        return min(request.variants, self._config.variants)

    async def _in_two(self, request: PlanRequest, steps: set[Step]) -> Plan:
        """The buckets first, by their descriptions alone; then the rest, with the fields of those that were chosen."""
        first = await self._in_one(request, steps & {"gate", "rewrite", "route"})
        if first.fault or not first.search:
            return first
        chosen = tuple(b for b in request.buckets if b.name in first.buckets) or request.buckets
        then = replace(request, question=first.query, history=(), buckets=chosen)
        second = await self._in_one(then, steps - {"gate", "rewrite"} - ({"route"} if len(chosen) < 2 else set()))
        usage = first.usage + second.usage
        if second.fault:
            return replace(first, usage=usage, fault=second.fault)
        buckets = second.buckets or tuple(b.name for b in chosen)
        return replace(second, usage=usage, buckets=buckets, search=True, reason=first.reason)

    def _asked(self, request: PlanRequest, steps: Collection[Step]) -> tuple[Fitting, tuple[Message, ...] | None]:
        fitting = self._schema(request, steps)
        return fitting, self._fitting(request, steps, fitting.schema)

    def _schema(self, request: PlanRequest, steps: Collection[Step]) -> Fitting:
        """The rate is the language's of the conversation: a plan's words are its words."""
        count = self._tokenizer.count
        turns = (message.content[:SAID_CHARS] for message in request.history[-HISTORY.messages :])
        rate = rate_of("\n".join((request.question, *turns)), count)
        buckets, variants = tuple(map(_bare, request.buckets)), self._variants(request)
        return self._sized(frozenset(steps), buckets, variants, rate)

    async def _in_one(self, request: PlanRequest, steps: set[Step]) -> Plan:
        # In another thread: over many buckets with many values it takes up to a second, the first time.
        (schema, whole, size, _), messages = await asyncio.to_thread(self._asked, request, steps)
        if messages is None:
            output = f"a plan of {self._tokens} (expander.max_tokens)"
            limit = f"the {self._context_tokens} tokens of the model (max_model_len)"
            return Plan(query=request.question, fault=f"the question, the buckets and {output} do not fit {limit}")
        completion = await self._llm.complete(
            CompletionRequest(
                messages=messages,
                max_tokens=self._tokens,
                json_schema=schema,
                request_id=request.request_id,
                cache_salt=request.cache_salt,
            )
        )
        alone = Plan(query=request.question, usage=completion.usage)
        if completion.finish_reason != "stop":
            limit = "expander.max_tokens" if self._tokens == self._config.tokens else "a quarter of max_model_len"
            cut = f"cut off after {self._tokens} tokens ({limit})"
            return replace(alone, fault=f"the plan was {cut}")
        try:
            planned = Planned.model_validate_json(completion.text)
            fault = schema_fault(whole, json.loads(completion.text), "its parts") if wide(steps) else None
        except ValidationError as error:
            fault = f"{error.error_count()} errors"
        if fault:
            return replace(alone, fault=f"the plan is not of its schema: {fault}")
        return _usable(planned, request, completion.usage, size, alike=not wide(steps))

    def _fitting(self, request: PlanRequest, steps: Collection[Step], schema: str) -> tuple[Message, ...] | None:
        """What the model is asked, within its context: the question and all names whole, the buckets' descriptions as long as
        there is room, and of the conversation the last turns. None where not even the names fit."""
        for most in CARDS:
            messages = self._messages(request, steps, (), most)
            left = self._room(messages, schema)
            if left >= 0:
                return self._messages(request, steps, self._turns(request, left), most)
        return None

    def _room(self, messages: Sequence[Message], schema: str) -> int:
        more = AS_JSON + schema if self._shows_schema else ""
        return room(self._tokenizer, self._context_tokens, self._tokens, messages, more)

    def _turns(self, request: PlanRequest, left: int) -> tuple[str, ...]:
        """Of the conversation what there is room for."""
        said = []
        for message in request.history:
            text = self._tokenizer.truncate(inert(message.content[:SAID_CHARS]), SAID_TOKENS)
            shown = f"{message.role}: {text}\n"
            said.append(replace(message, content=shown))
        bounds = replace(HISTORY, tokens=stepped(HISTORY.tokens, left))
        return tuple(message.content.removesuffix("\n") for message in recent(said, bounds, self._tokenizer.count))

    def _messages(
        self, request: PlanRequest, steps: Collection[Step], turns: Sequence[str], most: int
    ) -> tuple[Message, ...]:
        """``most``: characters of each description of the buckets."""
        count = self._variants(request)
        asked = inert(request.question)
        if wide(steps):
            today = [f"Today: {request.today}"] if request.today else []
            cards = described(request.buckets, "filters" in steps, most) if {"route", "filters"} & set(steps) else ""
            system = Message("system", self._decide.fill(count=str(count), buckets=cards))
            return system, Message("user", "\n".join([*today, *turns, f"Last question: {asked}"]))
        if request.history:
            system = Message("system", self._rewrite.fill(count=str(count)))
            return system, Message("user", "\n".join([*turns, f"Last question: {asked}"]))
        examples = [
            message
            for said, *variants in EXAMPLES
            for message in (Message("user", said), Message("assistant", json.dumps({"variants": variants[:count]})))
        ]
        return Message("system", self._plan.fill(count=str(count))), *examples, Message("user", asked)


def described(buckets: Collection[BucketInfo], with_fields: bool, most: int = CARDS[0]) -> str:
    """The buckets as the model reads them: each on a line, its fields below it. ``most``: characters of each description, and
    of the values of each field."""
    lines = ["", "The buckets:"]
    for bucket in buckets:
        said = _line(bucket.description, most) or "no description"
        lines.append(f"{bucket.name}: {said} ({bucket.documents} documents)")
        for field in bucket.fields if with_fields else ():
            values = _few(field.values, most)
            said = _line(field.description, most)
            kind = f"{field.type}, one of: {values}" if values else field.type
            lines.append(f"  {field.name} ({kind})" + (f": {said}" if said else ""))
    return "\n".join(lines)


def _few(values: Sequence[str], most: int) -> str:
    """The first of them, whole."""
    lines = [" ".join(value.split()) for value in values]
    ends = accumulate(len(line) + len(" | ") for line in lines)
    kept = [line for line, end in zip(lines, ends, strict=True) if end <= most]
    return " | ".join([*kept, "..."] if kept and len(kept) < len(lines) else kept)


def _line(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}..." if most else ""


def _bare(bucket: BucketInfo) -> BucketInfo:
    """What a schema is made of: without what is another with each document."""
    fields = (replace(field, description="", documents=0) for field in bucket.fields)
    return BucketInfo(bucket.name, 0, 0, fields=tuple(fields))


def _fields(buckets: Collection[BucketInfo]) -> int:
    return sum(len(bucket.fields) for bucket in buckets)


def _usable(planned: Planned, request: PlanRequest, usage: Usage, size: Size, *, alike: bool) -> Plan:
    """What a schema cannot hold: words that somebody said, and queries that can find something new."""
    query = " ".join(planned.query.split()) or request.question
    if not alike and len(planned.query) == size.query:
        return Plan(
            query=request.question, usage=usage, fault=f"the rewritten question may go on after {size.query} characters"
        )
    if query != request.question and not grounded(query, request):
        return Plan(query=request.question, usage=usage, fault="the rewritten question says what nobody said")
    said = "\n".join([*(m.content for m in request.history), request.question])
    buckets, filters, dropped = filters_of(planned, request.buckets, said, size.value)
    questions = distinct(query, planned.questions, alike=alike)
    return Plan(
        query=query,
        variants=distinct(query, [*planned.variants, *planned.topics], alike=alike),
        sub_questions=questions if len(questions) > 1 else (),  # a single part is the question itself
        usage=usage,
        search=planned.search,
        reason=" ".join(planned.reason.split()),
        intent=planned.intent,
        buckets=buckets,
        filters=filters,
        entities=tuple(Entity(entity.name, entity.role) for entity in planned.entities),
        topics=tuple(planned.topics),
        strategy=planned.strategy,
        style=planned.format,
        dropped=dropped,
    )
