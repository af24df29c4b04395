"""Expander, reranker and grader, each over a scripted model."""

import json
import math
from dataclasses import replace
from itertools import combinations

import pytest

from assay.calibrate.ranking import MOST
from assay.config import ExpanderConfig, GradeConfig, RerankerConfig, RerankMethod
from assay.errors import BadModelOutput, SetupError
from assay.expand import LLMExpander, distinct
from assay.features import is_name, of_evidence
from assay.grade import FeatureGrader, follow_ups, uncovered
from assay.plan import plan_schema
from assay.relevance import gain_of
from assay.rerank import LLMReranker, blend
from assay.schemas import Usage
from assay.templates import Prompt, Prompts
from assay.types import (
    Claim,
    CompletionRequest,
    Evidence,
    Gain,
    GradeRequest,
    Hit,
    ItemScore,
    Message,
    PlanRequest,
    Reranked,
    RerankRequest,
    ScoreItem,
    ScoreRequest,
    Scores,
    SupportRequest,
)
from tests.fakes import ScriptedLLM, WordTokenizer, chunk

pytestmark = pytest.mark.anyio
QUESTION = "What causes the ocean tides?"


@pytest.mark.parametrize(
    ("candidate", "kept"),
    [
        ("reason for ocean tides", True),
        ("OCEAN tides: causes", False),
        ("the tides of the ocean, what causes them", False),
        ("refund policy", False),
        ("ocean tides stream stream stream stream stream", False),
        ("", False),
    ],
)
def test_a_variant_must_be_new_and_on_topic(candidate: str, kept: bool) -> None:
    assert bool(distinct(QUESTION, [candidate])) is kept


def test_a_question_about_nothing_has_no_variants() -> None:
    assert distinct("What about it?", ["where the database password is"]) == ()


def test_variants_differ_from_each_other() -> None:
    assert distinct(QUESTION, ["why ocean tides rise", "Ocean tides rise, why?"]) == ("why ocean tides rise",)


async def test_the_plan_is_bound_by_a_schema_with_bounded_strings() -> None:
    llm = ScriptedLLM('{"variants": ["why ocean tides rise"]}')
    plan = await LLMExpander(llm, ExpanderConfig(variants=1, skip_simple=False)).plan(PlanRequest(QUESTION, variants=1))
    assert (plan.query, plan.variants, plan.usage.llm_calls) == (QUESTION, ("why ocean tides rise",), 1)
    asked = llm.history[0]
    assert isinstance(asked, CompletionRequest) and asked.json_schema
    schema = json.loads(asked.json_schema)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["variants"]["items"]["maxLength"] <= 200
    assert "query" not in schema["properties"]


async def test_with_history_the_question_is_rewritten_to_stand_alone() -> None:
    llm = ScriptedLLM('{"query": "When do ocean tides rise?", "variants": ["ocean tides times"]}')
    history = (Message("user", QUESTION), Message("assistant", "The Moon."))
    plan = await LLMExpander(llm, ExpanderConfig(skip_simple=False)).plan(PlanRequest("When do they rise?", history))
    assert plan.query == "When do ocean tides rise?"
    assert "query" in plan_schema({"rewrite", "expand"}, variants=2)["properties"]


@pytest.mark.parametrize("said", ['{"variants": "x"}', "no json", '{"variants": ["x"], "more": 1}'])
async def test_a_plan_out_of_schema_is_a_fault_that_says_what_it_cost(said: str) -> None:
    plan = await LLMExpander(ScriptedLLM(said), ExpanderConfig(skip_simple=False)).plan(PlanRequest(QUESTION))
    assert (plan.query, plan.variants) == (QUESTION, ())
    assert plan.fault is not None and "schema" in plan.fault and plan.usage.llm_calls == 1


async def test_a_plan_cut_off_is_a_fault_and_not_asked_for_again() -> None:
    llm = ScriptedLLM("word " * 200)
    plan = await LLMExpander(llm, ExpanderConfig(skip_simple=False)).plan(PlanRequest(QUESTION))
    assert plan.fault is not None and "max_tokens" in plan.fault
    assert len(llm.history) == 1


