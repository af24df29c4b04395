"""What the OpenAPI document says of a stream's events: each of them with its payload."""

from typing import Any, get_args

from fastapi import FastAPI
from pydantic import TypeAdapter

from assay.events import Event

REQUEST_ID = "req_01JB2Z0T6V9W8X7Y6Z5A4B3C2D"

NAMES = tuple(get_args(kind.model_fields["type"].annotation)[0] for kind in get_args(get_args(Event)[0]))

_DATA = TypeAdapter[Any](Event).json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
_SHAPES: dict[str, Any] = _DATA.pop("$defs")

_EVENT = {
    "type": "object",
    "description": "`data` is one JSON object with `request_id` and `type`. The last event is `completed`, with the "
    "whole response, or `error`; there is exactly one of the two.",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[1-9][0-9]*$", "description": "Rises by one from 1."},
        "event": {"enum": list(NAMES)},
        "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": _DATA},
    },
}
_EXAMPLE = f"""id: 1
event: status
data: {{"request_id":"{REQUEST_ID}","type":"status","state":"searching","round":1}}

: ping

id: 2
event: answer
data: {{"request_id":"{REQUEST_ID}","type":"answer","delta":"Either party may terminate "}}

"""
EVENTS = {"itemSchema": _EVENT, "example": _EXAMPLE}


def name_shapes(app: FastAPI) -> None:
    """The shapes of the payloads, among those of requests and responses; no route's own model leads to them."""
    made = app.openapi

    def with_events() -> dict[str, Any]:
        document = made()
        document["components"]["schemas"] = {**_SHAPES, **document["components"]["schemas"]}
        return document

    app.openapi = with_events  # type: ignore[method-assign]  # FastAPI's documented way to extend its document
