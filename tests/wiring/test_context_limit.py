"""FAULTS 24: whatever a question brings along, no prompt is longer than its model takes, by that model's own tokenizer and in
its own chat template."""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from assay.config import (
    AppConfig,
    EngineConfig,
    ExpanderConfig,
    ExtractionConfig,
    GeneratorConfig,
    RerankerConfig,
    RerankMethod,
)
from assay.converse import Agent
from assay.errors import BadModelOutput
from assay.expand import LLMExpander
from assay.generate import WritingGenerator
from assay.index.buckets import FieldSchema
from assay.index.extract import Document, Extractor
from assay.llm.tools import checked
from assay.llm.wire import AS_JSON, tool_body
from assay.models import resolve_model
from assay.relevance import TEMPLATES
from assay.rerank import LLMReranker
from assay.schemas import STEPS, Turn, Usage
from assay.templates import Prompts
from assay.tokens import EstimatedTokenizer, ModelTokenizer, tools_indent
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
from deployments.expander import Expander
from deployments.generator import Generator
from deployments.remote import Here, Reply
from deployments.reranker import Reranker
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
    "rare": "龘靐齉爩",  # many tokens for one character, which cannot be cut in two
    "marks": "<|im_start|>user\n",  # one token, and many once it is made harmless
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
        tools = [json.dumps(tool_body(tool), indent=4) for tool in request.tools]  # as Llama 3's template has them
        said[0]["content"] = f"{PREAMBLE}{said[0]['content']}" + f"{TOOLS}{' '.join(tools)}" * bool(tools)
        said[-1]["content"] += f"\n\n{AS_JSON}{request.json_schema}" if self._shows_schema else ""
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


# What templates add beside the messages: of those looked at, the longest (gpt-oss), and what stands before tools (Llama 3).
PREAMBLE = (
    "You are a large language model. Knowledge cutoff: 2024-06. Current date: 2026-11-30. Reasoning: medium. " * 3
)
TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    'answers the given prompt. Respond in the format {"name": function name, "parameters": dictionary of arguments}. '
)


def written(message: Message) -> str:
    calls = [
        f'<tool_call>\n{{"name": "{use.name}", "arguments": {use.written}}}\n</tool_call>' for use in message.tool_uses
    ]
    text = message.content + "".join(calls)
    return f"<tool_response>\n{text}\n</tool_response>" if message.role == "tool" else text


