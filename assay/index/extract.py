"""Metadata that a language model reads out of documents: fields whose schema says ``extract``, and that nothing else gave.

The model sees the title, the headings and the beginning, and answers under a JSON schema made from the fields. What it says is
held against the document: a text, a number or a date that does not stand there is dropped, and the report says so.
"""

import asyncio
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.config import ExtractionConfig
from assay.errors import AssayError, BadModelOutput, Overloaded, StageTimeout, StageUnavailable
from assay.index.buckets import BucketSchema, FieldSchema, says, typed
from assay.index.filters import instant_of
from assay.index.parse.parsed import Raw
from assay.index.stated import Statements
from assay.inert import inert
from assay.llm.longest import FILLED, longest, rate_of
from assay.llm.tools import schema_fault
from assay.llm.wire import AS_JSON
from assay.ports import LLM, Tokenizer
from assay.templates import Prompts
from assay.tokens import room
from assay.types import Completion, CompletionRequest, Message

# Characters of a text, and texts of a list: the most whose longest answer fits.
SIZES = ((200, 16), (200, 8), (200, 4), (120, 4), (80, 4))
_MOST_TOKENS = 4_096  # of an answer; also at most half of what the context has room for
_HEADINGS = 40
_LEAST = 64  # tokens: less of a document says nothing
# After so many calls in a row that nobody answered, nobody is asked any more: each would wait for its whole time.
_LOST = 4
_VERSION = 1  # raised where the same field would be asked in another way


@dataclass(frozen=True, slots=True)
class Extracted:
    """What a model was asked about a document. ``value``: None where the document does not say. ``asked``: how the field was
    described then; a field that is described otherwise is asked anew."""

    value: Raw | None
    asked: str


@dataclass(frozen=True, slots=True)
class Document:
    """As a model reads it. ``headings``: in order, each once. ``text``: all of it."""

    title: str
    headings: Sequence[str]
    text: str

    @classmethod
    def of(cls, title: str, passages: Sequence[tuple[Sequence[str], str, bool]]) -> "Document":
        """``passages``: headings, text, and whether it is hidden. What no reader sees is left out, unless all is hidden, as
        in a scan with a text layer."""
        seen = [(heading, text) for heading, text, hidden in passages if not hidden]
        seen = seen or [(heading, text) for heading, text, _ in passages]
        headings = dict.fromkeys(name for heading, _ in seen for name in heading)
        return cls(title, tuple(headings), "\n".join(text for _, text in seen))


