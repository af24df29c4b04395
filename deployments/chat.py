"""The OpenAI door: ``POST /v1/chat/completions`` and ``GET /v1/models``, for the clients of that API.

An answer's text is followed by a readable list of its sources; each citation is an annotation at the place of its sentence.
What that API has no field for (status, degraded, whole citations) stands under ``assay``.
"""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request, Response

from assay.chat import SOURCES, ChatRequest, UnknownModel, asked, model_names
from assay.config import IngressConfig
from assay.events import AnswerEvent, CitationEvent, ClarifyEvent, CompletedEvent, ErrorEvent, Event, ReasoningEvent
from assay.ports import Driver
from assay.schemas import AskResponse, Citation, Clarification
from assay.tokens import EstimatedTokenizer
from assay.types import Scope
from assay.window import Bounds
from deployments import openapi_chat as openapi
from deployments.body import admitted
from deployments.events import told
from deployments.gate import bound
from deployments.problems import CHAT_PATHS, chat_error, response_of
from deployments.sse import QuestionResponse, Slots

OWNER = "assay"


def add_chat(app: FastAPI, driver: Driver, config: IngressConfig, slots: Slots) -> None:
    tokenizer, bounds = EstimatedTokenizer(), Bounds()

    @app.post("/v1/chat/completions", tags=["OpenAI"], response_model=None, **openapi.CHAT)
    @admitted(slots.check)
    async def chat(request: Request, body: Annotated[ChatRequest, Body(openapi_examples=openapi.ASK)]) -> Response:
        """Ask in the form of OpenAI's API. The question is the last user message; what stands before it is history.

        Models are `assay`, `assay-pipeline` and `assay-agentic`, each also over one bucket: `assay/contracts`."""
        question, request_id = asked(body, bounds, tokenizer), request.state.request_id
        wire = ChatWire(body.model, request_id, body.with_usage)
        stream = bool(body.stream)
        return QuestionResponse(
            lambda: told(bound(driver, request), question, request_id), slots, stream, config.heartbeat_s, wire
        )

    @app.get("/v1/models", tags=["OpenAI"], response_model=None, **openapi.MODELS)
    async def models(request: Request) -> Response:
        """The models: each mode over all buckets, and over each one."""
        data = [_model(name) for name in await _names(driver, request)]
        return Response(json.dumps({"object": "list", "data": data}), media_type="application/json")

    @app.get("/v1/models/{model:path}", tags=["OpenAI"], response_model=None, **openapi.MODEL)
    async def one_model(request: Request, model: str) -> Response:
        """One of them."""
        names = await _names(driver, request)
        if model not in names:
            raise UnknownModel("There is no such model.", "model", tuple(names[:50]))
        return Response(json.dumps(_model(model)), media_type="application/json")


async def _names(driver: Driver, request: Request) -> list[str]:
    found = await bound(driver, request).describe(Scope(), request.state.request_id)
    return model_names(bucket.name for bucket in found)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER}


# ---- one answer, as that API's chunks or as its one object ----------------------------------------------------------


