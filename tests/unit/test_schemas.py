"""The shapes' bounds, and that a mistake in a filter is told once."""

import pytest
from pydantic import ValidationError

from assay import schemas as s

PREDICATE = {"field": "year", "op": ">=", "value": 2015}


def errors(value: object) -> list[tuple[str, tuple[int | str, ...]]]:
    with pytest.raises(ValidationError) as caught:
        s.AskRequest.model_validate(value)
    return [(error["type"], error["loc"]) for error in caught.value.errors()]


@pytest.mark.parametrize("question", ["", " ", "\n\t\u2003", "a\x00b", "\ud800", "a" * (s.MAX_QUESTION_CHARS + 1)])
def test_what_is_no_question(question: str) -> None:
    for shape in (s.AskRequest, s.SearchRequest):
        with pytest.raises(ValidationError):
            shape(question=question)


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"top_k": 0}, ("top_k",)),
        ({"top_k": 101}, ("top_k",)),
        ({"budget": {"rounds": 0}}, ("budget", "rounds")),
        ({"budget": {"deadline_s": float("inf")}}, ("budget", "deadline_s")),
        ({"budget": {"deadline_s": float("nan")}}, ("budget", "deadline_s")),
        ({"colour": "red"}, ("colour",)),
        ({"options": {"colour": "red"}}, ("options", "colour")),
        ({"include": ["prompt"]}, ("include", 0)),
        ({"buckets": ["a" * 201]}, ("buckets", 0)),
    ],
)
def test_bounds_and_unknown_keys(change: dict[str, object], loc: tuple[int | str, ...]) -> None:
    assert [where for _, where in errors({"question": "a", **change})] == [loc]


def test_whole_numbers_may_be_written_as_floats() -> None:
    request = s.AskRequest.model_validate({"question": "a", "top_k": 3.0, "budget": {"rounds": 2.0}}, strict=True)
    assert (request.top_k, request.budget.rounds) == (3, 2)
    assert errors({"question": "a", "top_k": 3.5}) == [("int_from_float", ("top_k",))]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, [("filter_kind", ("filters",))]),
        ([], [("filter_kind", ("filters",))]),
        ({"and": []}, [("too_short", ("filters", "And", "and"))]),
        ({"or": [PREDICATE] * 33}, [("too_long", ("filters", "Or", "or"))]),
        ({"and": [PREDICATE, 1]}, [("filter_kind", ("filters", "And", "and", 1))]),
        ({"not": {**PREDICATE, "op": "~"}}, [("literal_error", ("filters", "Not", "not", "Predicate", "op"))]),
        ({**PREDICATE, "value": None}, [("value_error", ("filters", "Predicate", "value"))]),
        ({**PREDICATE, "value": [[1]]}, [("value_error", ("filters", "Predicate", "value"))]),
        ({**PREDICATE, "value": [1, 2**63]}, [("value_error", ("filters", "Predicate", "value"))]),
        ({**PREDICATE, "and": [PREDICATE]}, [("extra_forbidden", ("filters", "And", key)) for key in PREDICATE]),
    ],
)
def test_a_filters_mistake_is_told_once(value: object, expected: list[tuple[str, tuple[int | str, ...]]]) -> None:
    assert errors({"question": "a", "filters": value}) == expected


def test_usage_adds_up() -> None:
    one = s.Usage(llm_calls=1, prompt_tokens=2, cached_tokens=3, completion_tokens=4)
    assert one + one == s.Usage(llm_calls=2, prompt_tokens=4, cached_tokens=6, completion_tokens=8)


def test_a_link_hop_needs_the_dense_leg() -> None:
    assert s.SearchRequest(question="x", legs=["dense", "link"]).legs == ["dense", "link"]
    with pytest.raises(ValidationError, match="needs dense"):
        s.SearchRequest(question="x", legs=["sparse", "link"])
