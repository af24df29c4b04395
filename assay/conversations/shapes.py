"""The shapes of ``/v1/conversations``."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from assay.schemas import AskRequest, AskResponse, Shape, Turn

Title = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\u0000]*$")]
Delivery = Literal["progressive", "final_only"]


class NewConversation(Shape):
    title: Title = Field(default="", description="Without one, the first question's beginning.")


class Rename(Shape):
    title: Title


class ConversationInfo(Shape):
    """Times are ISO 8601, UTC."""

    id: str
    title: str
    created_at: str
    updated_at: str


class MessageInfo(Shape):
    """``status``: of the turn; an ``error`` is why there is no answer. ``response``: the whole of an answer."""

    turn_id: str
    role: Literal["user", "assistant"]
    content: str
    status: Literal["running", "done", "failed", "interrupted"]
    created_at: str
    response: AskResponse | None = None
    error: str | None = None


class ConversationDetail(ConversationInfo):
    """``before``: what to ask with for the messages before these; null where these are the first."""

    messages: list[MessageInfo]
    before: int | None = None


class ConversationList(Shape):
    conversations: list[ConversationInfo]


class PostMessage(AskRequest):
    """As a question; its history is the conversation's own."""

    history: list[Turn] = Field(default=[], max_length=0, description="The conversation has its own.")
    delivery: Delivery = Field(default="progressive", description="Of a stream: every event, or the last one alone.")

    def asked(self) -> AskRequest:
        return AskRequest(
            **{name: getattr(self, name) for name in self.model_fields_set & set(AskRequest.model_fields)}
        )
