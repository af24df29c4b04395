from hypothesis import given
from hypothesis import strategies as st

from assay.llm.sse import WholeCharacters
from tests.unit.llm.test_sse import EVENTS, STREAM, read


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_the_cuts_change_nothing(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert read(*(STREAM[a:b] for a, b in zip(places, places[1:], strict=False))) == EVENTS


@given(st.text(st.characters(exclude_categories=())), st.lists(st.integers(0, 40), max_size=6))
def test_halves_meet_again(text: str, cuts: list[int]) -> None:
    """Whatever a JSON string may hold, lone halves included, cut at UTF-16 units: what comes out is text, and what was text
    comes out as it was."""
    units = text.encode("utf-16-le", "surrogatepass")
    places = [0, *sorted(min(2 * cut, len(units)) for cut in cuts), len(units)]
    whole = WholeCharacters()
    parts = [
        whole.feed(units[a:b].decode("utf-16-le", "surrogatepass")) for a, b in zip(places, places[1:], strict=False)
    ]
    joined = "".join(parts) + whole.end()
    joined.encode()
    assert joined == units.decode("utf-16-le", "replace")
