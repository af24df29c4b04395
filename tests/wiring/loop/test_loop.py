"""The loop: it always ends with one named end, progresses or stops, and names every fallback."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from assay import loop
from assay.budget import Budget
from assay.config import AppConfig, ExpanderConfig, GradeConfig, LoopConfig, RerankerConfig
from assay.errors import AssayError, InvalidRequest, StageUnavailable, UnknownBucket
from assay.events import AnswerEvent, CompletedEvent, DegradedEvent, ErrorEvent, Event, EvidenceEvent, ToolCallStart
from assay.expand import LLMExpander
from assay.generate import ExtractGenerator
from assay.grade import FeatureGrader
from assay.rerank import LLMReranker
from assay.run import Stages
from assay.schemas import And, AskBudget, AskRequest, AskResponse, Clarification, Predicate
from assay.types import (
    Explain,
    GenerateEvent,
    GenerateRequest,
    Grade,
    GradeRequest,
    Plan,
    PlanRequest,
    Reranked,
    RerankRequest,
    ScoreRequest,
    SearchQuery,
    SearchResult,
    Support,
    SupportRequest,
)
from tests.fakes import BagEmbedder, ListRetriever, ScriptedLLM, WordTokenizer, chunk

pytestmark = pytest.mark.anyio

MOON = chunk(1, "The Moon orbits the Earth. Its gravity causes the ocean tides on Earth every day.", "Moon")
MARS = chunk(2, "Mars has two small moons. They are called Phobos and Deimos by astronomers.", "Mars")
SUN = chunk(3, "The Sun is a star of plasma. Its light takes eight minutes to reach the Earth.", "Sun")
PLAN = '{"variants": ["tides cause Moon gravity", "ocean tides reason"]}'
QUESTION = "What causes the ocean tides on Earth?"


class Judge:
    """A reranker whose grades are scripted; it ranks as the real one does."""

    def __init__(self, llm: ScriptedLLM, *grades: Grade | AssayError, config: RerankerConfig | None = None) -> None:
        self._reranker = LLMReranker(llm, WordTokenizer(), config or RerankerConfig())
        self._grader = FeatureGrader(GradeConfig())
        self.grades = list(grades)
        self.rerank_fault: AssayError | None = None
        self.hang = False

    async def rerank(self, request: RerankRequest) -> Reranked:
        if self.hang:
            await asyncio.Event().wait()
        if self.rerank_fault:
            raise self.rerank_fault
        return await self._reranker.rerank(request)

    async def support(self, request: SupportRequest) -> Support:
        return await self._reranker.support(request)

    async def grade(self, request: GradeRequest) -> Grade:
        if not self.grades:
            return await self._grader.grade(request)
        said = self.grades.pop(0) if len(self.grades) > 1 else self.grades[0]
        if isinstance(said, AssayError):
            raise said
        return said


class Bench:
    """A graph of scripted parts."""

    def __init__(
        self, *grades: Grade | AssayError, plan: Any = PLAN, chunks: tuple[Any, ...] = (MOON, MARS, SUN)
    ) -> None:
        self.llm = ScriptedLLM(plan)
        self.config = AppConfig(
            loop=LoopConfig(mode="agentic", deadline_s=30, reserve_s=1), expander=ExpanderConfig(skip_simple=False)
        )
        self.retriever = ListRetriever(*chunks)
        self.judge = Judge(self.llm, *grades)
        self.generator: Any = ExtractGenerator(self.llm, BagEmbedder(), WordTokenizer(), self.config.generator)
        self.expander: Any = LLMExpander(self.llm, self.config.expander)

    def stream(self, request: AskRequest, budget: Budget | None = None) -> AsyncGenerator[Event]:
        stages = Stages(self.expander, self.retriever, self.judge, self.generator)
        return loop.answer(request, stages, self.config, "req_test", budget)

    async def events(self, question: str = QUESTION, budget: Budget | None = None, **fields: Any) -> list[Event]:
        return [event async for event in self.stream(AskRequest(question=question, **fields), budget)]

    async def ask(self, question: str = QUESTION, budget: Budget | None = None, **fields: Any) -> AskResponse:
        last = (await self.events(question, budget, **fields))[-1]
        assert isinstance(last, CompletedEvent)
        return last.response


def more(follow_up: str | None) -> Grade:
    return Grade(p_enough=0.4, p_more=0.55, p_clarify=0.05, p_about=0.4, features={}, follow_up=follow_up)


ENOUGH = Grade(p_enough=0.9, p_more=0.08, p_clarify=0.02, p_about=0.9, features={})


async def test_an_answer_is_made_of_verified_verbatim_sentences() -> None:
    response = await Bench(ENOUGH).ask(include=["trace", "evidence", "tool_calls"])
    assert (response.status, response.terminated_by, response.rounds) == ("answered", "answered", 1)
    assert response.answer is not None and "tides" in response.answer.text
    assert response.citations
    for citation in response.citations:
        passage = {c.id: c for c in (MOON, MARS, SUN)}[citation.chunk_id]
        start, end = (offset - passage.start for offset in citation.span)
        assert passage.text[start:end] == citation.quote
    assert response.degraded == []
    assert response.evidence is not None and response.trace is not None and response.tool_calls is not None
    assert response.usage.llm_calls == 3


async def test_what_was_streamed_is_the_answer() -> None:
    events = await Bench(ENOUGH).events()
    streamed = "".join(event.delta for event in events if isinstance(event, AnswerEvent))
    last = events[-1]
    assert isinstance(last, CompletedEvent) and last.response.answer is not None
    assert streamed == last.response.answer.text
    assert {event.request_id for event in events} == {"req_test"}
    assert sum(isinstance(event, (CompletedEvent, ErrorEvent)) for event in events) == 1


async def test_reranking_is_said_where_it_is_done_and_nowhere_else() -> None:
    for rerank, said in ((True, ["reranking"]), (False, [])):
        bench = Bench(more("moons of Mars"), ENOUGH, plan='{"variants": []}')
        events = await bench.events(include=["trace"], options={"rerank": rerank})
        last = events[-1]
        assert isinstance(last, CompletedEvent) and last.response.rounds == 2
        assert [e.state for e in events if e.type == "status" and e.state == "reranking"] == said
        kept = [step.stage for step in last.response.trace or () if "kept" in step.summary]
        assert kept == ["rerank" if rerank else "evidence", "evidence"]


async def test_variants_are_searched_beside_the_question_and_repeats_are_dropped() -> None:
    bench = Bench(ENOUGH, plan='{"variants": ["ocean EARTH tides, causes?", "why is the ocean rising"]}')
    await bench.ask()
    assert bench.retriever.history[-1].queries == (QUESTION, "why is the ocean rising")


async def test_a_plan_that_asks_the_same_in_other_words_order_searches_it_once() -> None:
    class Repeating(LLMExpander):
        async def plan(self, request: PlanRequest) -> Plan:
            parts = ("the Sun's light", "moons of Mars", "light of the Sun")
            return Plan(QUESTION, variants=("moons of Mars", "MARS moons", QUESTION.upper()), sub_questions=parts)

    bench = Bench(ENOUGH)
    bench.expander = Repeating(bench.llm, bench.config.expander)
    await bench.ask()
    asked = [query.queries for query in bench.retriever.history[1:]]  # the first is the question's own
    assert asked == [(QUESTION, "moons of Mars"), ("the Sun's light",)]


async def test_without_variants_the_first_hop_is_used_as_it_is() -> None:
    bench = Bench(ENOUGH)
    await bench.ask(options={"expand": False})
    assert len(bench.retriever.history) == 1


async def test_what_the_question_alone_found_is_told_while_the_planner_thinks() -> None:
    bench = Bench(ENOUGH)
    told = asyncio.Event()

    class Thinking(LLMExpander):
        async def plan(self, request: PlanRequest) -> Plan:
            await told.wait()  # no plan before somebody was told
            return await super().plan(request)

    bench.expander = Thinking(bench.llm, bench.config.expander)
    kinds: list[str] = []
    async with asyncio.timeout(5):
        async for event in bench.stream(AskRequest(question=QUESTION)):
            kinds.append(event.type)
            if isinstance(event, EvidenceEvent) and event.found:
                assert event.found[0] == "Moon" and event.added == []
                assert len(event.doc_ids) == len(event.found)
                told.set()
    assert kinds.index("evidence") < kinds.index("plan") and kinds[-1] == "completed"


@pytest.mark.parametrize(
    "follow_up", [QUESTION.upper(), "tides? Earth -- OCEAN   causes", "earth ocean the cause of tides"]
)
async def test_a_query_in_other_words_order_or_case_is_never_run_again(follow_up: str) -> None:
    bench = Bench(more(follow_up), plan='{"variants": []}')
    response = await bench.ask()
    assert (response.rounds, response.terminated_by) == (1, "answered")


async def test_follow_ups_are_searched_side_by_side_and_what_they_find_again_moves_up() -> None:
    """Filler crowds the moons of Mars out of the best passages; the follow-up's search has them first, and asks no model."""
    filler = [
        chunk(n, f"Ocean tides on Earth, causes of them, part {n}: {n * 'x'} y{n}.", f"Tide {n}") for n in range(10, 17)
    ]
    mars = chunk(2, "Mars has two small moons and no ocean. They are called Phobos and Deimos.", "Mars")
    grade = replace(more("Phobos Deimos moons"), beside=("light of the Sun", QUESTION.upper()))
    bench = Bench(grade, ENOUGH, plan='{"variants": []}', chunks=(*filler, mars, SUN))
    response = await bench.ask(include=["evidence", "tool_calls"])
    asked = [query.queries for query in bench.retriever.history]
    assert asked == [(QUESTION,), ("Phobos Deimos moons",), ("light of the Sun",)], "none of them twice"
    assert (response.rounds, response.status) == (2, "answered")
    assert sum(isinstance(request, ScoreRequest) for request in bench.llm.history) == 2, "one to rerank, one to write"
    moved = {e.title: (e.round, e.rank) for e in response.evidence or []}
    assert moved["Mars"] == (1, 2), "it keeps its round and its slot, and has its new place"


