"""Fitting a calibration: the logistic and its judgement, the labelled cases, what is asked of the engine once."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from assay.__main__ import main
from assay.calibrate import cases as c
from assay.calibrate import near_misses, ranking
from assay.calibrate.cached import CachedLLM
from assay.calibrate.cases import NEAR_MISS
from assay.calibrate.fit import Sample, arrays, auc, ece, fit
from assay.calibrate.grading import HOLDS, LEXICAL, fitted
from assay.calibrate.ranking import Candidates, Scored, chosen
from assay.config import GradeConfig, RerankMethod
from assay.errors import SetupError
from assay.types import Hit, ItemScore, ScoreItem, ScoreRequest, Scores
from tests.fakes import BagEmbedder, ScriptedLLM, chunk

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(3)


def noisy(count: int, strength: float) -> list[Sample]:
    """Pairs of cases, one that holds and one that does not, told apart by ``a`` as far as ``strength`` goes."""
    return [
        Sample({"a": strength * holds + float(RNG.normal()), "id": float(q)}, holds, f"q{q}")
        for q in range(count)
        for holds in (True, False)
    ]


def test_an_engine_that_the_config_lacks_names_those_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "calibrate",
        "--engine",
        "nope",
        "--data",
        str(tmp_path),
        "--config",
        str(ROOT / "configs/local.yaml"),
        "--work",
        str(tmp_path),
    ]
    assert main(words) == 1
    assert capsys.readouterr().err == "assay: the config has no engine 'nope' (there are: small)\n"


def test_an_endpoint_without_scores_is_told_so_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = yaml.safe_load((ROOT / "configs/local.yaml").read_text())
    far = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    raw["applications"][0]["args"]["engines"]["far"] = far
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    config, nowhere = str(tmp_path / "config.yaml"), str(tmp_path / "none")
    words = ["calibrate", "--engine", "far", "--data", nowhere, "--work", nowhere, "--config", config]
    assert main(words) == 1
    said = "assay: the engine 'far' cannot do 'score', which the method 'title' needs; choose --methods listwise\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "none").exists()


def test_a_fit_is_judged_by_what_it_has_not_seen() -> None:
    samples = noisy(80, 3.0)
    judged = fit(samples, ("a", "id"), repeats=1)
    holds, weights, _ = arrays(samples)
    assert auc(judged.out_of_fold, holds, weights) > 0.95
    assert judged.model.weights["a"] > 10 * abs(judged.model.weights["id"])


def test_nothing_is_learnt_from_labels_by_chance() -> None:
    samples = [Sample({"id": float(q)}, bool(RNG.integers(2)), f"q{q}") for q in range(120)]
    holds, weights, _ = arrays(samples)
    assert auc(fit(samples, ("id",), repeats=1).out_of_fold, holds, weights) < 0.65


def test_figures_over_labels_by_chance_say_chance() -> None:
    """What a fit says of the questions that it is fitted on, it says well of any labels, too."""
    rng = np.random.default_rng(4)
    found, measured = [], []
    for n in range(48):
        task = ("squad2", "own", "elsewhere")[n % 3]
        enough = task != "elsewhere" and n % 2 == 1
        found.append(c.Case(task, f"g{n}", f"q{n}", (("", "x"),), (0.5,), enough))
        features = {name: float(rng.normal()) for name in sorted({*LEXICAL, *HOLDS})}
        measured.append(Sample(features, enough, f"g{n}"))
    figures = fitted(found, measured, GradeConfig().min_answer, model=False)[1]
    said = {figure.name: figure.value for figure in figures if figure.name.endswith(": AUC")}
    assert len(said) == 11 and {name: value for name, value in said.items() if value > 0.68} == {}


def test_a_feature_that_was_not_measured_counts_as_its_mean() -> None:
    samples = [*noisy(40, 2.0), Sample({"id": 0.0}, True, "other")]
    model = fit(samples, ("a", "id"), repeats=0).model
    assert model.probability({"id": 0.0}) == model.probability({"a": model.means["a"], "id": 0.0})


def test_calibration_error_is_the_gap_between_what_is_said_and_what_holds() -> None:
    holds, weights = np.array([True, False] * 50), np.ones(100)
    assert ece(np.full(100, 0.5), holds, weights) == pytest.approx(0, abs=0.02)
    assert ece(np.full(100, 0.9), holds, weights) == pytest.approx(0.4, abs=0.02)


async def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    return await BagEmbedder().embed(texts)


def write_hotpot(data: Path) -> None:
    folder = data / "multihop" / "hotpotqa_100"
    folder.mkdir(parents=True)
    context = [[f"T{n}", [f"Text {n} of ocean."]] for n in range(8)]
    questions = [
        {"question": f"What of ocean {n}?", "context": context, "supporting_facts": [["T0", 0], ["T3", 0]]}
        for n in range(3)
    ]
    (folder / "hotpotqa_train.json").write_text(json.dumps(questions))


async def test_both_sides_of_a_question_have_as_many_passages_and_weigh_the_same(tmp_path: Path) -> None:
    write_hotpot(tmp_path)
    (tmp_path / "evidence.jsonl").write_text(
        json.dumps({"question": "Who is it?", "gold": [{"text": "It is Ann."}], "others": [], "answerable": False})
        + "\n"
    )
    found = await c.cases(c.read(tmp_path), embed)
    sides: dict[str, dict[bool, float]] = defaultdict(lambda: defaultdict(float))
    for case in found:
        if case.task == "hotpotqa":
            assert len(case.passages) == 2 + c.MOST_PADDING
            sides[case.question][case.enough] += case.weight
    assert len(sides) == 3 and all(side == {True: 1.0, False: 1.0} for side in sides.values())
    assert any(case.task == "elsewhere" and not case.enough for case in found)


def about(*tasks: str) -> tuple[float, float]:
    """What a fit over such cases says of evidence that covers all of a question, and of none of it."""
    found, measured = [], []
    for n, task in enumerate(tasks):
        enough = task != "elsewhere" and n % 4 == 0
        covered = float(RNG.uniform(0, 0.4) if task == "elsewhere" else RNG.uniform(0.6, 1))
        found.append(c.Case(task, f"g{n}", f"q{n}", (), (), enough))
        features = {"word_coverage": covered, "name_coverage": covered, "similarity": covered, "linked": float(enough)}
        measured.append(Sample(features, enough, f"g{n}"))
    grade, figures = fitted(found, measured, GradeConfig().min_answer, model=False)
    refused = [f.value for f in figures if f.name == "refused, cross-validated: of another collection"]
    assert refused == ([pytest.approx(1, abs=0.1)] if "elsewhere" in tasks else [])
    whole, none = (dict.fromkeys(grade.about.weights, value) for value in (1.0, 0.0))
    return grade.about.probability(whole), grade.about.probability(none)


def test_about_is_told_from_another_collection_and_not_from_too_little() -> None:
    high, low = about(*["hotpotqa"] * 80, *["elsewhere"] * 20)
    assert high > 0.9
    assert low < 0.1


def test_one_collection_alone_says_nothing_of_what_is_about_something_else() -> None:
    default = GradeConfig().about
    high, _ = about(*["hotpotqa"] * 40)
    assert high == default.probability(dict.fromkeys(default.weights, 1.0))


def test_whether_a_passage_holds_what_is_asked_is_fitted_on_single_passages_alone() -> None:
    found, measured = [], []
    for n in range(90):
        task = ("squad2", NEAR_MISS, "hotpotqa")[n % 3]
        passages = (("", "x"),) * (2 if task == "hotpotqa" else 1)
        enough = n % 2 == 0
        found.append(c.Case(task, f"g{n}", f"q{n}", passages, (0.5,) * len(passages), enough))
        says = enough if task != "hotpotqa" else not enough
        measured.append(Sample({"pairs": float(says) + RNG.normal(0, 0.3), "linked": float(enough)}, enough, f"g{n}"))
    grade, figures = fitted(found, measured, GradeConfig().min_answer, model=False)
    assert grade.holds.probability({"pairs": 1.0}) > 0.8 > 0.2 > grade.holds.probability({"pairs": 0.0})
    assert grade.probability({"linked": 1.0}) > 0.8  # to which the near misses add nothing
    named = {f.name: f.value for f in figures}
    assert (
        named["holds, squad2, cross-validated: AUC"] > 0.9 and named[f"holds, {NEAR_MISS}, cross-validated: AUC"] > 0.9
    )
    assert not [name for name in named if name.startswith((NEAR_MISS, "holds, hotpotqa"))]


FALL = "Warsaw fell in 1944."
XQUAD = {f"{FALL} The rising of Warsaw lasted 63 days, as Jan Nowak wrote.": ("How long did Warsaw rise?", "63 days")}


def write_xquad(data: Path, paragraphs: dict[str, tuple[str, str]]) -> None:
    (data / "ranking" / "xquad").mkdir(parents=True)
    written = [
        {"context": text, "qas": [{"question": asked, "answers": [{"text": answer}]}]}
        for text, (asked, answer) in paragraphs.items()
    ]
    file = data / "ranking" / "xquad" / "xquad.en.json"
    file.write_text(json.dumps({"data": [{"paragraphs": written}]}))


def test_near_misses_lack_the_answer_or_ask_for_something_else(tmp_path: Path) -> None:
    text, (asked, _) = next(iter(XQUAD.items()))
    write_xquad(tmp_path, XQUAD)
    own, cut, other = near_misses.read(tmp_path)
    assert (own.question, own.gold, own.answerable) == (asked, (("", text),), True)
    assert (cut.question, cut.gold, cut.answerable) == (asked, (("", FALL),), False)
    assert (other.question, other.gold, other.answerable) == ("How long did Jan Nowak rise?", own.gold, False)
    assert {q.group for q in (own, cut, other)} == {text}, "all of them are on one side of a split"
    assert near_misses.read(tmp_path / "elsewhere") == []


def test_each_change_makes_a_question_that_its_text_does_not_answer() -> None:
    asked, said = "Who, in 1944, was first in Warsaw?", "There was Nowak. In 1944 a man named Nowak was there."
    assert {near_misses.changed(asked, said, ("Nowak",), number) for number in range(5)} == {
        ("Who, in 1944, was first in Nowak?", said),
        ("Who, in 1951, was first in Warsaw?", said),
        ("Who, in 1944, was last in Warsaw?", said),
        ("Who, in 1944, was not first in Warsaw?", said),
        (asked, "There was Nowak. In 1944 a man named Nowak was not there."),
    }
    assert near_misses.changed("why so", said, ("Mokotow",), 0) is None


def test_what_denies_already_is_not_denied_again() -> None:
    asked, said = "who was never there", "Nowak was not there."
    assert near_misses.changed(asked, said, ("Nowak",), 0) is None
    assert near_misses.changed("who was there", said, ("Nowak",), 0) == ("who was not there", said)
    assert near_misses.changed("who was there", said, ("Nowak",), 1) == ("who was not there", said)


@pytest.mark.parametrize("line", ["{", '{"question": "x"}', '{"question": "x", "gold": [1], "others": []}'])
def test_own_evidence_that_cannot_be_read_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "evidence.jsonl").write_text(line + "\n")
    with pytest.raises(SetupError, match=r"evidence\.jsonl, line 1"):
        c.read(tmp_path)
    (tmp_path / "evidence.jsonl").unlink()
    with pytest.raises(SetupError, match="no labelled evidence"):
        c.read(tmp_path)


class _OneFault(ScriptedLLM):
    async def score(self, request: ScoreRequest) -> Scores:
        scores = await super().score(request)
        items = (
            ItemScore(math.nan, 0, "too long") if "long" in item.context else score
            for item, score in zip(request.items, scores.items, strict=True)
        )
        return Scores(tuple(items), scores.usage)


async def test_a_request_is_asked_once_and_one_with_a_fault_again(tmp_path: Path) -> None:
    engine, starts = _OneFault(), 0

    async def start() -> ScriptedLLM:
        nonlocal starts
        starts += 1
        return engine

    good, bad = ScoreItem("the ocean", " ocean tides"), ScoreItem("a long text", " ocean tides")
    first = await CachedLLM(start, tmp_path / "s.jsonl").score(ScoreRequest((good, good), "first"))
    again = CachedLLM(start, tmp_path / "s.jsonl")
    assert await again.score(ScoreRequest((good, good), "again")) == first
    assert starts == 1
    for _ in range(2):
        faulty = await again.score(ScoreRequest((good, bad)))
        assert [item.fault for item in faulty.items] == [None, "too long"]
    assert (starts, len(engine.history)) == (2, 3)


async def test_what_a_text_cost_beside_others_is_not_its_cost_alone(tmp_path: Path) -> None:
    engine = ScriptedLLM()

    async def start() -> ScriptedLLM:
        return engine

    known, items = CachedLLM(start, tmp_path / "s.jsonl"), [ScoreItem("a b c d e f", " g"), ScoreItem("a", " g")]
    together = await known.score(ScoreRequest(tuple(items)))
    alone = [await known.score(ScoreRequest((item,))) for item in items]
    assert [scores.usage.prompt_tokens for scores in (together, *alone)] == [9, 7, 2]
    assert [item for scores in alone for item in scores.items] == list(together.items)


async def test_half_a_line_is_passed_over_and_not_written_on(tmp_path: Path) -> None:
    file, item = tmp_path / "s.jsonl", ScoreItem("the ocean", " ocean tides")
    file.write_text('{"k": "a", "ea')

    async def start() -> ScriptedLLM:
        return ScriptedLLM()

    first = await CachedLLM(start, file).score(ScoreRequest((item,)))

    async def never() -> ScriptedLLM:
        raise AssertionError("it is known already")

    assert (await CachedLLM(never, file).score(ScoreRequest((item,)))).items == first.items


def judged_queries(right: bool) -> tuple[list[Candidates], list[Scored]]:
    """Forty queries whose relevant document is anywhere; the model's values point to it, or away from it."""
    found, values = [], []
    for number in range(40):
        hits = tuple(Hit(chunk(n, "x", f"D{number}-{n}"), float(-n)) for n in range(8))
        relevant = int(RNG.integers(8))
        found.append(Candidates("set", f"q{number}", "x", hits, {hits[relevant].chunk.uri: 1}))
        value = RNG.normal(size=8) * 0.3
        value[relevant] += 2 if right else -2
        values.append(Scored(value, np.ones(8, bool)))
    return found, values