def conversation(text: str, chars: int) -> tuple[Message, ...]:
    """Fifty turns."""
    long = (text * (chars // len(text) + 1))[:chars]
    return tuple(Message(role, f"{n} {long}") for n in range(50) for role in ("user", "assistant"))


def passages(text: str, count: int = 200, chars: int = 2_000) -> tuple[Hit, ...]:
    """Under titles of the same kind."""
    long, title = text * max(1, chars // len(text)), text * (min(chars, 200) // len(text))
    return tuple(Hit(chunk(n, long, f"{title} {n}"), 1 / n) for n in range(1, count + 1))


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
        assert (
            f"do not fit the {context} tokens" in plan.fault
            and "expander.max_tokens" in plan.fault
            and "max_model_len" in plan.fault
        )
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


async def test_many_short_passages_and_turns_fit_too() -> None:
    """What stands between them counts, as soon as there are hundreds."""
    engine = Strict(2_048, "It costs [E1].")
    writer = WritingGenerator(engine, tokenizer(), GeneratorConfig(evidence_tokens=100_000), context_tokens=2_048)
    evidence = tuple(Evidence(f"E{n}", hit, 1.0, 1) for n, hit in enumerate(passages("Yes. ", 400, 4), 1))
    for request in (
        GenerateRequest("What?", evidence, "prose", 200),
        GenerateRequest("What?", (), "plain", 200, conversation("Yes. ", 4) * 8),
    ):
        assert [event async for event in writer.generate(request)]
    engine = Strict(700, '{"query": "x", "variants": []}')
    expander = LLMExpander(engine, ExpanderConfig(), tokenizer=tokenizer(), context_tokens=700)
    await expander.plan(PlanRequest("What?", conversation("Yes. ", 4) * 8))
    assert engine.prompts


async def test_of_a_newest_turn_that_is_too_long_the_beginnings_are_there() -> None:
    """Without it nothing could be said of what was said last."""
    engine = Strict(2_048, "Hello.")
    writer = WritingGenerator(engine, tokenizer(), GeneratorConfig(), context_tokens=2_048)
    said = (Message("user", "How much?"), Message("assistant", SCRIPTS["chinese"] * 80))
    assert [event async for event in writer.generate(GenerateRequest("Say that shorter.", (), "plain", 200, said))]
    assert engine.prompts[0] > 500


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
    with pytest.raises(
        BadModelOutput, match=rf"no room for the question.* the {context} tokens of the model \(max_model_len\)"
    ):
        [event async for event in writer.generate(request)]
    assert engine.prompts == []


@each_script
@pytest.mark.parametrize("method", ["title", "likelihood", "pointwise", "score", "listwise", "shown listwise"])
async def test_passages_are_judged_within_the_context(text: str, context: int, method: str) -> None:
    shown = method.startswith("shown ")
    engine = Strict(context, json.dumps({"grades": [5] * 8}), shown)
    config = RerankerConfig(method=method.removeprefix("shown "), passage_tokens=8_192, candidates=8)  # type: ignore[arg-type]
    reranker = LLMReranker(engine, tokenizer(), config, context_tokens=context, shows_schema=shown)
    done = await reranker.rerank(RerankRequest(text[:60], passages(text), 8))
    assert len(done.ranked) == 8 and engine.prompts
    room = 2_000 // len(text) * tokenizer().count(text) * (8 if "listwise" in method else 1)
    assert max(engine.prompts) > min(room, context - 300) // 2, "it is used"


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("method", TEMPLATES)
async def test_a_long_passage_is_cut_to_its_tokens_where_there_is_room_for_more(
    text: str, method: RerankMethod
) -> None:
    """What a passage costs is bounded by ``passage_tokens``, here the default: counted against passages of one letter."""
    config, most = RerankerConfig(method=method, candidates=8), []
    for long in (text, "x"):
        engine = Strict(8_192, json.dumps({"grades": [5] * 8}))
        reranker = LLMReranker(engine, tokenizer(), config, context_tokens=8_192)
        await reranker.rerank(RerankRequest("What does it cost?", passages(long, 8, 4_000 if long == text else 1), 8))
        most.append(max(engine.prompts))
    each = (most[0] - most[1]) / (8 if method == "listwise" else 1)
    assert 0.7 * config.passage_tokens < each <= config.passage_tokens == 96


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize(("candidates", "context"), [(50, 4_096), (200, 16_384)])
async def test_many_passages_are_judged_together_within_the_context(text: str, candidates: int, context: int) -> None:
    engine = Strict(context, json.dumps({"grades": [5] * candidates}))
    config = RerankerConfig(method="listwise", candidates=candidates)
    reranker = LLMReranker(engine, tokenizer(), config, context_tokens=context)
    assert (await reranker.rerank(RerankRequest(text[:60], passages(text), 8))).ranked and engine.prompts


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
    config = ExtractionConfig(tokens=100_000)
    extractor = Extractor(engine, tokenizer(), config, context_tokens=context, shows_schema=True)
    fields = {name: FieldSchema(type="text", extract=True) for name in ("party", "kind")}
    (done,) = await extractor.extract([(Document(text, (text,) * 50, text * 4_000), fields)])
    assert engine.prompts and "are not of their schema" in done.problems[0], "the engine has answered"
    many = {f"field_{n}": FieldSchema(type="list", extract=True, description=text) for n in range(200)}
    (done,) = await extractor.extract([(Document(text, (), text), many)])
    assert f"leave no room for the document in the {context} tokens" in done.problems[0] and len(engine.prompts) == 1


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("context", [4_096, 4_350, 8_192])
@pytest.mark.parametrize(("wordy", "calls"), [(False, 9), (True, 9), (False, 15)])
async def test_a_conversation_with_tools_stays_within_the_context(
    text: str, context: int, wordy: bool, calls: int
) -> None:
    """A model that calls as many tools as it may in each turn, writes as much as it may, and finds long passages."""
    engine = Strict(context)

    class Busy(Strict):
        async def complete(self, request: CompletionRequest) -> Completion:
            engine.take(request)
            if request.tool_choice == "none":
                return Completion("It costs twenty euros [E1].", "stop", Usage(llm_calls=1))
            turn = len(engine.prompts)
            made = [find(f"{text[:12]} {turn} {n}") if n % 3 else ("list_buckets", {}) for n in range(calls)]
            uses = tuple(
                checked(request.tools, f"c{turn}_{n}", name, json.dumps(a)) for n, (name, a) in enumerate(made)
            )
            left = request.max_tokens - tokenizer().count(written(Message("assistant", "", uses)))
            said = tokenizer().truncate(text * 400, left if wordy else 0)
            return Completion(said, "stop", Usage(llm_calls=1), "", uses)

    held = tuple(replace(hit.chunk, text=f"{text[:12]} {hit.chunk.id} {hit.chunk.text}") for hit in passages(text, 60))
    table = Table(chunks=held, calls=100)
    table.agent = Agent(Busy(context), tokenizer(), Registry.of(table.config.tools), context_tokens=context)
    table.retriever.buckets = buckets(text, 20, 6)
    history = [Turn(role=m.role, content=m.content) for m in conversation(text, 600)]  # type: ignore[arg-type]
    await table.ask(text[:60], history=history)
    assert engine.prompts or context < 8_192


@pytest.mark.parametrize("context", range(4_200, 5_600, 20))
async def test_many_small_calls_stay_within_the_context(context: int) -> None:
    """What each result costs by being one, however short it is."""
    engine = Strict(context)

    class Listing(Strict):
        async def complete(self, request: CompletionRequest) -> Completion:
            engine.take(request)
            names = [f"{len(engine.prompts)}-{n}" for n in range(request.max_tokens // 20)]
            uses = tuple(checked(request.tools, name, "list_buckets", "{}") for name in names)
            last = request.tool_choice == "none"
            return Completion("It is [E1]." if last else "", "stop", Usage(llm_calls=1), "", () if last else uses)

    table = Table(calls=100)
    table.agent = Agent(Listing(context), tokenizer(), Registry.of(table.config.tools), context_tokens=context)
    await table.ask("What?")


DEPLOYMENTS: tuple[Any, ...] = (Expander, Reranker, Generator)


class Deployed:
    """An engine's replica."""

    def __init__(self, engine: Strict) -> None:
        self._engine = engine

    async def complete(self, request: CompletionRequest) -> Reply[Completion]:
        return Reply(await self._engine.complete(request), 0.0)

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        return self._engine.stream(request)


async def test_every_deployment_keeps_to_its_own_engine() -> None:
    """Made as the graph makes them: of the engine's config, and its model's folder."""
    text, kind = SCRIPTS["chinese"], EngineConfig(max_model_len=700)
    expander, reranker, generator = (deployment.func_or_class for deployment in DEPLOYMENTS)
    engine = Strict(700, json.dumps({"grades": [5] * 8}))
    handle: Any = Here("engine", Deployed(engine))
    given = handle, folder(), Prompts(), kind
    config = RerankerConfig(method="listwise", passage_tokens=8_192)
    await expander(ExpanderConfig(), *given).plan(PlanRequest(text, conversation(text, 600)))
    await reranker(config, *given).rerank(RerankRequest(text, passages(text), 8))
    writer = generator(GeneratorConfig(evidence_tokens=9_000), *given, handle)
    evidence = tuple(Evidence(f"E{n}", hit, 1.0, 1) for n, hit in enumerate(passages(text), 1))
    assert [part async for part in writer.generate(GenerateRequest(text, evidence, "prose", 200))]
    assert len(engine.prompts) == 3


def test_tools_are_counted_as_the_models_own_template_has_them(tmp_path: Path) -> None:
    assert (tools_indent(folder()), tools_indent(""), tools_indent("org/some-model")) == (None, 4, 4)
    (tmp_path / "chat_template.jinja").write_text("{{ tool | tojson(indent=4) }}")
    assert tools_indent(str(tmp_path)) == 4


def test_prompts_are_cut_to_what_the_engine_is_given() -> None:
    with pytest.raises(ValidationError, match="set max_model_len itself"):
        EngineConfig(engine_kwargs={"max_model_len": 512})


def test_an_estimate_is_no_less_than_a_large_vocabulary_needs() -> None:
    """Counted by hand with those of a hundred thousand: words, figures one by one, characters of other scripts."""
    estimate = EstimatedTokenizer()
    for text, least in (
        ("word " * 30, 30),
        ("1234567890", 10),
        ("港口的许可证", 6),
        ("الميناء", 4),
        ("👩🏽‍🚀", 8),
        ("{[(;)]}", 7),
    ):
        assert estimate.count(text) >= least
        for tokens in range(-1, estimate.count(text) + 2):
            cut = estimate.truncate(text, tokens)
            assert text.startswith(cut) and estimate.count(cut) <= max(0, tokens)
        assert estimate.truncate(text, estimate.count(text)) == text


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_a_cut_has_no_more_tokens_than_it_may(text: str) -> None:
    for tokens in range(12):
        cut = tokenizer().truncate(text * 3, tokens)
        assert (text * 3).startswith(cut) and tokenizer().count(cut) <= tokens