async def test_a_round_without_new_evidence_ends_the_search() -> None:
    """Though the next grade would have another follow-up, that nobody has asked."""
    bench = Bench(more("gravity of the tides"), more("Phobos and Deimos"), plan='{"variants": []}')
    response = await bench.ask()
    assert (response.rounds, response.status) == (2, "answered")
    asked = [query.queries for query in bench.retriever.history]
    assert asked == [(QUESTION,), ("gravity of the tides",)]


async def test_the_last_round_forces_an_answer() -> None:
    def plenty(n: int) -> Any:
        return chunk(n, f"Fact number{n} about the ocean tides and word{n} is written here.", f"Fact {n}")

    bench = Bench(more("word7 fact"), more("word8 fact"), more("word9 fact"), chunks=tuple(map(plenty, range(1, 10))))
    bench.config = bench.config.model_copy(update={"loop": LoopConfig(mode="agentic", rounds=2, evidence=2)})
    response = await bench.ask()
    assert (response.rounds, response.terminated_by, response.status) == (2, "rounds", "answered")
    assert response.answer is not None and response.answer.sentences


async def test_the_tool_budget_ends_the_search() -> None:
    response = await Bench(more("Mars moons Phobos")).ask("ocean", budget=Budget(3, 1, 30, 400, 1))
    assert (response.rounds, response.terminated_by) == (1, "tool_budget")


