"""What the OpenAPI document says of a stream's events: each of them with its payload."""

from typing import Any, get_args

from pydantic import TypeAdapter

from assay.documents.shapes import JobEvent
from assay.events import Event

REQUEST_ID = "req_01JB2Z0T6V9W8X7Y6Z5A4B3C2D"

SHAPES: dict[str, Any] = {}
"""Of payloads, by name: no route's own model leads to them."""
REF = "#/components/schemas/"


def _names(union: Any) -> tuple[str, ...]:
    return tuple(get_args(kind.model_fields["type"].annotation)[0] for kind in get_args(get_args(union)[0]))


def _event(union: Any, whole: str) -> dict[str, Any]:
    """One of a stream, whose last is ``completed`` with the ``whole``, or ``error``."""
    data = TypeAdapter[Any](union).json_schema(mode="serialization", ref_template=REF + "{model}")
    SHAPES.update(data.pop("$defs"))
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
