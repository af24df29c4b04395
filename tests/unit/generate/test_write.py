"""The written styles over a scripted model: how it is bound, what it reads, and what becomes of what it writes."""

import json
from typing import Any

import pytest

from assay.config import GeneratorConfig
from assay.errors import BadModelOutput
from assay.generate import WritingGenerator
from assay.generate.grammar import NOT_FOUND
from assay.types import CompletionRequest, Evidence, GenerateEvent, GenerateRequest, Hit, Message
from tests.fakes import ScriptedLLM, WordTokenizer, chunk

pytestmark = pytest.mark.anyio

FEES = "The permit of Acme costs 20 euros a year. The permit of Bolt costs 30 euros."


def evidence(*texts: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(f"E{n}", Hit(chunk(n, text), 1.0), 1.0, 1) for n, text in enumerate(texts, 1))


async def write(
    said: str,
    style: Any,
    question: str = "What do the permits cost?",
    found: tuple[Evidence, ...] | None = None,
    **fields: Any,
) -> tuple[list[GenerateEvent], CompletionRequest]:
    llm = ScriptedLLM(said)
    request = GenerateRequest(
        question, evidence(FEES) if found is None else found, style, 100, fields.pop("history", ())
    )
    generator = WritingGenerator(llm, WordTokenizer(), GeneratorConfig(items=4), **fields)
    events = [event async for event in generator.generate(request)]
    asked = llm.history[0]
    assert isinstance(asked, CompletionRequest)
    return events, asked


def texts(events: list[GenerateEvent]) -> list[str]:
    return [event.draft.text for event in events if event.draft]


async def test_a_list_comes_item_by_item() -> None:
    events, asked = await write("- Acme: 20 euros [E1]\n- Bolt: 30 euros [E1]\n", "list")
    assert texts(events) == ["Acme: 20 euros", "Bolt: 30 euros"]
    assert asked.regex is not None and "{1,4}" in asked.regex, "bound by generator.items"
    assert "as a list" in asked.messages[0].content


async def test_a_table_comes_row_by_row_under_its_header() -> None:
    events, asked = await write("| Who | Fee |\n| Acme | 20 euros | [E1] |\n", "table")
    assert [event.draft.form for event in events if event.draft] == ["header", "row"]
    assert "as a table" in asked.messages[0].content


@pytest.mark.parametrize("style", ["prose", "list", "table"])
async def test_an_engine_is_bound_by_the_best_that_it_can(style: str) -> None:
    bounds = []
    for can in (frozenset({"regex", "grammar"}), frozenset({"regex"}), frozenset[Any]()):
        _, asked = await write(NOT_FOUND, style, can=can)
        bounds.append([name for name in ("grammar", "regex", "json_schema") if getattr(asked, name)])
    assert bounds == [["grammar"], ["regex"], []]


@pytest.mark.parametrize(
    ("question", "language"),
    [
        ("What do the permits cost?", "English"),
        ("Was kosten die Genehmigungen und wer zahlt sie?", "German"),
        ("許可はいくらですか", "Japanese"),
        ("许可证多少钱", "Chinese"),
        ("كم تكلفة التصريح؟", "Arabic"),
        ("Сколько стоит разрешение?", "Russian"),
        ("Acme Bolt", "the language of the question"),
    ],
)
async def test_the_answer_is_asked_for_in_the_language_of_the_question(question: str, language: str) -> None:
    _, asked = await write(NOT_FOUND, "prose", question)
    assert asked.messages[-1].content.endswith(f"Question: {question}\nAnswer in {language}.")


async def test_what_needs_no_documents_is_answered_without_any() -> None:
    history = (Message("user", "I am Ada."), Message("assistant", "Hello Ada."))
    events, asked = await write("You are Ada [1].\nNice name.", "plain", "Who am I?", (), history=history)
    assert texts(events) == ["You are Ada.", "Nice name."]
    assert all(event.draft.slots == () for event in events if event.draft)
    assert (asked.regex, asked.grammar) == (None, None)
    _, first = await write("Hello Ada.", "plain", "I am Ada.", ())
    assert asked.messages[:3] == (*first.messages, history[1]), "it goes on from the prompt before"
    assert "Evidence" not in asked.messages[-1].content


async def test_nothing_found_drafts_nothing_however_the_engine_is_bound() -> None:
    for can in (frozenset({"regex"}), frozenset[Any]()):
        events, _ = await write(NOT_FOUND, "prose", can=can)
        assert texts(events) == []


async def test_free_text_without_a_citation_is_drafted_for_the_loop_to_judge() -> None:
    events, _ = await write("Acme pays 20 euros. Bolt pays 30.", "prose", can=frozenset())
    assert texts(events) == ["Acme pays 20 euros.", "Bolt pays 30."]


async def test_an_empty_answer_is_a_fault() -> None:
    with pytest.raises(BadModelOutput, match="wrote no answer"):
        await write(" ", "prose", can=frozenset())


async def test_the_prompt_stays_within_the_models_context() -> None:
    """By its own tokenizer, whatever the passages and the conversation hold; the question is never cut."""
    many = evidence(*("word " * 300 for _ in range(200)))
    question = "Which " + "long " * 200 + "question is this?"
    _, asked = await write(NOT_FOUND, "prose", question, many, context_tokens=900)
    tokens = sum(WordTokenizer().count(message.content) for message in asked.messages)
    assert tokens + asked.max_tokens + 64 <= 900 + 8, "the heading and the language beside it"
    assert question in asked.messages[-1].content and "[E1]" in asked.messages[-1].content
    with pytest.raises(BadModelOutput, match="no room"):
        await write(NOT_FOUND, "prose", question, many, context_tokens=300)


async def test_only_slots_that_the_model_was_shown_can_be_cited() -> None:
    _, asked = await write(NOT_FOUND, "prose", found=evidence("word " * 2_000, FEES))
    assert "[E2]" not in asked.messages[-1].content
    assert asked.regex is not None and "E2" not in asked.regex


async def test_a_quote_is_bound_to_the_words_of_its_passage() -> None:
    _, asked = await write(NOT_FOUND, "prose", can=frozenset({"grammar"}))
    assert asked.grammar is not None and json.dumps({"substring_words": FEES}) in asked.grammar
