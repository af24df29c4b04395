"""The HTTP engine against a server on loopback that speaks the protocol, and one that breaks it in the ways servers do."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from assay.errors import (
    AssayError,
    BadModelOutput,
    InvalidRequest,
    Overloaded,
    SetupError,
    StageTimeout,
    StageUnavailable,
)
from assay.llm.endpoint import PRESETS, EndpointConfig
from assay.llm.http import EndpointLLM
from assay.schemas import Usage
from assay.types import Completion, CompletionRequest, Message, ScoreItem, ScoreRequest, ToolUse
from tests import contract_llm
from tests.fakes import ScriptedLLM
from tests.openai_server import OpenAIServer, Refusal
from tests.unit.test_fakes import SAYS

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

KEY = "sk-this-is-the-key-0123456789"
HELLO = CompletionRequest((Message("user", "Say hello."),), max_tokens=64)
LONG = "Once upon a time there was a river that went on and on."


@asynccontextmanager
async def endpoint(
    *says: Any, server: OpenAIServer | None = None, **config: Any
) -> AsyncIterator[tuple[EndpointLLM, OpenAIServer, list[float]]]:
    """An engine, the server that it speaks to, and how long it waited before each further try."""
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    async with server or OpenAIServer(ScriptedLLM(*says)) as running:
        settings = {"kind": "openai", "preset": "vllm", "model": "m", "base_url": running.url, **config}
        llm = EndpointLLM(EndpointConfig.model_validate(settings), sleep=wait, chance=lambda: 0.5)
        try:
            yield llm, running, waits
        finally:
            await llm.close()


async def until_idle(server: OpenAIServer, seconds: float = 2) -> None:
    async with asyncio.timeout(seconds):
        while server.open:
            await asyncio.sleep(0.005)


# ---- the contract ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "name"), [(preset, name) for preset in PRESETS for name in contract_llm.checks(PRESETS[preset].can)]
)
async def test_contract(preset: str, name: str) -> None:
    async with endpoint(SAYS.get(name, "The capital of France is Paris."), preset=preset) as (llm, server, _):
        await contract_llm.check(name, llm)
        await until_idle(server)


async def test_pairs_cut_in_two_meet_again() -> None:
    server = OpenAIServer(ScriptedLLM(contract_llm.SCRIPTS), halves=True)
    async with endpoint(server=server) as (llm, _, _):
        assert (await llm.complete(HELLO)).text == contract_llm.SCRIPTS


# ---- what is sent ---------------------------------------------------------------------------------------------------


async def sent(request: CompletionRequest, said: Any = "{}", **config: Any) -> dict[str, Any]:
    async with endpoint(said, **config) as (llm, server, _):
        await llm.complete(request)
        return server.requests[0][2]


EMPTY = json.dumps({"type": "object"})


async def test_each_preset_has_its_switches() -> None:
    asked = CompletionRequest((Message("user", "x"),), 8, json_schema=EMPTY)
    body = await sent(asked, preset="generic")
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    body = await sent(asked, preset="deepseek")
    assert body["response_format"] == {"type": "json_object"}
    assert body["messages"][-1]["content"].endswith(EMPTY)
    assert body["thinking"] == {"type": "disabled"}
    assert (await sent(HELLO, preset="deepseek", strategy="thinking"))["thinking"] == {"type": "enabled"}
    assert (await sent(HELLO, preset="qwen", strategy="thinking"))["enable_thinking"] is True
    body = await sent(asked, preset="vllm", strategy="thinking")
    assert body["structured_outputs"] == {"json": EMPTY}
    assert body["chat_template_kwargs"] == {"enable_thinking": False}  # nobody thinks inside a schema
    assert body["stream_options"] == {"include_usage": True}
    assert (await sent(HELLO, extra_body={"top_p": 0.5, "temperature": 1}))["temperature"] == 1


async def test_a_conversation_with_tools_goes_out_whole() -> None:
    use = ToolUse("c1", "search", {"query": "x"}, '{"query": "x"}')
    turns = (
        Message("user", "x"),
        Message("assistant", "", (use,), reasoning="hm"),
        Message("tool", "found", tool_use_id="c1"),
    )
    request = CompletionRequest(turns, 8, tools=(contract_llm.SEARCH,))
    _, asked, result = (await sent(request, preset="deepseek"))["messages"]
    assert asked["tool_calls"][0]["function"] == {"name": "search", "arguments": '{"query": "x"}'}
    assert asked["reasoning_content"] == "hm"
    assert result == {"role": "tool", "content": "found", "tool_call_id": "c1"}
    assert "reasoning_content" not in (await sent(request, preset="generic"))["messages"][1]


@pytest.mark.parametrize("form", [{"regex": "a"}, {"choice": ("a",)}])
async def test_what_an_endpoint_cannot_do_is_not_asked(form: dict[str, Any]) -> None:
    async with endpoint("a", preset="deepseek") as (llm, server, _):
        with pytest.raises(InvalidRequest, match="cannot do"):
            await llm.complete(CompletionRequest(HELLO.messages, 8, **form))
        with pytest.raises(InvalidRequest, match="prompt_logprobs"):
            await llm.score(ScoreRequest((ScoreItem("a", "b"),)))
        assert server.requests == []


# ---- retries --------------------------------------------------------------------------------------------------------


async def test_overload_is_tried_again_as_the_endpoint_asks() -> None:
    async with endpoint("Hello.", retries=3) as (llm, server, waits):
        server.faults += [Refusal(429, "slow down", retry_after="3"), Refusal(503), "cut"]
        assert (await llm.complete(HELLO)).text == "Hello."
        assert waits == [3.25, 0.5, 1.0]  # what was asked and a random part of 0.5 s; then of 1 s and 2 s
        assert len(server.requests) == 4


async def test_retries_are_bounded_and_overload_is_its_own_error() -> None:
    async with endpoint(retries=2) as (llm, server, waits):
        server.faults += [Refusal(429, "slow down")] * 9
        with pytest.raises(Overloaded, match="slow down"):
            await llm.complete(HELLO)
        assert (len(server.requests), len(waits)) == (3, 2)


async def test_a_wait_beyond_the_total_time_is_not_begun() -> None:
    async with endpoint(total_timeout_s=5) as (llm, server, waits):
        server.faults.append(Refusal(429, "later", retry_after="60"))
        with pytest.raises(Overloaded):
            await llm.complete(HELLO)
        assert waits == []


@pytest.mark.parametrize("fault", ["cut_after_text", "garbage", "hang_after_text"])
async def test_nothing_is_sent_again_after_the_first_token(fault: Any) -> None:
    async with endpoint(LONG, total_timeout_s=0.5) as (llm, server, waits):
        server.faults.append(fault)
        with pytest.raises((StageUnavailable, BadModelOutput, StageTimeout)):
            await llm.complete(HELLO)
        assert (len(server.requests), waits) == (1, [])


async def test_truncation_is_never_sent_again() -> None:
    async with endpoint(LONG) as (llm, server, _):
        completion = await llm.complete(contract_llm.ask("x", 3, EMPTY))
        assert completion.finish_reason == "length"
        assert len(server.requests) == 1


# ---- faults ---------------------------------------------------------------------------------------------------------

FAULTS: list[tuple[Any, type[AssayError], str]] = [
    (Refusal(400, "too long: 2048 tokens"), BadModelOutput, "2048"),
    (Refusal(401, f"Incorrect key {KEY}"), SetupError, "MY_KEY"),
    (Refusal(402, ""), SetupError, "balance"),
    (Refusal(404, "no model m"), SetupError, "no model m"),
    (Refusal(500, f"bad {KEY}"), StageUnavailable, r"bad \*\*\*"),
    (Refusal(307, "", location="http://other/"), SetupError, "307"),
    ("not_sse", BadModelOutput, "event stream"),
    ("hang", StageTimeout, "first token"),
    ("hang_after_head", StageTimeout, "first token"),
    ({"error": {"message": "too busy", "code": 503}}, Overloaded, "too busy"),
    ({"error": "out of memory"}, StageUnavailable, "out of memory"),
    ({"choices": "none"}, BadModelOutput, "protocol"),
    ({"choices": [{"delta": {"content": 7}}]}, BadModelOutput, "protocol"),
]


@pytest.mark.parametrize(("fault", "kind", "words"), FAULTS)
async def test_each_fault_is_one_of_ours(
    fault: Any, kind: type[AssayError], words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    async with endpoint("x", key_env="MY_KEY", first_token_timeout_s=0.2, retries=1) as (llm, server, _):
        server.faults += [fault] * 2
        with pytest.raises(kind, match=words) as caught:
            await llm.complete(HELLO)
        assert server.requests[0][1]["authorization"] == f"Bearer {KEY}"
        assert type(caught.value) is kind
        assert KEY not in str(caught.value) + repr(caught.value.__cause__) + caplog.text + repr(llm._config)
        await until_idle(server)


async def test_no_server_is_unavailable() -> None:
    async with endpoint() as (llm, server, waits):
        server._server.close()
        await server._server.wait_closed()
        with pytest.raises(StageUnavailable, match="cannot be reached"):
            await llm.complete(HELLO)
        assert len(waits) == 2


async def test_a_server_that_takes_no_connection_is_given_up() -> None:
    """Its queue of connections is full: it answers nothing, neither yes nor no."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        limits: dict[str, Any] = {"connect_timeout_s": 0.1, "first_token_timeout_s": 10, "retries": 1}
        async with endpoint(base_url=url, **limits) as (llm, _, waits):
            with pytest.raises(StageUnavailable, match="cannot be reached: ConnectTimeout"):
                await llm.complete(HELLO)
            assert len(waits) == 1


