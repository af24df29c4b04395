"""What a question's run says while it happens. The SSE stream, the handle's stream and the terminal show these same events.

Their names and fields are an interface: new ones may be added; what is removed, renamed or means something else makes a new
``VERSION``.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter

from assay.errors import of_code
from assay.schemas import AskResponse, Citation, Clarification, Degraded, ErrorBody, Filter, Intent, Mode, Shape

VERSION = 1


class _Event(Shape):
    request_id: str = ""

    def of(self, request_id: str) -> Self:
        """The same event, now of this request. It is not copied, which would cost more than all else of an event: whoever made
        it gives it away here, and nobody has seen it yet."""
        self.__dict__["request_id"] = request_id
        self.__pydantic_fields_set__.add("request_id")
        return self


class StatusEvent(_Event):
    type: Literal["status"] = "status"
    state: Literal["planning", "searching", "reranking", "grading", "answering", "verifying"]
    round: int = 0


class PlanEvent(_Event):
    type: Literal["plan"] = "plan"
    mode: Mode
    query: str
    variants: list[str] = []
    sub_questions: list[str] = []
    buckets: list[str] = []
    filters: Filter | None = None
    search: bool = True
    reason: str = ""
    intent: Intent | None = None


class ToolCallStart(_Event):
    type: Literal["tool_call_start"] = "tool_call_start"
    tool: str
    arguments: dict[str, Any]


class ToolCallResult(_Event):
    type: Literal["tool_call_result"] = "tool_call_result"
    tool: str
    hits: int
    duration_ms: float
    outcome: str


class EvidenceEvent(_Event):
    """``found``: titles of what the question alone found, told while the planner thinks; what stays is ``added`` later.
    ``doc_ids``: one for each of ``found`` or ``added``."""

    type: Literal["evidence"] = "evidence"
    # A default that has to be copied costs more than the rest of the event.
    found: list[str] = Field(default_factory=list)
    added: list[str] = Field(default_factory=list)
    doc_ids: list[str] = Field(default_factory=list)
    titles: list[str] = Field(default_factory=list)
    scores: list[float] = Field(default_factory=list)
    pruned: list[str] = Field(default_factory=list)


class GradeEvent(_Event):
    type: Literal["grade"] = "grade"
    p_enough: float
    p_more: float
    p_clarify: float
    p_about: float
    p_holds: float = 1.0
    missing: list[str] = []
    follow_up: str | None = None
    beside: list[str] = []
    features: dict[str, float] = {}


class ReasoningEvent(_Event):
    type: Literal["reasoning"] = "reasoning"
    delta: str


class AnswerEvent(_Event):
    type: Literal["answer"] = "answer"
    delta: str


class CitationEvent(_Event):
    type: Literal["citation"] = "citation"
    citation: Citation


class ClarifyEvent(_Event):
    type: Literal["clarify"] = "clarify"
    clarification: Clarification


class DegradedEvent(_Event):
    type: Literal["degraded"] = "degraded"
    degraded: Degraded


class CompletedEvent(_Event):
    """Always last on success; carries the whole response."""

    type: Literal["completed"] = "completed"
    response: AskResponse


class ErrorEvent(_Event):
    """Always last on a fault that no fallback could answer."""

    type: Literal["error"] = "error"
    error: ErrorBody


Event = Annotated[
    StatusEvent
    | PlanEvent
    | ToolCallStart
    | ToolCallResult
    | EvidenceEvent
    | GradeEvent
    | ReasoningEvent
    | AnswerEvent
    | CitationEvent
    | ClarifyEvent
    | DegradedEvent
    | CompletedEvent
    | ErrorEvent,
    Field(discriminator="type"),
]

parse_event = TypeAdapter[Event](Event).validate_json


def of_documents(frames: str) -> Iterator[Event]:
    """Server-sent frames as they were kept -> their events, of those kinds that name documents or end a stream."""
    for frame in frames.split("\n\n"):
        _, _, rest = frame.partition("\nevent: ")
        name, _, data = rest.partition("\ndata: ")
        if name in ("evidence", "citation", "completed", "error"):
            yield parse_event(data)


async def drained(events: AsyncGenerator[Event]) -> AskResponse:
    """The response that they end with. Raises the fault that they end with."""
    last: Event | None = None
    async with aclosing(events):
        async for event in events:
            last = event
    if isinstance(last, ErrorEvent):
        raise of_code(last.error.code, last.error.message, last.error.field, tuple(last.error.allowed))
    if not isinstance(last, CompletedEvent):
        raise AssertionError("the stream ended without its last event")
    return last.response