@pytest.mark.parametrize("rewrite", ["What is the weather on the moons of Mars?", "When does Jupiter rise?", "?"])
async def test_a_rewrite_that_says_what_nobody_said_is_refused(rewrite: str) -> None:
    llm = ScriptedLLM(json.dumps({"query": rewrite, "variants": []}))
    history = (Message("user", QUESTION), Message("assistant", "The Moon."))
    plan = await LLMExpander(llm, ExpanderConfig(skip_simple=False)).plan(PlanRequest("When do they rise?", history))
    assert plan.query == "When do they rise?" and plan.fault


HITS = tuple(
    Hit(chunk(n, text), score, {"dense": n}, 0.5)
    for n, (text, score) in enumerate(
        [("Stars burn hydrogen.", 0.9), ("The Moon causes ocean tides.", 0.8), ("Fish swim in the ocean.", 0.7)], 1
    )
)


async def test_rerank_orders_by_likelihood_and_keeps_the_gain() -> None:
    llm = ScriptedLLM()
    done = await LLMReranker(llm, WordTokenizer(), RerankerConfig()).rerank(RerankRequest(QUESTION, HITS, 2))
    assert [r.hit.chunk.id for r in done.ranked] == [2, 1]
    assert done.ranked[0].gain is not None and done.ranked[0].gain.mean > 0 == min(done.ranked[0].gain.each)
    assert len(llm.history) == 1, "one batch for all passages"


class Knowing(ScriptedLLM):
    """Knows that the article on the Moon is found by a search for tides; a title as such is as likely as any other."""

    async def score(self, request: ScoreRequest) -> Scores:
        scores = await super().score(request)
        return Scores(tuple(map(self._known, request.items, scores.items)), scores.usage)

    @staticmethod
    def _known(item: ScoreItem, score: ItemScore) -> ItemScore:
        if item.context.endswith("Answer:") and item.continuation != f" {QUESTION}":
            found = item.continuation == " Moon" and "tides" in item.context
            return (
                ItemScore(math.nan, 0, "too long")
                if "Fault" in item.continuation
                else ItemScore(-2.0 if found else -6.0, 1)
            )
        return score


def titled(*titles: str) -> tuple[Hit, ...]:
    return tuple(
        replace(HITS[n % 3], chunk=replace(HITS[n % 3].chunk, id=n, doc_id=str(n), title=title), score=1 - n / 100)
        for n, title in enumerate(titles)
    )


LONG = "An account of all that is known so far of stars"


async def by_title(llm: ScriptedLLM, hits: tuple[Hit, ...]) -> Reranked:
    config = RerankerConfig(method="title", weight=0.9)
    return await LLMReranker(llm, WordTokenizer(), config).rerank(RerankRequest(QUESTION, hits, len(hits)))


async def test_titles_are_ordered_by_how_much_likelier_the_question_makes_them() -> None:
    llm = Knowing()
    done = await by_title(llm, titled("Sun", "Fish", LONG, "Fish", "Moon", "Moon"))
    assert [r.hit.chunk.title for r in done.ranked[:2]] == ["Moon", "Moon"]
    assert [r.hit.chunk.id for r in done.ranked] == [4, 5, 2, 0, 1, 3], "a title that is no name counts as the mean"
    assert not done.faults
    assert {r.hit.chunk.id for r in done.ranked if r.gain is not None} == {0, 1, 2}, "what a grade weighs"
    (asked,) = llm.history
    assert isinstance(asked, ScoreRequest), "one batch"
    assert len(asked.items) == (1 + 3) + 2 * 3, "the question alone, after three passages; each title twice"


