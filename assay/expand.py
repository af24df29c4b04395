"""The expander's job: from a question (and its history) to a standalone query and variants that differ from it.

Prompt, schema and parser stand together here, since one must not change without the others.
"""

import json
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.config import ExpanderConfig
from assay.ports import LLM
from assay.templates import Prompts
from assay.text import content_terms, names, query_key, terms
from assay.types import CompletionRequest, Message, Plan, PlanRequest

# One word is about 6 characters: 64 characters are a short query, and the bound keeps a looping model cheap.
QUERY_CHARS = 64
HISTORY_TURNS = 4
HISTORY_CHARS = 600


# A small model imitates better than it obeys: with examples it paraphrases where it had copied the schema's own words.
EXAMPLES = (
    ("can I get money back", "refund policy", "how to return a purchase and be reimbursed"),
    ("What happens when a worker crashes?", "worker failure handling", "restart of a crashed worker process"),
    ("Which file holds the database password?", "where the database password is", "file with database credentials"),
)


class _Planned(BaseModel):
    model_config = ConfigDict(extra="forbid")
    query: str | None = None
    variants: list[str] = []


def plan_schema(variants: int, rewrite: bool) -> str:
    """The JSON schema that binds the model: every string and list is bounded, so that it always ends."""
    text = {"type": "string", "minLength": 3, "maxLength": QUERY_CHARS}
    properties: dict[str, Any] = {"query": text} if rewrite else {}
    if variants:
        properties["variants"] = {"type": "array", "items": text, "minItems": variants, "maxItems": variants}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return json.dumps(schema)


def distinct(question: str, candidates: list[str]) -> tuple[str, ...]:
    """Those of ``candidates`` that can find something new: not the question nor each other in other words' order or case,
    and about the same thing, that is, with at least one of its content words."""
    topic, seen, kept = set(content_terms(question)), {query_key(question)}, []
    for candidate in (" ".join(c.split()) for c in candidates):
        key, words = query_key(candidate), content_terms(candidate)
        stutters = len(set(words)) < 0.6 * len(words)  # "stream_stream_stream": a model in a loop
        if key in seen or stutters or not topic & set(words):
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

    def __init__(self, llm: LLM, config: ExpanderConfig, prompts: Prompts = Prompts()) -> None:
        self._llm, self._config = llm, config
        self._plan, self._rewrite = prompts["plan"], prompts["rewrite"]

    async def plan(self, request: PlanRequest) -> Plan:
        """A plan that cannot be used comes back as the question alone, with ``fault`` and what it cost."""
        count = min(request.variants, self._config.variants)
        if count == 0 and not request.history:
            return Plan(query=request.question)
        completion = await self._llm.complete(
            CompletionRequest(
                messages=self._messages(request, count),
                max_tokens=self._config.max_tokens,
                json_schema=plan_schema(count, bool(request.history)),
                request_id=request.request_id,
            )
        )
        alone = Plan(query=request.question, usage=completion.usage)
        if completion.finish_reason != "stop":
            limit = self._config.max_tokens
            return replace(alone, fault=f"the plan was cut off after {limit} tokens (expander.max_tokens)")
        try:
            planned = _Planned.model_validate_json(completion.text)
        except ValidationError as error:
            return replace(alone, fault=f"the plan is not of its schema: {error.error_count()} errors")
        query = " ".join((planned.query or "").split()) or request.question
        if query != request.question and not grounded(query, request):
            return replace(alone, fault="the rewritten question says what nobody said")
        return Plan(query=query, variants=distinct(query, planned.variants), usage=completion.usage)

    def _messages(self, request: PlanRequest, count: int) -> tuple[Message, ...]:
        prompt = self._rewrite if request.history else self._plan
        turns = [f"{m.role}: {m.content[:HISTORY_CHARS]}" for m in request.history[-HISTORY_TURNS:]]
        system = Message("system", prompt.fill(count=str(count)))
        if request.history:
            return system, Message("user", "\n".join([*turns, f"Last question: {request.question}"]))
        examples = [
            message
            for asked, *variants in EXAMPLES
            for message in (Message("user", asked), Message("assistant", json.dumps({"variants": variants[:count]})))
        ]
        return system, *examples, Message("user", request.question)
