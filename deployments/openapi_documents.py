"""What the OpenAPI document says of documents, their jobs, and buckets."""

from typing import Any

from fastapi import Response

from assay.documents.shapes import BucketList, DocumentList, DocumentView, Job
from deployments.openapi import CITATION, ID_HEADER, good, responses
from deployments.openapi_events import JOB_EVENTS

_JOB_ID = "job_01JB2Z0T6V9W8X7Y6Z5A4B3C2D"
_PROGRESS: dict[str, Any] = {"files": 2, "total_files": 2, "bytes": 81234, "total_bytes": 81234, "chunks": 31}
_FILES: list[dict[str, Any]] = [
    {"name": "supply-7.pdf", "bytes": 61234, "doc_id": "doc_7", "outcome": "ingested", "chunks": 31},
    {
        "name": "scan.pdf",
        "bytes": 20000,
        "doc_id": "doc_8",
        "outcome": "failed",
        "reason": "no_text_layer",
        "message": "the pages are pictures",
    },
]
_DONE: dict[str, Any] = {
    "id": _JOB_ID,
    "bucket": "contracts",
    "status": "completed",
    "created_at": "2025-11-28T08:00:00.000Z",
    "started_at": "2025-11-28T08:00:00.200Z",
    "ended_at": "2025-11-28T08:00:04.100Z",
    "files": _FILES,
    "progress": _PROGRESS,
    "index_version": "v43-1c9a3f",
}
_QUEUED = {
    **{key: _DONE[key] for key in ("id", "bucket", "created_at")},
    "status": "queued",
    "files": [{key: file[key] for key in ("name", "bytes", "doc_id")} for file in _FILES],
    "progress": {**_PROGRESS, "files": 0, "bytes": 0, "chunks": 0},
}
_DOCUMENT = {
    **{key: CITATION[key] for key in ("doc_id", "bucket", "title", "uri")},
    "format": "pdf",
    "bytes": 61234,
    "chunks": 31,
    "ingested_at": "2025-11-28T08:00:03Z",
    "metadata": {"type": "Supply"},
}
_MARKED = {**{key: CITATION[key] for key in ("chunk_id", "page", "heading", "span")}, "text": CITATION["quote"]}
_VIEW = {
    "document": _DOCUMENT,
    "parts": [{**_MARKED, "marked": True}],
    "span": CITATION["span"],
    "chars": 5200,
    "before": 0,
    "after": 1106,
    "highlight": {key: _MARKED[key] for key in ("span", "page", "heading", "text")},
    "index_version": "v43-1c9a3f",
}
_BUCKET = {
    "name": "contracts",
    "description": "Agreements",
    "documents": 60,
    "chunks": 4000,
    "fields": [{"name": "type", "type": "text", "required": True, "documents": 60}],
    "facets": {"type": {"values": [{"value": "Supply", "count": 12}], "missing": 0, "more": 0}},
}
_UPLOADED = {
    "type": "object",
    "required": ["files"],
    "additionalProperties": False,
    "properties": {
        "files": {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}},
        "metadata": {
            "type": "object",
            "description": "From file names of this upload to what is said of them; the bucket's schema types it.",
            "additionalProperties": {"type": "object"},
        },
    },
}


def _operation(id_: str, summary: str, status: int, answer: dict[str, Any], *faults: int) -> dict[str, Any]:
    return {"operation_id": id_, "summary": summary, "responses": {status: answer, **responses(*faults)}}


_FAULTS = (404, 422, 500, 503, 504)

_ACCEPTED = good(Job, _QUEUED, "On disk, and waiting to be read")
_ACCEPTED["headers"] = {**ID_HEADER, "location": {"description": "The job.", "schema": {"type": "string"}}}
UPLOAD = _operation(
    "upload_documents", "Upload files", 202, _ACCEPTED, 400, 404, 408, 409, 413, 415, 422, 500, 503, 507
)
UPLOAD["openapi_extra"] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": _UPLOADED,
                "example": {"files": ["(bytes of supply-7.pdf)"], "metadata": {"supply-7.pdf": {"type": "Supply"}}},
            }
        },
    }
}
JOB = _operation("read_job", "What became of an upload", 200, good(Job, _DONE, "The job"), 404, 422, 500, 503)
EVENTS: dict[str, Any] = {
    "operation_id": "job_events",
    "summary": "A job's events",
    "response_class": Response,
    "responses": {
        200: {
            "description": "Until the job ends",
            "headers": ID_HEADER,
            "content": {"text/event-stream": JOB_EVENTS},
        },
        **responses(404, 422, 500, 503),
    },
}
LIST = _operation(
    "list_documents",
    "List documents",
    200,
    good(
        DocumentList, {"documents": [_DOCUMENT], "total": 1, "index_version": "v43-1c9a3f"}, "The last ingested first"
    ),
    *_FAULTS,
)
READ = _operation(
    "read_document", "Read a document", 200, good(DocumentView, _VIEW, "Its text, with a place marked"), *_FAULTS
)
DELETE = _operation("delete_document", "Delete a document", 204, {"description": "Deleted"}, *_FAULTS)
BUCKETS = _operation(
    "list_buckets",
    "The buckets",
    200,
    good(BucketList, {"buckets": [_BUCKET], "index_version": "v43-1c9a3f"}, "All that may be seen, by name"),
    404,
    500,
    503,
    504,
)
