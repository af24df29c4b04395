"""The OpenAI chat protocol: our requests as bodies, its stream's events as deltas, for endpoints and for vLLM alike."""

import json
from collections.abc import Mapping
from typing import Any

from assay.errors import BadModelOutput, InvalidRequest
from assay.llm.endpoint import PRESETS, EndpointConfig
from assay.llm.reasoning import Parted, ThinkSplitter
from assay.llm.sse import WholeCharacters
from assay.llm.tools import ToolCalls, schema_fault
from assay.schemas import Usage
from assay.types import CompletionRequest, Delta, FinishReason, Message, ToolSpec

AS_JSON = "Answer with one JSON object and nothing else. It must be valid under this JSON schema:\n"


def constrained(request: CompletionRequest) -> bool:
    return bool(request.json_schema or request.regex or request.choice or request.grammar)


def chat_body(config: EndpointConfig, request: CompletionRequest) -> dict[str, Any]:
    """Raises ``InvalidRequest`` for what the endpoint cannot do: it would be ignored there, and the output be free."""
    preset = PRESETS[config.preset]
    messages = [message_body(message, preset.wants_reasoning) for message in request.messages]
    body: dict[str, Any] = {
        "model": config.model,
        "messages": messages,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        # Within a schema or a grammar nobody thinks: the reasoning would be a part of the output, or break it.
        **(preset.thinks if config.strategy == "thinking" and not constrained(request) else preset.answers),
    }
    for wanted, name in (
        (request.regex, "regex"),
        (request.choice, "choice"),
        (request.grammar, "grammar"),
        (request.tools, "tools"),
    ):
        if wanted and name not in config.can:
            raise InvalidRequest(
                f"The endpoint of the model {config.model} cannot do '{name}'.", name, tuple(config.can)
            )
    if preset.is_vllm:
        body |= _vllm_fields(request)
    elif request.json_schema and "json_schema" in config.can:
        schema = {"name": "output", "strict": True, "schema": json.loads(request.json_schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif request.json_schema and "json_object" in config.can:
        body["response_format"] = {"type": "json_object"}
        messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n\n{AS_JSON}{request.json_schema}"}
    elif request.json_schema:
        raise InvalidRequest(
            f"The endpoint of the model {config.model} cannot do JSON.", "json_schema", tuple(config.can)
        )
    if request.tools:
        body |= {"tools": [tool_body(tool) for tool in request.tools], "tool_choice": request.tool_choice}
    return body | config.extra_body


def _vllm_fields(request: CompletionRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if request.json_schema:
        fields["structured_outputs"] = {"json": request.json_schema}
    elif request.regex:
        fields["structured_outputs"] = {"regex": request.regex}
    elif request.choice:
        fields["structured_outputs"] = {"choice": list(request.choice)}
    elif request.grammar:
        fields["structured_outputs"] = {"grammar": request.grammar}
    if request.cache_salt:
        fields["cache_salt"] = request.cache_salt
    return fields


def message_body(message: Message, with_reasoning: bool = False) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_uses:
        body["tool_calls"] = [
            {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.written}}
            for use in message.tool_uses
        ]
        if with_reasoning:
            body["reasoning_content"] = message.reasoning
    if message.tool_use_id is not None:
        body["tool_call_id"] = message.tool_use_id
    return body


def tool_body(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
    return {"type": "function", "function": function}


class DeltaReader:
    """Events (parsed JSON) of one generation -> its deltas: reasoning apart, tool calls whole and checked, the end last."""

    def __init__(self, request: CompletionRequest, opened: bool | None = False) -> None:
        """``opened`` as in ``ThinkSplitter``; a constrained output cannot begin inside of a block."""
        self._request = request
        self._splitter = ThinkSplitter(False if constrained(request) else opened)
        self._text, self._thought = WholeCharacters(), WholeCharacters()
        self._calls = ToolCalls()
        self.finish: FinishReason | None = None
        self.usage: Usage | None = None
        self.begun = False

    def feed(self, event: Mapping[str, Any]) -> list[Delta]:
        """At most one delta. Raises ``BadModelOutput`` for what is not of the protocol."""
        try:
            return self._feed(event)
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            raise BadModelOutput(f"An event is not of the chat protocol: {type(error).__name__}") from None

    def _feed(self, event: Mapping[str, Any]) -> list[Delta]:
        if event.get("usage"):
            self.usage = usage_of(event["usage"])
        for choice in event.get("choices") or ():
            said = choice.get("delta") or choice.get("message") or {}
            self.finish = reason_of(choice["finish_reason"]) if choice.get("finish_reason") else self.finish
            fragments = said.get("tool_calls") or ()
            self._calls.feed(fragments)
            content = said.get("content") or ""
            thought = said.get("reasoning_content") or said.get("reasoning") or ""
            self.begun = self.begun or bool(content or thought or fragments)
            part = self._splitter.feed(self._text.feed(content))
            return _deltas(Parted(part.text, self._thought.feed(thought) + part.reasoning))
        return []

    def end(self) -> list[Delta]:
        """What was held back, and the last delta with the end, the usage and the tool calls."""
        part = self._splitter.feed(self._text.end())
        last = self._splitter.end(whole=self.finish == "stop")
        held = Parted(part.text + last.text, self._thought.end() + part.reasoning + last.reasoning)
        uses = self._calls.uses(self._request.tools) if self.finish == "stop" else ()
        usage = self.usage or Usage(llm_calls=1)
        return [*_deltas(held), Delta(tool_uses=uses, finish_reason=self.finish or "abort", usage=usage)]


def _deltas(part: Parted) -> list[Delta]:
    return [Delta(part.text, part.reasoning)] if part.text or part.reasoning else []


def check_output(request: CompletionRequest, text: str) -> None:
    """Raises ``BadModelOutput`` where a finished output does not keep to the request, which an endpoint may ignore."""
    if request.choice and text not in request.choice:
        raise BadModelOutput("The endpoint's output is none of the choices.")
    if request.json_schema:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise BadModelOutput("The endpoint's output is not JSON.") from None
        if fault := schema_fault(request.json_schema, value, "The endpoint's fields"):
            raise BadModelOutput(fault)


def reason_of(reason: str | None) -> FinishReason:
    """``tool_calls`` is an end that the model chose; a content filter's, and what nobody knows, is not."""
    return "stop" if reason in ("stop", "tool_calls", "function_call") else "length" if reason == "length" else "abort"


def usage_of(usage: Mapping[str, Any]) -> Usage:
    """Cached tokens are counted in ``prompt_tokens`` as well; DeepSeek has a field of its own for them."""
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
    return Usage(
        llm_calls=1,
        prompt_tokens=usage.get("prompt_tokens") or 0,
        cached_tokens=cached,
        completion_tokens=usage.get("completion_tokens") or 0,
    )