@pytest.mark.parametrize("nats", [30.0, 1e6])
@pytest.mark.parametrize("stuffed", range(1, 8))
async def test_titles_stuffed_with_the_question_do_not_bury_the_best_passage(stuffed: int, nats: float) -> None:
    """However much likelier the question makes its own words, a title has its weight's share of the order: what the search
    itself put first stays among the passages that a grade weighs, whichever of the others have such titles."""

    class Copying(ScriptedLLM):
        async def score(self, request: ScoreRequest) -> Scores:
            copied = [i.continuation == f" {QUESTION}" and QUESTION in i.context for i in request.items]
            return Scores(tuple(ItemScore(nats if c else 0.0, 1, None, (0.0,)) for c in copied), Usage())

    config = RerankerConfig(method="title", weight=MOST["title"])
    for places in combinations(range(1, 8), stuffed):
        hits = titled(*(QUESTION if place in places else f"Moon {place}" for place in range(8)))
        done = await LLMReranker(Copying(), WordTokenizer(), config).rerank(RerankRequest(QUESTION, hits, 8))
        assert hits[0] in [r.hit for r in done.ranked[:3]]


async def test_where_most_titles_are_sentences_none_is_asked_and_the_order_stays() -> None:
    llm = Knowing()
    done = await by_title(llm, titled(LONG, "Moon", LONG, ""))
    assert [r.hit.chunk.id for r in done.ranked] == [0, 1, 2, 3] and not done.faults
    (asked,) = llm.history
    assert isinstance(asked, ScoreRequest) and len(asked.items) == 1 + 3


async def test_a_question_of_several_steps_is_judged_by_the_passages_and_not_by_their_titles() -> None:
    llm, config = Knowing(), RerankerConfig(method="title", weight=0.9)
    done = await LLMReranker(llm, WordTokenizer(), config).rerank(RerankRequest(STEPS, titled("Sun", "Moon"), 2))
    assert [r.hit.chunk.id for r in done.ranked] == [1, 0] and all(r.gain for r in done.ranked)
    (asked,) = llm.history
    assert isinstance(asked, ScoreRequest) and len(asked.items) == 1 + 2, "the question alone, and after each passage"


STEPS = "Who discovered the moon that causes the tides of the ocean?"


@pytest.mark.parametrize(
    ("titles", "kept"),
    [
        (("Sun", "Moon", "Fish"), ["Moon"]),
        ((LONG, "Moon", "Sun", "Fish"), ["Moon", LONG]),
        ((LONG, LONG, "Moon"), [LONG, LONG, "Moon"]),
    ],
)
async def test_a_threshold_of_titles_drops_none_whose_title_is_not_asked(
    titles: tuple[str, ...], kept: list[str]
) -> None:
    config = RerankerConfig(method="title", weight=0.9, threshold=3.5)
    done = await LLMReranker(Knowing(), WordTokenizer(), config).rerank(RerankRequest(QUESTION, titled(*titles), 4))
    assert [r.hit.chunk.title for r in done.ranked] == kept


async def test_a_passage_that_a_grade_cannot_weigh_is_counted_also_by_title() -> None:
    class Short(Knowing):
        async def score(self, request: ScoreRequest) -> Scores:
            scores = await super().score(request)
            cut = [
                ItemScore(math.nan, 0, "too long") if "Fish" in i.context else s
                for i, s in zip(request.items, scores.items, strict=True)
            ]
            return Scores(tuple(cut), scores.usage)

    for titles in (("Sun", "Mars", "Moon", "Venus"), (LONG, LONG, LONG, "Venus")):
        request = RerankRequest(QUESTION, titled(*titles), 4)
        reranker = LLMReranker(Short(), WordTokenizer(), RerankerConfig(method="title"))
        done = await reranker.rerank(request)
        assert done.faults == 1 and sum(r.gain is not None for r in done.ranked) == 2
        assert (await reranker.rerank(replace(request, gains=False))).faults == 0, "it was not asked"


async def test_a_weight_of_0_asks_no_title() -> None:
    llm = Knowing()
    request = RerankRequest(QUESTION, titled(*["Sun", "Moon", "Fish"] * 3), 9)
    done = await LLMReranker(llm, WordTokenizer(), RerankerConfig(method="title", weight=0)).rerank(request)
    assert [r.hit for r in done.ranked] == list(request.hits)
    (asked,) = llm.history
    assert isinstance(asked, ScoreRequest) and len(asked.items) == 1 + 3


