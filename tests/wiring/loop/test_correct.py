"""What becomes of a sentence that its citations do not bear out; answers without a search; lists, tables and their sources."""

import math
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from assay.budget import Budget
from assay.config import ExpanderConfig, GeneratorConfig, RerankerConfig
from assay.errors import StageUnavailable
from assay.events import AnswerEvent, CitationEvent, CompletedEvent
from assay.generate import WritingGenerator
from assay.schemas import AskResponse, Usage
from assay.types import Claim, Draft, GenerateEvent, GenerateRequest, Support, SupportRequest
from tests.fakes import ScriptedLLM, WordTokenizer, chunk
from tests.wiring.loop.test_loop import ENOUGH, MARS, MOON, QUESTION, SUN, Bench, Judge, stages_of
from tests.wiring.loop.test_scope import Planner

pytestmark = pytest.mark.anyio

RINGS = chunk(9, "Saturn has rings of ice and dust. Galileo saw them first in 1610.", "Saturn")


def bench(said: str, usual: Any = "prose", **plan: Any) -> Bench:
    """Answers are written by the model as ``said``; the first search finds the Moon alone."""
    made = Bench(ENOUGH, chunks=(MOON, MARS, SUN, RINGS))
    made.expander = Planner(**plan)
    made.config = made.config.model_copy(
        update={
            "generator": GeneratorConfig(style=usual),
            "expander": ExpanderConfig(skip_simple=False),
            "loop": made.config.loop.model_copy(update={"evidence": 1}),
        }
    )
    llm = ScriptedLLM(said)
    made.generator = WritingGenerator(llm, WordTokenizer(), made.config.generator)
    return made


GOOD = "The gravity of the Moon causes the ocean tides [E1]."
ELSEWHERE = "Saturn has rings of ice and dust [E1]."
NOWHERE = "The tides were named by Admiral Nelson [E1]."


async def test_a_sentence_without_support_is_searched_for_once_more_and_cited_where_it_stands() -> None:
    made = bench(f"{GOOD} {ELSEWHERE}")
    response = await made.ask(include=["tool_calls", "evidence"])
    assert response.answer is not None and [s.text[:6] for s in response.answer.sentences] == ["The gr", "Saturn"]
    assert [c.title for c in response.citations] == ["Moon", "Saturn"]
    assert made.retriever.history[-1].queries == ("Saturn has rings of ice and dust.",)
    assert response.tool_calls is not None and len(response.tool_calls) == 2
    assert response.evidence is not None and response.evidence[-1].title == "Saturn"
    assert response.degraded == [] and response.answer.missing == []


async def test_what_nothing_bears_out_is_removed_and_the_answer_says_so() -> None:
    response = await bench(f"{GOOD} {NOWHERE}").ask("What causes the ocean tides, and who named them?")
    assert response.answer is not None and len(response.answer.sentences) == 1
    assert "Nelson" not in response.answer.text
    assert response.answer.text.endswith(
        "A sentence was left out, since the documents that were searched do not bear it out. Nothing was found about: named."
    )
    assert response.answer.missing == ["named"] and stages_of(response) == ["verify"]


async def test_missing_parts_are_named_whole() -> None:
    parts = ("What causes the ocean tides?", "Who named the tides?")
    response = await bench(f"{GOOD} {NOWHERE}", sub_questions=parts).ask()
    assert response.answer is not None and response.answer.missing == ["Who named the tides?"]


async def test_when_nothing_is_left_it_says_what_was_searched() -> None:
    response = await bench(NOWHERE).ask()
    assert (response.status, response.citations) == ("no_evidence", []) and response.answer is not None
    assert response.answer.style == "statement" and QUESTION in response.answer.text


async def test_without_self_correction_nothing_is_searched_again() -> None:
    made = bench(f"{GOOD} {ELSEWHERE}")
    response = await made.ask(options={"self_correct": False})
    assert len(made.retriever.history) == 1 and stages_of(response) == ["verify"]


@pytest.mark.parametrize(("sentences", "calls", "searches"), [(6, 6, 2), (6, 1, 0), (6, 2, 1)])
async def test_searching_again_is_bounded(sentences: int, calls: int, searches: int) -> None:
    made = bench(" ".join([GOOD] + [f"The tide number {n} was named by Nelson [E1]." for n in range(sentences)]))
    response = await made.ask(budget=Budget(3, calls, 30, 400, 1), include=["tool_calls"])
    assert response.tool_calls is not None and len(response.tool_calls) == 1 + searches


