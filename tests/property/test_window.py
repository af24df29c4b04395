"""A conversation's window over any turns."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from assay.window import Bounds, Size, start_of, windowed
from tests.unit.test_window import WORDS, turn

BOUNDS = Bounds(messages=20, tokens=100)

sizes = st.lists(st.builds(Size, st.integers(1, 8), st.integers(0, 120)), max_size=40)


@given(sizes)
def test_any_turns_stay_within_the_bounds(turns: list[Size]) -> None:
    start = start_of(turns, BOUNDS)
    kept = turns[start:]
    assert len(kept) == min(len(turns), 1) or (
        sum(t.messages for t in kept) <= BOUNDS.messages and sum(t.tokens for t in kept) <= BOUNDS.tokens
    )


@given(sizes)
def test_going_on_from_a_kept_start_is_the_same(turns: list[Size]) -> None:
    """A store keeps the start, and reads no turn before it."""
    start = 0
    for end in range(1, len(turns) + 1):
        start += start_of(turns[start:end], BOUNDS)
    assert start == start_of(turns, BOUNDS)


def test_between_two_cuts_the_window_only_grows_at_its_end() -> None:
    windows = [windowed([turn(n) for n in range(count)], BOUNDS, WORDS) for count in range(100)]
    cuts = [n for n, (old, new) in enumerate(itertools.pairwise(windows)) if new[: len(old)] != old]
    assert cuts == list(range(10, 99, 6))  # ten turns fit, a cut leaves five
