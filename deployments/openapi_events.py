"""What the OpenAPI document says of a stream's events: each of them with its payload."""

import json
from functools import cache
from typing import Any, get_args

from fastapi import FastAPI
from pydantic import TypeAdapter

from assay.documents.shapes import JobEvent
from assay.events import Event

REQUEST_ID = "req_01JB2Z0T6V9W8X7Y6Z5A4B3C2D"

_SHAPES: dict[str, Any] = {}
_REF = "#/components/schemas/"
_FRAMEWORKS = "HTTPValidationError"
# What follows ids from one route to the next (schemathesis does) looks for the shape that an id is called after.
_BY_THEIR_IDS = {"DocumentRow": "Doc", "SearchHit": "Chunk"}


def _names(union: Any) -> tuple[str, ...]:
    return tuple(get_args(kind.model_fields["type"].annotation)[0] for kind in get_args(get_args(union)[0]))


def _event(union: Any, whole: str) -> dict[str, Any]:
    """One of a stream, whose last is ``completed`` with the ``whole``, or ``error``."""
    data = TypeAdapter[Any](union).json_schema(mode="serialization", ref_template=_REF + "{model}")
    _SHAPES.update(data.pop("$defs"))
    return {
        "type": "object",
        "description": "`data` is one JSON object with `request_id` and `type`. The last event is `completed`, with the "
        f"whole {whole}, or `error`; there is exactly one of the two.",
        "required": ["id", "event", "data"],
        "properties": {
            "id": {"type": "string", "pattern": "^[1-9][0-9]*$", "description": "Rises by one from 1."},
            "event": {"enum": list(_names(union))},
            "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": data},
        },
    }


NAMES = _names(Event)
_EXAMPLE = f"""id: 1
event: status
data: {{"request_id":"{REQUEST_ID}","type":"status","state":"searching","round":1}}

: ping

id: 2
event: answer
data: {{"request_id":"{REQUEST_ID}","type":"answer","delta":"Either party may terminate "}}

"""
_JOB_EXAMPLE = f"""id: 1
event: status
data: {{"request_id":"{REQUEST_ID}","type":"status","state":"queued"}}

: ping

"""
EVENTS = {"itemSchema": _event(Event, "response"), "example": _EXAMPLE}
JOB_EVENTS = {"itemSchema": _event(JobEvent, "job"), "example": _JOB_EXAMPLE}


def name_shapes(app: FastAPI) -> None:
    """The shapes of the payloads, among those of requests and responses; no route's own model leads to them."""
    made = app.openapi

    @cache
    def with_events() -> dict[str, Any]:
        document = made()
        for operation in (each for path in document["paths"].values() for each in path.values()):
            if _FRAMEWORKS in json.dumps(operation["responses"].get("422", {})):
                del operation["responses"]["422"]  # which a door that says 400 never sends
        schemas = document["components"]["schemas"]
        own = {name: shape for name, shape in schemas.items() if name not in (_FRAMEWORKS, "ValidationError")}
        document["components"]["schemas"] = {**_SHAPES, **own}
        text = json.dumps(document)
        for shape, name in _BY_THEIR_IDS.items():
            text = text.replace(f'"{_REF}{shape}"', f'"{_REF}{name}"').replace(f'"{shape}":', f'"{name}":')
        named: dict[str, Any] = json.loads(text)
        return named

    app.openapi = with_events  # type: ignore[method-assign]  # FastAPI's documented way to extend its document
