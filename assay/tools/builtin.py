"""The tools of the collection itself: three searches, a look into a document, its metadata, and what buckets there are."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from assay.bound import joined
from assay.errors import InvalidRequest
from assay.expand import described
from assay.schemas import Filter, Name, Predicate, Shape
from assay.tools.base import Tool, ToolContext, ToolOutput, passage_id
from assay.types import LEGS, Chunk, DocumentQuery, DocumentText, Hit, Leg, Scope, SearchQuery

MOST_CONDITIONS = 8

A = TypeVar("A", bound=Shape)

Text = Annotated[str, StringConstraints(min_length=1, max_length=400)]


class SearchArguments(Shape):
    query: Text = Field(description="What to look for. A query that was asked before is not run again.")
    bucket: Name | None = Field(None, description="Only this bucket; none: all that the question may be put to.")
    filters: list[Predicate] = Field([], max_length=MOST_CONDITIONS, description="Conditions that must all hold.")
    doc_id: Name | None = Field(None, description="Only this document.")
    top_k: int = Field(5, ge=1, le=20, description="Passages to be given back.")
    context_chars: int = Field(0, ge=0, le=2000, description="Also this much text around each match, to read.")


class DocumentArguments(Shape):
    doc_id: Name = Field(description="As a search gave it.")


class LookupArguments(DocumentArguments):
    page: int | None = Field(None, ge=1, description="From this page on.")
    heading: Name | None = Field(None, description="The part under this heading.")
    start: int | None = Field(None, ge=0, description="From this character of the document on.")
    max_chars: int = Field(3000, ge=200, le=6000)


class NoArguments(Shape):
    pass


@cache
def schema_of(arguments: type[Shape]) -> dict[str, Any]:
    """A model's JSON schema without titles, which only cost tokens. Nobody changes what it gives."""
    return _untitled(arguments.model_json_schema())  # type: ignore[no-any-return]


def _untitled(part: Any) -> Any:
    if isinstance(part, list):
        return [_untitled(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: {name: _untitled(each) for name, each in value.items()}
        if key in ("properties", "$defs")
        else _untitled(value)
        for key, value in part.items()
        if key != "title" or not isinstance(value, str)
    }


class SearchTool:
    def __init__(self, name: str, description: str, legs: tuple[Leg, ...]) -> None:
        self.name, self.description, self._legs = name, description, legs
        self.parameters = schema_of(SearchArguments)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        asked = read(SearchArguments, arguments)
        filters = joined(asked.filters) if asked.filters else None
        within = context.retriever.within((asked.bucket,) if asked.bucket else (), filters)
        query = SearchQuery(
            queries=(asked.query,),
            buckets=within.buckets,
            filters=within.filters,
            doc_id=asked.doc_id,
            legs=self._legs,
            link_hop=context.link_hop and "dense" in self._legs,
            top_k=asked.top_k,
            context_chars=asked.context_chars or None,
            request_id=context.request_id,
        )
        found = await context.retriever.search(query)
        note = "" if found.hits else _why_nothing(found.explain.allowed_rows)
        around = [f"Around {_named(hit.chunk)}: {hit.context.text}" for hit in found.hits if hit.context]
        return ToolOutput(
            found.hits,
            "\n".join([note, *around]).strip(),
            within.filters,
            found.index_version,
            found.degraded,
            empty=not found.hits,
        )


class DocumentLookup:
    name = "document_lookup"
    description = "Read a part of one document: from its beginning, a page, a heading or a character on."
    parameters = schema_of(LookupArguments)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        asked = read(LookupArguments, arguments)
        span = None if asked.start is None else (asked.start, asked.start + asked.max_chars)
        if sum(part is not None for part in (span, asked.page, asked.heading)) > 1:
            raise InvalidRequest("Name at most one of page, heading and start.", "page", ("page", "heading", "start"))
        query = DocumentQuery(
            asked.doc_id,
            span=span,
            page=asked.page,
            heading=asked.heading,
            max_chars=asked.max_chars,
            request_id=context.request_id,
        )
        found = await context.retriever.document_lookup(query)
        note = f"Characters {found.span[0]} to {found.span[1]} of {found.chars} of {asked.doc_id}."
        note += " Some of them are hidden text, which no reader of the file sees." if found.hidden else ""
        return ToolOutput((_passage(found, asked.page),) if found.text.strip() else (), note, _filters(context))


class DocumentMetadata:
    name = "get_document_metadata"
    description = "What is known of one document beside its text: title, format, size, and the values of its fields."
    parameters = schema_of(DocumentArguments)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        asked = read(DocumentArguments, arguments)
        held = await context.retriever.get_document_metadata(DocumentQuery(asked.doc_id, request_id=context.request_id))
        told = {
            "doc_id": held.doc_id,
            "bucket": held.bucket,
            "title": held.title,
            "uri": held.uri,
            "format": held.format,
            "bytes": held.bytes,
            "passages": held.chunks,
            "ingested_at": held.ingested_at,
            "metadata": dict(held.metadata),
        }
        return ToolOutput(
            note=json.dumps(told, ensure_ascii=False), filters=_filters(context), documents=(held.doc_id,)
        )


class ListBuckets:
    name = "list_buckets"
    description = "The buckets that the question may be put to, with the fields of their documents and their values."
    parameters = schema_of(NoArguments)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        read(NoArguments, arguments)
        buckets = await context.retriever.describe(Scope())
        told = described(buckets, with_fields=True).strip() if buckets else "There is no bucket."
        return ToolOutput(note=told, filters=_filters(context))


def builtin_tools() -> tuple[Tool, ...]:
    return (
        SearchTool("search_hybrid", "Search by words and by meaning together. Right for most questions.", LEGS),
        SearchTool("search_text", "Search by words: names, numbers, identifiers, exact terms.", ("sparse",)),
        SearchTool("search_semantic", "Search by meaning: descriptions, paraphrases.", ("dense",)),
        DocumentLookup(),
        DocumentMetadata(),
        ListBuckets(),
    )


def read(shape: type[A], arguments: Mapping[str, Any]) -> A:
    """The arguments as the tool knows them. Raises ``InvalidRequest`` with the field."""
    try:
        return shape.model_validate(dict(arguments))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = f"{place}: {first['msg'].removeprefix('Value error, ')}"
        raise InvalidRequest(message, place, tuple(shape.model_fields)) from None


def _filters(context: ToolContext) -> Filter | None:
    return context.retriever.scope.filters


def _why_nothing(allowed: int) -> str:
    if not allowed:
        return "Nothing: the filter leaves no passage. Ask with fewer conditions."
    return f"Nothing found among {allowed} passages. Ask in other words."


def _named(chunk: Chunk) -> str:
    return f"{chunk.doc_id} (hidden text, not trusted)" if chunk.hidden else chunk.doc_id


def _passage(found: DocumentText, page: int | None) -> Hit:
    document, (start, end) = found.document, found.span
    chunk = Chunk(
        id=passage_id(document.doc_id, start, end),
        doc_id=document.doc_id,
        bucket=document.bucket,
        title=document.title,
        uri=document.uri,
        text=found.text,
        start=start,
        end=end,
        ordinal=0,
        page=page,
        hidden=found.hidden,
    )
    return Hit(chunk, 1.0, {"lookup": 1})
