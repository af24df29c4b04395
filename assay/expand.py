"""The expander's job: from a question (and its history) to a standalone query and variants that differ from it.

Prompt, schema and parser stand together here, since one must not change without the others.
"""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.config import ExpanderConfig
from assay.errors import BadModelOutput
from assay.ports import LLM
from assay.templates import Prompt
from assay.text import content_terms, query_key
from assay.types import CompletionRequest, Message, Plan, PlanRequest

# One word is about 6 characters: 64 characters are a short query, and the bound keeps a looping model cheap.
QUERY_CHARS = 64
HISTORY_TURNS = 4
HISTORY_CHARS = 600


class _Planned(BaseModel):
    model_config = ConfigDict(extra="forbid")
    query: str | None = None
    variants: list[str] = []


def plan_schema(variants: int, rewrite: bool) -> str:
    """The JSON schema that binds the model: every string and list is bounded, so that it always ends."""
    text = {"type": "string", "minLength": 3, "maxLength": QUERY_CHARS}
    properties: dict[str, Any] = {"query": text} if rewrite else {}
    properties["variants"] = {"type": "array", "items": text, "minItems": variants, "maxItems": variants}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return json.dumps(schema)


def distinct(question: str, candidates: list[str]) -> tuple[str, ...]:
    """Those of ``candidates`` that can find something new: not the question nor each other in other words' order or case,
    and about the same thing, that is, with at least one of its content words."""
    topic, seen, kept = set(content_terms(question)), {query_key(question)}, []
    for candidate in (" ".join(c.split()) for c in candidates):
        key, words = query_key(candidate), set(content_terms(candidate))
        if key in seen or not words or (topic and not words & topic):
            continue
        seen.add(key)
        kept.append(candidate)
    return tuple(kept)


class LLMExpander:
    """``ports.Expander`` over a language model."""

    def __init__(self, llm: LLM, config: ExpanderConfig) -> None:
        self._llm, self._config = llm, config
        self._plan, self._plan_history = Prompt("plan", "count"), Prompt("plan_history", "count")

    async def plan(self, request: PlanRequest) -> Plan:
        """Raises ``BadModelOutput`` when the model's JSON is cut off or not of the schema; the loop then goes on without."""
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
        if completion.finish_reason != "stop":
            raise BadModelOutput(
                f"The plan was cut off after {self._config.max_tokens} tokens; raise expander.max_tokens."
            )
        try:
            planned = _Planned.model_validate_json(completion.text)
        except ValidationError as error:
            raise BadModelOutput(f"The plan is not of its schema: {error.error_count()} errors.") from None
        query = (planned.query or "").strip() or request.question
        return Plan(query=query, variants=distinct(query, planned.variants), usage=completion.usage)

    def _messages(self, request: PlanRequest, count: int) -> tuple[Message, ...]:
        prompt = self._plan_history if request.history else self._plan
        turns = [f"{m.role}: {m.content[:HISTORY_CHARS]}" for m in request.history[-HISTORY_TURNS:]]
        question = "\n".join([*turns, f"Question: {request.question}"])
        return Message("system", prompt.fill(count=str(count))), Message("user", question)
