"""The generator's two styles: verbatim sentences chosen by two measures, and prose that cites only its slots."""

import math
import re
from collections.abc import AsyncGenerator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.config import GeneratorConfig
from assay.errors import BadModelOutput, StageUnavailable
from assay.generate import ExtractGenerator, WritingGenerator
from assay.generate.extract import MAX_CHARS, candidates
from assay.generate.grammar import NOT_FOUND, regex
from assay.schemas import Usage, WrittenStyle
from assay.types import (
    CompletionRequest,
    Delta,
    Evidence,
    GenerateEvent,
    GenerateRequest,
    Hit,
    ItemScore,
    ScoreRequest,
    Scores,
)
from tests.fakes import BagEmbedder, ScriptedLLM, WordTokenizer, chunk

pytestmark = pytest.mark.anyio


def evidence(*texts: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(f"E{n}", Hit(chunk(n, text), 1.0), 1.0, 1) for n, text in enumerate(texts, 1))


TIDES = "# Tides\n\nThe gravity of the Moon causes the ocean tides. Sailors have known this for a long time."
SUN = "The Sun is a star made of hot plasma. Its light needs eight minutes to reach us."


def request(*texts: str, style: str = "extract", tokens: int = 100) -> GenerateRequest:
    return GenerateRequest("What causes the ocean tides?", evidence(*texts), style, tokens)  # type: ignore[arg-type]


async def drain(generator: ExtractGenerator | WritingGenerator, asked: GenerateRequest) -> list[GenerateEvent]:
    return [event async for event in generator.generate(asked)]


def extract(llm: ScriptedLLM, **config: int) -> ExtractGenerator:
    return ExtractGenerator(llm, BagEmbedder(), WordTokenizer(), GeneratorConfig.model_validate(config))


async def test_extract_gives_the_best_sentence_first_and_verbatim() -> None:
    events = await drain(extract(ScriptedLLM()), request(SUN, TIDES))
    draft = events[0].draft
    assert draft is not None
    assert (draft.text, draft.slots) == ("The gravity of the Moon causes the ocean tides.", ("E2",))
    assert draft.quote_span is not None and TIDES[slice(*draft.quote_span)] == draft.text
    assert events[-1].usage is not None and events[-1].usage.llm_calls == 1


async def test_extract_scores_at_most_its_candidates_and_gives_at_most_its_sentences() -> None:
    llm = ScriptedLLM()
    text = " ".join(f"The ocean tides number {n} cause something here." for n in range(20))
    events = await drain(extract(llm, candidates=5, sentences=2), request(text))
    assert len(llm.history[0].items) == 5  # type: ignore[union-attr]
    assert sum(event.draft is not None for event in events) <= 2


async def test_extract_holds_the_answer_to_its_tokens_but_never_to_nothing() -> None:
    events = await drain(extract(ScriptedLLM()), request(TIDES, SUN, tokens=1))
    assert sum(event.draft is not None for event in events) == 1


async def test_extract_without_its_model_says_so_and_goes_on() -> None:
    llm = ScriptedLLM()
    llm.score_fault = StageUnavailable("small is not available")
    events = await drain(extract(llm), request(TIDES))
    assert events[0].degraded is not None and events[0].degraded.fallback == "similarity alone"
    assert events[1].draft is not None


async def test_extract_without_a_quotable_sentence_is_a_fault() -> None:
    with pytest.raises(BadModelOutput):
        await drain(extract(ScriptedLLM()), request("x"))


def test_a_sentence_that_stands_twice_is_one_candidate() -> None:
    assert [c.slot for c in candidates(evidence(SUN, SUN))] == ["E1", "E1"]


@pytest.mark.parametrize("join", ["; ", ", ", "，", "、", " "])
def test_a_sentence_too_long_to_quote_is_quoted_by_its_clauses(join: str) -> None:
    text = join.join(f"clause {n} tells of alumnus number {n}" for n in range(60)) + "."
    pool = candidates(evidence(text))
    assert all(c.text == text[slice(*c.span)] and 4 < len(c.text) <= MAX_CHARS for c in pool)
    kept = "".join("".join(c.text.split()) for c in pool)
    assert kept.replace(join.strip(), "") == "".join(text.split()).replace(join.strip(), ""), "nothing is left out"
    assert all(c.text.endswith((join.strip(), ".", *"0123456789")) for c in pool), "no word is cut in two"


def test_a_long_run_without_any_mark_is_cut_and_a_long_listing_is_not() -> None:
    assert "".join(c.text for c in candidates(evidence("中文沒有空格" * 200))) == "中文沒有空格" * 200
    assert candidates(evidence("| a row with many words " * 60 + "|")) == []


async def test_prose_gives_sentences_as_they_end() -> None:
    llm = ScriptedLLM("The Moon's gravity causes the tides [E1]. The Sun helps a little too [E1] [E2].")
    events = await drain(WritingGenerator(llm, WordTokenizer(), GeneratorConfig()), request(TIDES, SUN, style="prose"))
    drafts = [event.draft for event in events if event.draft]
    assert [d.slots for d in drafts] == [("E1",), ("E1", "E2")]
    assert drafts[0].text == "The Moon's gravity causes the tides."
    asked = llm.history[0]
    assert isinstance(asked, CompletionRequest) and asked.regex is not None
    assert re.fullmatch(asked.regex, "The Moon's gravity causes the tides [E1].")