async def test_an_end_without_done_is_an_end_and_one_without_a_reason_is_not() -> None:
    async with endpoint("Hello.", "Hel", "Hel") as (llm, server, waits):
        server.faults += ["no_done", "no_reason", "no_end"]
        assert (await llm.complete(HELLO)).text == "Hello."
        for _ in range(2):
            with pytest.raises(StageUnavailable, match="broke off before the end"):
                await llm.complete(HELLO)
        assert (len(server.requests), waits) == (3, [])


async def test_free_output_where_json_was_asked_is_a_fault() -> None:
    async with endpoint("Sure! {}", '{"city": 3}', preset="deepseek") as (llm, server, _):
        with pytest.raises(BadModelOutput, match="not JSON"):
            await llm.complete(contract_llm.ask("x", 64, contract_llm.SCHEMA))
        with pytest.raises(BadModelOutput, match="schema"):
            await llm.complete(contract_llm.ask("x", 64, contract_llm.SCHEMA))
        assert len(server.requests) == 2


async def test_a_server_without_usage_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with endpoint(server=OpenAIServer(ScriptedLLM("a", "b"), usage=False)) as (llm, _, _):
        assert (await llm.complete(HELLO)).usage == Usage(llm_calls=1)
        await llm.complete(HELLO)
    assert caplog.text.count("tells no usage") == 1