async def test_the_budget_of_tokens_ends_the_search_and_leaves_the_answer_its_own() -> None:
    response = await Bench(more("Mars moons Phobos")).ask("ocean", budget=Budget(3, 6, 30, 400, 1, tokens=401))
    assert (response.rounds, response.terminated_by) == (1, "tool_budget")
    assert response.status == "answered" and response.citations


async def test_weak_evidence_gives_a_plain_statement_of_what_was_searched() -> None:
    weak = Grade(p_enough=0.05, p_more=0.9, p_clarify=0.05, p_about=0.05, features={}, follow_up=None)
    response = await Bench(weak).ask("Who painted the ocean ceiling of the Sistine Chapel?")
    assert (response.status, response.terminated_by, response.citations) == ("no_evidence", "no_evidence", [])
    assert response.answer is not None and response.answer.style == "statement"
    assert "Sistine" in response.answer.text and "3 passages" in response.answer.text


@pytest.mark.parametrize(
    ("bounds", "bound", "said"),
    [
        ({"rounds": 1}, "rounds", "its bound of rounds"),
        ({"tool_calls": 1}, "tool_budget", "its budget of calls and tokens"),
        ({"tokens": 401}, "tool_budget", "its budget of calls and tokens"),
    ],
)
async def test_a_bound_that_cut_the_search_short_is_told_where_what_was_found_is_too_weak(
    bounds: dict[str, Any], bound: str, said: str
) -> None:
    weak = replace(more("Mars moons Phobos"), p_about=0.05)
    response = await Bench(weak).ask("ocean", budget=replace(Budget(3, 6, 30, 400, 1), **bounds))
    assert (response.status, response.terminated_by, response.citations) == ("no_evidence", bound, [])
    assert response.answer is not None and said in response.answer.text


