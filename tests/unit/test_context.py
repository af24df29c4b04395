from hypothesis import given
from hypothesis import strategies as st

from assay.context import window

TEXT = "Alpha is first. The pump B-120 moves cold water every day. Omega is the last of all. " * 3


def test_around_the_best_sentence() -> None:
    start, end = window(TEXT, (0, 80), "which pump moves water", 44)
    assert TEXT[start:end] == "The pump B-120 moves cold water every day."


def test_wider_than_the_chunk() -> None:
    chunk = (TEXT.index("Omega"), TEXT.index("all.") + 4)
    start, end = window(TEXT, chunk, "omega", 100)
    assert start < chunk[0] < chunk[1] < end
    assert end - start <= 100
    assert TEXT[start - 1] == TEXT[end] == " "


def test_at_the_edges_the_other_side_has_the_room() -> None:
    assert window(TEXT, (0, 15), "alpha", 10_000) == (0, len(TEXT.rstrip()))
    start, end = window(TEXT, (0, 15), "alpha", 60)
    assert (start, end) == (0, 58)


@given(
    st.text(min_size=1, max_size=200),
    st.integers(0, 199),
    st.integers(1, 200),
    st.text(max_size=20),
    st.integers(0, 300),
)
def test_never_longer_and_always_in_place(text: str, at: int, size: int, question: str, chars: int) -> None:
    first = min(at, len(text) - 1)
    chunk = (first, min(len(text), first + size))
    start, end = window(text, chunk, question, chars)
    assert 0 <= start <= end <= len(text)
    assert end - start <= chars
    if chars < chunk[1] - chunk[0]:
        assert chunk[0] <= start
        assert end <= chunk[1]