@pytest.mark.parametrize("right", [True, False])
def test_a_model_that_points_the_wrong_way_is_turned_round(right: bool) -> None:
    found, values = judged_queries(right)
    fitted, figures = chosen(found, {"likelihood": values}, 96)
    assert (fitted.weight > 0.3) if right else (fitted.weight < -0.3)
    gain = next(f for f in figures if "gain" in f.name)
    assert gain.value > 0.2 and gain.low > 0 and gain.questions == 40


def test_a_method_that_tells_nothing_apart_has_no_say() -> None:
    found, right = judged_queries(True)
    assert chosen(found, {"title": [Scored(np.zeros(8), ~own) for _, own in right]}, 96)[0].weight == 0


def test_what_is_chosen_by_chance_gains_nothing_on_other_queries() -> None:
    """Of five methods that know nothing, and any weight, one is the best for these queries: which says nothing of others."""
    rng = np.random.default_rng(0)
    kinds: tuple[RerankMethod, ...] = ("title", "likelihood", "pointwise", "score", "listwise")
    found, values = [], defaultdict[RerankMethod, list[Scored]](list)
    for number in range(20):
        hits = tuple(Hit(chunk(n, "x", f"D{number}-{n}"), float(-n)) for n in range(8))
        found.append(Candidates("set", f"q{number}", "x", hits, {hits[int(rng.integers(8))].chunk.uri: 1}))
        for kind in kinds:
            values[kind].append(Scored(rng.normal(size=8), np.ones(8, bool)))
    best, figures = chosen(found, values, 96)
    own = [
        ranking.reranked(query, each, best.weight) - ranking.reranked(query, each, 0)
        for query, each in zip(found, values[best.method], strict=True)
    ]
    said = {figure.name.rpartition(":")[0]: figure.value for figure in figures}
    assert said["set, gain by reranking, cross-validated"] < 0 < 0.1 < np.mean(own)
    kept = figures[-2]
    assert "keeps" in kept.name and kept.value < 0.95, "of these queries themselves it is 19 of 20"


