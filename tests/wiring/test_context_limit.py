"""FAULTS 24: whatever a question brings along, no prompt is longer than its model takes, by that model's own tokenizer and in
its own chat template."""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay.config import AppConfig, EngineConfig, ExpanderConfig, ExtractionConfig, GeneratorConfig, RerankerConfig
from assay.converse import Agent
from assay.errors import BadModelOutput
from assay.expand import LLMExpander
from assay.generate import WritingGenerator
from assay.index.buckets import FieldSchema
from assay.index.extract import Document, Extractor
from assay.llm.endpoint import EndpointConfig
from assay.llm.tools import checked
from assay.llm.wire import tool_body
from assay.models import resolve_model
from assay.rerank import LLMReranker
from assay.schemas import STEPS, Turn, Usage
from assay.tokens import ModelTokenizer
from assay.tools import Registry
from assay.types import (
    BucketInfo,
    Completion,
    CompletionRequest,
    Delta,
    Evidence,
    FieldInfo,
    GenerateRequest,
    Hit,
    ItemScore,
    Message,
    PlanRequest,
    RerankRequest,
    ScoreRequest,
    Scores,
)
from tests.fakes import chunk
from tests.wiring.loop.test_converse import Table, find

pytestmark = pytest.mark.anyio

# One of each kind: what a vocabulary needs most tokens for a character of.
SCRIPTS = {
    "english": "The permit of a harbour costs twenty euros a year, and more where a ship is long. ",
    "chinese": "港口的许可证每年收费二十欧元，如果船很长则需要更多费用。",
    "arabic": "تبلغ تكلفة تصريح الميناء عشرين يورو في السنة وأكثر إذا كانت السفينة طويلة. ",
    "emoji": "👩🏽‍🚀🦜🪐🧬 ",
    "code": "\t\tfor(;;){x^=y<<3|0x7F;}//!!\n\n\n",
}
CONTEXTS = (700, 2_048, 8_192)


@cache
def folder() -> str:
    return resolve_model(EngineConfig().model, Path(AppConfig().cache).expanduser())


@cache
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer(folder())


@cache
def chat_template() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder())


class Strict:
    """An engine that takes ``context`` tokens of prompt and output together, as vLLM does, and says ``said``."""

    def __init__(self, context: int, said: str = "", shows_schema: bool = False) -> None:
        self._context, self._said, self._shows_schema = context, said, shows_schema
        self.prompts: list[int] = []

    def take(self, request: CompletionRequest) -> None:
        said = [{"role": message.role, "content": written(message)} for message in request.messages]
        tools = [tool_body(tool) for tool in request.tools]
        said[0]["content"] += json.dumps(tools) if tools else ""
        said[-1]["content"] += request.json_schema or "" if self._shows_schema else ""
        prompt = len(chat_template().apply_chat_template(said, add_generation_prompt=True, return_dict=False))
        assert prompt + request.max_tokens <= self._context, f"{prompt} + {request.max_tokens} of {self._context}"
        self.prompts.append(prompt)

    async def complete(self, request: CompletionRequest) -> Completion:
        self.take(request)
        return Completion(self._said, "stop", Usage(llm_calls=1))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        self.take(request)
        yield Delta(self._said, finish_reason="stop", usage=Usage(llm_calls=1))

    async def score(self, request: ScoreRequest) -> Scores:
        sizes = [tokenizer().count(item.context + item.continuation) for item in request.items]
        assert max(sizes) < self._context
        self.prompts += sizes
        return Scores(tuple(ItemScore(-1.0, 1, each=(-1.0,)) for _ in sizes), Usage(llm_calls=1))


def written(message: Message) -> str:
    return message.content + "".join(f'<tool_call>{{"{use.name}": {use.written}}}' for use in message.tool_uses)