@pytest.mark.parametrize(
    ("question", "titles", "weight", "asked", "spared"),
    [
        (QUESTION, ("Sun", "Fish", LONG, "Moon", "Moon"), 0.9, 2 * 3, 1 + 3),
        (QUESTION, (LONG, LONG, "Moon"), 0.9, 0, 1 + 3),
        (STEPS, ("Sun", "Moon"), 0.9, 1 + 2, 0),
        (QUESTION, ("Sun", "Moon", "Fish", "Moon"), 0, 0, 1 + 3),
    ],
    ids=["titles", "sentences", "several steps", "a weight of 0"],
)
async def test_where_no_grade_follows_only_what_makes_the_order_is_asked(
    question: str, titles: tuple[str, ...], weight: float, asked: int, spared: int
) -> None:
    hits, ranked = titled(*titles), []
    for gains, items in ((True, asked + spared), (False, asked)):
        llm, config = Knowing(), RerankerConfig(method="title", weight=weight)
        request = RerankRequest(question, hits, len(hits), gains=gains)
        ranked.append((await LLMReranker(llm, WordTokenizer(), config).rerank(request)).ranked)
        assert sum(len(each.items) for each in llm.history if isinstance(each, ScoreRequest)) == items
        assert len(llm.history) == (items > 0)
    graded, plain = ranked
    assert [(r.hit, r.score) for r in plain] == [(r.hit, r.score) for r in graded]
    assert any(r.gain for r in graded) and (any(r.gain for r in plain) is (spared == 0))


async def test_titles_are_compared_with_what_ones_own_prompt_ends_in() -> None:
    llm = ScriptedLLM()
    prompts = Prompts({"title": "Asked: $question\nThe page that has it is called"})
    reranker = LLMReranker(llm, WordTokenizer(), RerankerConfig(method="title"), prompts)
    await reranker.rerank(RerankRequest(QUESTION, titled("Sun", "Moon"), 2))
    (asked,) = llm.history
    assert isinstance(asked, ScoreRequest)
    end = "The page that has it is called"
    assert [item.context for item in asked.items[3:]] == [end, end, *[f"Asked: {QUESTION}\n{end}"] * 2]


@pytest.mark.parametrize(
    ("title", "named"),
    [
        ("Moon", True),
        ("", False),
        ("of the", False),
        (LONG, False),
        ("月球", True),
        ("关于迄今为止所有已知恒星的说明", False),
    ],
)
def test_a_title_may_be_a_name(title: str, named: bool) -> None:
    assert is_name(title) == named


async def test_a_title_that_cannot_be_scored_is_counted_and_keeps_its_fused_score() -> None:
    done = await by_title(Knowing(), titled("Sun", "Fault", "Moon"))
    assert done.faults == 1 and done.ranked[0].hit.chunk.title == "Moon"
    reranker = LLMReranker(Knowing(), WordTokenizer(), RerankerConfig(method="title"))
    plain = await reranker.rerank(RerankRequest(QUESTION, titled("Sun", "Fault", "Moon"), 3, gains=False))
    assert plain.faults == 1, "with and without gains"
    with pytest.raises(BadModelOutput, match="No passage could be scored: too long"):
        await by_title(Knowing(), titled("Fault", "Fault", LONG))


async def test_hits_beyond_the_candidates_follow_in_fused_order() -> None:
    config = RerankerConfig(candidates=1)
    done = await LLMReranker(ScriptedLLM(), WordTokenizer(), config).rerank(RerankRequest(QUESTION, HITS, 10))
    assert [r.hit.chunk.id for r in done.ranked] == [1, 2, 3]
    assert [r.gain is None for r in done.ranked] == [False, True, True]
    assert done.ranked[0].score > done.ranked[1].score > done.ranked[2].score


async def test_a_weight_of_0_asks_for_what_a_grade_needs_and_no_more() -> None:
    llm, hits = ScriptedLLM(), HITS * 3
    done = await LLMReranker(llm, WordTokenizer(), RerankerConfig(weight=0)).rerank(RerankRequest(QUESTION, hits, 9))
    assert [r.hit for r in done.ranked] == list(hits), "in the order that they came in"
    assert [r.gain is None for r in done.ranked] == [False] * 3 + [True] * 6
    (asked,) = llm.history
    assert isinstance(asked, ScoreRequest) and len(asked.items) == 1 + 3, "the question alone, and after each"


