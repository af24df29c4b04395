"""The shapes of OpenAI's chat completions, and what they mean here: a request becomes an ``AskRequest``.

A model's name is a mode and a bucket: ``assay``, ``assay-pipeline``, ``assay/contracts``. The question is the last user
message; what stands before it is history. Parameters that cannot change an answer which is made of evidence are ignored,
as their description says; those that a client would miss are refused.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema, model_validator

from assay.errors import InvalidRequest, NotFound
from assay.ports import Tokenizer
from assay.schemas import (
    MAX_QUESTION_CHARS,
    AskBudget,
    AskOptions,
    AskRequest,
    Filter,
    Include,
    Mode,
    Shape,
    Style,
    Turn,
    whole,
)
from assay.window import Bounds, windowed

MODES: dict[str, Mode] = {"assay": "auto", "assay-agentic": "agentic", "assay-pipeline": "pipeline"}
SOURCES = "\n\nSources:\n"  # before the list of what an answer cites
MAX_MESSAGE_CHARS = 32_000

_TEXT = {"type": "string", "maxLength": MAX_MESSAGE_CHARS}
_SAID = {**_TEXT, "pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}


class UnknownModel(NotFound):
    code = "model_not_found"


# ---- messages -------------------------------------------------------------------------------------------------------


def _text(content: object) -> object:
    """Text, or the texts of a list of parts, as one."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("must be text, or a list of text parts")
    texts = [_part(part) for part in content]
    return "\n".join(text for text in texts if text)


