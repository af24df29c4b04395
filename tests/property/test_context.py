from hypothesis import given
from hypothesis import strategies as st

from assay.context import window


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
