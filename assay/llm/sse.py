"""Bytes of a server's event stream -> its data, however they are cut; and text without halves of characters."""

from collections.abc import Iterator

from assay.errors import BadModelOutput

MAX_EVENT_BYTES = 4_000_000


class EventData:
    """Feed it bytes; it gives the data of each event that is complete. Comments and other fields are passed over.

    Lines end with LF, CR LF or CR, as the standard has it, and never at what only Unicode calls the end of a line.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that has no end yet
        self._size = 0
        self._after_cr = False
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Raises ``BadModelOutput`` for an event without an end in sight."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r") if piece else self._after_cr
        *lines, rest = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._line.append(line)
            whole, self._line = b"".join(self._line), []
            if whole:
                self._field(whole)
            else:
                yield from self._event()
        self._line.append(rest)
        self._size += len(piece)
        if self._size > MAX_EVENT_BYTES:
            raise BadModelOutput(f"The endpoint sent more than {MAX_EVENT_BYTES} bytes without an end of an event.")

    def end(self) -> Iterator[bytes]:
        """The last event, of a server that did not write the empty line after it."""
        self._field(b"".join(self._line))
        yield from self._event()

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))

    def _event(self) -> Iterator[bytes]:
        self._size = 0
        if self._data:
            data, self._data = b"\n".join(self._data), []
            yield data


class WholeCharacters:
    """Some servers cut their JSON strings between the two halves of a character beyond U+FFFF; here they meet again."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        text, self._half = self._half + piece, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return _joined(text)

    def end(self) -> str:
        return _joined(self._half)


def _joined(text: str) -> str:
    """Pairs of halves as their character; a half without its other one becomes U+FFFD, for it is not text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