# ---- scores ---------------------------------------------------------------------------------------------------------

TIDES = ScoreRequest((ScoreItem("The Moon causes", " the tides."),))
CALLS: list[tuple[str, list[None]]] = [
    ("/tokenize", []),
    ("/v1/completions", [None, None]),
]  # and what goes well before


def paths(server: OpenAIServer) -> list[str]:
    return [path for path, _, _ in server.requests]


@pytest.mark.parametrize(("path", "before"), CALLS)
@pytest.mark.parametrize("passing", ["cut", "cut_in_body", Refusal(500), Refusal(429, retry_after="3")])
async def test_each_call_of_a_score_is_tried_again(path: str, before: list[None], passing: Any) -> None:
    async with endpoint() as (llm, server, waits):
        whole = await llm.score(TIDES)
        assert whole.items[0].fault is None and paths(server) == ["/tokenize", "/tokenize", "/v1/completions"]
        server.requests.clear()
        server.faults += [*before, passing]
        assert await llm.score(TIDES) == whole
        assert sorted(paths(server)) == sorted(["/tokenize", "/tokenize", "/v1/completions", path])
        assert waits == [3.25 if isinstance(passing, Refusal) and passing.headers else 0.25]


@pytest.mark.parametrize(("path", "before"), CALLS)
async def test_a_score_is_not_tried_for_ever(path: str, before: list[None]) -> None:
    async with endpoint(retries=2) as (llm, server, _):
        server.faults += [*before, *[Refusal(429, "slow down")] * 9]
        with pytest.raises(Overloaded, match="slow down"):
            await llm.score(TIDES)
        assert 3 <= paths(server).count(path) <= 6 and paths(server)[-1] == path, "of two at once one comes to its end"


@pytest.mark.parametrize(("path", "before"), CALLS)
async def test_a_score_has_its_time(path: str, before: list[None]) -> None:
    async with endpoint(total_timeout_s=0.5) as (llm, server, waits):
        server.faults += [*before, "hang"]
        with pytest.raises(StageTimeout, match=r"did not answer within 0\.5 s"):
            await llm.score(TIDES)
        assert (paths(server)[len(before)], waits) == (path, [])
        await until_idle(server)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "something else than JSON"),
        (b"[" * 100_000, "something else than JSON"),
        (b"[]", "without tokens"),
        (b'{"tokens": 3}', "without tokens"),
    ],
)
async def test_an_answer_without_tokens_is_the_endpoints_fault(body: bytes, words: str) -> None:
    async with endpoint() as (llm, server, waits):
        server.faults.append(Refusal(200, body=body))
        with pytest.raises(StageUnavailable, match=words):
            await llm.score(TIDES)
        assert waits == []