@dataclass(frozen=True, slots=True)
class Extraction:
    """``problems``: values that were dropped, or why there is none at all; the fields are then asked again by the next run."""

    fields: Mapping[str, Extracted] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def asked_of(schema: FieldSchema) -> str:
    """Names the way in which a field is asked."""
    said = json.dumps([_VERSION, schema.model_dump(mode="json", exclude={"required", "from_"})], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def lacking(schema: BucketSchema, raw: Mapping[str, Raw], held: Mapping[str, Extracted]) -> dict[str, FieldSchema]:
    """The fields that a model is to be asked for: no other source (``raw``) gave them, and none was asked in this way."""
    return {
        name: f
        for name, f in schema.fields.items()
        if f.extract and not says(name, f, raw) and (name not in held or held[name].asked != asked_of(f))
    }


def merged(schema: BucketSchema, raw: Mapping[str, Raw], held: Mapping[str, Extracted]) -> dict[str, Raw]:
    """Raw metadata with what was extracted for fields that nothing else gave, as long as the schema wants that."""
    found = {
        name: held[name].value
        for name, f in schema.fields.items()
        if f.extract and name in held and not says(name, f, raw)
    }
    return {**{name: value for name, value in found.items() if value is not None}, **raw}


def dumps(held: Mapping[str, Extracted]) -> str:
    return json.dumps({name: [e.value, e.asked] for name, e in held.items()})


def loads(text: str | None) -> dict[str, Extracted]:
    """None and "" hold nothing: documents of an index that is older than extraction."""
    return {name: Extracted(value, asked) for name, (value, asked) in json.loads(text or "{}").items()}


class Extractor:
    """Asks one model for the fields of many documents at once, at most ``config.concurrency`` of them side by side."""

    def __init__(
        self,
        llm: LLM,
        tokenizer: Tokenizer,
        config: ExtractionConfig,
        prompts: Prompts = Prompts(),
        *,
        context_tokens: int | None = None,
        shows_schema: bool = False,
    ) -> None:
        """``context_tokens``: of prompt and answer together, where the model's limit is known. ``shows_schema``: the prompt
        tells it what form an answer must have."""
        self._llm, self._tokenizer, self._config, self._prompt = llm, tokenizer, config, prompts["extract"]
        self._context_tokens, self._shows_schema = context_tokens, shows_schema
        self._lost = 0

    async def extract(self, asked: Sequence[tuple[Document, Mapping[str, FieldSchema]]]) -> list[Extraction]:
        """In the order of what is asked."""
        slots = asyncio.Semaphore(self._config.concurrency)
        return list(await asyncio.gather(*(self._one(slots, document, fields) for document, fields in asked)))

    async def _one(self, slots: asyncio.Semaphore, document: Document, fields: Mapping[str, FieldSchema]) -> Extraction:
        async with slots:
            if self._lost >= _LOST:
                return _none(fields, f"not asked, since {_LOST} calls before it found no model")
            try:
                async with asyncio.timeout(self._config.timeout_s):
                    request, size = self._request(document, fields)
                    done = await self._llm.complete(request)
                self._lost = 0
                return _checked(_answer(done, fields), document, fields, *size)
            except TimeoutError:
                self._lost += 1
                return _none(fields, f"timeout after {self._config.timeout_s:.0f} s")
            except AssayError as fault:
                self._lost += isinstance(fault, StageUnavailable | StageTimeout | Overloaded)
                return _none(fields, str(fault))

    def _request(
        self, document: Document, fields: Mapping[str, FieldSchema]
    ) -> tuple[CompletionRequest, tuple[int, int]]:
        """The fields first: they are the same for all documents of a bucket, whose prompts then begin alike. And the size
        of the answer.

        Raises ``BadModelOutput`` where they leave no room for the document."""
        system = Message("system", self._prompt.fill(fields="\n".join(_line(name, f) for name, f in fields.items())))
        headings = "\n".join(document.headings[:_HEADINGS])
        text = inert(f"Title: {document.title}\n\nHeadings:\n{headings}\n\nText:\n{document.text.strip()}")
        rate = rate_of(document.text or document.title, self._tokenizer.count)
        for size in SIZES:
            schema = schema_of(fields, *size)
            more = AS_JSON + json.dumps(schema, ensure_ascii=False) if self._shows_schema else ""
            left = room(self._tokenizer, self._context_tokens, 0, (system, Message("user", "")), more)
            output = math.ceil(longest(schema, rate, self._tokenizer.count) / FILLED)
            if output <= (most := min(_MOST_TOKENS, left // 2)):
                break
        output = min(output, most)
        left -= output
        if left < _LEAST:
            limit = f"the {self._context_tokens} tokens of the model (max_model_len)"
            raise BadModelOutput(f"{len(fields)} fields leave no room for the document in {limit}")
        shown = self._tokenizer.truncate(text, min(left, self._config.tokens))
        request = CompletionRequest(
            (system, Message("user", shown)), max_tokens=output, json_schema=json.dumps(schema, ensure_ascii=False)
        )
        return request, size


def schema_of(fields: Mapping[str, FieldSchema], chars: int = SIZES[0][0], items: int = SIZES[0][1]) -> dict[str, Any]:
    """The JSON schema of an answer: every field, with a value of its type or null. Every string and list is bounded."""
    properties = {name: {"anyOf": [_value_schema(f, chars, items), {"type": "null"}]} for name, f in fields.items()}
    return {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}


def _value_schema(f: FieldSchema, chars: int, items: int) -> dict[str, Any]:
    text = {"enum": list(f.values)} if f.values else {"type": "string", "minLength": 1, "maxLength": chars}
    if f.type == "list":
        return {"type": "array", "items": text, "maxItems": items}
    if f.type == "date":
        return {"type": "string", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
    return text if f.type == "text" else {"type": f.type}


def _line(name: str, f: FieldSchema) -> str:
    kind = {"date": "date as YYYY-MM-DD", "list": "list of texts", "boolean": "true or false"}.get(f.type, f.type)
    choice = f", one of: {', '.join(f.values)}" if f.values else ""
    return f"- {name} ({kind}{choice}){': ' if f.description else ''}{f.description}"


def _answer(done: Completion, fields: Mapping[str, FieldSchema]) -> dict[str, Raw | None]:
    if done.finish_reason != "stop":
        raise BadModelOutput("the answer was cut off")
    try:
        said = json.loads(done.text)
    except ValueError:
        raise BadModelOutput("the answer is no JSON") from None
    # By the most spacious size: of an engine that knows the schema from its prompt alone, more is no fault.
    if fault := schema_fault(json.dumps(schema_of(fields)), said, "the extracted values"):
        raise BadModelOutput(fault)
    return dict(said)


def _checked(
    said: Mapping[str, Raw | None], document: Document, fields: Mapping[str, FieldSchema], chars: int, items: int
) -> Extraction:
    found: dict[str, Extracted] = {}
    problems: list[str] = []
    text = Statements("\n".join((document.title, *document.headings, document.text)))
    for name, f in fields.items():
        whole, cut = _whole(name, f, said[name], chars, items)
        value, problem = _held(name, f, whole, text)
        if whole or not cut:  # else it is asked again, maybe of another model
            found[name] = Extracted(value, asked_of(f))
        problems += filter(None, (cut, problem))
    return Extraction(found, tuple(problems))


def _whole(name: str, f: FieldSchema, value: Raw | None, chars: int, items: int) -> tuple[Raw | None, str]:
    """Without texts that the grammar ended, and not the model: the document may go on there."""
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    cut = [] if f.values else [text for text in texts if len(str(text)) == chars]
    if cut:
        kept: Raw | None = [text for text in texts if text not in cut] if isinstance(value, list) else None
        return kept, f"{name}: extracted {[str(text)[:80] for text in cut]} may go on after {chars} characters"
    more = isinstance(value, list) and len(value) == items < SIZES[0][1]
    return value, f"{name}: there may be more than the extracted {items}" if more else ""


def _held(name: str, f: FieldSchema, value: Raw | None, text: Statements) -> tuple[Raw | None, str]:
    """The value as other sources would give it, or None and why."""
    if value is None or value in ("", []):
        return None, ""
    if f.type == "list" and f.stated and isinstance(value, list):
        kept = [item for item in value if text.have(str(item), "text")]
        lost = [str(item)[:80] for item in value if item not in kept]
        return (kept or None), f"{name}: extracted {lost} do not stand in the document" if lost else ""
    if f.stated and not isinstance(value, list) and not text.have(value, f.type):
        return None, f"{name}: the extracted {str(value)[:80]!r} does not stand in the document"
    if f.type == "date" and f.format is not None and (moment := instant_of(str(value))) is not None:
        value = moment.strftime(f.format)
    problems = typed(BucketSchema(fields={name: f}), {name: value}).problems
    return (None, f"extracted {problems[0]}") if problems else (value, "")


def _none(fields: Mapping[str, FieldSchema], why: str) -> Extraction:
    return Extraction({}, (f"not extracted: {', '.join(fields)}: {why}",))
