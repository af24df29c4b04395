"""What the OpenAPI document says of streams that are taken up again."""

from typing import Any

from fastapi import Response

from deployments.openapi import ID_HEADER, STREAM_HEADERS, responses
from deployments.openapi_events import EVENTS

TAKE_UP: dict[str, Any] = {
    "operation_id": "take_up_stream",
    "summary": "Take up a dropped stream",
    "response_class": Response,
    "responses": {
        200: {
            "description": "The events after the last one that was seen, and those to come",
            "headers": {**ID_HEADER, **STREAM_HEADERS},
            "content": {"text/event-stream": EVENTS},
        },
        204: {"description": "There are no more: the last event was seen", "headers": ID_HEADER},
        **responses(404, 422, 500, 503),
    },
}
DROP: dict[str, Any] = {
    "operation_id": "drop_stream",
    "summary": "End a stream",
    "responses": {204: {"description": "Ended"}, **responses(404, 422, 500, 503)},
}
