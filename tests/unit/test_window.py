"""A conversation's window: whole turns, within its bounds, and a start that rests between two cuts."""

import pytest

from assay.schemas import Turn
from assay.types import Message
from assay.window import Bounds, recent, shortened, stepped, windowed
from tests.fakes import WordTokenizer

BOUNDS = Bounds(messages=20, tokens=100)
WORDS = WordTokenizer()


def turn(n: int, words: int = 2) -> list[Turn]:
    said = " ".join([f"w{n}"] * words)
    return [Turn(role="user", content=said), Turn(role="assistant", content=said)]


def test_at_most_twenty_messages_and_the_newest_always() -> None:
    for count in range(60):
        kept = windowed([turn(n) for n in range(count)], BOUNDS, WORDS)
        assert len(kept) <= 20
        assert kept[-2:] == (turn(count - 1) if count else [])
        assert [m.role for m in kept] == ["user", "assistant"] * (len(kept) // 2)


def test_tokens_bound_it_too() -> None:
    kept = windowed([turn(n, 20) for n in range(10)], BOUNDS, WORDS)
    assert sum(WORDS.count(m.content) for m in kept) <= 100


def test_a_newest_turn_that_is_too_long_alone_is_shortened() -> None:
    kept = windowed([turn(0), turn(1, 500)], BOUNDS, WORDS)
    assert [WORDS.count(m.content) for m in kept] == [50, 50]


def test_of_a_history_that_is_too_long_the_last_messages_are_left() -> None:
    long = [Message("user", "w " * 90), Message("assistant", "w " * 30)]
    assert recent(long, BOUNDS, WORDS.count) == (long[1],)
    assert recent([], BOUNDS, WORDS.count) == () == recent([Message("user", "w " * 101)], BOUNDS, WORDS.count)
    odd = [Message("assistant", "a"), Message("user", "b"), Message("user", "c")]
    assert recent(odd, BOUNDS, WORDS.count) == tuple(odd)


@pytest.mark.parametrize("turns", [[], [[]]])
def test_nothing_said(turns: list[list[Turn]]) -> None:
    assert windowed(turns, BOUNDS, WORDS) == []


def test_a_bound_goes_in_halves_and_so_rests_while_questions_differ() -> None:
    assert [stepped(1_200, left) for left in (5_000, 1_200, 1_199, 700, 600, 1, 0, -5)] == [
        1200,
        1200,
        600,
        600,
        600,
        1,
        0,
        0,
    ]


def test_a_newest_turn_that_is_too_long_for_a_prompt_is_shortened_there() -> None:
    said = [Message("user", "a b"), Message("assistant", "c"), Message("user", "d e"), Message("assistant", "f " * 90)]
    assert shortened(said, 100, WORDS) == said
    cut = shortened(said, 20, WORDS)
    assert cut[:3] == said[:3] and WORDS.count(cut[3].content) == 10
    assert shortened([], 0, WORDS) == shortened([], -5, WORDS) == []
    assert [m.content for m in shortened(said, -5, WORDS)][2:] == ["", ""]