def test_titles_have_no_larger_share_than_a_stuffed_one_may_have() -> None:
    found, right = judged_queries(True)
    assert chosen(found, {"likelihood": right}, 96)[0].weight > ranking.MOST["title"]
    assert chosen(found, {"title": right}, 96)[0].weight == ranking.MOST["title"]


def test_a_threshold_keeps_what_is_relevant_and_is_fitted_where_it_drops_enough() -> None:
    found, right = judged_queries(True)
    fitted, figures = chosen(found, {"likelihood": right}, 96)
    kept, dropped = (f for f in figures if f.name.startswith("threshold"))
    assert fitted.threshold is not None and 1 < fitted.threshold < 2
    assert kept.value > 0.9 and dropped.value == 1.0 and kept.questions == dropped.questions == 40
    blind = [Scored(RNG.normal(size=8), own) for _, own in right]
    assert chosen(found, {"likelihood": blind}, 96)[0].threshold is None
    found, wrong = judged_queries(False)
    assert chosen(found, {"likelihood": wrong}, 96)[0].threshold is None, "its order is turned round"


def test_a_threshold_is_not_of_values_that_another_method_gave() -> None:
    found, right = judged_queries(True)
    half = [Scored(v - 9 * (n % 2), own if n % 2 == 0 else ~own) for n, (v, own) in enumerate(right)]
    threshold = chosen(found, {"title": half}, 96)[0].threshold
    assert threshold is not None and threshold > 1
    assert chosen(found, {"title": [Scored(v, ~own) for v, own in right]}, 96)[0].threshold is None


def test_a_method_that_says_nothing_more_is_not_chosen() -> None:
    found, values = judged_queries(True)
    fitted, _ = chosen(found, {"likelihood": values, "listwise": values}, 96)
    assert fitted.method == "likelihood"


def test_a_dearer_method_must_be_better_by_more_than_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    found, right = judged_queries(True)
    blind = [Scored(np.zeros(8), own) for _, own in right]
    assert chosen(found, {"title": blind, "likelihood": right}, 96)[0].method == "likelihood"
    monkeypatch.setattr(ranking, "_DEARER", 1.0)  # more than it can gain
    assert chosen(found, {"title": blind, "likelihood": right}, 96)[0].method == "title"