async def test_one_bad_passage_keeps_its_fused_score_and_is_counted() -> None:
    class OneFault(ScriptedLLM):
        async def score(self, request: ScoreRequest) -> Scores:
            scores = await super().score(request)
            return Scores((*scores.items[:-1], ItemScore(math.nan, 0, "too long")), scores.usage)

    done = await LLMReranker(OneFault(), WordTokenizer(), RerankerConfig()).rerank(RerankRequest(QUESTION, HITS, 10))
    assert done.faults == 1 and {r.hit.chunk.id for r in done.ranked} == {1, 2, 3}
    assert all(math.isfinite(r.score) for r in done.ranked)


async def test_no_passage_scored_is_a_fault() -> None:
    with pytest.raises(BadModelOutput):
        await LLMReranker(ScriptedLLM(), WordTokenizer(), RerankerConfig()).rerank(RerankRequest("?", HITS, 10))


class Judge(ScriptedLLM):
    """Says yes, or a high grade, where the passage has the Moon; faults for a passage with fish."""

    async def score(self, request: ScoreRequest) -> Scores:
        scores = await super().score(request)
        return Scores(tuple(map(self._judged, request.items)), scores.usage)

    def _judged(self, item: ScoreItem) -> ItemScore:
        if "Fish" in item.context:
            return ItemScore(math.nan, 0, "too long")
        right = {True: (" yes", " 9", " 10"), False: (" no", " 0", " 1")}["Moon" in item.context]
        return ItemScore(-0.1 if item.continuation in right else -5.0, 1)


@pytest.mark.parametrize(("method", "items"), [("pointwise", 6), ("score", 33)])
async def test_a_judging_method_takes_probabilities_not_words(method: RerankMethod, items: int) -> None:
    llm = Judge()
    config = RerankerConfig(method=method, threshold=0.5)
    done = await LLMReranker(llm, WordTokenizer(), config).rerank(RerankRequest(QUESTION, HITS, 10))
    assert [r.hit.chunk.id for r in done.ranked] == [2, 3], "below the threshold is dropped, unknown is not"
    assert done.faults == 1 and all(r.gain is None for r in done.ranked)
    (asked,) = llm.history
    assert isinstance(asked, ScoreRequest) and len(asked.items) == items
    beginnings = {item.context.split("Passage:")[0] for item in asked.items}
    assert len(beginnings) == 1, "the prompt's beginning is shared"


async def test_support_is_the_probability_that_the_quote_says_so() -> None:
    llm = Judge()
    claims = (
        Claim("It is the Moon.", "The Moon causes tides.", "Tides"),
        Claim("x", "Stars burn."),
        Claim("x", "Fish swim."),
    )
    found = await LLMReranker(llm, WordTokenizer(), RerankerConfig()).support(SupportRequest(claims))
    assert found.values[0] > 0.9 and found.values[1] < 0.1 and math.isnan(found.values[2])
    assert len(llm.history) == 1, "one batch for all claims"


async def test_listwise_is_one_call_under_a_schema() -> None:
    llm = ScriptedLLM('{"grades": [1, 9, 2]}')
    done = await LLMReranker(llm, WordTokenizer(), RerankerConfig(method="listwise", weight=1.0)).rerank(
        RerankRequest(QUESTION, HITS, 10)
    )
    assert [r.hit.chunk.id for r in done.ranked] == [2, 3, 1]
    (asked,) = llm.history
    assert isinstance(asked, CompletionRequest) and asked.json_schema
    grades = json.loads(asked.json_schema)["properties"]["grades"]
    assert (grades["minItems"], grades["maxItems"], grades["items"]["enum"]) == (3, 3, list(range(11)))


