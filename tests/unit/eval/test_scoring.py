"""What an answer is worth: words as SQuAD counts them, evidence by steps, citations, and whether to answer at all."""

from typing import Any

import pytest

from assay.errors import InvalidRequest, SetupError
from assay.eval.answers import BALANCED, measured
from assay.eval.questions import Place, Question, question_of
from assay.eval.scoring import answer_tokens, contains, exact, f1, scores


@pytest.mark.parametrize(
    ("said", "gold", "same", "shared"),
    [
        ("The Eiffel Tower.", "eiffel tower", 1.0, 1.0),
        ("in Paris", "Paris", 0.0, 2 / 3),
        ("1,066", "1066", 1.0, 1.0),
        ("東京都", "東京", 0.0, 0.8),
        ("東京。", "東京", 1.0, 1.0),
        ("ＡＢＣ", "abc", 1.0, 1.0),
        ("", "Paris", 0.0, 0.0),
        ("A.", "A", 1.0, 1.0),
        ("the blood type is A", "A", 0.0, 1 / 3),
        ("the", "a", 0.0, 0.0),
        ("", "A", 0.0, 0.0),
        ("no", "+", 0.0, 0.0),
    ],
)
def test_words_are_counted_as_squad_counts_them(said: str, gold: str, same: float, shared: float) -> None:
    assert exact(said, ["nothing else", gold]) == same
    assert f1(said, ["nothing else", gold]) == pytest.approx(shared)


def test_a_wording_stands_in_an_answer_as_whole_words() -> None:
    assert contains("It was signed in Paris, in 1783.", ["paris"]) == 1.0
    assert contains("a comparison", ["paris"]) == 0.0
    assert contains("The blood type is A.", ["A"]) == 1.0 and contains("", ["A"]) == 0.0
    assert answer_tokens("Les États-Unis") == ["les", "étatsunis"]


def found(uri: str, rank: int = 1, span: tuple[int, int] = (0, 100)) -> dict[str, Any]:
    return {"uri": uri, "doc_id": f"d-{uri}", "title": uri.upper(), "rank": rank, "span": span}


def outcome(q: str = "1", **fields: Any) -> dict[str, Any]:
    usage = {"llm_calls": 2, "prompt_tokens": 30, "completion_tokens": 4}
    row = {
        "id": q,
        "question": "Why?",
        "error": None,
        "status": "answered",
        "terminated_by": "answered",
        "answer": "Rain [1]",
    }
    return {
        **row,
        "usage": usage,
        "rounds": 2,
        "seconds": 1.5,
        "evidence": [],
        "citations": [],
        "degraded": [],
        **fields,
    }


def question(i: str = "1", **fields: Any) -> Question:
    return question_of(int(i), {"id": i, "question": "Why?", **fields})


def test_evidence_by_steps_and_citations_by_passages() -> None:
    q = question(answers=["rain"], evidence=[{"uri": "a"}, [{"uri": "b", "span": [50, 60]}, {"title": "C"}]])
    told = scores(
        q,
        outcome(
            evidence=[found("b", 2, (0, 55)), found("a", 6)],
            citations=[found("c"), found("x"), found("b", span=(60, 90))],
        ),
        top=5,
    )
    assert (told["evidence R@5"], told["hop 1"], told["hop 2"]) == (0.5, 0.0, 1.0)
    assert (told["exact"], told["citation recall"]) == (1.0, 0.5)
    assert told["citation precision"] == pytest.approx(1 / 3)
    assert (told["LLM calls"], told["tokens"], told["rounds"], told["seconds"]) == (2, 34, 2, 1.5)
    assert "abstention precision" not in told and told["answered"] == 1.0


def test_a_place_is_where_all_that_it_says_holds() -> None:
    assert Place(uri="a", title="A").holds(found("a"))
    assert not Place(uri="a", title="B").holds(found("a"))
    assert not Place(uri="a", span=(100, 110)).holds(found("a"))


def test_who_refuses_is_right_where_there_is_no_answer() -> None:
    asked = [question(str(n), answerable=n < 3) for n in range(4)]
    refused = {"status": "no_evidence", "terminated_by": "no_evidence", "answer": "Nothing was found."}
    rows = {
        "bold": [outcome(str(n)) for n in range(4)],
        "shy": [outcome(str(n), **(refused if n else {})) for n in range(4)],
        "failing": [
            outcome("0"),
            *(outcome(str(n), error={"code": "overloaded"}) for n in (1, 2)),
            outcome("3", **refused),
        ],
    }
    told = measured(asked, rows, 5)
    means = {name: {m: of.mean for m, of in held.items()} for name, held in told.ranking.estimates.items()}
    assert (means["bold"][BALANCED], means["bold"]["answered"]) == (0.5, 1.0)
    assert "abstention precision" not in means["bold"], "it refused nothing"
    assert means["shy"]["abstention precision"] == pytest.approx(1 / 3)
    assert (means["shy"]["abstention recall"], means["shy"]["answered"]) == (1.0, pytest.approx(1 / 3))
    assert means["shy"][BALANCED] == pytest.approx((1 / 3 + 1) / 2)
    assert means["failing"][BALANCED] == 1.0, "of what it answered"
    assert told.failed == {"bold": {}, "shy": {}, "failing": {"overloaded": 2}}
    assert told.counts["shy"]["ended by"] == {"no_evidence": 3, "answered": 1}
    against = told.ranking.against["failing"]
    assert len(against["answered"].differences) == 1, "paired over what both have answered"
    right = [outcome("0"), outcome("1"), outcome("2"), outcome("3", **refused)]
    late = [*right[:2], outcome("2", error={"code": "timeout"}), right[3]]
    apart = measured(asked, {"right": right, "right, one late": late}, 5).ranking.against["right, one late"][BALANCED]
    assert (apart.wins, apart.losses, len(apart.differences)) == (0, 0, 3), "both are right wherever both have answered"
    with pytest.raises(SetupError, match="a run of other questions"):
        measured(asked, {"bold": [outcome(str(n), question="When?") for n in range(4)]}, 5)
    with pytest.raises(SetupError, match="answered none of 4 questions: failed"):
        measured(asked, {"bad": [outcome(str(n), error={"code": "failed"}) for n in range(4)]}, 5)


@pytest.mark.parametrize(
    ("row", "field", "said"),
    [
        ({"answers": ["x"]}, "question", "has no question"),
        ({"question": "Why?", "anwers": ["x"]}, "anwers", "there is no column 'anwers'"),
        ({"question": "Why?", "answers": "x"}, "answers", "neither a value nor JSON"),
        ({"question": "Why?", "evidence": [{"span": [1, 2]}]}, "evidence.0.0", "names no document"),
        ({"question": "Why?", "evidence": [{"uri": "a", "span": [2, 2]}]}, "evidence.0.0", "span must be"),
        ({"question": "Why?", "evidence": [[]]}, "evidence.0", "at least 1"),
        ({"question": "Why?", "answers": ["x"], "answerable": False}, "answerable", "is not answerable"),
        ({"question": "Why?", "top_k": -1}, "top_k", "greater than or equal"),
    ],
)
def test_what_is_wrong_with_a_row_is_told_with_its_column(row: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"row 7.*{said}") as fault:
        question_of(7, row)
    assert fault.value.field == field
