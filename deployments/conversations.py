"""The routes of conversations: create, list, read, rename, delete, and post a message."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from fastapi import Body, FastAPI, Header, Query, Request, Response
from pydantic import BaseModel

from assay.config import ConversationsConfig
from assay.conversations.shapes import (
    ConversationDetail,
    ConversationInfo,
    ConversationList,
    MessageInfo,
    NewConversation,
    PostMessage,
    Rename,
)
from assay.conversations.store import Store
from assay.conversations.talk import Talk, readable, said
from assay.conversations.types import Conversation, TurnRecord
from assay.events import CompletedEvent, ErrorEvent, Event
from assay.ports import Driver
from assay.schemas import AskResponse
from assay.window import Bounds
from deployments import openapi_conversations as openapi
from deployments.body import admitted
from deployments.database import shared_database
from deployments.events import told
from deployments.gate import bound
from deployments.resumable import Resumables, owner_of
from deployments.sse import Slots


def open_store(config: ConversationsConfig) -> Store:
    """The store; its schema is made or brought up to date with its first use. Raises ``SetupError``: no URL is given."""
    from assay.conversations.database import Database, sqlite

    if config.store == "postgresql":
        return Store(shared_database(config.dsn_env, "ingress.conversations"), config.lease_s)
    path = Path(config.path).expanduser() if config.store == "sqlite" else None
    return Store(Database(sqlite(path)), config.lease_s)


def add_conversations(app: FastAPI, driver: Driver, runs: Resumables, slots: Slots, store: Store) -> None:
    kept = runs.config.conversations
    bounds = Bounds(kept.messages, kept.tokens)

    @app.post("/v1/conversations", status_code=201, tags=["conversations"], response_model=None, **openapi.CREATE)
    async def create(
        request: Request, body: Annotated[NewConversation, Body(openapi_examples=openapi.NEW)]
    ) -> Response:
        """Begin a conversation."""
        return _json(_info(await store.create(owner_of(request), body.title)), 201)

    @app.get("/v1/conversations", tags=["conversations"], response_model=None, **openapi.LIST)
    async def list_(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=100)] = 50,
        before: Annotated[
            str | None,
            Query(max_length=40, pattern="^[A-Za-z0-9_-]*$", description="The id of the last one that you have."),
        ] = None,
    ) -> Response:
        """The conversations, the last used first."""
        found = await store.recent(owner_of(request), limit, before)
        return _json(ConversationList(conversations=[_info(each) for each in found]))

    @app.get("/v1/conversations/{id}", tags=["conversations"], response_model=None, **openapi.READ)
    async def read(
        request: Request,
        id: str,
        limit: Annotated[int, Query(ge=1, le=200, description="Turns, which have two messages each.")] = 100,
        before: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    ) -> Response:
        """A conversation with its messages, the oldest first."""
        found, turns = await store.read(owner_of(request), id, limit, before)
        shown = await readable(bound(driver, request), turns, request.state.request_id)
        messages = [message for turn in shown for message in _messages(turn)]
        for message in messages:
            if message.response is not None:
                request.state.trail.shown(message.response)
        earlier = turns[0].position if turns and turns[0].position > 0 else None
        return _json(ConversationDetail(**_info(found).model_dump(), messages=messages, before=earlier))

    @app.patch("/v1/conversations/{id}", tags=["conversations"], response_model=None, **openapi.RENAME)
    async def rename(
        request: Request,
        id: str,
        body: Annotated[Rename, Body(openapi_examples=openapi.RENAMED)],
    ) -> Response:
        """Give it another title."""
        return _json(_info(await store.rename(owner_of(request), id, body.title)))

    @app.delete("/v1/conversations/{id}", status_code=204, tags=["conversations"], **openapi.DELETE)
    async def delete(request: Request, id: str) -> None:
        """Delete it and all of its messages. An answer in the making ends with an error."""
        await store.delete(owner_of(request), id)
        await runs.streams.drop_group(owner_of(request), id)

    @app.post("/v1/conversations/{id}/messages", tags=["conversations"], response_model=None, **openapi.POST)
    @admitted(slots.check)
    async def post(
        request: Request,
        id: str,
        body: Annotated[PostMessage, Body(openapi_examples=openapi.MESSAGE)],
        key: Annotated[str | None, Header(alias="Idempotency-Key", max_length=200, pattern="^[!-~]+$")] = None,
    ) -> Response:
        """Ask within a conversation: what was said before goes along. A repeated `Idempotency-Key` gives the first answer."""
        talk = Talk(store, bound(driver, request), owner_of(request), id, key, kept.lease_s, bounds)
        question, request_id = body.asked(), request.state.request_id

        def events() -> AsyncGenerator[Event, None]:
            whole = told(talk, question, request_id)
            return whole if body.delivery == "progressive" or not body.stream else _last_only(whole)

        return runs.respond(request, events, slots, body, group=id)


async def _last_only(events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, CompletedEvent | ErrorEvent):
                yield event


def _json(shape: BaseModel, status: int = 200) -> Response:
    return Response(shape.model_dump_json(by_alias=True), status, media_type="application/json")


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _info(found: Conversation) -> ConversationInfo:
    return ConversationInfo(
        id=found.id, title=found.title, created_at=_time(found.created_at), updated_at=_time(found.updated_at)
    )


def _messages(turn: TurnRecord) -> list[MessageInfo]:
    """The question, and what became of it."""
    asked = MessageInfo(
        turn_id=turn.id, role="user", content=turn.question, status=turn.status, created_at=_time(turn.created_at)
    )
    if turn.status == "running":
        return [asked]
    answer = said(turn)[1:] if turn.status == "done" else []
    ended = MessageInfo(
        turn_id=turn.id,
        role="assistant",
        content=answer[0].content if answer else "",
        status=turn.status,
        created_at=_time(turn.ended_at or turn.created_at),
        response=AskResponse.model_validate_json(turn.response) if turn.response else None,
        error=turn.error,
    )
    return [asked, ended]
