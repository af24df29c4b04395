"""What the OpenAPI document says beside the shapes: examples of requests, responses and errors, and every status."""

from typing import Any

from assay.events import VERSION
from assay.schemas import AnswerRecord, AskResponse, ErrorResponse, Readiness, SearchResponse
from deployments.openapi_events import EVENTS, REQUEST_ID

DESCRIPTION = """Agentic search over private document collections.

Every response carries `x-request-id`: the client's own (letters, digits, `_.-`, at most 64) or a new one.
Where API keys are in force, send one as `Authorization: Bearer assay_...`. `X-Assay-Groups: a,b` asks for somebody who is in
these groups alone, as far as the key holds them.
Every error has one shape; `code` is stable, `field` and `allowed` name the input to blame and what it may be."""

ROUTES = (
    "POST /v1/answers",
    "GET /v1/answers/{id}",
    "GET, DELETE /v1/streams/{id}",
    "POST /v1/search",
    "POST /v1/chat/completions",
    "GET /v1/models",
    "GET /v1/tools",
    "POST /mcp",
    "GET, POST /v1/documents",
    "GET, DELETE /v1/documents/{doc_id}",
    "GET /v1/documents/jobs/{id}",
    "GET /v1/documents/jobs/{id}/events",
    "GET /v1/buckets",
    "GET, POST /v1/conversations",
    "GET, PATCH, DELETE /v1/conversations/{id}",
    "POST /v1/conversations/{id}/messages",
    "GET /healthz",
    "GET /readyz",
    "GET /openapi.json",
)

