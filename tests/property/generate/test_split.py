from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.generate.split import MOST_CHARS
from assay.markers import read_markers
from tests.unit.generate.test_split import SLOTS, split

MARKS = ["[E1]", "[E2]", "[", "]", "【3】", "[1, 2]", "[[3]]", "[E", "1", "[E9]", ". ", ".", "。", "? ", "..."]


SIGNS = [" ", "\n", "a", "Ab", "|", "- ", '"', "`", "😀", "é", "e\u0301", "👩‍👩‍👧", "東京", "مد", "x" * 70, " " * 70]


PIECES = st.sampled_from(MARKS + SIGNS)


STYLES = st.sampled_from(["prose", "list", "table", "plain"])


@settings(max_examples=120, deadline=None)
@given(style=STYLES, pieces=st.lists(PIECES, max_size=40), times=st.sampled_from([1, 1, 1, 30]), cuts=st.integers(1, 7))
def test_where_the_stream_is_cut_changes_nothing(style: Any, pieces: list[str], times: int, cuts: int) -> None:
    text = "".join(pieces) * times
    whole = split(style, [text])
    assert split(style, [text[i : i + cuts] for i in range(0, len(text), cuts)]) == whole
    for draft in whole:
        assert len(draft.text) <= MOST_CHARS + 100
        assert read_markers(draft.text, SLOTS)[1] == () or "`" in text or "[[" in text  # code is left alone


@settings(max_examples=80, deadline=None)
@given(words=st.lists(st.sampled_from(["Tides", "rise", "潮", "[E1]", "[2]", ".", ".", "?"]), max_size=60))
def test_nothing_but_markers_is_lost(words: list[str]) -> None:
    text = " ".join(words)
    kept = "".join(draft.text for draft in split("prose", list(text)))
    assert kept.replace(" ", "") == read_markers(text, SLOTS)[0].replace(" ", "")
