"""What a conversation's prompts share is computed once: the real engine's cache serves it, block by block."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from assay import loop
from assay.config import EngineConfig, GeneratorConfig
from assay.converse import Agent
from assay.events import CompletedEvent
from assay.generate import WritingGenerator
from assay.models import resolve_model
from assay.run import Stages
from assay.schemas import AskRequest, Turn, Usage
from assay.tools import Registry
from assay.types import Completion, CompletionRequest, Delta, GenerateRequest, Message
from tests.fakes import WordTokenizer
from tests.wiring.loop.test_converse import Table, calls, find

if TYPE_CHECKING:
    from deployments.remote import RemoteLLM

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

BEGIN = 4  # tokens at a prompt's end that begin the model's own turn
QUESTIONS = (
    "What causes the ocean tides on Earth?",
    "Which moons does Mars have?",
    "How long does the light of the Sun take to reach the Earth?",
)
SAID = (
    "The Moon's gravity causes the ocean tides on Earth every day [E1].",
    "Mars has two small moons [E1].",
    "Its light takes eight minutes to reach the Earth [E1].",
)


class Read:
    """``ports.LLM``: the real engine reads each prompt, and says one token of it; what it is taken to say is scripted."""

    def __init__(self, engine: "RemoteLLM", *script: Any) -> None:
        self._engine, self._script = engine, list(script)
        self.asked: list[tuple[CompletionRequest, Usage]] = []

    async def complete(self, request: CompletionRequest) -> Completion:
        read = await self._engine.complete(replace(request, max_tokens=1))
        self.asked.append((request, read.usage))
        said = self._script.pop(0)
        return replace(said(request), usage=read.usage) if callable(said) else Completion(said, "stop", read.usage)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        said = await self.complete(request)
        yield Delta(said.text, finish_reason=said.finish_reason, usage=said.usage)

    async def score(self, request: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module")
def tokens() -> Any:
    """A request's messages -> the ids of its prompt, by the model's own template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve_model(EngineConfig().model, Path("~/.cache/assay").expanduser()))

    def of(messages: tuple[Message, ...]) -> list[int]:
        said = [{"role": m.role, "content": m.content} for m in messages]
        return list(tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False))

    return of


def shared(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def hold_the_cache(llm: Read, tokens: Any) -> list[tuple[int, int]]:
    """Each prompt's whole blocks that an earlier one has are from the cache, and no others. -> of each prompt but the first,
    the tokens that it shares with the one before, and those of that one."""
    block = block_size()
    prompts = [tokens(request.messages) for request, _ in llm.asked]
    for n, (prompt, (_, usage)) in enumerate(zip(prompts, llm.asked, strict=True)):
        assert usage.prompt_tokens == len(prompt), "the template is the engine's"
        most = max((shared(prompt, earlier) for earlier in prompts[:n]), default=0)
        assert usage.cached_tokens == most // block * block
    return [(shared(prompts[n], prompts[n - 1]), len(prompts[n - 1])) for n in range(1, len(prompts))]


def block_size() -> int:
    from deployments.engine.server import _engine_kwargs

    return int(_engine_kwargs(EngineConfig())["block_size"])


async def test_three_turns_of_a_conversation_with_tools(engine: "RemoteLLM", tokens: Any) -> None:
    """Within a turn the prompt only grows; the next turn's begins with the instructions, and with all turns before the last:
    of the last one it has the question and the answer, and no longer what was searched."""
    llm = Read(engine, calls(find("Phobos and Deimos")), *SAID)
    table, history, owner = Table(), list[Turn](), uuid4().hex
    agent = Agent(llm, WordTokenizer(), Registry.of(table.config.tools))
    stages = Stages(table.expander, table.retriever, table.judge, table.generator, agent)
    for n, (question, said) in enumerate(zip(QUESTIONS, SAID, strict=True)):
        request = AskRequest(question=question, mode="tools", history=list(history)).owned_by(owner)
        # Each turn has an id of its own, as every question has.
        last = [event async for event in loop.answer(request, stages, table.config, f"req_turn_{n}")][-1]
        assert isinstance(last, CompletedEvent) and last.response.status == "answered" and not last.response.degraded
        history += [Turn(role="user", content=question), Turn(role="assistant", content=said)]
    (grown, first), (second, _), (third, _) = hold_the_cache(llm, tokens)
    (opening, _), *_, (closing, _) = llm.asked
    assert grown == first, "the whole prompt, up to where the model began to speak"
    assert second >= len(tokens(opening.messages[:1])) - BEGIN > 100
    assert third >= len(tokens(closing.messages[:3])) - BEGIN > second


async def test_three_turns_that_need_no_documents(engine: "RemoteLLM", tokens: Any) -> None:
    """Each turn's prompt begins with the whole of the one before."""
    questions, said = ("I am Ada, hello!", "What is my name?", "Thank you."), ("Hello Ada.", "You are Ada.", "Welcome.")
    llm, history, salt = Read(engine, *said), list[Message](), uuid4().hex
    generator = WritingGenerator(llm, WordTokenizer(), GeneratorConfig())
    for n, (question, answer) in enumerate(zip(questions, said, strict=True)):
        request = GenerateRequest(question, (), "plain", 50, tuple(history), f"req_plain_{n}", salt)
        assert [event.draft.text async for event in generator.generate(request) if event.draft] == [answer]
        history += [Message("user", question), Message("assistant", answer)]
    for more, before in hold_the_cache(llm, tokens):
        assert more == before
