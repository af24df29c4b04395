"""What every ``assay.ports.LLM`` keeps to. The scripted fake and the real engine run the same checks, so neither drifts."""

import json
import math
import re
from collections.abc import Collection
from typing import Any

from assay.ports import LLM
from assay.types import CompletionRequest, Delta, Message, ScoreItem, ScoreRequest, ToolSpec

QUESTION = " What is the capital of France?"
RELEVANT = "Paris is the capital and the largest city of France, on the river Seine.\nQuestion:"
IRRELEVANT = "The honeybee collects nectar and pollen from flowers in spring and summer.\nQuestion:"

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
        },
        "required": ["city", "tags"],
        "additionalProperties": False,
    }
)

# Characters of one to four bytes, joined ones, and both directions: tokens and deltas cut through them.
SCRIPTS = "naïve 東京 👩‍👩‍👧 مرحبا 😀 ok"
SEARCH = ToolSpec(
    "search",
    "Searches the documents.",
    json.dumps(
        {
            "type": "object",
            "properties": {"query": {"type": "string", "maxLength": 30}},
            "required": ["query"],
            "additionalProperties": False,
        }
    ),
)

# What an engine may lack: a check that needs it is not one of its checks.
NEEDS = {
    "choice_holds": "choice",
    "regex_holds": "regex",
    "grammar_holds": "grammar",
    "a_tool_is_called": "tools",
    "score_answers_every_item_in_order": "score",
    "score_prefers_the_relevant_passage": "score",
    "answers_to_one_prompt_are_scored_each": "score",
    "a_bad_item_is_a_fault_of_its_own": "score",
    "an_item_of_an_empty_passage_spares_the_others": "score",
}

CHECKS = (
    "complete_ends_with_a_reason_and_usage",
    "max_tokens_cut_with_reason_length",
    "stream_ends_with_one_reason_and_usage",
    "closing_a_stream_early_is_quiet",
    "json_schema_holds",
    "choice_holds",
    "regex_holds",
    "grammar_holds",
    "characters_stay_whole",
    "a_tool_is_called",
    "score_answers_every_item_in_order",
    "score_prefers_the_relevant_passage",
    "answers_to_one_prompt_are_scored_each",
    "a_bad_item_is_a_fault_of_its_own",
    "an_item_of_an_empty_passage_spares_the_others",
)


def ask(text: str, max_tokens: int = 16, json_schema: str | None = None, **more: Any) -> CompletionRequest:
    return CompletionRequest(
        (Message("user", text),), max_tokens=max_tokens, json_schema=json_schema, request_id="contract", **more
    )


async def check_complete_ends_with_a_reason_and_usage(llm: LLM) -> None:
    completion = await llm.complete(ask("What is the capital of France? Answer in one sentence.", 32))
    assert completion.text
    assert completion.finish_reason == "stop"
    assert completion.usage.llm_calls == 1
    assert completion.usage.prompt_tokens > 0
    assert 0 < completion.usage.completion_tokens <= 32


async def check_max_tokens_cut_with_reason_length(llm: LLM) -> None:
    completion = await llm.complete(ask("Write a very long story about a river.", 4))
    assert completion.finish_reason == "length"
    assert completion.usage.completion_tokens == 4


async def check_stream_ends_with_one_reason_and_usage(llm: LLM) -> None:
    deltas = [delta async for delta in llm.stream(ask("What is the capital of France? Answer in one sentence.", 32))]
    assert "".join(delta.text for delta in deltas)
    last = deltas.pop()
    assert last.finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.completion_tokens > 0
    assert all(delta.finish_reason is None and delta.usage is None for delta in deltas)


async def check_closing_a_stream_early_is_quiet(llm: LLM) -> None:
    stream = llm.stream(ask("Write a very long story about a river.", 200))
    assert isinstance(await anext(stream), Delta)
    await stream.aclose()


async def check_json_schema_holds(llm: LLM) -> None:
    completion = await llm.complete(ask("The capital of France, as JSON.", 96, SCHEMA))
    assert completion.finish_reason == "stop"
    value = json.loads(completion.text)
    assert set(value) == {"city", "tags"}
    assert "\n" not in completion.text


async def check_choice_holds(llm: LLM) -> None:
    completion = await llm.complete(ask("Is Paris a city?", 8, choice=("yes", "no")))
    assert completion.text in ("yes", "no")
    assert completion.finish_reason == "stop"


async def check_regex_holds(llm: LLM) -> None:
    completion = await llm.complete(ask("Which way?", 12, regex="(north|south) [0-9]{2}"))
    assert re.fullmatch("(north|south) [0-9]{2}", completion.text)