ID_HEADER = {"x-request-id": {"description": "Names this request in the log.", "schema": {"type": "string"}}}
RETRY_HEADER = {"retry-after": {"description": "Seconds.", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}

_FILTERS = {
    "and": [
        {"field": "type", "op": "in", "value": ["Supply"]},
        {"field": "effective_date", "op": ">=", "value": "2015-01-01"},
    ]
}
_QUESTION = "Which supply agreements may be terminated on 30 days' notice?"

ASK: Any = {
    "question": {"summary": "Only the question", "value": {"question": _QUESTION}},
    "stream": {"summary": "As Server-Sent Events", "value": {"question": _QUESTION, "stream": True}},
    "resumable": {
        "summary": "As events that can be taken up again",
        "value": {"question": _QUESTION, "stream": True, "resumable": True},
    },
    "full": {
        "summary": "Filters, a budget, and the trace",
        "value": {
            "question": _QUESTION,
            "mode": "agentic",
            "buckets": ["contracts"],
            "filters": _FILTERS,
            "budget": {"rounds": 2, "deadline_s": 30},
            "include": ["trace", "evidence"],
        },
    },
}

FIND: Any = {
    "question": {"summary": "Only the question", "value": {"question": "termination on 30 days' notice"}},
    "filtered": {
        "summary": "Within one bucket, by words alone",
        "value": {"question": "termination", "buckets": ["contracts"], "filters": _FILTERS, "legs": ["sparse"]},
    },
    "reranked": {
        "summary": "In the order of the reranker's model",
        "value": {"question": "termination on 30 days' notice", "rerank": True, "fusion": "rrf", "top_k": 5},
    },
}

CITATION = {
    "number": 1,
    "slot": "E3",
    "doc_id": "doc_7",
    "chunk_id": 4711,
    "bucket": "contracts",
    "title": "Supply Agreement",
    "uri": "contracts/supply-7.pdf",
    "page": 5,
    "heading": ["12 Term", "12.2 Termination"],
    "span": [1042, 1106],
    "quote": "Either party may terminate on thirty (30) days' written notice.",
}
ANSWER: dict[str, Any] = {
    "id": "ans_01JB2Z0T6V9W8X7Y6Z5A4B3C2D",
    "request_id": REQUEST_ID,
    "status": "answered",
    "terminated_by": "answered",
    "answer": {
        "text": "Either party may terminate on thirty (30) days' written notice. [1]",
        "sentences": [
            {
                "text": "Either party may terminate on thirty (30) days' written notice.",
                "citations": [1],
                "support": 0.91,
            }
        ],
        "style": "extract",
    },
    "citations": [CITATION],
    "degraded": [{"stage": "reranker", "reason": "timeout after 8.0 s", "fallback": "fused order"}],
    "index_version": "v42-9f3c1a",
    "rounds": 2,
    "usage": {"llm_calls": 5, "prompt_tokens": 4210, "cached_tokens": 2890, "completion_tokens": 143},
    "timings_ms": {"retrieve": 61.0, "total": 9120.0},
}


def _error(code: str, message: str, field: str | None = None, allowed: tuple[str, ...] = ()) -> dict[str, Any]:
    body = {"code": code, "message": message, "field": field, "allowed": list(allowed), "request_id": REQUEST_ID}
    return {"error": body}


ERRORS: dict[int, tuple[str, dict[str, Any]]] = {
    400: (
        "Not valid JSON",
        _error("malformed_body", 'The body is not valid JSON: Detected duplicate key "mode" at line 1 column 44.'),
    ),
    401: (
        "No valid API key, where keys are in force",
        _error("unauthorized", "Send a valid API key, as the header 'Authorization: Bearer assay_...'."),
    ),
    403: (
        "The key lacks the scope",
        _error("forbidden", "This key may not do this: it lacks the scope 'ask'.", None, ("search",)),
    ),
    404: (
        "No such bucket or document",
        _error("unknown_bucket", "There is no bucket 'contrcats'.", "buckets[0]", ("contracts",)),
    ),
    408: ("The body did not arrive", _error("request_timeout", "The body did not arrive within 30 seconds.")),
    409: (
        "Something else is in progress there",
        _error(
            "conversation_busy", "Another message of this conversation is being answered; try again when it is done."
        ),
    ),
    413: ("The body is too large", _error("too_large", "The body must have at most 1000000 bytes.")),
    415: (
        "Not JSON",
        _error("unsupported_media_type", "Send JSON in UTF-8, with the header 'content-type: application/json'."),
    ),
    422: (
        "A value is not allowed",
        _error(
            "unknown_field",
            "There is no field 'budget.round' in a request. Did you mean 'rounds'?",
            "budget.round",
            ("rounds", "tool_calls", "deadline_s", "answer_tokens", "tokens"),
        ),
    ),
    429: (
        "More than the key may",
        _error("rate_limited", "This key may send 600 requests a minute; try again in 1 s."),
    ),
    507: (
        "No room for the upload",
        _error("no_room", "There is no room for this upload on the server."),
    ),
    500: (
        "A fault of the server",
        _error("internal", "Something went wrong on the server's side; its log names this request_id."),
    ),
    502: ("A model's output could not be used", _error("bad_model_output", "The model's output could not be used.")),
    503: (
        "Overloaded, or a stage is not available",
        _error("overloaded", "32 questions are in progress here already; try again in a moment."),
    ),
    504: ("A stage took too long", _error("stage_timeout", "A part of the search took too long.")),
}


GUARDED = (401, 403, 429)  # of every route that asks for a key


def responses(*statuses: int, guarded: bool = True) -> dict[int | str, Any]:
    return {
        status: {
            "model": ErrorResponse,
            "description": ERRORS[status][0],
            "headers": {**ID_HEADER, **RETRY_HEADER} if status in (409, 429, 503) else ID_HEADER,
            "content": {"application/json": {"example": ERRORS[status][1]}},
        }
        for status in (*statuses, *(GUARDED if guarded else ()))
    }


def good(model: type, example: dict[str, Any], description: str) -> dict[str, Any]:
    content = {"application/json": {"example": example}}
    return {"model": model, "description": description, "headers": ID_HEADER, "content": content}


BODY_STATUSES = (400, 404, 408, 413, 415, 422, 500, 502, 503, 504)

# In an answer's place, where it is asked for as a stream; ``openapi_events`` has the rest of it.
STREAM_HEADERS = {
    "x-assay-events": {"description": "Of a stream: the version of its events.", "schema": {"const": str(VERSION)}},
    "x-stream-id": {
        "description": "Of a stream with `resumable`: take it up at `/v1/streams/{id}`.",
        "schema": {"type": "string", "pattern": "^stm_[0-9A-Z]{26}$"},
    },
}
STREAMED = good(AskResponse, ANSWER, "The answer, or its events when `stream` is true")
STREAMED["headers"] = {**ID_HEADER, **STREAM_HEADERS}
STREAMED["content"]["text/event-stream"] = EVENTS

ANSWERS: dict[str, Any] = {
    "operation_id": "ask",
    "summary": "Ask a question",
    "responses": {200: STREAMED, **responses(*BODY_STATUSES)},
}

_RECORD = {"created_at": "2025-11-28T08:05:00.000Z", "request": {"question": _QUESTION}, "response": ANSWER}

RECALL: dict[str, Any] = {
    "operation_id": "recall",
    "summary": "Read an answer again",
    "responses": {
        200: good(AnswerRecord, _RECORD, "The answer, and all that led to it"),
        **responses(404, 422, 500, 503),
    },
}

_HIT = {
    **{key: CITATION[key] for key in ("chunk_id", "doc_id", "bucket", "title", "uri", "page", "heading", "span")},
    "hidden": False,
    "score": 0.83,
    "ranks": {"dense": 2, "sparse": 1},
    "similarity": 0.62,
    "text": CITATION["quote"],
    "text_span": CITATION["span"],
}
_FOUND = {
    "request_id": REQUEST_ID,
    "hits": [_HIT],
    "facets": {"type": {"values": [{"value": "Supply", "to": None, "count": 3}], "missing": 0, "more": 0}},
    "explain": {"allowed_rows": 60, "total_rows": 4000, "methods": {"dense": "exact", "sparse": "index"}},
    "index_version": "v42-9f3c1a",
    "timings_ms": {"retrieve": 43.8, "total": 44.0},
}

SEARCH: dict[str, Any] = {
    "operation_id": "search",
    "summary": "Search for passages",
    "responses": {200: good(SearchResponse, _FOUND, "The passages, best first"), **responses(*BODY_STATUSES)},
}

HEALTH: dict[str, Any] = {
    "operation_id": "healthz",
    "summary": "Is the process alive?",
    "responses": {
        200: {
            "description": "Alive",
            "headers": ID_HEADER,
            "content": {
                "application/json": {
                    "schema": {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]},
                    "example": {"status": "ok"},
                }
            },
        }
    },
}

_READY = {"status": "ready", "stages": {"retriever": "ready", "reranker": "ready"}, "index_version": "v42-9f3c1a"}
_NOT_READY = {"status": "unavailable", "stages": {"generator": "starting"}, "reasons": ["The generator is starting."]}

READY: dict[str, Any] = {
    "operation_id": "readyz",
    "summary": "Can questions be answered?",
    "responses": {
        200: good(Readiness, _READY, "Ready, or degraded with its reasons"),
        503: good(Readiness, _NOT_READY, "Not available, with the reasons"),
        **responses(500, guarded=False),
    },
}
