"""A server's bytes are the same events wherever they are cut, and text has no halves of characters."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import BadModelOutput
from assay.llm import sse
from assay.llm.sse import EventData, WholeCharacters

STREAM = (
    b": hello\n\ndata: one\n\nevent: x\ndata:two\r\ndata: lines\r\n\r\n\r\n"
    + 'data: {"a": "é\u2028\u0085😀"}\r\rid: 7\n\ndata: [DONE]'.encode()
)
EVENTS = [b"one", b"two\nlines", '{"a": "é\u2028\u0085😀"}'.encode(), b"[DONE]"]


def read(*pieces: bytes) -> list[bytes]:
    data = EventData()
    return [event for piece in pieces for event in data.feed(piece)] + list(data.end())


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_the_cuts_change_nothing(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert read(*(STREAM[a:b] for a, b in zip(places, places[1:], strict=False))) == EVENTS


def test_byte_by_byte() -> None:
    assert read(*(bytes([byte]) for byte in STREAM)) == EVENTS


def test_an_event_without_an_end_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    data = EventData()
    with pytest.raises(BadModelOutput, match="without an end"):
        list(chain.from_iterable(map(data.feed, [b"data: aaaa"] * 20)))
    assert len(read(*[b"data: 1\n\n"] * 100)) == 100  # many events are not one


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