def _part(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(kind) if isinstance(part, dict) and kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise ValueError(
            'must be text: parts are {"type": "text", "text": "..."}; images, audio and files are not read'
        )
    return text


def _content(text: dict[str, Any]) -> dict[str, Any]:
    part = {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": text},
        "required": ["type", "text"],
    }
    return {"anyOf": [text, {"type": "array", "items": part, "minItems": 1, "maxItems": 64}]}


def _message_schema(roles: list[str], text: dict[str, Any], required: bool = True) -> dict[str, Any]:
    content = _content(text)
    return {
        "type": "object",
        "properties": {
            "role": {"enum": roles},
            "content": content if required else {"anyOf": [*content["anyOf"], {"type": "null"}]},
        },
        "required": ["role", "content"] if required else ["role"],
    }


class ChatMessage(Shape):
    """Clients send back what they got, with keys of many makers: what is not known here is not looked at."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_text), StringConstraints(max_length=MAX_MESSAGE_CHARS)] = ""

    @model_validator(mode="before")
    @classmethod
    def _nothing_said(cls, value: object) -> object:
        """An assistant that only called tools has no content, or null."""
        if isinstance(value, dict) and value.get("role") == "assistant" and value.get("content") is None:
            return {**value, "content": ""}
        if isinstance(value, dict) and "role" in value and "content" not in value:
            raise ValueError("needs a 'content'")
        return value


Message = Annotated[
    ChatMessage,
    WithJsonSchema(
        {
            "anyOf": [
                _message_schema(["user"], _SAID),
                _message_schema(["system", "developer", "tool"], _TEXT),
                _message_schema(["assistant"], _TEXT, required=False),
            ]
        }
    ),
]


# ---- the request ----------------------------------------------------------------------------------------------------


def _only(*fine: object) -> Any:
    """A parameter that may only have the values that ask for nothing: null, and ``fine``."""
    schema: dict[str, Any] = {"enum": [*fine, None]}
    return Field(default=None, description="Not supported: anything else is refused.", json_schema_extra=schema)


Ignored = Annotated[Any, Field(description="Accepted and ignored: it changes nothing here.")]
Tokens = Annotated[int | None, Field(ge=1, le=100_000), BeforeValidator(whole)]


class StreamOptions(Shape):
    include_usage: bool | None = None
    include_obfuscation: Ignored = None


class ChatExtras(Shape):
    """What only Assay has: the fields of ``POST /v1/answers``, sent as ``extra_body={"assay": {...}}``."""

    filters: Filter | None = None
    top_k: Annotated[int | None, Field(ge=1, le=100), BeforeValidator(whole)] = None
    style: Style = "auto"
    budget: AskBudget = AskBudget()
    options: AskOptions = AskOptions()
    include: Annotated[list[Include], Field(max_length=3)] = []


class ChatRequest(Shape):
    """``POST /v1/chat/completions``."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=300)]
    messages: list[Message] = Field(
        min_length=1,
        max_length=1_000,
        json_schema_extra={
            "contains": {"type": "object", "properties": {"role": {"const": "user"}}, "required": ["role"]}
        },
    )
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_completion_tokens: Tokens = None
    max_tokens: Tokens = None
    assay: ChatExtras = ChatExtras()

    frequency_penalty: Ignored = None
    metadata: Ignored = None
    parallel_tool_calls: Ignored = None
    presence_penalty: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    reasoning_effort: Ignored = None
    safety_identifier: Ignored = None
    seed: Ignored = None
    service_tier: Ignored = None
    temperature: Ignored = None
    top_p: Ignored = None
    user: Ignored = None
    verbosity: Ignored = None

    audio: Any = _only()
    function_call: Any = _only("none")
    functions: Any = _only([])
    logit_bias: Any = _only({})
    logprobs: Any = _only(False)
    modalities: Any = _only(["text"])
    moderation: Any = _only()
    n: Any = _only(1)
    prediction: Any = _only()
    response_format: Any = _only({"type": "text"})
    stop: Any = _only([])
    store: Any = _only(False)
    tool_choice: Any = _only("none", "auto")
    tools: Any = _only([])
    top_logprobs: Any = _only(0)
    web_search_options: Any = _only()

    def refuse(self) -> None:
        """Raises ``InvalidRequest`` for a parameter that a client would miss."""
        for name, field in type(self).model_fields.items():
            schema = field.json_schema_extra
            fine = schema.get("enum") if isinstance(schema, dict) else None
            value = getattr(self, name)
            if isinstance(fine, list) and not any(
                value == f and isinstance(value, bool) == isinstance(f, bool) for f in fine
            ):
                raise InvalidRequest(f"'{name}' is not supported here.", name)

    @property
    def with_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def model_names(buckets: Iterable[str]) -> list[str]:
    """Every model that there is: each mode over all buckets, and over each one."""
    return [f"{mode}{bucket}" for bucket in ("", *(f"/{name}" for name in sorted(buckets))) for mode in MODES]


def mode_and_bucket(model: str) -> tuple[Mode, str | None]:
    """``assay-pipeline/contracts`` -> ``("pipeline", "contracts")``. Whether there is such a bucket, the search says."""
    name, slash, bucket = model.partition("/")
    if name not in MODES or (slash and not 0 < len(bucket) <= 200):
        raise UnknownModel(f"There is no model '{model[:80]}'.", "model", tuple(MODES))
    return MODES[name], bucket or None


def asked(request: ChatRequest, bounds: Bounds, tokenizer: Tokenizer) -> AskRequest:
    """Raises ``UnknownModel``; ``InvalidRequest`` where no user message can be the question."""
    mode, bucket = mode_and_bucket(request.model)
    request.refuse()
    last = max((at for at, message in enumerate(request.messages) if message.role == "user"), default=None)
    if last is None:
        raise InvalidRequest("'messages' must have one of the role 'user': the question.", "messages")
    question, field = request.messages[last].content, f"messages[{last}].content"
    if not question.strip() or "\x00" in question:
        raise InvalidRequest(f"'{field}' is the question: it must not be blank, nor contain NUL.", field)
    if len(question) > MAX_QUESTION_CHARS:
        raise InvalidRequest(f"'{field}' is the question: at most {MAX_QUESTION_CHARS} characters.", field)
    tokens = request.max_completion_tokens or request.max_tokens
    extras = request.assay
    return AskRequest(
        question=question,
        mode=mode,
        buckets=[bucket] if bucket else [],
        filters=extras.filters,
        history=windowed(turns_of(request.messages[:last]), bounds, tokenizer),
        top_k=extras.top_k,
        style=extras.style,
        budget=extras.budget,
        options=extras.options,
        include=extras.include,
        stream=bool(request.stream),
    ).of_at_most(tokens)


def turns_of(messages: Iterable[ChatMessage]) -> list[list[Turn]]:
    """What people and answers said, by turns that each begin with a question. Instructions, and calls of other tools with
    their results, are not part of it; nor are the lists of sources under our own answers."""
    turns: list[list[Turn]] = []
    for message in messages:
        text = message.content
        if message.role == "assistant":
            text = text.rpartition(SOURCES)[0] or text
        if message.role == "user" and text.strip():
            turns.append([Turn(role="user", content=text)])
        elif message.role == "assistant" and text.strip() and turns:
            turns[-1].append(Turn(role="assistant", content=text))
    return turns
