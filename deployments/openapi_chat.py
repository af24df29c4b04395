"""What the OpenAPI document says of the OpenAI door: examples, and that API's own shapes of answers and errors."""

import json
from typing import Any

from assay.schemas import ErrorBody
from deployments.openapi import CITATION, ERRORS, GUARDED, ID_HEADER, RETRY_HEADER
from deployments.problems import chat_error

_QUESTION = "Which supply agreements may be terminated on 30 days' notice?"
_ASKED = {"model": "assay/contracts", "messages": [{"role": "user", "content": _QUESTION}]}

ASK: Any = {
    "question": {"summary": "Only the question", "value": _ASKED},
    "stream": {"summary": "As chunks", "value": {**_ASKED, "stream": True, "stream_options": {"include_usage": True}}},
    "full": {
        "summary": "A follow-up, with a filter",
        "value": {
            "model": "assay",
            "messages": [
                *_ASKED["messages"],
                {"role": "assistant", "content": "Two may be. [1] [2]"},
                {"role": "user", "content": "And on 60 days?"},
            ],
            "assay": {"filters": {"field": "type", "op": "=", "value": "Supply"}},
        },
    },
}

_TEXT = "Either party may terminate on thirty (30) days' written notice. [1]"
_SOURCES = "\n\nSources:\n[1] Supply Agreement, 12 Term > 12.2 Termination, page 5 (contracts/supply-7.pdf)"
_ANNOTATION = {
    "type": "url_citation",
    "url_citation": {
        "start_index": 0,
        "end_index": len(_TEXT),
        "title": CITATION["title"],
        "url": CITATION["uri"],
    },
    "assay": CITATION,
}
_HEAD = {"id": "chatcmpl-req_01JB2Z0T6V9W8X7Y6Z5A4B3C2D", "created": 1764300000, "model": "assay/contracts"}
_USAGE = {
    "prompt_tokens": 4210,
    "completion_tokens": 143,
    "total_tokens": 4353,
    "prompt_tokens_details": {"cached_tokens": 2890},
}
_EXTRAS = {"id": "ans_01JB2Z0T6V9W8X7Y6Z5A4B3C2D", "status": "answered", "terminated_by": "answered", "rounds": 2}
_ANSWER = {
    **_HEAD,
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": _TEXT + _SOURCES,
                "refusal": None,
                "annotations": [_ANNOTATION],
            },
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": _USAGE,
    "assay": _EXTRAS,
}
_CHUNK = {"index": 0, "delta": {"content": "Either party may "}, "logprobs": None, "finish_reason": None}
_CHUNKS = f"""data: {json.dumps({**_HEAD, "object": "chat.completion.chunk", "choices": [_CHUNK]})}

data: [DONE]

"""

_NUMBER = {"type": "integer", "minimum": 0}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage", "assay"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": _NUMBER,
        "model": {"type": "string"},
        "choices": {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "object"}},
        "usage": {
            "type": "object",
            "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
            "properties": dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _NUMBER),
        },
        "assay": {"type": "object", "description": "The rest of an AskResponse."},
    },
}
_MODEL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": _NUMBER,
        "owned_by": {"type": "string"},
    },
}
_MODEL = {"id": "assay/contracts", "object": "model", "created": 0, "owned_by": "assay"}
_LIST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL_SCHEMA}},
}

_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
                "allowed": {"type": "array", "items": {"type": "string"}},
                "request_id": {"type": ["string", "null"]},
            },
        }
    },
}


def _good(schema: dict[str, Any], example: dict[str, Any], description: str) -> dict[str, Any]:
    content = {"application/json": {"schema": schema, "example": example}}
    return {"description": description, "headers": ID_HEADER, "content": content}


def _responses(*statuses: int) -> dict[int | str, Any]:
    """Errors in that API's form: what is a 422 elsewhere is a 400 here."""
    found: dict[int | str, Any] = {}
    for status in (*statuses, *GUARDED):
        description, example = ERRORS[422 if status == 400 else status]
        error = {"error": chat_error(ErrorBody.model_validate(example["error"]))}
        headers = {**ID_HEADER, **RETRY_HEADER} if status in (429, 503) else ID_HEADER
        content = {"application/json": {"schema": _ERROR_SCHEMA, "example": error}}
        found[status] = {"description": description, "headers": headers, "content": content}
    return found


_STREAMED = _good(_SCHEMA, _ANSWER, "The answer, or its chunks when `stream` is true")
_STREAMED["content"]["text/event-stream"] = {
    "itemSchema": {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}},
    "example": _CHUNKS,
}

CHAT: dict[str, Any] = {
    "operation_id": "chat",
    "summary": "Ask in the form of OpenAI's API",
    "responses": {200: _STREAMED, **_responses(400, 404, 408, 413, 415, 500, 502, 503, 504)},
}
MODELS: dict[str, Any] = {
    "operation_id": "models",
    "summary": "Modes and buckets as models",
    "responses": {200: _good(_LIST_SCHEMA, {"object": "list", "data": [_MODEL]}, "All"), **_responses(500, 503, 504)},
}
MODEL: dict[str, Any] = {
    "operation_id": "model",
    "summary": "One of them",
    "responses": {200: _good(_MODEL_SCHEMA, _MODEL, "The model"), **_responses(404, 500, 503, 504)},
}