async def test_what_a_refusal_says_may_be_anything() -> None:
    async with endpoint() as (llm, server, _):
        server.faults.append(Refusal(400, body=b"[" * 50_000))
        with pytest.raises(BadModelOutput, match="HTTP 400"):
            await llm.complete(HELLO)


async def test_of_two_texts_neither_is_waited_for_where_the_other_is_refused() -> None:
    async with endpoint() as (llm, server, _):
        server.faults += ["hang", Refusal(400, "too long: 2048 tokens")]
        (score,) = (await llm.score(TIDES)).items
        assert score.fault and "2048" in score.fault
        await until_idle(server)


# ---- cancellation ---------------------------------------------------------------------------------------------------


async def test_closing_a_stream_closes_the_connection() -> None:
    async with endpoint(server=OpenAIServer(ScriptedLLM(LONG * 100, delay_s=0.01))) as (llm, server, _):
        stream = llm.stream(HELLO)
        await anext(stream)
        assert server.open == 1
        await stream.aclose()
        await until_idle(server)


async def test_cancelling_a_call_closes_the_connection() -> None:
    async with endpoint(server=OpenAIServer(ScriptedLLM(LONG * 100, delay_s=0.01))) as (llm, server, _):
        call = asyncio.create_task(llm.complete(HELLO))
        async with asyncio.timeout(2):
            while not server.open:
                await asyncio.sleep(0.005)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until_idle(server)


# ---- reasoning and tools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("strategy", ["instruct", "thinking"])
async def test_reasoning_of_a_field_or_of_tags_is_apart(field: str, strategy: str) -> None:
    says = (Completion("Yes.", "stop", Usage(), reasoning="hm"), "<think>hm</think>\n\nYes.")
    async with endpoint(server=OpenAIServer(ScriptedLLM(*says), reasoning=field), strategy=strategy) as (llm, _, _):
        for _ in says:
            completion = await llm.complete(HELLO)
            assert (completion.text, completion.reasoning) == ("Yes.", "hm")


async def test_a_malformed_call_is_a_value() -> None:
    uses = (
        ToolUse("c1", "search", written='{"query": "x"}'),
        ToolUse("c2", "search", written='{"query": '),
        ToolUse("c3", "search", written='{"qeury": "x"}'),
        ToolUse("c4", "serach", written="{}"),
        ToolUse("c5", "search", written="[" * 50_000),
    )
    request = CompletionRequest(HELLO.messages, 64, tools=(contract_llm.SEARCH,))
    async with endpoint(Completion("", "stop", Usage(), tool_uses=uses)) as (llm, _, _):
        good, *bad = (await llm.complete(request)).tool_uses
    assert (good.arguments, good.fault) == ({"query": "x"}, None)
    assert [use.arguments for use in bad] == [{}] * 4
    words = ("not JSON", "required property", "no tool 'serach'; there are: search", "not JSON")
    for use, word in zip(bad, words, strict=True):
        assert use.fault and word in use.fault and len(use.fault) < 500


# ---- the key and the config -----------------------------------------------------------------------------------------


def config(**fields: Any) -> EndpointConfig:
    return EndpointConfig.model_validate({"kind": "openai", "model": "m", **fields})


@pytest.mark.parametrize(
    ("key", "says"), [(None, "is not set"), ("  ", "is not set"), ("a\nb", "holds no key"), ("ключ", "holds no key")]
)
async def test_a_key_that_cannot_be_used(key: str | None, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("DEEPSEEK_API_KEY", key)
    with pytest.raises(SetupError, match=f"DEEPSEEK_API_KEY {says}"):
        EndpointLLM(config(preset="deepseek"))


def test_a_vendors_key_goes_to_the_vendor_only() -> None:
    assert config(preset="deepseek").key_variable == "DEEPSEEK_API_KEY"
    assert config(preset="deepseek", base_url="http://elsewhere/v1").key_variable is None


def test_a_key_in_the_config_is_refused_and_not_repeated() -> None:
    for fields in ({"key_env": KEY}, {"api_key": KEY}, {"base_url": f"http://u:{KEY}@host/v1"}):
        with pytest.raises(ValueError, match="EndpointConfig") as caught:
            config(preset="deepseek", **fields)
        assert KEY not in str(caught.value)


def test_an_address_is_needed() -> None:
    with pytest.raises(ValueError, match="base_url is required"):
        config()