async def test_evidence_that_is_not_enough_but_about_the_question_is_answered_from() -> None:
    partly = Grade(p_enough=0.05, p_more=0.9, p_clarify=0.05, p_about=0.9, features={}, follow_up=None)
    response = await Bench(partly).ask()
    assert response.status == "answered" and response.citations


async def test_evidence_that_is_about_the_question_and_does_not_hold_what_is_asked_is_not_answered_from() -> None:
    near = Grade(p_enough=0.3, p_more=0.65, p_clarify=0.05, p_about=0.9, features={}, p_holds=0.3)
    strict = RerankerConfig(grade=GradeConfig(min_holds=0.4))
    for grade, config, status in (
        (near, RerankerConfig(), "answered"),
        (near, strict, "no_evidence"),
        (replace(near, p_enough=0.85, p_more=0.1), strict, "answered"),
    ):
        bench = Bench(grade)
        bench.config = bench.config.model_copy(update={"reranker": config})
        assert (await bench.ask()).status == status


async def test_no_hits_at_all_says_so() -> None:
    response = await Bench(plan='{"variants": []}').ask("zzqq?")
    assert (response.status, response.rounds) == ("no_evidence", 1)


async def test_a_filter_that_empties_the_result_is_named() -> None:
    bench = Bench()
    blocking = Predicate(field="page", op=">", value=900)
    bench.retriever.chunks = ()
    bench.retriever.explain = Explain(0, 3, {}, blocking, 3)
    response = await bench.ask(filters={"field": "page", "op": ">", "value": 900})
    assert (response.status, response.terminated_by) == ("clarify", "clarify")
    assert response.clarification is not None
    assert response.clarification.type == "no_results" and response.clarification.count_without == 3
    assert "page > 900" in response.clarification.message


async def test_conditions_that_empty_the_result_together_are_named_and_offered_together() -> None:
    title, page, zipped, document = (
        Predicate(field="title", op="=", value="Moon"),
        Predicate(field="page", op=">", value=900),
        Predicate(field="format", op="=", value="zip"),
        Predicate(field="doc_id", op="=", value="doc_x"),
    )

    async def clarified(*blocking: Predicate) -> Clarification:
        bench = Bench()
        bench.retriever.chunks = ()
        bench.retriever.explain = Explain(0, 3, {}, And(and_=list(blocking)), 1)
        response = await bench.ask(filters=And(and_=[page, title, zipped]).model_dump(by_alias=True))
        assert response.clarification is not None
        return response.clarification

    said = await clarified(page, zipped)
    assert said.message.endswith("without page > 900 and format = zip there is 1.")
    (choice,) = said.choices
    assert (choice.label, choice.count) == ("without page > 900 and format = zip", 1)
    assert choice.filters == title.model_dump(by_alias=True)
    assert (await clarified(page, document)).choices == [], "a part of it is not theirs to give up"


async def test_a_question_that_names_nothing_asks_back() -> None:
    unclear = Grade(p_enough=0.2, p_more=0.2, p_clarify=0.6, p_about=0.2, features={})
    response = await Bench(unclear).ask("ocean")
    assert response.status == "clarify" and response.clarification is not None
    assert response.clarification.type == "ambiguous" and response.answer is None


# ---- degradation ----------------------------------------------------------------------------------------------------


def stages_of(response: AskResponse) -> list[str]:
    return [d.stage for d in response.degraded]


