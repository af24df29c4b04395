"""Generations: our requests as the engine's chat requests, its chunks as our deltas, its errors as ours."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from assay.errors import BadModelOutput, Overloaded, StageUnavailable
from assay.schemas import Usage
from assay.types import CompletionRequest, Delta, FinishReason


def chat_request(model: str, request: CompletionRequest, *, stream: bool) -> Any:
    from ray.serve.llm.openai_api_models import ChatCompletionRequest

    constraint = {"json": request.json_schema, "regex": request.regex, "choice": list(request.choice)}
    chosen = {kind: value for kind, value in constraint.items() if value}
    extra: dict[str, Any] = {}
    if chosen:
        # A thinking model would think inside the JSON, or outside of any constraint.
        extra |= {"structured_outputs": chosen, "chat_template_kwargs": {"enable_thinking": False}}
    if stream:
        extra["stream_options"] = {"include_usage": True}
    if request.request_id:
        extra["request_id"] = request.request_id
    if request.cache_salt:
        extra["cache_salt"] = request.cache_salt
    return ChatCompletionRequest(
        model=model,
        messages=[{"role": m.role, "content": m.content} for m in request.messages],
        max_completion_tokens=request.max_tokens,
        temperature=request.temperature,
        stream=stream,
        **extra,
    )


def deltas(chunk: Any) -> Iterator[Delta]:
    """One server-sent event of the engine: text, reasoning, the end, or (last) the usage."""
    raise_error(chunk)
    data = chunk.removeprefix("data: ").strip()
    if data == "[DONE]":
        return
    event = json.loads(data)
    if "error" in event:
        raise _fault(event["error"]["message"], int(event["error"].get("code") or 500))
    for choice in event["choices"]:
        delta, reason = choice["delta"], choice.get("finish_reason")
        text, reasoning = delta.get("content") or "", delta.get("reasoning") or ""
        yield Delta(text, reasoning, reason_of(reason) if reason else None)
    if event.get("usage"):
        yield Delta(usage=usage_of(event["usage"]))


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


def reason_of(reason: str | None) -> FinishReason:
    return "stop" if reason == "stop" else "length" if reason == "length" else "abort"


def usage_of(usage: Any) -> Usage:
    u = usage if isinstance(usage, dict) else usage.model_dump()
    cached = (u.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(
        llm_calls=1,
        prompt_tokens=u["prompt_tokens"],
        cached_tokens=cached,
        completion_tokens=u.get("completion_tokens") or 0,
    )
