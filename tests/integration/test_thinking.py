"""``strategy: thinking`` of the vLLM replica: its own code, around the engine that the other tests share.

The small model does not think. Here it says what a model that thinks would, token by token: a constraint that only the engine
knows of makes it. Its vocabulary has no tags, so that each arrives in pieces.
"""

import json
import re
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from assay.config import EngineConfig
from assay.models import resolve_model
from assay.types import CompletionRequest, Delta, Message
from tests import contract_llm
from tests.integration.conftest import Running

if TYPE_CHECKING:
    from deployments.engine.replica import Engine

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

ASK = (Message("user", "Is the sea salt?"),)
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "sea"}}\n</tool_call>'


class Says:
    """The chat of an engine, as ``ray.serve.llm`` has it: requests to the real one's OpenAI API, and its events as they come.
    ``text``: what the model is made to say, where the request itself does not constrain it."""

    def __init__(self, url: str, text: str | None) -> None:
        self._url, self._text = url, text
        self.body: dict[str, Any] = {}

    async def chat(self, request: Any) -> AsyncGenerator[Any]:
        self.body = request.model_dump(mode="json", exclude_unset=True)
        forced = {"structured_outputs": {"regex": literal(self._text)}} if self._text is not None else {}
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", f"{self._url}/chat/completions", json=self.body | forced) as sent,
        ):
            assert sent.status_code == 200, await sent.aread()
            async for line in sent.aiter_lines():
                if line:
                    yield line


def literal(text: str) -> str:
    return re.sub(r"[^\w\s]", r"\\\g<0>", text).replace("\n", r"\n")


@pytest.fixture(scope="module")
def thinking(running: Running) -> Iterator[Any]:
    """What the model is made to say, and whether its template opens the block -> a replica."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CONFIGURE_LOGGING", "0")  # it would take this process's log handlers away
        from deployments.engine.replica import Engine

        class Thinking(Engine):
            """A replica with everything but an engine of its own."""

            def __init__(self, text: str | None, opened: bool | None = False) -> None:
                self._name, self._config = "small", EngineConfig(strategy="thinking", tool_parser="hermes")
                self._chat = self.said = Says(running.openai_url, text)
                self._opened = opened

            def __del__(self) -> None:  # type: ignore[override]
                """Serve awaits the engine's; nobody does here."""

        yield Thinking


async def deltas(engine: "Engine", max_tokens: int = 64, **form: Any) -> tuple[list[Delta], str, str]:
    """Of a stream, with the whole text and the whole reasoning."""
    found = [delta async for delta in engine.stream(CompletionRequest(ASK, max_tokens, **form))]
    return found, "".join(d.text for d in found), "".join(d.reasoning for d in found)


@pytest.mark.parametrize(
    ("said", "opened", "text", "reasoning"),
    [
        ("<think>The sea is salt.</think>\n\nYes, it is.", False, "Yes, it is.", "The sea is salt."),
        ("<think>The sea is salt.</think>\n\nYes, it is.", True, "Yes, it is.", "The sea is salt."),
        ("<think>The sea is salt.</think>\n\nYes, it is.", None, "Yes, it is.", "The sea is salt."),
        ("<think>\n\n</think>\n\nYes, it is.", False, "Yes, it is.", ""),
        ("The sea is salt.</think>Yes, it is.", True, "Yes, it is.", "The sea is salt."),
        ("The sea is salt.</think>Yes, it is.", None, "Yes, it is.", "The sea is salt."),
        ("<think>The sea is salt, so yes.", False, "", "The sea is salt, so yes."),
        ("The sea is salt, so yes.", True, "", "The sea is salt, so yes."),
        ("The sea is salt, so yes.", None, "The sea is salt, so yes.", ""),
        ("The sea is salt, so yes.", False, "The sea is salt, so yes.", ""),
        ("<think>One.</think><think>Two <think>inside</think>.</think>Yes.", False, "Yes.", "One.Two <think>inside</think>."),
        ("Write `</think>` to end it: a </think> b.", False, "Write `</think>` to end it: a </think> b.", ""),
    ],
)  # fmt: skip
async def test_reasoning_is_apart_however_its_tags_arrive(
    thinking: Any, said: str, opened: bool | None, text: str, reasoning: str
) -> None:
    engine = thinking(said, opened)
    found, answer, thought = await deltas(engine)
    assert (answer, thought) == (text, reasoning)
    assert found[-1].finish_reason == "stop"
    whole = await engine.complete(CompletionRequest(ASK, 64))
    assert (whole.value.text, whole.value.reasoning) == (text, reasoning)
    assert engine.said.body["chat_template_kwargs"] == {"enable_thinking": True}


async def test_a_tag_in_pieces_is_never_shown(thinking: Any) -> None:
    found, text, _ = await deltas(thinking("<think>a < b, so yes</think>It is < 4 and > 2."))
    assert text == "It is < 4 and > 2."
    pieces = [delta.text for delta in found if delta.text]
    assert len(pieces) > 5 and not any("think" in piece for piece in pieces)


async def test_a_thought_that_is_cut_off_is_no_answer(thinking: Any) -> None:
    for opened in (False, True, None):
        engine = thinking("<think>The sea is salt.</think>Yes, it is.", opened)
        found, text, reasoning = await deltas(engine, max_tokens=7)
        assert (text, found[-1].finish_reason) == ("", "length")
        assert reasoning and "think" not in reasoning


async def test_nobody_thinks_within_a_schema_and_its_strings_are_left_alone(thinking: Any) -> None:
    engine = thinking(None, True)
    _, text, reasoning = await deltas(engine, 96, json_schema=contract_llm.SCHEMA)
    assert set(json.loads(text)) == {"city", "tags"} and reasoning == ""
    assert engine.said.body["chat_template_kwargs"] == {"enable_thinking": False}
    schema = {"type": "object", "properties": {"a": {"const": "<think>b</think>"}}, "required": ["a"]}
    _, text, reasoning = await deltas(engine, json_schema=json.dumps(schema))
    assert (json.loads(text), reasoning) == ({"a": "<think>b</think>"}, "")


async def test_a_tool_is_called_after_the_thought(thinking: Any) -> None:
    engine = thinking(f"<think>I must search.</think>\n{CALL}")
    found, text, reasoning = await deltas(engine, tools=(contract_llm.SEARCH,))
    assert (text.strip(), reasoning) == ("", "I must search.")
    (use,) = found[-1].tool_uses
    assert (use.name, use.arguments, use.fault) == ("search", {"query": "sea"}, None)


async def test_a_call_within_a_thought_is_made_and_the_thought_stays_one(thinking: Any) -> None:
    """The engine's parser takes calls out wherever they stand."""
    found, text, reasoning = await deltas(thinking(f"<think>I must search.\n{CALL}"), tools=(contract_llm.SEARCH,))
    assert (text, reasoning.strip(), len(found[-1].tool_uses)) == ("", "I must search.", 1)


def test_whether_the_template_opens_the_block_is_read_from_it() -> None:
    from transformers import AutoTokenizer

    from deployments.engine.replica import _opens_thinking

    tokenizer = AutoTokenizer.from_pretrained(resolve_model(EngineConfig().model, Path("~/.cache/assay").expanduser()))
    assert _opens_thinking(tokenizer) is None
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    assert _opens_thinking(tokenizer) is True