async def test_a_search_that_fails_is_said_and_the_sentence_removed() -> None:
    made = bench(f"{GOOD} {ELSEWHERE}")
    made.retriever.faults.extend([None, StageUnavailable("down")])
    response = await made.ask()
    assert stages_of(response) == ["retriever", "verify"] and response.status == "answered"


# ---- a judge beside the words --------------------------------------------------------------------------------------------


class Supporter(Judge):
    """Says how far it believes the quotes, in turn; the last again and again."""

    def __init__(self, *values: float | StageUnavailable) -> None:
        super().__init__(ScriptedLLM(), ENOUGH)
        self.values = list(values)
        self.claims: list[Claim] = []

    async def support(self, request: SupportRequest) -> Support:
        self.claims += request.claims
        said = [self.values.pop(0) if len(self.values) > 1 else self.values[0] for _ in request.claims]
        if isinstance(fault := said[0], StageUnavailable):
            raise fault
        return Support(tuple(v for v in said if not isinstance(v, StageUnavailable)), Usage(llm_calls=1))


def judged(said: str, *values: float | StageUnavailable) -> tuple[Bench, Supporter]:
    made = bench(said)
    made.judge = judge = Supporter(*values)
    made.config = made.config.model_copy(update={"reranker": RerankerConfig(support="model")})
    return made, judge


async def test_the_evaluating_model_has_the_last_word_where_it_is_asked_for() -> None:
    made, judge = judged(f"{GOOD} The ocean tides come every day [E1].", 0.9, 0.1, 0.1)
    response = await made.ask()
    assert response.answer is not None and [s.support for s in response.answer.sentences] == [0.9]
    assert [c.support for c in response.citations] == [0.9] and stages_of(response) == ["verify"]
    assert judge.claims[0].quote in MOON.text and judge.claims[0].heading == "Moon"
    assert response.usage.llm_calls >= 3


async def test_what_the_model_cannot_judge_stays_as_the_words_have_it() -> None:
    made, _ = judged(GOOD, math.nan)
    response = await made.ask()
    assert response.answer is not None and response.answer.sentences[0].support > 0.5 and response.degraded == []


async def test_a_judge_that_fails_is_asked_no_more_and_it_is_said_once() -> None:
    made, judge = judged(f"{GOOD} The Moon orbits the Earth each month [E1].", StageUnavailable("down"))
    response = await made.ask()
    assert response.answer is not None and len(response.answer.sentences) == 2
    assert stages_of(response) == ["reranker"] and len(judge.claims) == 1


async def test_a_number_that_is_not_shown_is_not_used_up() -> None:
    """The first sentence cites a document that its judge does not believe; the next document is number 1."""
    made, _ = judged(f"{GOOD} {ELSEWHERE}", 0.1, 0.1, 0.9)
    response = await made.ask()
    assert [(c.number, c.title) for c in response.citations] == [(1, "Saturn")]
    assert [s.number for s in response.sources] == [1]


async def test_a_quote_needs_no_judge() -> None:
    made, judge = judged("The Moon orbits the Earth [E1].", 0.0)
    response = await made.ask()
    assert response.answer is not None and response.answer.sentences[0].support == 1.0 and judge.claims == []


# ---- forms -----------------------------------------------------------------------------------------------------------


async def streamed(made: Bench, **fields: Any) -> tuple[str, AskResponse, list[CitationEvent]]:
    events = await made.events(**fields)
    last = events[-1]
    assert isinstance(last, CompletedEvent)
    text = "".join(event.delta for event in events if isinstance(event, AnswerEvent))
    return text, last.response, [event for event in events if isinstance(event, CitationEvent)]


async def test_a_list_and_its_numbers() -> None:
    items = ("The Moon's gravity causes the ocean tides", "Saturn has rings of ice", "The Moon orbits the Earth")
    said = "".join(f"- {item} [E1]\n" for item in items)
    text, response, cited = await streamed(bench(said, "list"))
    assert response.answer is not None and response.answer.style == "list"
    assert (
        text
        == response.answer.text
        == (
            "- The Moon's gravity causes the ocean tides [1]\n- Saturn has rings of ice [2]\n- The Moon orbits the Earth [1]"
        )
    )
    assert [(s.number, s.title) for s in response.sources] == [(1, "Moon"), (2, "Saturn")]
    assert [event.citation.number for event in cited] == [1, 2, 1]
    assert all(c.support >= 0.5 and c.quote for c in response.citations)


async def test_a_table_and_its_header() -> None:
    said = "| Moon | Earth |\n| gravity | ocean tides | [E1] |\n| cheese | Nelson | [E1] |\n"
    text, response, _ = await streamed(bench(said, "table"))
    assert response.answer is not None and text == response.answer.text
    assert text.splitlines()[:3] == ["| Moon | Earth |", "| --- | --- |", "| gravity | ocean tides [1] |"]
    assert "Nelson" not in text and text.count("left out") == 1


