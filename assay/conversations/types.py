"""What a store of conversations keeps and says, and its faults. Times are milliseconds since 1970, UTC."""

from dataclasses import dataclass
from typing import Literal

from assay.errors import AssayError, InvalidRequest, StageUnavailable

TurnStatus = Literal["running", "done", "failed", "interrupted"]


class StoreUnavailable(StageUnavailable):
    """The database does not answer; what was acknowledged is in it."""

    code = "store_unavailable"


class ConversationBusy(AssayError):
    """Another message of the conversation is being answered."""

    code = "conversation_busy"
    status = 409
    retryable = True


class KeyReused(InvalidRequest):
    """An idempotency key that belongs to another message."""

    code = "idempotency_key_reused"


@dataclass(frozen=True, slots=True)
class Conversation:
    """``tenant`` owns it, and nobody else sees it."""

    id: str
    tenant: str
    title: str
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A question and what became of it. ``response``: the ``AskResponse`` as JSON, with the tool calls that were made, where
    ``status`` is done. ``error``: the fault's code and words where it failed."""

    id: str
    position: int
    question: str
    status: TurnStatus
    created_at: int
    ended_at: int | None = None
    response: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """What is to be answered. ``key``: the client's idempotency key; ``digest``: of the request, to tell two apart."""

    turn_id: str
    question: str
    digest: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """The turn is ours to answer, after the ``earlier`` ones of the window; or it was answered before, as ``replay`` says."""

    earlier: tuple[TurnRecord, ...] = ()
    replay: TurnRecord | None = None
