"""A generation's events become the same deltas, whatever the server puts into one event."""

import json
from typing import Any

import pytest

from assay.llm.http import _retry_after, gathered
from assay.llm.tools import MAX_CHARS, checked
from assay.llm.wire import DeltaReader, reason_of, usage_of
from assay.types import CompletionRequest, Message, ToolSpec

SPEC = ToolSpec(
    "add", "Adds.", json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
)
ASKED = CompletionRequest((Message("user", "x"),), 64, tools=(SPEC,))


def said(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


def read(*events: dict[str, Any], opened: bool | None = None) -> Any:
    reader = DeltaReader(ASKED, opened)
    return gathered([delta for event in events for delta in reader.feed(event)] + reader.end())


def test_an_unclosed_block_is_no_answer_yet() -> None:
    done = read(said(content="<think>hm"), said("length"))
    assert (done.text, done.reasoning, done.finish_reason) == ("", "hm", "length")


def test_a_constrained_output_never_starts_inside_a_block() -> None:
    reader = DeltaReader(CompletionRequest(ASKED.messages, 8, json_schema="{}"), opened=True)
    assert gathered([*reader.feed(said(content='{"a": 1}')), *reader.end()]).text == '{"a": 1}'


def test_calls_come_in_fragments_or_whole() -> None:
    fragments = [
        {"index": 0, "id": "a", "function": {"name": "add", "arguments": ""}},
        {"index": 1, "id": "b", "function": {"name": "add", "arguments": '{"n"'}},
        {"index": 0, "function": {"arguments": '{"n": 1}'}},
        {"index": 1, "function": {"name": None, "arguments": ": 2}"}},
    ]
    done = read(*(said(tool_calls=[fragment]) for fragment in fragments), said("tool_calls"))
    assert [(use.id, use.arguments, use.fault) for use in done.tool_uses] == [
        ("a", {"n": 1}, None),
        ("b", {"n": 2}, None),
    ]
    whole = read(said("stop", tool_calls=[{"function": {"name": "add", "arguments": {"n": 3}}}]))
    assert [(use.id, use.arguments) for use in whole.tool_uses] == [("call_0", {"n": 3})]


def test_a_call_that_was_cut_off_is_not_made() -> None:
    done = read(
        said(tool_calls=[{"index": 0, "id": "a", "function": {"name": "add", "arguments": "{}"}}]), said("length")
    )
    assert (done.tool_uses, done.finish_reason) == ((), "length")


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ('{"n": "1"}', "'1' is not of type 'integer'"),
        ('{"n": NaN}', "NaN is no JSON number"),
        ("[1]", "must be a JSON object"),
        ('{"n": 1', "not JSON"),
        ("", "'n' is a required property"),
        ('{"n": "' + "x" * 5000 + '"}', "is not of type"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_shortly(written: str, fault: str) -> None:
    use = checked((SPEC,), "a", "add", written)
    assert use.arguments == {}
    assert use.fault is not None and len(use.fault) < 450
    assert fault in use.fault or len(written) > 5000


def test_too_long_a_call_is_cut_while_it_comes() -> None:
    piece = said(tool_calls=[{"index": 0, "id": "a", "function": {"name": "add", "arguments": "x" * 50_000}}])
    (use,) = read(*[piece] * 5, said("stop")).tool_uses
    assert use.fault is not None and "250000 characters" in use.fault
    assert len(use.written) <= MAX_CHARS


def test_usage_in_the_words_of_each_vendor() -> None:
    openai = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    deepseek = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5}
    assert usage_of(openai) == usage_of(deepseek)
    assert usage_of(openai).cached_tokens == 4
    assert usage_of({"prompt_tokens": 9, "prompt_tokens_details": None}).cached_tokens == 0


def test_reasons() -> None:
    assert [reason_of(r) for r in ("stop", "tool_calls", "length", "content_filter", None)] == [
        "stop",
        "stop",
        "length",
        "abort",
        "abort",
    ]


def test_retry_after_is_seconds_or_a_date() -> None:
    assert _retry_after("2.5") == 2.5
    assert _retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert _retry_after("-3") == 0
    for useless in (None, "", "soon", "nan", "inf"):
        assert _retry_after(useless) is None