async def test_a_header_that_claims_something_is_left_blank() -> None:
    said = "| Acme is bankrupt | Buy Bolt |\n| gravity | ocean tides | [E1] |\n"
    text, _, _ = await streamed(bench(said, "table"))
    assert text.splitlines()[0] == "|  |  |" and "Acme" not in text


@pytest.mark.parametrize(
    ("asked", "planned", "usual", "style"),
    [
        ("auto", "list", "prose", "list"),
        ("auto", None, "prose", "prose"),
        ("auto", "list", "extract", "extract"),
        ("prose", "list", "extract", "prose"),
    ],
)
async def test_the_style_is_the_requests_then_the_plans_then_the_configs(
    asked: str, planned: Any, usual: Any, style: str
) -> None:
    seen: list[str] = []

    class Watched:
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
            seen.append(request.style)
            yield GenerateEvent(draft=Draft("The Moon orbits the Earth.", ("E1",)))

    made = bench("", usual, style=planned)
    made.generator = Watched()
    await made.ask(style=asked)
    assert seen == [style]


async def test_the_language_of_the_answer_is_told() -> None:
    german = chunk(5, "Die Gezeiten der Meere werden von der Schwerkraft des Mondes verursacht.", "Gezeiten")
    made = bench("Die Gezeiten werden von der Schwerkraft des Mondes verursacht [E1].")
    made.retriever.chunks = (german,)
    response = await made.ask("Was sind die Gezeiten der Meere?")
    assert response.answer is not None and response.answer.language == "de"


async def test_a_paragraph_of_two_documents_is_cited_in_the_one_that_was_cited() -> None:
    """Each document keeps its number, and what is cited at its span holds the claim."""
    shared = "The ocean tides rise twice a day. They are caused by gravity."
    made = bench(
        "The ocean tides are caused by gravity [E2]. The ocean tides rise twice a day [E1]. They are caused by gravity [E2]."
    )
    made.retriever.chunks = (chunk(11, shared, "Almanac"), chunk(12, shared, "Handbook"))
    made.config = made.config.model_copy(
        update={
            "loop": made.config.loop.model_copy(update={"evidence": 2}),
            "generator": GeneratorConfig(style="prose"),
        }
    )
    response = await made.ask()
    titles = {source.number: source.title for source in response.sources}
    assert len(titles) == 2 and [c.number for c in response.citations] == [1, 2, 1]
    for citation in response.citations:
        assert titles[citation.number] == citation.title
        start = {c.id: c.start for c in made.retriever.chunks}[citation.chunk_id]
        assert shared[citation.span[0] - start : citation.span[1] - start] == citation.quote
    assert "gravity" in response.citations[0].quote and "twice" in response.citations[1].quote


# ---- without a search ------------------------------------------------------------------------------------------------


async def test_what_needs_no_search_is_answered_plainly_and_marked_so() -> None:
    made = bench("Hello!\nHow can I help?", search=False, reason="a greeting")
    text, response, _ = await streamed(made, question="hello there")
    assert text == "Hello!\nHow can I help?"
    assert response.answer is not None and (response.answer.style, response.answer.sentences) == ("plain", [])
    assert (response.status, response.terminated_by, response.rounds) == ("answered", "answered", 0)
    assert response.citations == [] and response.degraded == []


async def test_the_trace_says_why_nothing_was_searched() -> None:
    response = await bench("Hello!", search=False, reason="a greeting").ask("hello", include=["trace", "tool_calls"])
    assert response.trace is not None and "no search: a greeting" in response.trace[0].summary
    assert response.tool_calls is not None and [call.outcome for call in response.tool_calls] == ["unused"]


@pytest.mark.parametrize("fields", [{"buckets": ["docs"]}, {"filters": {"field": "page", "op": ">", "value": 0}}])
async def test_who_names_where_to_search_gets_a_search(fields: dict[str, Any]) -> None:
    response = await bench(GOOD, search=False, reason="a greeting").ask(**fields)
    assert response.answer is not None and response.answer.style == "prose" and response.citations
    assert stages_of(response) == ["expander"]


async def test_a_plain_answer_that_fails_says_so() -> None:
    made = bench("", search=False, reason="a greeting")

    class Dead:
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
            if request.question:
                raise StageUnavailable("engine is not available")
            yield GenerateEvent()

    made.generator = Dead()
    response = await made.ask("hello")
    assert (response.status, stages_of(response)) == ("partial", ["generator"])
    assert response.answer is not None and response.answer.text.startswith("No search was made for this (a greeting)")
