"""Every route as a value: how it is asked, and the shape of its answer. Both clients send these."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from assay.conversations.shapes import (
    ConversationDetail,
    ConversationInfo,
    ConversationList,
    NewConversation,
    PostMessage,
    Rename,
)
from assay.documents.shapes import (
    BucketList,
    DocumentList,
    DocumentView,
    Job,
    JobCompletedEvent,
    JobEvent,
    parse_job_event,
)
from assay.errors import NotFound, SetupError
from assay.events import CompletedEvent, Event, parse_event
from assay.schemas import (
    AnswerRecord,
    AskRequest,
    AskResponse,
    Readiness,
    SearchRequest,
    SearchResponse,
    Shape,
)

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E")

# A file on this machine; or a name, and its bytes or where they lie.
Upload = Path | tuple[str, bytes | Path]
TAKEN_UP = "/v1/streams/"


class Nothing(Shape):
    """Of a route whose answer is empty."""


class Tool(Shape):
    name: str
    description: str
    parameters: dict[str, Any]


class ToolList(Shape):
    tools: list[Tool]


@dataclass(frozen=True, slots=True)
class Call(Generic[M]):
    """``options`` are httpx's of a request; ``good``: statuses whose body is the shape."""

    method: str
    path: str
    shape: type[M]
    options: Mapping[str, Any] = field(default_factory=dict)
    good: tuple[int, ...] = (200,)


@dataclass(frozen=True, slots=True)
class Stream(Generic[E]):
    """``last``: the event after which nothing comes."""

    method: str
    path: str
    parse: Callable[[bytes], E]
    last: type
    options: Mapping[str, Any] = field(default_factory=dict)


def ask(request: AskRequest) -> Call[AskResponse]:
    return Call("POST", "/v1/answers", AskResponse, _json(request, stream=False))


def stream(request: AskRequest) -> Stream[Event]:
    return Stream("POST", "/v1/answers", parse_event, CompletedEvent, _json(request, stream=True))


def take_up(stream_id: str, seen: int) -> Stream[Event]:
    told = {"headers": {"last-event-id": str(seen)}}
    return Stream("GET", f"{TAKEN_UP}{_part(stream_id)}", parse_event, CompletedEvent, told)


def recall(answer_id: str) -> Call[AnswerRecord]:
    return Call("GET", f"/v1/answers/{_part(answer_id)}", AnswerRecord)


def search(request: SearchRequest) -> Call[SearchResponse]:
    return Call("POST", "/v1/search", SearchResponse, _json(request))


def ready() -> Call[Readiness]:
    return Call("GET", "/readyz", Readiness, good=(200, 503))


def tools() -> Call[ToolList]:
    return Call("GET", "/v1/tools", ToolList)


# ---- documents ------------------------------------------------------------------------------------------------------


def buckets() -> Call[BucketList]:
    return Call("GET", "/v1/buckets", BucketList)


def documents(bucket: str | None, limit: int, after: str | None) -> Call[DocumentList]:
    return Call("GET", "/v1/documents", DocumentList, _query(bucket=bucket, limit=limit, after=after))


def document(
    doc_id: str, span: tuple[int, int] | None, chunk_id: int | None, start: int | None, max_chars: int | None
) -> Call[DocumentView]:
    place = None if span is None else f"{span[0]},{span[1]}"
    asked = _query(span=place, chunk_id=chunk_id, start=start, max_chars=max_chars)
    return Call("GET", f"/v1/documents/{_part(doc_id)}", DocumentView, asked)


def delete_document(doc_id: str) -> Call[Nothing]:
    return Call("DELETE", f"/v1/documents/{_part(doc_id)}", Nothing, good=(204,))


def upload(
    bucket: str, files: Iterable[Upload], metadata: Mapping[str, Mapping[str, Any]] | None, base: Path | None
) -> Call[Job]:
    """Raises ``SetupError``: a file cannot be read."""
    parts: list[tuple[str, Any]] = [("files", _file(file, base)) for file in files]
    if metadata:
        parts.append(("metadata", (None, dumps(metadata), "application/json")))
    return Call("POST", "/v1/documents", Job, {**_query(bucket=bucket), "files": parts}, good=(202,))


def job(job_id: str) -> Call[Job]:
    return Call("GET", f"/v1/documents/jobs/{_part(job_id)}", Job)


def job_events(job_id: str, after: int) -> Stream[JobEvent]:
    headers = {"last-event-id": str(after)} if after else {}
    path = f"/v1/documents/jobs/{_part(job_id)}/events"
    return Stream("GET", path, parse_job_event, JobCompletedEvent, {"headers": headers})


# ---- conversations --------------------------------------------------------------------------------------------------


def create_conversation(title: str) -> Call[ConversationInfo]:
    return Call("POST", "/v1/conversations", ConversationInfo, _json(NewConversation(title=title)), good=(201,))


def conversations(limit: int, before: str | None) -> Call[ConversationList]:
    return Call("GET", "/v1/conversations", ConversationList, _query(limit=limit, before=before))


def conversation(id_: str, limit: int, before: int | None) -> Call[ConversationDetail]:
    return Call("GET", _conversation(id_), ConversationDetail, _query(limit=limit, before=before))


def rename_conversation(id_: str, title: str) -> Call[ConversationInfo]:
    return Call("PATCH", _conversation(id_), ConversationInfo, _json(Rename(title=title)))


def delete_conversation(id_: str) -> Call[Nothing]:
    return Call("DELETE", _conversation(id_), Nothing, good=(204,))


def post_message(id_: str, message: PostMessage, key: str | None) -> Call[AskResponse]:
    asked = _json(message, stream=False)
    return Call("POST", f"{_conversation(id_)}/messages", AskResponse, _once(asked, key))


def stream_message(id_: str, message: PostMessage, key: str | None) -> Stream[Event]:
    asked = _json(message, stream=True)
    return Stream("POST", f"{_conversation(id_)}/messages", parse_event, CompletedEvent, _once(asked, key))


def _conversation(id_: str) -> str:
    return f"/v1/conversations/{_part(id_)}"


def _once(options: dict[str, Any], key: str | None) -> dict[str, Any]:
    return options if key is None else {**options, "headers": {**options["headers"], "idempotency-key": key}}


def _part(text: str) -> str:
    """An id as one part of a path, whatever it holds. Raises ``NotFound``: an empty one would lead to another route."""
    if text in ("", ".", ".."):
        raise NotFound("There is nothing under an empty id.", "id")
    return quote(text, safe="")


def _query(**given: object) -> dict[str, Any]:
    return {"params": {name: value for name, value in given.items() if value is not None}}


def _json(request: BaseModel, **update: object) -> dict[str, Any]:
    written = request.model_copy(update=update).model_dump_json(by_alias=True, exclude_unset=True)
    return {"content": written, "headers": {"content-type": "application/json"}}


def _file(file: Upload, base: Path | None) -> tuple[str, Any]:
    name, held = file if isinstance(file, tuple) else (_name(file, base), file)
    if isinstance(held, bytes):
        return name, held
    try:
        return name, held.open("rb")
    except OSError as fault:
        raise SetupError(f"'{held}' cannot be read: {fault.strerror}", "files") from None


def _name(file: Path, base: Path | None) -> str:
    return file.relative_to(base).as_posix() if base is not None and file.is_relative_to(base) else file.name


def close(call: Call[Any]) -> None:
    """The files of an upload."""
    parts: Sequence[tuple[str, Any]] = call.options.get("files", ())
    for _, part in parts:
        if hasattr(part[1], "close"):
            part[1].close()