@pytest.mark.parametrize("style", ["prose", "list", "table"])
@pytest.mark.parametrize("mark", ["", "\n", "- ", "| "])
@pytest.mark.parametrize("more", ["", "\n", " [E1]\n", "\n- The Moon causes the tides [E1]\n| a | b |\n"])
async def test_what_finds_nothing_drafts_nothing(style: WrittenStyle, mark: str, more: str) -> None:
    for reason in ("stop", "length"):
        generator = WritingGenerator(Ends(mark + NOT_FOUND + more, reason), WordTokenizer(), GeneratorConfig())
        events = await drain(generator, request(TIDES, style=style))
        assert not any(event.draft for event in events)


@pytest.mark.parametrize(
    ("text", "admitted"),
    [
        ("The Moon causes the tides [E1].", True),
        ("The Moon causes the tides [E1] [E2]. And so does the Sun [E2].", True),
        (NOT_FOUND, True),
        ("The Moon causes the tides [E3].", False),
        ("The Moon causes the tides.", False),
        ("The Moon [9] causes the tides [E1].", False),
    ],
)
def test_the_grammar_admits_only_the_slots_present(text: str, admitted: bool) -> None:
    assert bool(re.fullmatch(regex("prose", ("E1", "E2"), 3), text)) is admitted


async def test_prose_shows_the_model_only_what_fits() -> None:
    llm = ScriptedLLM(NOT_FOUND)
    config = GeneratorConfig(evidence_tokens=64)
    await drain(WritingGenerator(llm, WordTokenizer(), config), request("word " * 200, SUN, style="prose"))
    shown = llm.history[0].messages[-1].content  # type: ignore[union-attr]
    assert WordTokenizer().count(shown) < 80 and "[E2]" not in shown


class Ends(ScriptedLLM):
    """A model whose stream ends as it is told to."""

    def __init__(self, said: str, reason: str | None) -> None:
        super().__init__(said)
        self._reason = reason

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        yield Delta(self._next(request).text)
        if self._reason:
            yield Delta(finish_reason=self._reason, usage=Usage(llm_calls=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["abort", None, "length"])
async def test_prose_that_breaks_off_is_a_fault_not_an_absence(reason: str | None) -> None:
    generator = WritingGenerator(Ends("The Moon's", reason), WordTokenizer(), GeneratorConfig())
    with pytest.raises(BadModelOutput, match="did not finish"):
        await drain(generator, request(TIDES, style="prose"))


async def test_prose_cut_off_after_a_sentence_says_so() -> None:
    generator = WritingGenerator(
        Ends("The Moon causes tides [E1]. The Su", "length"), WordTokenizer(), GeneratorConfig()
    )
    events = await drain(generator, request(TIDES, style="prose"))
    assert sum(event.draft is not None for event in events) == 1
    assert any(event.degraded is not None for event in events)


class DownEmbedder(BagEmbedder):
    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise StageUnavailable("retriever is not available")


async def test_extract_without_the_embedder_goes_on_by_likelihood() -> None:
    generator = ExtractGenerator(ScriptedLLM(), DownEmbedder(), WordTokenizer(), GeneratorConfig())
    events = await drain(generator, request(SUN, TIDES))
    assert events[0].degraded is not None and events[0].degraded.fallback == "question likelihood alone"
    assert events[1].draft is not None and "tides" in events[1].draft.text


async def test_extract_without_either_measure_is_a_fault() -> None:
    llm = ScriptedLLM()
    llm.score_fault = StageUnavailable("small is not available")
    with pytest.raises(StageUnavailable):
        await drain(ExtractGenerator(llm, DownEmbedder(), WordTokenizer(), GeneratorConfig()), request(TIDES))


async def test_extract_counts_the_sentences_that_could_not_be_scored() -> None:
    class SomeFaults(ScriptedLLM):
        async def score(self, request: ScoreRequest) -> Scores:
            scores = await super().score(request)
            return Scores((ItemScore(math.nan, 0, "too long"), *scores.items[1:]), scores.usage)

    events = await drain(extract(SomeFaults()), request(SUN, TIDES))
    assert events[0].degraded is not None and events[0].degraded.reason.startswith("1 of ")


@pytest.mark.parametrize(
    ("said", "slots", "dropped"),
    [
        ("The Moon causes tides [E1]. Stars burn [E9]. It rises twice [E1].", [("E1",), (), ("E1",)], 1),
        ("The Moon causes tides [1-3]. It rises twice [[12]], and `x[7]`.", [("E1",), ()], 3),
        ("The Moon causes tides. [E1] It rises twice. [E1]", [("E1",), ("E1",)], 0),
        ("The Moon causes tides [E1]", [("E1",)], 0),
    ],
)
async def test_prose_of_an_engine_without_grammars_is_read_as_it_comes(
    said: str, slots: list[tuple[str, ...]], dropped: int
) -> None:
    """A slot that is not there cannot be kept from being written, but is dropped, and counted."""
    llm = ScriptedLLM(said)
    generator = WritingGenerator(llm, WordTokenizer(), GeneratorConfig(), can=frozenset())
    events = await drain(generator, request(TIDES, style="prose"))
    drafts = [event.draft for event in events if event.draft]
    reasons = [event.degraded.reason for event in events if event.degraded]
    named = "1 citation names" if dropped == 1 else f"{dropped} citations name"
    assert reasons == [f"{named} no passage that the model was shown"] * bool(dropped)
    assert [draft.slots for draft in drafts] == slots
    assert not any("[E" in draft.text or "[[" in draft.text for draft in drafts)
    assert isinstance(asked := llm.history[0], CompletionRequest) and asked.regex is None