async def check_grammar_holds(llm: LLM) -> None:
    """A quote is from the given text, word for word."""
    grammar = (
        '%llguidance {}\nstart: QUOTE "."\nQUOTE: %regex {"substring_words": "the river Seine flows through Paris"}'
    )
    completion = await llm.complete(ask("Quote a few words about Paris.", 24, grammar=grammar))
    assert completion.finish_reason == "stop"
    assert completion.text.removesuffix(".") in "the river Seine flows through Paris"


async def check_characters_stay_whole(llm: LLM) -> None:
    """Streamed, since a whole answer has no cuts. Only its deltas' joint matters: where they are cut is the engine's choice."""
    request = ask(f"Repeat this: {SCRIPTS}", 96)
    deltas = [delta async for delta in llm.stream(request)]
    for delta in deltas:
        delta.text.encode()  # no half of a pair
    text = "".join(delta.text for delta in deltas)
    assert text
    assert "\ufffd" not in text


async def check_a_tool_is_called(llm: LLM) -> None:
    completion = await llm.complete(
        ask("Search for the capital of France.", 64, tools=(SEARCH,), tool_choice="required")
    )
    assert completion.finish_reason == "stop"
    assert completion.tool_uses
    for use in completion.tool_uses:
        assert (use.name, use.fault) == ("search", None)
        assert use.id
        assert isinstance(use.arguments["query"], str)


async def check_score_answers_every_item_in_order(llm: LLM) -> None:
    items = (ScoreItem(RELEVANT, QUESTION), ScoreItem(IRRELEVANT, QUESTION))
    scores = await llm.score(ScoreRequest(items, request_id="contract"))
    reverse = await llm.score(ScoreRequest(items[::-1], request_id="contract"))
    assert len(scores.items) == 2
    assert all(score.fault is None and score.logprob < 0 and score.tokens > 0 for score in scores.items)
    for one, other in zip(scores.items, reverse.items[::-1], strict=True):
        # A batch of another order may add its numbers in another order; in bfloat16 that shows.
        assert math.isclose(one.logprob, other.logprob, rel_tol=0.05)
    assert scores.usage.prompt_tokens > 0


async def check_score_prefers_the_relevant_passage(llm: LLM) -> None:
    scores = await llm.score(ScoreRequest((ScoreItem(RELEVANT, QUESTION), ScoreItem(IRRELEVANT, QUESTION))))
    relevant, irrelevant = scores.items
    assert relevant.tokens == irrelevant.tokens
    assert relevant.mean > irrelevant.mean


async def check_answers_to_one_prompt_are_scored_each(llm: LLM) -> None:
    """One of them twice, one of several words: each is what it is alone, and its tokens' log-probabilities sum to it."""
    items = tuple(ScoreItem(RELEVANT, answer) for answer in (" yes", " no", " yes", " yes it is"))
    together = (await llm.score(ScoreRequest(items, request_id="contract"))).items
    assert together[0] == together[2] and together[3].tokens > together[0].tokens == together[1].tokens
    for item, score in zip(items, together, strict=True):
        (alone,) = (await llm.score(ScoreRequest((item,), request_id="contract"))).items
        assert math.isclose(alone.logprob, score.logprob, rel_tol=0.05)
        assert math.isclose(sum(score.each), score.logprob, abs_tol=1e-6) and len(score.each) == score.tokens


async def check_a_bad_item_is_a_fault_of_its_own(llm: LLM) -> None:
    good, bad = ScoreItem(RELEVANT, QUESTION), ScoreItem(RELEVANT, "")
    scores = await llm.score(ScoreRequest((good, good, good, bad, good, good, good, good)))
    empty = scores.items[3]
    assert empty.fault is not None
    assert math.isnan(empty.logprob)
    assert [score.fault for score in scores.items if score is not empty] == [None] * 7


async def check_an_item_of_an_empty_passage_spares_the_others(llm: LLM) -> None:
    """Whether anything can follow nothing hangs on the vocabulary; what the seven others are worth does not hang on it."""
    relevant, irrelevant = ScoreItem(RELEVANT, QUESTION), ScoreItem(IRRELEVANT, QUESTION)
    others = (relevant, irrelevant, irrelevant, relevant, irrelevant, relevant, relevant)
    eight = (await llm.score(ScoreRequest((*others[:3], ScoreItem("", QUESTION), *others[3:])))).items
    alone = (await llm.score(ScoreRequest(others))).items
    assert (eight[3].fault is not None) is math.isnan(eight[3].logprob)
    for score, same in zip((*eight[:3], *eight[4:]), alone, strict=True):
        assert score.fault is None and score.tokens == same.tokens
        assert math.isclose(score.logprob, same.logprob, rel_tol=0.05)


def checks(can: Collection[str]) -> list[str]:
    """Those of ``CHECKS`` that an engine with these capabilities must pass."""
    return [name for name in CHECKS if NEEDS.get(name) is None or NEEDS[name] in can]


async def check(name: str, llm: LLM) -> None:
    """Run one of ``CHECKS``."""
    await globals()[f"check_{name}"](llm)
