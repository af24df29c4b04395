"""How parsers of structured files write: text in Markdown's shape, block by block, with whole other documents spliced in."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from assay.errors import ParseFault
from assay.index.parse.parsed import Block, Format, Kind, Parsed, Raw

MOST_CHARS = 50_000_000  # of one file's text
_WIDE = 400  # characters of a header and a row, on average: more is written as one value a line
_BREAK = re.compile(r"\s+")


class Writer:
    """Collects blocks; every block ends with a blank line."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.pages: list[int] = []
        self.notes: list[str] = []
        self._parts: list[str] = []
        self._place = 0

    def block(self, kind: Kind, text: str, level: int = 0, name: str = "", *, hidden: bool = False) -> None:
        """Text without a letter, digit or sign is left out. Raises ``ParseFault`` where the whole becomes too long."""
        if not text.strip():
            return
        last = self.blocks[-1] if self.blocks else None
        start = self._place
        if last is not None and kind == last.kind == "list" and hidden == last.hidden and not self._new_page():
            self._parts[-1] = "\n"  # one list, one block: only a line break between its items
            start, self._place = last.start, self._place - 1
            self.blocks.pop()
        end = self._place + len(text)
        self.blocks.append(Block(kind, start, end, level, name, hidden))
        self._add(text)

    def heading(self, name: str, level: int) -> None:
        line = _BREAK.sub(" ", name).strip()
        if line:
            self.block("heading", f"{'#' * min(level, 6)} {line}", level, line)

    def table(self, rows: Iterable[Sequence[str]], *, hidden: bool = False) -> None:
        """Rows of cells. Where they are too wide for passages of whole rows, each row is a record of ``name: value``."""
        cells = [[_BREAK.sub(" ", cell).strip() for cell in row] for row in rows]
        cells = [row for row in cells if any(row)]
        if not cells:
            return
        if len(cells) > 1 and sum(len(c) + 3 for row in cells for c in row) * 2 > _WIDE * len(cells):
            for row in cells[1:]:
                lines = [f"{name or f'column {i}'}: {c}" for i, (name, c) in enumerate(_named(cells[0], row), 1) if c]
                self.block("record", "\n".join(lines), hidden=hidden)
        else:
            lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
            self.block("table", "\n".join(lines), hidden=hidden)

    def page(self) -> None:
        """A page begins with what comes next."""
        self.pages.append(self._place)

    def splice(self, inner: Parsed, below: int = 0, *, hidden: bool = False) -> None:
        """The whole text of another document, its headings under those of ``below``; its pages are not this file's."""
        if not inner.blocks:
            return
        self.blocks += [
            replace(
                b, start=b.start + self._place, end=b.end + self._place,
                level=b.level + below if b.level else 0, hidden=b.hidden or hidden,
            )
            for b in inner.blocks
        ]  # fmt: skip
        self.notes += inner.notes
        self._add(inner.text)

    def parsed(self, title: str, format: Format, metadata: dict[str, Raw], empty: str) -> Parsed:
        """Raises ``ParseFault`` with the message ``empty`` where nothing was written."""
        if not self.blocks:
            raise ParseFault(empty, "empty")
        end = self.blocks[-1].end
        text = "".join(self._parts)
        text = text[:end] + text[end:].rstrip()
        pages = tuple(min(page, len(text)) for page in self.pages)
        return Parsed(text, title, format, tuple(self.blocks), pages, metadata, tuple(self.notes))

    def _add(self, text: str) -> None:
        self._parts += [text, "\n\n"]
        self._place += len(text) + 2
        if self._place > MOST_CHARS:
            raise ParseFault(f"the file has more than {MOST_CHARS} characters of text", "too_large")

    def _new_page(self) -> bool:
        return bool(self.pages) and self.pages[-1] == self._place


def _named(names: Sequence[str], row: Sequence[str]) -> Iterable[tuple[str, str]]:
    return ((names[i] if i < len(names) else "", cell) for i, cell in enumerate(row))


def told(**properties: Raw | None) -> dict[str, Raw]:
    """The properties that a file does state."""
    return {name: value for name, value in properties.items() if value not in (None, "", [])}


def words(said: str) -> list[str | int | float | bool]:
    """A list of keywords, divided by commas or semicolons."""
    return [word for part in re.split("[,;]", said) if (word := part.strip())]