class ChatWire:
    """A ``Wire``. A citation belongs to the text since the last cited text: its sentence, however it was streamed."""

    headers: Mapping[str, str] = {}

    def __init__(self, model: str, request_id: str, with_usage: bool) -> None:
        self._head = {"id": f"chatcmpl-{request_id}", "created": int(time.time()), "model": model}
        self._with_usage = with_usage
        self._said, self._reasoning = "", ""
        self._from, self._cited = 0, False
        self._annotations: list[dict[str, object]] = []
        self._begun = False
        self._end: CompletedEvent | ErrorEvent | None = None

    def frames(self, event: Event) -> str:
        opening = "" if self._begun else self._chunk({"role": "assistant", "content": ""})
        self._begun = True
        return opening + "".join(self._told(event))

    def _told(self, event: Event) -> Iterable[str]:
        if isinstance(event, ReasoningEvent):
            self._reasoning += event.delta
            yield self._chunk({"reasoning_content": event.delta})
        elif isinstance(event, AnswerEvent):
            yield self._say(event.delta)
        elif isinstance(event, CitationEvent):
            self._cited = True
            annotation = _annotation(event.citation, self._start(), len(self._said))
            self._annotations.append(annotation)
            yield self._chunk({"annotations": [annotation]})
        elif isinstance(event, ClarifyEvent):
            yield self._say(clarified(event.clarification))
        elif isinstance(event, ErrorEvent):
            self._end = event
            yield _data({"error": chat_error(event.error)})
        elif isinstance(event, CompletedEvent):
            yield from self._completed(event)

    def _completed(self, event: CompletedEvent) -> Iterable[str]:
        self._end = event
        response = event.response
        if not self._said:  # a driver that told its answer at the end only
            yield self._say(response.answer.text if response.answer else clarified(response.clarification))
        if response.citations:
            yield self._say(source_list(response.citations))
        yield _data(self._object("chat.completion.chunk", _choice("delta", {}, "stop")) | {"assay": extras(response)})
        if self._with_usage:
            yield _data({**self._object("chat.completion.chunk", None), "usage": usage(response)})
        yield "data: [DONE]\n\n"

    def _say(self, text: str) -> str:
        if self._cited:
            self._from, self._cited = len(self._said), False
        self._said += text
        return self._chunk({"content": text})

    def _start(self) -> int:
        """Where the sentence begins, after the break before it."""
        return self._from + len(self._said[self._from :]) - len(self._said[self._from :].lstrip())

    def _chunk(self, delta: dict[str, object]) -> str:
        return _data(self._object("chat.completion.chunk", _choice("delta", delta, None)))

    def _object(self, kind: str, choice: dict[str, object] | None) -> dict[str, Any]:
        return {**self._head, "object": kind, "choices": [choice] if choice else []}

    def response(self) -> Response:
        if isinstance(self._end, ErrorEvent):
            return response_of(self._end.error, path=CHAT_PATHS[0])
        assert self._end is not None
        message: dict[str, object] = {"role": "assistant", "content": self._said, "refusal": None}
        message |= {"annotations": self._annotations}
        message |= {"reasoning_content": self._reasoning} if self._reasoning else {}
        whole = self._object("chat.completion", _choice("message", message, "stop"))
        whole |= {"usage": usage(self._end.response), "assay": extras(self._end.response)}
        return Response(json.dumps(whole, ensure_ascii=False), media_type="application/json")


def _choice(key: str, value: dict[str, object], finish: str | None) -> dict[str, object]:
    return {"index": 0, key: value, "logprobs": None, "finish_reason": finish}


def _data(value: dict[str, Any]) -> str:
    # ASCII: that API's clients split lines where text does, and U+2028 stands in documents.
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


def _annotation(citation: Citation, start: int, end: int) -> dict[str, object]:
    place = {"start_index": start, "end_index": end, "title": citation.title, "url": citation.uri}
    return {"type": "url_citation", "url_citation": place, "assay": citation.model_dump(mode="json")}


def usage(response: AskResponse) -> dict[str, object]:
    used = response.usage
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
    }


def extras(response: AskResponse) -> dict[str, Any]:
    """The response but for what stands elsewhere already."""
    return response.model_dump(mode="json", by_alias=True, exclude={"answer", "usage", "request_id"}, exclude_none=True)


def source_list(citations: Iterable[Citation]) -> str:
    """``[1] Title, heading, page (uri)``: a line for each number, with every page that is cited."""
    sources: dict[int, list[Citation]] = {}
    for citation in citations:
        sources.setdefault(citation.number, []).append(citation)
    return SOURCES + "\n".join(_source(number, cited) for number, cited in sorted(sources.items()))


def _source(number: int, cited: list[Citation]) -> str:
    first = cited[0]
    pages = sorted({c.page for c in cited if c.page is not None})
    where = [first.title, " > ".join(first.heading)] if len(cited) == 1 else [first.title]
    where += [f"page{'s' if len(pages) > 1 else ''} {', '.join(map(str, pages))}"] if pages else []
    where += ["hidden text"] if any(c.hidden for c in cited) else []
    return f"[{number}] {', '.join(' '.join(part.split()) for part in where if part)} ({first.uri})"


def clarified(clarification: Clarification | None) -> str:
    if clarification is None:
        return ""
    choices = [f"- {c.label}" + ("" if c.count is None else f" ({c.count})") for c in clarification.choices]
    return "\n".join([clarification.message, *choices])
