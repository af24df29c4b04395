import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.context import between, comments, window


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


LINES = st.lists(
    st.sampled_from(
        ["One.", "Two is here.", "", "<!-- c -->", "<!--", "-->", "c -->", "```", "````", "~~~", "    <!-- c -->"]
    ),
    max_size=14,
)


@given(
    LINES,
    st.integers(0, 99),
    st.integers(1, 99),
    st.integers(0, 99),
    st.integers(0, 99),
    st.sampled_from(["one", "here"]),
)
def test_what_a_chunk_is_shown_in_has_no_comment_and_some_of_the_chunk(
    lines: list[str], at: int, size: int, before: int, after: int, question: str
) -> None:
    text = "\n".join(["x", *lines])
    first = min(at, len(text) - 1)
    chunk = (first, min(len(text), first + size))
    run = (max(0, chunk[0] - before), min(len(text), chunk[1] + after))
    found = comments(text)
    assert all(
        text[start:end].strip().startswith("<!--") and text[start:end].strip().endswith("-->") for start, end in found
    )
    assert all(a[1] <= b[0] for a, b in pairwise(found))
    stretch, part = between(text, run, chunk, found, question)
    assert run[0] <= stretch[0] <= part[0] < part[1] <= stretch[1] <= run[1]
    assert chunk[0] <= part[0] and part[1] <= chunk[1]
    if (stretch, part) != (run, chunk):
        assert text[slice(*part)].strip()
        assert not any(start < stretch[1] and stretch[0] < end for start, end in found)
    elif any(start < run[1] and run[0] < end for start, end in found):
        inside = set(range(*chunk)) - {place for start, end in found for place in range(start, end)}
        assert all(text[place].isspace() for place in inside), "only a chunk that is all comment is shown with one"


@pytest.mark.parametrize(
    "hostile",
    [
        "<!--",
        "<!--\n",
        "\n<!-- -->",
        "<!-- --> <!--",
        "-->\n<!--",
        "\n" + "`" * 9,
        "`",
        "~",
        " ",
        "\n   ",
        "\n``` `\n",
        "\t\n",
    ],
)
def test_looking_for_comments_takes_linear_time(hostile: str) -> None:
    start = time.process_time()
    comments(hostile * (400_000 // len(hostile)))
    comments("<!--" + hostile * (400_000 // len(hostile)) + "-->")
    assert time.process_time() - start < 2