@pytest.mark.parametrize("said", [StageUnavailable("expander is not available"), "no json", "word " * 100])
async def test_a_bad_plan_leaves_the_question_alone(said: Any) -> None:
    bench = Bench(ENOUGH, plan=said)
    response = await bench.ask()
    assert response.status == "answered" and stages_of(response) == ["expander"]
    assert bench.retriever.history[-1].queries == (QUESTION,)


async def test_a_hung_reranker_leaves_the_fused_order() -> None:
    bench = Bench(ENOUGH)
    bench.judge.hang = True
    bench.config = bench.config.model_copy(update={"reranker": RerankerConfig(timeout_s=0.01)})
    response = await bench.ask()
    assert response.status == "answered" and stages_of(response) == ["reranker"]
    assert "timeout" in response.degraded[0].reason and response.degraded[0].fallback.startswith("fused order")


async def test_a_failed_grade_is_measured_by_the_driver() -> None:
    bench = Bench(StageUnavailable("reranker is not available"))
    response = await bench.ask()
    assert response.status == "answered" and stages_of(response) == ["reranker"]
    assert "itself" in response.degraded[0].fallback
    bench = Bench(StageUnavailable("reranker is not available"))
    assert (await bench.ask("Who painted the ocean ceiling of the Sistine Chapel?")).status == "no_evidence"


@pytest.mark.parametrize("mode", ["pipeline", "agentic"])
async def test_no_mode_answers_what_the_evidence_does_not_hold(mode: str) -> None:
    response = await Bench().ask("Who painted the ocean ceiling of the Sistine Chapel?", mode=mode)
    assert (response.status, response.citations) == ("no_evidence", [])