def conversation(text: str, chars: int) -> tuple[Message, ...]:
    """Fifty turns."""
    long = (text * (chars // len(text) + 1))[:chars]
    return tuple(Message(role, f"{n} {long}") for n in range(50) for role in ("user", "assistant"))


def passages(text: str, count: int = 200) -> tuple[Hit, ...]:
    return tuple(Hit(chunk(n, text * (2_000 // len(text))), 1 / n) for n in range(1, count + 1))


def buckets(text: str, count: int, fields: int) -> tuple[BucketInfo, ...]:
    values = tuple(f"{n} {text}"[:80] for n in range(20))
    made = tuple(FieldInfo(f"field_{n}", "text", False, text * 4, 9, values) for n in range(fields))
    return tuple(BucketInfo(f"bucket_{n}", 9, 90, text * 8, made) for n in range(count))


each_script = pytest.mark.parametrize(
    ("text", "context"),
    [pytest.param(text, context, id=f"{name}-{context}") for name, text in SCRIPTS.items() for context in CONTEXTS],
)


@each_script
@pytest.mark.parametrize("chars", [40, 600, 8_000])
async def test_a_plan_is_asked_for_within_the_context(text: str, context: int, chars: int) -> None:
    """A plan of the question and what was said last, however much was said."""
    engine = Strict(context, '{"query": "x", "variants": []}')
    expander = LLMExpander(engine, ExpanderConfig(), tokenizer=tokenizer(), context_tokens=context)
    plan = await expander.plan(PlanRequest(text[:60], conversation(text, chars)))
    assert plan.fault is None or "nobody said" in plan.fault
    (prompt,) = engine.prompts
    assert prompt > tokenizer().count(text[:60]) + 100, "something of the conversation is there"


@each_script
@pytest.mark.parametrize(("count", "fields"), [(2, 3), (20, 10), (64, 30)])
@pytest.mark.parametrize("shows_schema", [False, True])
async def test_a_plan_over_many_buckets_fits_or_is_not_asked_for(
    text: str, context: int, count: int, fields: int, shows_schema: bool
) -> None:
    engine = Strict(context, "{}", shows_schema)
    expander = LLMExpander(
        engine,
        ExpanderConfig(steps=STEPS, skip_simple=False),
        tokenizer=tokenizer(),
        context_tokens=context,
        shows_schema=shows_schema,
    )
    plan = await expander.plan(PlanRequest(text[:60], conversation(text, 600), buckets(text, count, fields)))
    assert plan.query == text[:60] and plan.fault is not None
    if not engine.prompts:
        assert f"do not fit the {context} tokens" in plan.fault and "max_model_len" in plan.fault
    assert engine.prompts or shows_schema or (context, count) != (8_192, 2), "there is room for two buckets"


@each_script
@pytest.mark.parametrize("style", ["prose", "list", "table"])
async def test_an_answer_is_written_within_the_context(text: str, context: int, style: Any) -> None:
    engine = Strict(
        context, {"prose": "It costs [E1].", "list": "- It costs [E1]", "table": "| It |\n| costs | [E1] |"}[style]
    )
    evidence = tuple(Evidence(f"E{n}", hit, 1.0, 1) for n, hit in enumerate(passages(text), 1))
    config = GeneratorConfig(evidence_tokens=100_000)
    writer = WritingGenerator(engine, tokenizer(), config, context_tokens=context)
    events = [event async for event in writer.generate(GenerateRequest(text[:60], evidence, style, 200))]
    assert any(event.draft for event in events)
    (prompt,) = engine.prompts
    assert context - prompt - 200 < 64 + 2 * 200, "the room is used"


@each_script
@pytest.mark.parametrize("chars", [40, 600, 8_000])
async def test_small_talk_is_answered_within_the_context(text: str, context: int, chars: int) -> None:
    engine = Strict(context, "Hello.")
    writer = WritingGenerator(engine, tokenizer(), GeneratorConfig(), context_tokens=context)
    request = GenerateRequest(text[:60], (), "plain", 200, conversation(text, chars))
    events = [event async for event in writer.generate(request)]
    assert [event.draft.text for event in events if event.draft] == ["Hello."] and engine.prompts


async def test_an_answer_that_may_be_longer_than_the_context_leaves_room_to_read() -> None:
    engine = Strict(2_048, "It costs twenty euros [E1].")
    writer = WritingGenerator(engine, tokenizer(), GeneratorConfig(), context_tokens=2_048)
    evidence = (Evidence("E1", passages(SCRIPTS["english"], 1)[0], 1.0, 1),)
    events = [event async for event in writer.generate(GenerateRequest("What?", evidence, "prose", 32_000))]
    assert any(event.draft for event in events)


@each_script
@pytest.mark.parametrize("style", ["prose", "plain"])
async def test_a_question_that_does_not_fit_is_said_and_not_sent(text: str, context: int, style: Any) -> None:
    engine = Strict(context)
    writer = WritingGenerator(engine, tokenizer(), GeneratorConfig(), context_tokens=context)
    evidence = (Evidence("E1", passages(text, 1)[0], 1.0, 1),) if style == "prose" else ()
    request = GenerateRequest(text * (20 * context // len(text)), evidence, style, 200)
    with pytest.raises(BadModelOutput, match=rf"{context} tokens of the model \(max_model_len\)"):
        [event async for event in writer.generate(request)]
    assert engine.prompts == []


@each_script
@pytest.mark.parametrize("method", ["title", "likelihood", "pointwise", "score", "listwise"])
async def test_passages_are_judged_within_the_context(text: str, context: int, method: Any) -> None:
    engine = Strict(context, json.dumps({"grades": [5] * 8}))
    config = RerankerConfig(method=method, passage_tokens=8_192, candidates=8)
    reranker = LLMReranker(engine, tokenizer(), config, context_tokens=context)
    done = await reranker.rerank(RerankRequest(text[:60], passages(text), 8))
    assert len(done.ranked) == 8 and engine.prompts
    room = 2_000 // len(text) * tokenizer().count(text) * (8 if method == "listwise" else 1)
    assert max(engine.prompts) > min(room, context) // 2, "it is used"


async def test_passages_that_do_not_fit_one_prompt_together_are_said_and_not_sent() -> None:
    engine = Strict(700)
    config = RerankerConfig(method="listwise", candidates=200)
    reranker = LLMReranker(engine, tokenizer(), config, context_tokens=700)
    with pytest.raises(BadModelOutput, match="200 passages do not fit the 700 tokens"):
        await reranker.rerank(RerankRequest("What?", passages("word "), 8))
    assert engine.prompts == []


@each_script
async def test_metadata_is_read_within_the_context(text: str, context: int) -> None:
    engine = Strict(context, "{}", shows_schema=True)
    extractor = Extractor(engine, tokenizer(), ExtractionConfig(tokens=100_000), context_tokens=context)
    fields = {name: FieldSchema(type="text", extract=True) for name in ("party", "kind")}
    (done,) = await extractor.extract([(Document(text, (text,) * 50, text * 4_000), fields)])
    assert engine.prompts and "are not of their schema" in done.problems[0], "the engine has answered"
    many = {f"field_{n}": FieldSchema(type="list", extract=True, description=text) for n in range(200)}
    (done,) = await extractor.extract([(Document(text, (), text), many)])
    assert f"leave no room for the document in the {context} tokens" in done.problems[0] and len(engine.prompts) == 1


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("context", [4_096, 8_192, 16_384])
@pytest.mark.parametrize("wordy", [False, True])
async def test_a_conversation_with_tools_stays_within_the_context(text: str, context: int, wordy: bool) -> None:
    """A model that calls as many tools as it may in each turn, writes as much as it may, and finds long passages."""
    engine = Strict(context)

    class Busy(Strict):
        async def complete(self, request: CompletionRequest) -> Completion:
            engine.take(request)
            if request.tool_choice == "none":
                return Completion("It costs twenty euros [E1].", "stop", Usage(llm_calls=1))
            turn = len(engine.prompts)
            made = [find(f"{text[:12]} {turn} {n}") if n % 3 else ("nothing", {"q": n}) for n in range(9)]
            uses = tuple(
                checked(request.tools, f"c{turn}_{n}", name, json.dumps(a)) for n, (name, a) in enumerate(made)
            )
            left = request.max_tokens - tokenizer().count(written(Message("assistant", "", uses)))
            said = tokenizer().truncate(text * 400, left if wordy else 0)
            return Completion(said, "stop", Usage(llm_calls=1), "", uses)

    held = tuple(replace(hit.chunk, text=f"{text[:12]} {hit.chunk.id} {hit.chunk.text}") for hit in passages(text, 60))
    table = Table(chunks=held, calls=100)
    table.agent = Agent(Busy(context), tokenizer(), Registry.of(table.config.tools), context_tokens=context)
    history = [Turn(role=m.role, content=m.content) for m in conversation(text, 600)]  # type: ignore[arg-type]
    await table.ask(text[:60], history=history)
    assert engine.prompts or context == 4_096


def test_every_engine_says_what_it_takes() -> None:
    assert EngineConfig().context_tokens == 2_048
    assert EngineConfig(engine_kwargs={"max_model_len": 512}).context_tokens == 512, "vLLM is given that"
    endpoint = EndpointConfig(kind="openai", model="m", base_url="http://127.0.0.1:1/v1")
    assert endpoint.context_tokens == 32_768