@pytest.mark.parametrize("said", ['{"grades": [1, 2]}', '{"grades": [1, 2, 11]}', '{"grades": "all"}', "x " * 200])
async def test_grades_that_cannot_be_used_are_a_fault(said: str) -> None:
    reranker = LLMReranker(ScriptedLLM(said), WordTokenizer(), RerankerConfig(method="listwise"))
    with pytest.raises(BadModelOutput):
        await reranker.rerank(RerankRequest(QUESTION, HITS, 10))


def test_blend_ignores_what_is_unknown() -> None:
    assert blend([1, 2, 3], [math.nan, math.nan, math.nan], 0.5).argmax() == 2
    assert blend([1, 1, 1], [3, 2, 1], 0.5).argmax() == 0


def found(*texts: str, mean: float | None = 0.8) -> tuple[Evidence, ...]:
    gain = None if mean is None else Gain(mean, (mean,))
    return tuple(Evidence(f"E{n}", Hit(chunk(n, t), 1.0, {}, 0.6), 1.0, 1, gain) for n, t in enumerate(texts, 1))


async def test_grades_are_probabilities_that_rise_with_coverage() -> None:
    grader = FeatureGrader(GradeConfig())
    good = await grader.grade(GradeRequest(QUESTION, found("The Moon causes ocean tides.")))
    bad = await grader.grade(GradeRequest(QUESTION, found("Stars burn hydrogen.", mean=-0.5)))
    for grade in (good, bad):
        assert grade.p_enough + grade.p_more + grade.p_clarify == pytest.approx(1)
    assert good.p_enough > bad.p_enough
    assert set(bad.missing) == {"causes", "ocean", "tides"}


async def test_no_evidence_is_never_enough() -> None:
    grade = await FeatureGrader(GradeConfig()).grade(GradeRequest(QUESTION, ()))
    assert (grade.p_enough, grade.p_about) == (0, 0)


async def test_what_is_about_the_question_need_not_be_enough() -> None:
    config = GradeConfig()
    asked = "Why does the Moon raise ocean tides, and who explained the tides of Mars in Chapter 9?"
    near = await FeatureGrader(config).grade(GradeRequest(asked, found("The Moon causes ocean tides.")))
    away = await FeatureGrader(config).grade(GradeRequest(QUESTION, found("Stars burn hydrogen.")))
    assert near.p_enough < 0.5
    assert near.p_about > config.min_answer > away.p_about


async def test_a_question_without_content_asks_back() -> None:
    grade = await FeatureGrader(GradeConfig()).grade(GradeRequest("What about it?", found("x", mean=-2.0)))
    assert grade.p_clarify > grade.p_more


def test_an_unmeasured_feature_is_absent_not_zero() -> None:
    assert "likelihood_gain" not in of_evidence(QUESTION, found("ocean", mean=None))


def test_the_follow_up_asks_for_what_is_missing() -> None:
    evidence = found("The ocean is deep.")
    missing = uncovered("What causes the ocean tides on Mars?", evidence)
    (query,) = follow_ups("What causes the ocean tides on Mars?", evidence, missing)
    assert "tides" in query and "Mars" in query and "ocean" not in query


def test_a_template_is_checked_when_it_is_loaded() -> None:
    with pytest.raises(SetupError, match=r"mine\.txt .*\$questoin.*\$count"):
        Prompt("plan", "$count and $questoin", "mine.txt")


def test_what_no_passage_explains_speaks_against_the_question() -> None:
    alone = ItemScore(-8.0, 4, each=(-1.0, -2.0, -3.0, -2.0))
    each = ((-1.0, -5.0, -2.0, -3.0), (-4.0, -2.5, -3.0, -4.0))
    gains = [gain_of(ItemScore(sum(of), 4, each=of), alone) for of in each]
    assert [gain and gain.each for gain in gains] == [(0.0, -3.0, 1.0, -1.0), (-3.0, -0.5, 0.0, -2.0)]
    given = [replace(e, gain=gain) for e, gain in zip(found("ocean tides", "ocean", mean=None), gains, strict=True)]
    measured = of_evidence(QUESTION, given)
    assert measured["against"] == 1.5 and measured["least_gain"] == -3.0, "of all passages; of the best one"
