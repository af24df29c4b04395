"""What the OpenAPI document says of conversations."""

from typing import Any

from assay.conversations.shapes import ConversationDetail, ConversationInfo, ConversationList
from deployments.openapi import ANSWER, BODY_STATUSES, STREAMED, good, responses

_INFO = {
    "id": "conv_01JB2Z0T6V9W8X7Y6Z5A4B3C2D",
    "title": "Notice periods",
    "created_at": "2025-11-28T08:00:00.000Z",
    "updated_at": "2025-11-28T08:05:00.000Z",
}
_QUESTION = "Which supply agreements may be terminated on 30 days' notice?"
_TURN = {"turn_id": "turn_01JB2Z0T6V9W8X7Y6Z5A4B3C2D", "status": "done", "created_at": "2025-11-28T08:05:00.000Z"}
_DETAIL = {
    **_INFO,
    "messages": [
        {**_TURN, "role": "user", "content": _QUESTION},
        {**_TURN, "role": "assistant", "content": ANSWER["answer"]["text"], "response": ANSWER},
    ],
}

NEW: Any = {"title": {"summary": "With a title", "value": {"title": "Notice periods"}}, "plain": {"value": {}}}
RENAMED: Any = {"title": {"value": {"title": "Notice periods"}}}
MESSAGE: Any = {
    "question": {"summary": "Only the question", "value": {"question": _QUESTION}},
    "stream": {"summary": "As events", "value": {"question": _QUESTION, "stream": True}},
    "final": {
        "summary": "Its last event alone",
        "value": {"question": _QUESTION, "stream": True, "delivery": "final_only"},
    },
}

_FAULTS = (404, 422, 500, 503)


def _operation(id_: str, summary: str, status: int, answer: dict[str, Any], *faults: int) -> dict[str, Any]:
    return {"operation_id": id_, "summary": summary, "responses": {status: answer, **responses(*faults)}}


_ONE = good(ConversationInfo, _INFO, "The conversation")

CREATE = _operation("create_conversation", "Begin a conversation", 201, _ONE, *BODY_STATUSES)
LIST = _operation(
    "list_conversations",
    "List conversations",
    200,
    good(ConversationList, {"conversations": [_INFO]}, "The last used first"),
    *_FAULTS,
)
READ = _operation(
    "read_conversation", "Read a conversation", 200, good(ConversationDetail, _DETAIL, "With its messages"), *_FAULTS
)
RENAME = _operation("rename_conversation", "Rename a conversation", 200, _ONE, *BODY_STATUSES)
DELETE = _operation("delete_conversation", "Delete a conversation", 204, {"description": "Deleted"}, *_FAULTS)
POST = _operation("post_message", "Ask within a conversation", 200, STREAMED, *BODY_STATUSES, 409)