async def test_a_dead_engine_still_quotes_the_top_passage() -> None:
    fault = StageUnavailable("small is not available")
    bench = Bench(ENOUGH, plan=fault)
    bench.llm.score_fault = bench.judge.rerank_fault = fault

    async def dead(request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        if request.question:
            raise fault
        yield GenerateEvent()

    bench.generator = type("Dead", (), {"generate": staticmethod(dead)})()
    events = await bench.events()
    last = events[-1]
    assert isinstance(last, CompletedEvent)
    response = last.response
    assert stages_of(response) == ["expander", "reranker", "generator"]
    assert sum(isinstance(event, DegradedEvent) for event in events) == 3
    assert response.citations and response.citations[0].quote in MOON.text


async def test_a_generator_without_its_model_goes_on_by_similarity() -> None:
    bench = Bench(ENOUGH)
    bench.llm.score_fault = StageUnavailable("small is not available")
    response = await bench.ask(options={"rerank": False})
    assert stages_of(response) == ["generator"] and response.citations


async def test_the_first_search_failing_is_an_error_and_a_later_one_a_fallback() -> None:
    bench = Bench(more("Phobos Mars"))
    bench.retriever.faults.extend([StageUnavailable("down"), StageUnavailable("down")])
    last = (await bench.events())[-1]
    assert isinstance(last, ErrorEvent) and last.error.code == "stage_unavailable"

    bench = Bench(more("Phobos Mars"), chunks=(MOON, MARS))
    bench.retriever.faults.extend([None, None, StageUnavailable("down")])
    response = await bench.ask(QUESTION)
    assert response.status == "answered" and stages_of(response) == ["retriever"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_past_the_deadline_the_result_is_partial() -> None:
    """A planner that eats the time: what the first hop found is still used, and nothing says that nothing is known."""
    clock, bench = Clock(), Bench(ENOUGH)

    class Slow:
        async def plan(self, request: PlanRequest) -> Plan:
            clock.now = 26.0
            return Plan(query=request.question)

    bench.expander = Slow()
    bench.judge.hang = True
    response = await bench.ask(budget=Budget(3, 6, 30, 400, 5, clock=clock))
    assert (response.status, response.terminated_by, response.rounds) == ("partial", "deadline", 1)
    assert response.citations and "reranker" in stages_of(response)


async def test_a_generator_that_hangs_leaves_time_to_send_what_there_is() -> None:
    bench = Bench(ENOUGH)

    class Hung:
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
            await asyncio.Event().wait()
            yield GenerateEvent()

    bench.generator = Hung()
    started = time.monotonic()
    response = await bench.ask(budget=Budget(3, 6, 1.0, 400, 0.5))
    assert 0.85 <= time.monotonic() - started < 1.0
    assert (response.status, response.terminated_by) == ("partial", "deadline")
    assert "timeout after 0." in response.degraded[0].reason and response.citations


async def test_a_hung_first_search_past_the_deadline_says_so() -> None:
    bench = Bench(ENOUGH)

    class Hung(ListRetriever):
        async def search(self, query: SearchQuery) -> SearchResult:
            await asyncio.Event().wait()
            raise AssertionError

    bench.retriever = Hung()
    response = await bench.ask(budget=Budget(3, 6, 0.1, 400, 0.05))
    assert (response.status, response.terminated_by, response.rounds) == ("partial", "deadline", 1)
    assert response.answer is not None and "No search could finish" in response.answer.text


async def test_variants_that_fail_leave_what_the_question_found() -> None:
    bench = Bench(ENOUGH)
    bench.retriever.faults.extend([None, StageUnavailable("down")])
    response = await bench.ask()
    assert response.status == "answered" and stages_of(response) == ["retriever"]
    assert response.degraded[0].fallback == "what the question alone found"


async def test_what_the_question_finds_is_waited_for_where_its_variants_fail_first() -> None:
    bench, failed = Bench(ENOUGH), asyncio.Event()

    class Slow(ListRetriever):
        async def search(self, query: SearchQuery) -> SearchResult:
            if len(query.queries) > 1:
                failed.set()
                raise StageUnavailable("down")
            await failed.wait()
            for _ in range(100):  # turns of the event loop: the loop has heard of the failure long before
                await asyncio.sleep(0)
            return await super().search(query)

    bench.retriever = Slow(*bench.retriever.chunks)
    response = await bench.ask()
    assert response.status == "answered" and stages_of(response) == ["retriever"]
    assert response.degraded[0].fallback == "what the question alone found"


async def test_a_failed_later_round_still_names_what_was_searched() -> None:
    weak = Grade(p_enough=0.1, p_more=0.85, p_clarify=0.05, p_about=0.1, features={}, follow_up="Sistine ocean")
    bench = Bench(weak)
    bench.retriever.faults.extend([None, None, StageUnavailable("down")])
    response = await bench.ask("Who painted the ocean ceiling?")
    assert response.status == "no_evidence" and response.answer is not None
    assert "3 passages" in response.answer.text and "deadline" not in response.answer.text


async def test_one_large_document_can_fill_the_evidence_but_not_crowd_out_others() -> None:
    pages = [chunk(n, f"The ocean tides fact number{n} is told here.", "Manual") for n in range(1, 9)]
    response = await Bench(ENOUGH, chunks=tuple(pages)).ask(include=["evidence"])
    assert response.evidence is not None and len(response.evidence) == 8
    bench = Bench(ENOUGH, chunks=(*pages, MOON))
    response = await bench.ask(include=["evidence"])
    assert response.evidence is not None
    assert "Moon" in [e.title for e in response.evidence][: bench.config.loop.per_document + 1]


async def test_a_follow_up_question_is_searched_as_it_was_rewritten() -> None:
    bench = Bench(ENOUGH, plan='{"query": "When do the ocean tides rise?", "variants": ["ocean tides hour"]}')
    history = [
        {"role": "user", "content": "Tell me about ocean tides."},
        {"role": "assistant", "content": "They rise."},
    ]
    response = await bench.ask("When do they rise?", history=history)
    assert response.status == "answered"
    assert bench.retriever.history[-1].queries[:2] == ("When do the ocean tides rise?", "When do they rise?")


async def test_top_k_is_bounded_by_the_config() -> None:
    with pytest.raises(InvalidRequest) as caught:
        await Bench().ask(top_k=100)
    assert caught.value.field == "top_k"


async def test_a_clarifications_choice_can_be_sent_back() -> None:
    bench = Bench()
    page, title = {"field": "page", "op": ">", "value": 900}, {"field": "title", "op": "=", "value": "Moon"}
    bench.retriever.explain = Explain(0, 3, {}, Predicate.model_validate(page), 3)
    bench.retriever.chunks = ()
    response = await bench.ask(filters={"and": [page, title]})
    assert response.clarification is not None
    assert response.clarification.choices[0].filters == title
    again = {"question": "x", "filters": response.clarification.choices[0].filters}
    assert AskRequest.model_validate(again).filters is not None
    bench.llm.enqueue(PLAN)
    response = await bench.ask(filters=page)
    assert response.clarification is not None and response.clarification.choices[0].filters == {}
    assert AskRequest.model_validate({"question": "x", "filters": {}}).filters is None


# ---- bad requests, and cancelling -----------------------------------------------------------------------------------


async def test_a_budget_over_its_bound_is_refused_before_the_first_event() -> None:
    with pytest.raises(InvalidRequest) as caught:
        async for _ in Bench().stream(AskRequest(question=QUESTION, budget=AskBudget(rounds=50))):
            pass
    assert caught.value.field == "budget.rounds"


async def test_an_unknown_bucket_is_refused_before_the_first_event() -> None:
    bench = Bench()
    bench.retriever.faults.append(UnknownBucket("No bucket 'contrcats'.", "buckets", ("contracts",)))
    with pytest.raises(UnknownBucket):
        await bench.events(buckets=["contrcats"])


async def test_closing_the_stream_cancels_what_runs() -> None:
    cancelled = asyncio.Event()

    class Hung:
        async def plan(self, request: PlanRequest) -> Plan:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

    bench = Bench()
    bench.expander = Hung()
    stream = bench.stream(AskRequest(question=QUESTION))
    await anext(stream)
    await asyncio.sleep(0)  # the planner begins
    await stream.aclose()
    assert cancelled.is_set()


async def test_the_search_is_announced_before_it_runs() -> None:
    order: list[str] = []

    class Watched(ListRetriever):
        async def search(self, query: SearchQuery) -> SearchResult:
            order.append("ran")
            return await super().search(query)

    bench = Bench(ENOUGH)
    bench.retriever = Watched(MOON)
    async for event in bench.stream(AskRequest(question=QUESTION)):
        order += ["announced"] * isinstance(event, ToolCallStart)
    assert order[-2:] == ["announced", "ran"]


# ---- the mode that a plan chooses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "plan", "mode"),
    [
        (QUESTION, {}, "pipeline"),
        ("What causes the tides, and which moons does Mars have?", {}, "agentic"),
        (QUESTION, {"sub_questions": ("tides", "ocean")}, "agentic"),
        (QUESTION, {"intent": "compare"}, "agentic"),
        (QUESTION, {"intent": "answer"}, "pipeline"),
        ("Was verursacht die Gezeiten (ocean tides) auf der Erde (Earth)?", {}, "agentic"),
    ],
)
async def test_auto_takes_one_pass_for_a_simple_lookup_and_the_loop_for_more(
    question: str, plan: Any, mode: str
) -> None:
    class Planner:
        async def plan(self, request: PlanRequest) -> Plan:
            return Plan(request.question, **plan)

    bench = Bench(ENOUGH)
    bench.config = bench.config.model_copy(update={"loop": LoopConfig()})
    bench.expander = Planner()
    events = await bench.events(question, include=["trace"])
    assert next(event.mode for event in events if event.type == "plan") == mode
    assert ("grade" in [event.type for event in events]) == (mode == "agentic")
    assert isinstance(last := events[-1], CompletedEvent) and last.response.trace is not None
    assert next(step.summary for step in last.response.trace if step.stage == "mode").startswith(mode)


async def test_near_duplicates_do_not_crowd_out_the_rest() -> None:
    words = "The ocean tides on Earth rise and fall twice a day because the Moon pulls at the water of the seas."
    copies = [chunk(n, f"{words} Copy{n}.", f"Copy {n}") for n in range(10, 15)]
    others = [chunk(n, f"Fact number{n}: {text}", f"Fact {n}") for n, text in enumerate(("ocean tides", "Earth"), 20)]
    bench = Bench(ENOUGH, chunks=(*copies, *others))
    bench.config = bench.config.model_copy(update={"loop": LoopConfig(mode="agentic", evidence=3)})
    response = await bench.ask(include=["evidence"], options={"rerank": False})
    assert response.evidence is not None
    assert [e.chunk_id for e in response.evidence] == [10, 20, 21]
