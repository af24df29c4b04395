import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.llm.reasoning import ThinkSplitter
from tests.unit.llm.test_reasoning import parted

PIECE = st.sampled_from(
    ["<think>", "</think>", "<think", "</", "<", ">", "think>", "`", "```\n", "\n", " ", "a", "é😀", "{}"]
)


TEXT = st.lists(PIECE, max_size=14).map("".join)


@given(TEXT, st.lists(st.integers(0, 60), max_size=8), st.sampled_from([True, False, None]), st.booleans())
def test_the_cuts_change_nothing(text: str, cuts: list[int], opened: bool | None, whole: bool) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in zip(places, places[1:], strict=False)]
    assert parted(*pieces, opened=opened, whole=whole) == parted(text, opened=opened, whole=whole)


@given(TEXT, st.sampled_from([True, False, None]))
def test_nothing_is_made_up(text: str, opened: bool | None) -> None:
    """What comes out stands in the text, answer last; only tags and the space around them may be gone."""
    answer, reasoning = parted(text, opened=opened)
    assert text.endswith(answer) or not answer
    rest = text.removesuffix(answer)
    assert "".join(reasoning.replace("<think>", "").replace("</think>", "").split()) == "".join(
        rest.replace("<think>", "").replace("</think>", "").split()
    )


@given(TEXT)
def test_a_stream_gives_what_it_can(text: str) -> None:
    """Nothing that is known is held back: at most a tag's beginning, or space."""
    splitter = ThinkSplitter(opened=True)
    fed = list(map(splitter.feed, text))
    last = splitter.end()
    assert len(last.reasoning) < len("</think>") and len(last.text) < len("</think>")
    assert len(fed) == len(text)


@pytest.mark.parametrize("hostile", ["<", "<think>", "</think>", "<think", "`<think>", " ", "</thin<"])
@pytest.mark.parametrize("opened", [True, False, None])
def test_work_per_piece_is_bounded(hostile: str, opened: bool | None) -> None:
    """What a piece is read together with, again for each piece, is shorter than a tag: so the whole is linear."""
    splitter = ThinkSplitter(opened)
    for piece in hostile * 300:
        splitter.feed(piece)
        assert len(splitter._last + splitter._rest) <= len("</think>")
