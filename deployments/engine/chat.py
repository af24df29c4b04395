"""Generations: our requests as the engine's chat requests, its chunks as the chat protocol's events, its errors as ours."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from assay.errors import BadModelOutput, Overloaded, StageUnavailable
from assay.llm.wire import constrained, message_body, tool_body
from assay.types import CompletionRequest


def chat_request(model: str, request: CompletionRequest, *, thinking: bool) -> Any:
    from ray.serve.llm.openai_api_models import ChatCompletionRequest

    constraint = {
        "json": request.json_schema,
        "regex": request.regex,
        "choice": list(request.choice),
        "grammar": request.grammar,
    }
    chosen = {kind: value for kind, value in constraint.items() if value}
    # A constrained model does not think: it would do so inside the JSON, or outside of any constraint.
    extra: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": thinking and not constrained(request)}}
    if chosen:
        extra["structured_outputs"] = chosen
    if request.tools:
        extra |= {"tools": [tool_body(tool) for tool in request.tools], "tool_choice": request.tool_choice}
    if request.request_id:
        extra["request_id"] = request.request_id
    if request.cache_salt:
        extra["cache_salt"] = request.cache_salt
    return ChatCompletionRequest(
        model=model,
        messages=[message_body(message) for message in request.messages],
        max_completion_tokens=request.max_tokens,
        temperature=request.temperature,
        stream=True,
        stream_options={"include_usage": True},
        **extra,
    )


def event_of(chunk: Any) -> dict[str, Any] | None:
    """One server-sent event of the engine as its object; None for the last one."""
    raise_error(chunk)
    data = chunk.removeprefix("data: ").strip()
    if data == "[DONE]":
        return None
    event: dict[str, Any] = json.loads(data)
    if "error" in event:
        raise _fault(event["error"]["message"], int(event["error"].get("code") or 500))
    return event


def raise_error(response: Any) -> None:
    if (error := getattr(response, "error", None)) is not None:
        raise _fault(error.message, error.code)


def _fault(message: str, status: int) -> Exception:
    if status == 503:
        return Overloaded(message)
    return BadModelOutput(message) if 400 <= status < 500 else StageUnavailable(message)


@contextmanager
def faults() -> Iterator[None]:
    """vLLM's errors would need vLLM, 9 s of imports, where they are unpickled."""
    from vllm.exceptions import VLLMClientError, VLLMServerError

    try:
        yield
    except VLLMClientError as e:
        raise BadModelOutput(str(e)) from None
    except VLLMServerError as e:
        raise StageUnavailable(str(e)) from None
