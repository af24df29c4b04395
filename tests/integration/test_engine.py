"""The real small model in a real vLLM engine on a real Serve replica. ``engine``, from conftest.py, is shared by all tests."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from assay.config import EngineConfig, ExpanderConfig, GeneratorConfig, RerankerConfig
from assay.errors import BadModelOutput
from assay.expand import LLMExpander
from assay.generate import WritingGenerator
from assay.llm.http import EndpointLLM, gathered
from assay.rerank import LLMReranker
from assay.schemas import Usage
from assay.types import (
    Completion,
    CompletionRequest,
    Delta,
    Evidence,
    GenerateRequest,
    Message,
    PlanRequest,
    RerankRequest,
    ScoreItem,
    ScoreRequest,
    Scores,
)
from tests import contract_llm
from tests.integration.conftest import CONTEXT
from tests.wiring.test_context_limit import SCRIPTS, conversation, passages, tokenizer

if TYPE_CHECKING:
    # Importing ray where tests are collected would fix its authentication mode before conftest.py sets it.
    from deployments.remote import RemoteLLM

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

TOO_LONG = "word " * (CONTEXT + 1000)
CHECKS = contract_llm.checks(EngineConfig(tool_parser="hermes").can)
STORY = CompletionRequest((Message("user", "Write a very long story about a river."),), max_tokens=800)


async def running(engine: "RemoteLLM") -> int:
    """Requests inside the engine, as its own scheduler counts them."""
    return int((await engine._handle.stats.remote()).running)


async def until(engine: "RemoteLLM", seconds: float, *, busy: bool) -> None:
    async with asyncio.timeout(seconds):
        while bool(await running(engine)) is not busy:  # the count is another process's
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", CHECKS)
async def test_contract(engine: "RemoteLLM", name: str) -> None:
    await contract_llm.check(name, engine)


@pytest.mark.parametrize("name", CHECKS)
async def test_contract_over_http(engine: "RemoteLLM", over_http: EndpointLLM, name: str) -> None:
    await contract_llm.check(name, over_http)
    await until(engine, 5, busy=False)


async def test_both_ways_to_the_engine_score_alike(engine: "RemoteLLM", over_http: EndpointLLM) -> None:
    """Also where characters are cut into several tokens, and where the context ends in a space."""
    texts = ("The capital of France is", contract_llm.RELEVANT, f"{contract_llm.SCRIPTS} 🙂: ")
    items = tuple(ScoreItem(text, contract_llm.QUESTION) for text in texts)
    here, there = [await llm.score(ScoreRequest(items)) for llm in (engine, over_http)]
    for one, other in zip(here.items, there.items, strict=True):
        assert one.tokens == other.tokens > 1
        assert math.isclose(one.logprob, other.logprob, rel_tol=0.02)


async def test_closing_a_stream_over_http_frees_the_engine(engine: "RemoteLLM", over_http: EndpointLLM) -> None:
    stream = over_http.stream(STORY)
    await anext(stream)
    assert await running(engine) == 1
    await stream.aclose()
    await until(engine, 5, busy=False)


@pytest.mark.parametrize("text", [f"😀 {contract_llm.SCRIPTS}", "מים 水 ماء"])
async def test_a_forced_text_arrives_whole(engine: "RemoteLLM", over_http: EndpointLLM, text: str) -> None:
    request = CompletionRequest((Message("user", "Say it."),), max_tokens=96, choice=(text,))
    for llm in (engine, over_http):
        assert "".join([delta.text async for delta in llm.stream(request)]) == text


async def test_closing_a_stream_frees_the_engine(engine: "RemoteLLM") -> None:
    stream = engine.stream(STORY)
    async for _ in stream:
        break
    assert await running(engine) == 1
    await stream.aclose()
    await until(engine, 2, busy=False)


async def test_cancelling_a_completion_frees_the_engine(engine: "RemoteLLM") -> None:
    call = asyncio.create_task(engine.complete(STORY))
    await until(engine, 20, busy=True)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(engine, 2, busy=False)


async def test_cancelling_a_score_frees_the_engine(engine: "RemoteLLM") -> None:
    items = tuple(ScoreItem(f"{n} " + "and so on " * 400, " and so on and so on") for n in range(6))
    call = asyncio.create_task(engine.score(ScoreRequest(items)))
    await until(engine, 20, busy=True)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(engine, 10, busy=False)  # the step that runs is finished first: a second, more beside other load


async def test_json_is_compact_and_of_its_schema(engine: "RemoteLLM") -> None:
    requests = [
        contract_llm.ask(f"Describe {city} as JSON.", 96, contract_llm.SCHEMA) for city in ("Rome", "Oslo", "Lima")
    ]
    for completion in await asyncio.gather(*map(engine.complete, requests)):
        value = json.loads(completion.text)
        assert completion.finish_reason == "stop"
        assert len(value["city"]) <= 20
        assert len(value["tags"]) <= 3
        assert completion.text == json.dumps(value, ensure_ascii=False)  # one space after a colon or comma, no more


@pytest.mark.parametrize(
    ("form", "allowed"),
    [({"choice": ("yes", "no")}, ("yes", "no")), ({"regex": "(north|south) [0-9]{2}"}, None)],
)
async def test_constrained_forms(engine: "RemoteLLM", form: dict[str, Any], allowed: tuple[str, ...] | None) -> None:
    completion = await engine.complete(CompletionRequest((Message("user", "Which one?"),), max_tokens=12, **form))
    assert completion.finish_reason == "stop"
    if allowed:
        assert completion.text in allowed
    else:
        direction, number = completion.text.split()
        assert direction in ("north", "south")
        assert number.isdigit()


async def test_a_cut_off_json_says_so(engine: "RemoteLLM") -> None:
    completion = await engine.complete(contract_llm.ask("Describe Paris as JSON.", 3, contract_llm.SCHEMA))
    assert completion.finish_reason == "length"


async def test_a_prompt_that_does_not_fit_is_refused(engine: "RemoteLLM") -> None:
    with pytest.raises(BadModelOutput, match=str(CONTEXT)):
        await engine.complete(contract_llm.ask(TOO_LONG))


class Begun:
    """``ports.LLM``: the real engine takes each request whole, and is stopped at its first token."""

    def __init__(self, engine: "RemoteLLM") -> None:
        self._engine, self.taken = engine, 0

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        async with aclosing(self._engine.stream(request)) as deltas:
            await anext(deltas)
        self.taken += 1
        yield Delta("Hello [E1].", finish_reason="stop", usage=Usage())

    async def complete(self, request: CompletionRequest) -> Completion:
        return gathered([delta async for delta in self.stream(request)])

    async def score(self, request: ScoreRequest) -> Scores:
        return await self._engine.score(request)


async def test_fifty_turns_and_two_hundred_passages_fit_the_real_context(engine: "RemoteLLM") -> None:
    """Of all scripts, Chinese has most tokens for a character here: bounded in characters, these prompts were refused."""
    text = SCRIPTS["chinese"]
    model, prompt = Begun(engine), {"tokenizer": tokenizer(), "context_tokens": CONTEXT}
    expander = LLMExpander(model, ExpanderConfig(), **prompt)  # type: ignore[arg-type]
    writer = WritingGenerator(model, tokenizer(), GeneratorConfig(evidence_tokens=100_000), context_tokens=CONTEXT)
    turns = conversation(text, 1_500)
    evidence = tuple(Evidence(f"E{n}", hit, 1.0, 1) for n, hit in enumerate(passages(text), 1))
    plan = await expander.plan(PlanRequest(text, turns))
    assert plan.fault is not None and "schema" in plan.fault, "it was asked, and said Hello"
    for request in (GenerateRequest(text, evidence, "prose", 200), GenerateRequest(text, (), "plain", 200, turns)):
        assert any([event.draft async for event in writer.generate(request)])
    assert model.taken == 3


async def test_a_prompt_that_does_not_fit_is_refused_over_http(over_http: EndpointLLM) -> None:
    with pytest.raises(BadModelOutput, match=str(CONTEXT)):
        await over_http.complete(contract_llm.ask(TOO_LONG))
    (item,) = (await over_http.score(ScoreRequest((ScoreItem(TOO_LONG, " x"),)))).items
    assert item.fault is not None and str(CONTEXT) in item.fault


async def test_score_is_the_same_from_the_prefix_cache(engine: "RemoteLLM") -> None:
    context = "The river flows through the town and under three bridges of stone. " * 8 + "\nQuestion:"
    items = tuple(ScoreItem(context, f" How many {what} are there?") for what in ("bridges", "bees"))
    first = await engine.score(ScoreRequest(items, cache_salt="cache-test"))
    again = await engine.score(ScoreRequest(items, cache_salt="cache-test"))
    assert again.usage.cached_tokens > first.usage.cached_tokens
    for one, other in zip(first.items, again.items, strict=True):
        assert math.isclose(one.logprob, other.logprob, rel_tol=0.05)
    assert first.items[0].mean > first.items[1].mean


async def test_a_continuation_inside_the_cache_is_still_scored(engine: "RemoteLLM") -> None:
    """The whole prompt was just prefilled, so the cache reaches past the context: the engine must be asked again."""
    item = ScoreItem("Once", " upon a time there was a king who had three daughters and no son at all. " * 6)
    first = await engine.score(ScoreRequest((item,)))
    again = await engine.score(ScoreRequest((item,)))
    assert first.items[0].fault is None
    assert again.items[0].fault is None
    assert math.isclose(first.items[0].logprob, again.items[0].logprob, rel_tol=0.02)


async def test_one_token_scores_agree_with_the_chain_rule(engine: "RemoteLLM") -> None:
    context = "The capital of France is"
    scores = await engine.score(
        ScoreRequest((ScoreItem(context, " Paris"), ScoreItem(f"{context} Paris", "."), ScoreItem(context, " Paris.")))
    )
    city, stop, both = scores.items
    assert (city.tokens, stop.tokens, both.tokens) == (1, 1, 2)
    assert math.isclose(city.logprob + stop.logprob, both.logprob, abs_tol=0.2)


async def test_grades_of_several_tokens_share_their_prompts(engine: "RemoteLLM") -> None:
    """This vocabulary has no " 7": a space, then a digit. All but the last grade differ in their last token alone."""
    context = "From 0 to 10, how warm is a summer's day? Grade:"
    items = tuple(ScoreItem(context, f" {grade}") for grade in range(11))
    together = await engine.score(ScoreRequest(items))
    apart = [await engine.score(ScoreRequest((item,))) for item in items]
    assert together.usage.llm_calls == 2 < len(items), "one for the digits, one for 10"
    for one, other in zip(together.items, apart, strict=True):
        assert one.fault is None and one.tokens == other.items[0].tokens > 1
        assert math.isclose(one.logprob, other.items[0].logprob, abs_tol=0.1)


@pytest.mark.parametrize("over", ["handle", "http"])
async def test_all_passages_are_graded_in_one_call(engine: "RemoteLLM", over_http: EndpointLLM, over: str) -> None:
    """By the real grammar of their schema. Which grades a model of this size gives, nobody can say; that each passage has one,
    and the rest keep their order behind them, does not hang on it."""
    config, hits = RerankerConfig(method="listwise", candidates=8), passages(SCRIPTS["english"], 10)
    llm = over_http if over == "http" else engine
    done = await LLMReranker(llm, tokenizer(), config, context_tokens=CONTEXT).rerank(RerankRequest("What?", hits, 10))
    *graded, last, rest = done.ranked
    assert sorted(each.hit.chunk.id for each in graded) == list(range(1, 9)) and done.faults == 0
    scores = [each.score for each in graded]
    assert all(map(math.isfinite, scores)) and scores == sorted(scores, reverse=True)
    assert (last.hit.chunk.id, rest.hit.chunk.id) == (9, 10) and scores[-1] > last.score > rest.score
    assert done.usage.llm_calls == 1 and done.usage.completion_tokens > 8


async def test_faults_name_their_reason(engine: "RemoteLLM") -> None:
    items = (ScoreItem("", " x"), ScoreItem("x", " "), ScoreItem(TOO_LONG, " x"), ScoreItem("Yes or no?", " Yes"))
    empty_context, empty, long, good = (await engine.score(ScoreRequest(items))).items
    assert empty_context.fault == "empty context"
    assert empty.fault == "empty continuation"
    assert long.fault is not None
    assert str(CONTEXT) in long.fault
    assert good.fault is None


@pytest.mark.parametrize("over", ["handle", "http"])
async def test_salt_keeps_tenants_apart(engine: "RemoteLLM", over_http: EndpointLLM, over: str) -> None:
    llm = over_http if over == "http" else engine

    async def cached(tenant: str) -> int:
        salt = f"{tenant}-{over}"
        request = CompletionRequest((Message("user", "The same long prompt. " * 40),), max_tokens=1, cache_salt=salt)
        return int((await llm.complete(request)).usage.cached_tokens)

    await cached("tenant-a")
    assert await cached("tenant-a") > 0
    assert await cached("tenant-b") < 64  # at most what another test left under this salt: nothing


async def test_requests_run_side_by_side(engine: "RemoteLLM") -> None:
    short = CompletionRequest((Message("user", "Say hello."),), max_tokens=8)
    story = asyncio.create_task(engine.complete(STORY))
    await until(engine, 20, busy=True)
    await asyncio.gather(*(engine.complete(short) for _ in range(4)))
    assert not story.done()
    story.cancel()
    with pytest.raises(asyncio.CancelledError):
        await story
