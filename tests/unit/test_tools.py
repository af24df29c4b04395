"""Tools: what they take, what they give, and that none of them reaches beyond the request's buckets and filter."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from assay.bound import BoundRetriever
from assay.config import ToolsConfig, WebConfig
from assay.errors import InvalidRequest, NotFound, SetupError, StageFault, UnknownBucket
from assay.schemas import And, Filter, Predicate
from assay.tools import Registry, ToolContext, ToolOutput
from assay.types import DocumentInfo, DocumentQuery, Scope, SearchQuery
from tests.fakes import ListRetriever, chunk

pytestmark = pytest.mark.anyio

OWN: Filter = Predicate(field="page", op=">", value=1)
MOON = chunk(1, "The Moon causes the ocean tides.", "Moon", bucket="docs")
SEARCHES = ("search_hybrid", "search_text", "search_semantic")


class Watched(ListRetriever):
    def __init__(self, *chunks: Any) -> None:
        super().__init__(*chunks)
        self.documents: list[DocumentQuery] = []
        self.scopes: list[Scope] = []

    async def get_document_metadata(self, query: DocumentQuery) -> DocumentInfo:
        self.documents.append(query)
        return await super().get_document_metadata(query)

    async def describe(self, scope: Scope) -> tuple[Any, ...]:
        self.scopes.append(scope)
        return await super().describe(scope)


def context(
    retriever: ListRetriever, buckets: tuple[str, ...] = ("docs",), filters: Filter | None = OWN
) -> ToolContext:
    return ToolContext(BoundRetriever(retriever, Scope(buckets, filters)), link_hop=True)


def registry(**config: Any) -> Registry:
    return Registry.of(ToolsConfig(**config))


async def call(
    name: str, retriever: ListRetriever, arguments: dict[str, Any] | None = None, **kwargs: Any
) -> ToolOutput:
    return await registry().call(name, arguments or {}, context(retriever, **kwargs))


def test_the_tools_are_named_and_the_web_is_off() -> None:
    assert registry().names == (*SEARCHES, "document_lookup", "get_document_metadata", "list_buckets")
    assert "web_search" in registry(web=WebConfig(endpoint="https://search.example/s")).names
    assert registry(enabled=("search_text",)).names == ("search_text",)


def test_a_tool_that_there_is_not_cannot_be_enabled() -> None:
    with pytest.raises(SetupError, match="serach_text") as caught:
        registry(enabled=("serach_text",))
    assert "search_text" in caught.value.allowed


def test_what_a_model_is_told_has_no_argument_for_the_requests_own_filter() -> None:
    for spec in registry().specs(("docs", "other")):
        schema = json.loads(spec.parameters)
        assert schema["additionalProperties"] is False
        assert not {"buckets", "scope", "access", "tenant"} & set(schema["properties"])
        if "bucket" in schema["properties"]:
            assert schema["properties"]["bucket"]["enum"] == ["docs", "other", None]


@pytest.mark.parametrize(
    ("name", "legs", "link"),
    [
        ("search_hybrid", ("dense", "sparse"), True),
        ("search_text", ("sparse",), False),
        ("search_semantic", ("dense",), True),
    ],
)
async def test_a_search_goes_through_its_legs_and_what_it_finds_can_be_cited(name: str, legs: Any, link: bool) -> None:
    retriever = ListRetriever(MOON)
    output = await call(name, retriever, {"query": "ocean tides", "top_k": 3, "doc_id": "doc_moon"})
    query = retriever.history[-1]
    assert (query.legs, query.link_hop, query.top_k, query.doc_id) == (legs, link, 3, "doc_moon")
    assert [hit.chunk.id for hit in output.hits] == [1] and output.index_version == "v1-test"


async def test_a_filter_of_the_models_narrows_and_is_told_in_the_log() -> None:
    retriever = ListRetriever(MOON)
    mine = {"field": "title", "op": "=", "value": "Moon"}
    output = await call("search_text", retriever, {"query": "tides", "filters": [mine]})
    assert retriever.history[-1].filters == And(and_=[OWN, Predicate.model_validate(mine)]) == output.filters


async def test_nothing_found_says_why() -> None:
    retriever = ListRetriever(MOON)
    assert "other words" in (await call("search_text", retriever, {"query": "zzqq"})).note


async def test_a_bucket_beyond_the_request_is_as_one_that_does_not_exist() -> None:
    for name in SEARCHES:
        with pytest.raises(UnknownBucket) as caught:
            await call(name, ListRetriever(MOON), {"query": "tides", "bucket": "secrets"})
        assert caught.value.allowed == ("docs",)


async def test_documents_are_looked_up_within_the_request() -> None:
    retriever = Watched(MOON)
    output = await call("document_lookup", retriever, {"doc_id": "doc_moon"})
    passage = output.hits[0].chunk
    assert passage.text == MOON.text and passage.id < 0 and passage.doc_id == "doc_moon"
    metadata = json.loads((await call("get_document_metadata", retriever, {"doc_id": "doc_moon"})).note)
    assert metadata["title"] == "Moon"
    await call("list_buckets", retriever)
    assert all((query.buckets, query.filters) == (("docs",), OWN) for query in retriever.documents)
    assert retriever.scopes == [Scope(("docs",), OWN)]
    with pytest.raises(NotFound):
        await call("document_lookup", retriever, {"doc_id": "doc_of_somebody"})


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search_text", {}, "query"),
        ("search_text", {"query": ""}, "query"),
        ("search_text", {"query": "x", "top_k": 1000}, "top_k"),
        ("search_text", {"query": "x", "buckets": ["secrets"]}, "buckets"),
        ("search_text", {"query": "x", "filters": [{"field": "a", "op": "drop", "value": 1}]}, "op"),
        ("document_lookup", {"doc_id": "doc_moon", "page": 1, "start": 5}, "at most one"),
        ("list_buckets", {"tenant": "b"}, "tenant"),
    ],
)
async def test_arguments_that_are_none_are_refused_with_their_place(name: str, arguments: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        await call(name, ListRetriever(MOON), arguments)


async def test_there_are_no_other_tools() -> None:
    with pytest.raises(NotFound, match="delete_all"):
        await call("delete_all", ListRetriever(MOON))


@pytest.mark.parametrize("asked", [(), ("docs",), ("secrets",), ("docs", "secrets")])
async def test_no_query_leaves_its_scope(asked: tuple[str, ...]) -> None:
    retriever = ListRetriever(MOON)
    bound = BoundRetriever(retriever, Scope(("docs", "other"), OWN))
    try:
        await bound.search(SearchQuery(("tides",), buckets=asked))
    except UnknownBucket:
        assert "secrets" in asked and not retriever.history
    else:
        assert set(retriever.history[0].buckets) <= {"docs", "other"} and retriever.history[0].filters == OWN


# ---- a tool of one's own --------------------------------------------------------------------------------------------


class Glossary:
    name = "glossary"
    description = "What the house's abbreviations mean."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"term": {"type": "string", "maxLength": 20}},
        "required": ["term"],
        "additionalProperties": False,
    }

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        if arguments["term"] == "bug":
            raise ZeroDivisionError("of its own")
        return ToolOutput(note=f"{arguments['term']} is paid time off")


class NoTool:
    name = "no_tool"


class Clashing(Glossary):
    name = "search_text"


class NoSchema(Glossary):
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"term": {"type": "strong"}}}


async def test_a_tool_of_ones_own_is_one_class_of_the_config() -> None:
    own = registry(own=("tests.unit.test_tools:Glossary",))
    output = await own.call("glossary", {"term": "PTO"}, context(ListRetriever()))
    assert output.note == "PTO is paid time off"
    with pytest.raises(InvalidRequest):
        await own.call("glossary", {"term": 5}, context(ListRetriever()))
    with pytest.raises(StageFault, match="ZeroDivisionError"):
        await own.call("glossary", {"term": "bug"}, context(ListRetriever()))


@pytest.mark.parametrize("kind", ["NoTool", "Clashing", "NoSchema", "Absent"])
def test_what_is_wrong_with_it_is_said_at_the_start(kind: str) -> None:
    with pytest.raises(SetupError):
        registry(own=(f"tests.unit.test_tools:{kind}",))


async def test_the_tool_of_the_documentation_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "agent.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    output = await Registry([found["Glossary"]()]).call("glossary", {"term": "PTO"}, context(ListRetriever()))
    assert output.note == "paid time off"
