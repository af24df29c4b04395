"""A server's bytes are the same events wherever they are cut, and text has no halves of characters."""

from itertools import chain

import pytest

from assay.errors import BadModelOutput
from assay.llm import sse
from assay.llm.sse import EventData

STREAM = (
    b": hello\n\ndata: one\n\nevent: x\ndata:two\r\ndata: lines\r\n\r\n\r\n"
    + 'data: {"a": "é\u2028\u0085😀"}\r\rid: 7\n\ndata: [DONE]'.encode()
)
EVENTS = [b"one", b"two\nlines", '{"a": "é\u2028\u0085😀"}'.encode(), b"[DONE]"]


def read(*pieces: bytes) -> list[bytes]:
    data = EventData()
    return [event for piece in pieces for event in data.feed(piece)] + list(data.end())


def test_byte_by_byte() -> None:
    assert read(*(bytes([byte]) for byte in STREAM)) == EVENTS


def test_an_event_without_an_end_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    data = EventData()
    with pytest.raises(BadModelOutput, match="without an end"):
        list(chain.from_iterable(map(data.feed, [b"data: aaaa"] * 20)))
    assert len(read(*[b"data: 1\n\n"] * 100)) == 100  # many events are not one
