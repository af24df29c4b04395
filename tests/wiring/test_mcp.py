"""The MCP door, asked by the official client over a loopback socket, by the newest protocol and by the handshake before it."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from assay import errors as er
from assay import events as ev
from assay import schemas as s
from assay import types as t
from assay.config import ConversationsConfig, IngressConfig
from assay.keys import KeyFile
from assay.schemas import AskResponse
from deployments.api import make_api
from deployments.chat import source_list
from tests.fakes import chunk
from tests.wiring.scripted_driver import ANSWER, CITATION, ScriptedDriver, Step, response, whole
from tests.wiring.test_client import listening, until

pytestmark = pytest.mark.anyio
MODES: Any = ["auto", "legacy"]
TOOLS = {
    "ask",
    "search_hybrid",
    "search_text",
    "search_semantic",
    "document_lookup",
    "get_document_metadata",
    "list_buckets",
}


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def url(driver: ScriptedDriver, tmp_path: Path) -> Iterator[str]:
    memory = ConversationsConfig(store="memory")
    config = IngressConfig(conversations=memory, keys=str(tmp_path / "keys.json"), max_body_bytes=100_000)
    with listening(make_api(driver, config)) as url:
        yield url


@asynccontextmanager
async def connected(url: str, mode: Any = "auto", key: str | None = None) -> AsyncGenerator[Client]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=30) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@pytest.mark.parametrize("mode", MODES)
async def test_tools_are_listed_with_their_schemas(url: str, mode: Any) -> None:
    async with connected(url, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == TOOLS
    assert all(tool.description and tool.input_schema["type"] == "object" for tool in tools.values())
    assert tools["ask"].input_schema["required"] == ["question"]
    assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools.values())


@pytest.mark.parametrize("mode", MODES)
async def test_ask_gives_the_answer_of_every_other_door(url: str, driver: ScriptedDriver, mode: Any) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        native = (await http.post(f"{url}/v1/answers", json={"question": "When may it end?"})).json()
    arguments = {"question": "When may it end?", "buckets": ["contracts"], "mode": "pipeline", "top_k": 3}
    async with connected(url, mode) as client:
        result = await client.call_tool("ask", arguments)
    assert not result.is_error
    assert text_of(result) == ANSWER + source_list([CITATION])
    given = AskResponse.model_validate(result.structured_content)
    assert [c.model_dump(mode="json") for c in given.citations] == native["citations"]
    asked = driver.asked[-1]
    assert (asked.question, asked.buckets, asked.mode, asked.top_k) == tuple(arguments[k] for k in arguments)


@pytest.mark.parametrize("mode", MODES)
async def test_the_registrys_tools(url: str, driver: ScriptedDriver, mode: Any) -> None:
    async with connected(url, mode) as client:
        found = await client.call_tool("search_text", {"query": "terminate notice"})
        read = await client.call_tool("get_document_metadata", {"doc_id": "doc_lease"})
        nothing = await client.call_tool("search_text", {"query": "zzqq"})
    assert text_of(found).startswith("[doc_supply_agreement] Supply Agreement")
    assert found.structured_content["hits"][0]["page"] == 5
    assert '"doc_id": "doc_lease"' in text_of(read)
    assert "Nothing found" in text_of(nothing)
    assert [name for name, _ in driver.used] == ["search_text", "get_document_metadata", "search_text"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_passage_that_no_reader_sees_says_so(url: str, driver: ScriptedDriver, mode: Any) -> None:
    """In words, for the model, and in the structure, for the program."""
    seen, unseen = (
        chunk(1, "The notice is thirty days."),
        replace(chunk(2, "The notice period is one day."), hidden=True),
    )
    driver.retriever.chunks = (seen, unseen)
    async with connected(url, mode) as client:
        found = await client.call_tool("search_text", {"query": "notice"})
    by_text = {hit["text"]: hit["hidden"] for hit in found.structured_content["hits"]}
    assert by_text == {seen.text: False, unseen.text: True}
    heads = [block.splitlines()[0] for block in text_of(found).split("\n\n")]
    assert [("hidden text" in head, seen.doc_id in head) for head in heads] == [(False, True), (True, False)]


async def test_a_clarification_is_said(url: str, driver: ScriptedDriver) -> None:
    clarification = s.Clarification(type="no_results", message="No passage is so new.")
    last = response("clarify").model_copy(update={"answer": None, "citations": [], "clarification": clarification})
    driver.script = [ev.CompletedEvent(response=last)]
    async with connected(url) as client:
        assert text_of(await client.call_tool("ask", {"question": "When?"})) == "No passage is so new."


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("ask", {}, "'question' is required"),
        ("ask", {"question": " "}, "must not be blank"),
        ("ask", {"question": "When?", "topk": 3}, "Did you mean 'top_k'?"),
        ("ask", {"question": "When?", "top_k": "3"}, "whole number"),
        ("search_text", {"query": "a", "limit": 3}, "limit"),
        ("search_text", {}, "query"),
        ("document_lookup", {"doc_id": "doc_none"}, "no such document"),
        ("delete_everything", {}, "no tool"),
    ],
)
async def test_what_is_wrong_is_the_tools_result(
    url: str, driver: ScriptedDriver, mode: Any, tool: str, arguments: dict[str, Any], words: str
) -> None:
    async with connected(url, mode) as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error and words in text_of(result)
    assert not driver.asked


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (er.Overloaded("The queue is full."), "The queue is full."),
        (er.UnknownBucket("There is no bucket 'x'.", "buckets[0]", ("contracts",)), "There is no bucket 'x'."),
        (RuntimeError("/srv/secret"), "Something went wrong"),
    ],
)
async def test_faults_are_told_without_what_is_inside(
    url: str, driver: ScriptedDriver, fault: Exception, words: str
) -> None:
    scripts: list[list[Step]] = [[fault], [ev.StatusEvent(state="planning"), fault]]
    for driver.script in scripts:
        async with connected(url) as client:
            result = await client.call_tool("ask", {"question": "When?"})
        assert result.is_error and words in text_of(result)
        assert "secret" not in result.model_dump_json()


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_goes_ends_its_question(url: str, driver: ScriptedDriver, mode: Any) -> None:
    driver.script = [ev.StatusEvent(state="planning"), 60.0]

    async def asks() -> None:
        async with connected(url, mode) as client:
            await client.call_tool("ask", {"question": "When?"})

    task = asyncio.create_task(asks())
    await asyncio.to_thread(until, lambda: driver.running == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(until, lambda: driver.running == 0)
    driver.script = whole()
    async with connected(url, mode) as client:
        assert not (await client.call_tool("ask", {"question": "When?"})).is_error


async def test_many_at_once(url: str, driver: ScriptedDriver) -> None:
    async def one() -> str:
        async with connected(url) as client:
            return text_of(await client.call_tool("ask", {"question": "When?"}))

    assert set(await asyncio.gather(*(one() for _ in range(8)))) == {ANSWER + source_list([CITATION])}
    assert driver.running == 0


# ---- keys -----------------------------------------------------------------------------------------------------------


async def test_a_key_binds_this_door_too(url: str, driver: ScriptedDriver, file: KeyFile) -> None:
    _, text = file.create("a", ["contracts"], ["search", "ask"], 600, 16)
    async with connected(url, key=text) as client:
        await client.call_tool("ask", {"question": "When?"})
        await client.call_tool("search_text", {"query": "terminate"})
        hidden = await client.call_tool("ask", {"question": "When?", "buckets": ["secret"]})
        beyond = await client.call_tool("search_text", {"query": "terminate", "bucket": "secret"})
        schemas = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
    assert driver.asked[0].buckets == ["contracts"]
    assert driver.used[0] == ("search_text", t.Scope(("contracts",), None))
    assert hidden.is_error and beyond.is_error
    assert schemas["search_text"]["properties"]["bucket"]["enum"] == ["contracts", None]
    assert len(driver.asked) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_one_request_at_a_time_is_enough(url: str, file: KeyFile, mode: Any) -> None:
    """The handshake's clients also listen for what a server says of itself: they are told that there is no such stream, which
    would take one of the key's places for as long as they are connected."""
    _, text = file.create("a", None, ["search", "ask"], 600, 1)
    async with connected(url, mode, text) as client:
        for _ in range(3):
            assert not (await client.call_tool("ask", {"question": "When?"})).is_error
            await client.list_tools()
    async with httpx.AsyncClient(trust_env=False, headers={"authorization": f"Bearer {text}"}) as http:
        listens = await http.get(f"{url}/mcp", headers={"accept": "text/event-stream"})
        assert (listens.status_code, listens.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(("scope", "names"), [("ask", {"ask"}), ("search", TOOLS - {"ask"}), ("ingest", set())])
async def test_scopes_bind_tools(url: str, driver: ScriptedDriver, file: KeyFile, scope: Any, names: set[str]) -> None:
    _, text = file.create("a", None, [scope], 600, 16)
    async with connected(url, key=text) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == names
        for name, arguments in (("ask", {"question": "When?"}), ("search_text", {"query": "terminate"})):
            assert (await client.call_tool(name, arguments)).is_error == (name not in names)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", [None, "assay_x_y"])
async def test_nobody_without_a_key(url: str, file: KeyFile, mode: Any, key: str | None) -> None:
    file.create("a", None, ["ask"], 600, 16)
    with pytest.raises((MCPError, httpx2.HTTPError, ExceptionGroup)):
        async with connected(url, mode, key) as client:
            await client.list_tools()


async def test_a_body_that_is_too_large(url: str) -> None:
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"a" * 200_000 + b'"}'
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.post(f"{url}/mcp", content=body, headers=headers)).status_code == 413
        assert (await http.post(f"{url}/mcp", content=b"{", headers=headers)).status_code == 400
        assert (await http.put(f"{url}/mcp", content=b"{}", headers=headers)).status_code == 405


async def test_tools_over_http(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        tools = (await http.get(f"{url}/v1/tools")).json()["tools"]
    assert {tool["name"] for tool in tools} == TOOLS - {"ask"}
    assert all(tool["parameters"]["type"] == "object" for tool in tools)
