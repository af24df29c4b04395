"""Whatever the sentences are: a conflict has sides of different documents, word for word, in either order of the evidence."""

import sys
from collections.abc import Callable
from types import FrameType

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.conflicts import find
from assay.types import Evidence, Hit
from assay.values import LOOK_BACK, MOST_NUMBERS, same, values_of
from tests.fakes import chunk

WORDS = st.lists(
    st.sampled_from(
        """The Acme Borealis pump valve engine costs weighs runs 12 14.5 1,200 twelve (30) 2019 3 May 2021 not never days
        kg euros % of in by within about each. and is are a was opened?""".split()
    ),
    min_size=3,
    max_size=14,
).map(" ".join)
QUESTIONS = st.sampled_from(
    [
        "How many days does the pump run?",
        "What does the Acme valve weigh?",
        "When was the engine opened?",
        "Does the pump run?",
        "Who runs the valve?",
        "and?",
    ]
)
FRAMES = st.sampled_from(
    [
        ("How many days is the pump valve kept?", "The pump valve is kept for {} days."),
        ("What does the engine of the ship cost?", "The engine of the ship costs {} euros in all."),
        ("How long must the boiler rest?", "Once it is cold, the boiler must rest for {} hours."),
    ]
)


def evidence(*texts: str) -> list[Evidence]:
    return [Evidence(f"E{n}", Hit(chunk(n, text), 1.0), 1.0, 1) for n, text in enumerate(texts, 1)]


@settings(max_examples=200, deadline=None)
@given(question=QUESTIONS, texts=st.lists(WORDS, min_size=2, max_size=5))
def test_sides_are_verbatim_and_of_different_documents_that_say_different_things(
    question: str, texts: list[str]
) -> None:
    for conflict in find(question, evidence(*texts)):
        assert len(conflict.sides) >= 2
        assert len({side.evidence.hit.chunk.doc_id for side in conflict.sides}) == len(conflict.sides)
        assert len({side.value.casefold() for side in conflict.sides}) == len(conflict.sides)
        for side in conflict.sides:
            assert side.evidence.hit.chunk.text[slice(*side.span)] == side.text


@settings(max_examples=200, deadline=None)
@given(question=QUESTIONS, one=WORDS, other=WORDS)
def test_the_order_of_the_evidence_makes_no_conflict_and_no_peace(question: str, one: str, other: str) -> None:
    there, back = find(question, evidence(one, other)), find(question, evidence(other, one))
    values = [[sorted(side.value for side in conflict.sides) for conflict in found] for found in (there, back)]
    assert sorted(values[0]) == sorted(values[1])
    assert find(question, evidence(one, one)) == ()


@settings(max_examples=100, deadline=None)
@given(frame=FRAMES, one=st.integers(2, 2_000_000), other=st.integers(2, 2_000_000))
def test_another_number_in_one_frame_is_found_and_the_same_in_other_digits_is_not(
    frame: tuple[str, str], one: int, other: int
) -> None:
    question, said = frame
    plain, grouped = (evidence(said.format(one), said.format(write)) for write in (other, f"{one:,}"))
    assert bool(find(question, plain)) == (one != other)
    assert find(question, grouped) == ()


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80))
def test_values_are_their_own(text: str) -> None:
    for value in values_of(text).values:
        assert same(value, value) and value.text


# Letters that a pattern without regard to case takes for others, and that no table of words has: dotless and dotted i, long s,
# the Kelvin sign.
ODD = str.maketrans({"i": "ı", "I": "İ", "s": "ſ", "k": "K"})


@settings(max_examples=150, deadline=None)
@given(WORDS, st.sampled_from(["six", "twenty-six", "sixty-six", "5 million", "six Billion", "thirty (30)", "7"]))
def test_letters_of_another_case_make_no_fault_and_no_other_number(text: str, number: str) -> None:
    values_of(f"{text} {number} {text}".translate(ODD))
    (plain,) = values_of(f"It has {number} tons.").values
    assert {value.key for value in values_of(f"It has {number.translate(ODD)} tons.").values} <= {plain.key}


def steps(work: Callable[[], object]) -> int:
    """How many functions it calls, of Python and of C."""
    count = 0

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["section", "at least", "Acme", "pages", "-", "x"]), st.integers(1, 9), st.integers(1, 400))
def test_what_stands_far_before_a_number_is_not_read(word: str, repeated: int, number: int) -> None:
    before = " ".join([word] * repeated) + " " * LOOK_BACK
    (value,) = values_of(f"{before}{number}").values
    assert (value.unit, value.about) == (frozenset(), "")


@settings(max_examples=30, deadline=None)
@given(
    numbers=st.integers(20, 100), text=st.text("ab -", max_size=20), sign=st.sampled_from(["{}", "${}", "a{}", "{} of"])
)
def test_more_numbers_in_a_sentence_are_no_more_work(numbers: int, text: str, sign: str) -> None:
    question = "How many days does the pump run?"

    def said(count: int, first: int) -> str:
        return f"The pump runs {text} " + " ".join(sign.format(first + n) for n in range(count))

    parsed = values_of(said(numbers, 1))
    assert len(parsed.values) + len(parsed.opaque) <= MOST_NUMBERS
    few, many = (evidence(said(count, 1), said(count, 200)) for count in (numbers, 2 * numbers))
    find(question, few), find(question, many)  # what is kept of texts is then kept
    assert steps(lambda: find(question, many)) <= 3 * steps(lambda: find(question, few))
