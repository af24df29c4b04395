"""Documents to passages, by structure, with a budget in the embedder's own tokens."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray

from assay.index.parse.parsed import Format, Kind, Parsed
from assay.sentences import sentences

# MiniLM reads 256 tokens: the passage, and before it its title and headings.
BUDGET = 180
CHARS = 4_000  # to WordPiece any word of more than 100 characters is one token
CHUNKER = 2  # raise it when the parsers or the chunker read a file otherwise: it is part of the content hash
_PREFIX = 64  # tokens of title and headings, counted without the tokenizer: signs, and up to five letters
_TOKEN = re.compile(r"[^\W\x00-\u024f]|\w{1,5}|[^\w\s]")
_SMALL = 60  # sections with less than this join a neighbour under the same heading
_HEADER_CHARS = 200
_APART: frozenset[Format] = frozenset(["xlsx", "pptx", "epub", "eml", "msg", "json"])  # top headings are things to cite
_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True)
class Passage:
    """Characters [start, end) of the document's text, the headings above them, and the page (from 1) they begin on.

    The later passages of a table that did not fit have its header row as their last heading. ``hidden`` as of ``Block``."""

    start: int
    end: int
    heading: tuple[str, ...] = ()
    page: int | None = None
    hidden: bool = False


_Path = tuple[tuple[int, str], ...]
_Splitter = Callable[[str, int, int], list[int]]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A passage in the making. ``top`` is where its own heading line begins, so that a merged passage can take it in;
    ``header`` is the header row of a table whose first rows are elsewhere."""

    start: int
    end: int
    top: int
    path: _Path
    page: int
    kind: Kind
    hidden: bool
    header: str = ""


def chunk(parsed: Parsed, token_starts: NDArray[np.int64], budget: int = BUDGET) -> list[Passage]:
    """Disjoint passages in order, none empty, none with outer whitespace, none above ``budget`` tokens or ``CHARS``.

    Sections are divided between blocks, then sentences, then lines, then tokens; tables and code stay whole where they
    fit, and are divided between their lines first. A record is on its own. No passage crosses a page, or holds both
    hidden and other text. ``token_starts`` as of ``Encoder.token_starts`` for ``parsed.text``.
    """
    starts = token_starts.tolist()
    packed = [piece for section in _sections(parsed) for piece in _pack(section, parsed.text, starts, budget)]
    return [
        Passage(p.start, p.end, _names(p), p.page + 1 if parsed.pages else None, p.hidden)
        for p in _merge(packed, starts, budget, apart=parsed.format in _APART)
    ]


def _names(piece: _Piece) -> tuple[str, ...]:
    return (*(name for _, name in piece.path), *([piece.header] if piece.header else []))


def passage_text(title: str, heading: Sequence[str], text: str) -> str:
    """What both legs index: the passage under its title and headings, which it often does not repeat."""
    names = [title, *(name for name in heading if name != title)]
    prefix = " > ".join(filter(None, names))
    for count, token in enumerate(_TOKEN.finditer(prefix)):
        if count == _PREFIX:
            prefix = prefix[: token.start()].rstrip(" >")
            break
    return f"{prefix}\n{text}"


def _sections(parsed: Parsed) -> Iterator[list[_Piece]]:
    """The blocks under one heading on one page. A document of headings alone is taken for text, and so is a hidden
    heading: nothing visible stands under it."""
    content = any(b.kind != "heading" for b in parsed.blocks)
    blocks = [
        replace(b, kind="text") if b.kind == "heading" and (b.hidden or not content) else b for b in parsed.blocks
    ]
    path: _Path = ()
    top: int | None = None
    section: list[_Piece] = []
    for block in blocks:
        page = max(0, bisect_right(parsed.pages, block.start) - 1)
        if section and (
            block.kind in ("heading", "record")
            or (section[-1].page, section[-1].hidden) != (page, block.hidden)
            or section[-1].kind == "record"
        ):
            yield section
            section = []
        if block.kind == "heading":
            path = (*(above for above in path if above[0] < block.level), (block.level, block.name))
            top = block.start if top is None else top
        else:
            begin = block.start if top is None else top
            section.append(_Piece(block.start, block.end, begin, path, page, block.kind, block.hidden))
            top = None
    if section:
        yield section


def _pack(section: list[_Piece], text: str, starts: list[int], budget: int) -> Iterator[_Piece]:
    """Blocks, or parts of large ones, put together up to an even share of the section."""
    parts = [part for piece in section for part in _parts(piece, text, starts, budget)]
    total = _count(starts, section[0].start, section[-1].end)
    share = min(budget, 1.15 * total / max(1, ceil(total / budget)))
    current = parts[0]
    for part in parts[1:]:
        joined = _count(starts, current.start, part.end)
        short = part.end - current.start <= CHARS
        if short and (joined <= share or (joined <= budget and _count(starts, part.start, part.end) < _SMALL / 4)):
            current = replace(current, end=part.end)
        else:
            yield current
            current = replace(part, top=part.start)
    yield current


def _parts(piece: _Piece, text: str, starts: list[int], budget: int) -> Iterator[_Piece]:
    splitters = _BY_LINES if piece.kind in ("table", "code", "record") else _BY_SENTENCES
    header = ""
    for start, end in _divide(text, piece.start, piece.end, starts, budget, splitters):
        yield replace(piece, start=start, end=end, header=header)
        if piece.kind == "table" and not header:
            header = _header(text[piece.start : min(piece.end, piece.start + CHARS)])


def _header(table: str) -> str:
    """A table's first row as text, empty where it has values and no names."""
    row = next((line for line in table.splitlines() if line.startswith("|")), "")
    cells = [" ".join(cell.split()) for cell in _CELLS.split(row.strip().strip("|"))]
    named = sum(any(c.isalpha() for c in cell) for cell in cells)
    return " | ".join(cells)[:_HEADER_CHARS].strip(" |") if 2 * named > len(cells) else ""


def _divide(
    text: str, start: int, end: int, starts: list[int], budget: int, splitters: Sequence[_Splitter]
) -> Iterator[tuple[int, int]]:
    """Spans of at most ``budget`` tokens and ``CHARS``: the whole, or what the splitters make of it one after the other,
    or runs of tokens."""
    start, end = _trim(text, start, end)
    if start == end:
        return
    if end - start <= CHARS and _count(starts, start, end) <= budget:
        yield start, end
    elif not splitters:
        yield from _cut(text, start, end, starts, budget)
    else:
        for left, right in pairwise([start, *splitters[0](text, start, end), end]):
            yield from _divide(text, left, right, starts, budget, splitters[1:])


def _sentence_edges(text: str, start: int, end: int) -> list[int]:
    """Where the second and later sentences begin, with the list or quote marker before them."""
    return [start + a - _marker(text, start, start + a) for a, _ in sentences(text[start:end])[1:]]


def _line_edges(text: str, start: int, end: int) -> list[int]:
    edges, place = [], start
    for line in text[start:end].splitlines(keepends=True):
        place += len(line)
        edges.append(place)
    return edges[:-1]


_BY_SENTENCES: Sequence[_Splitter] = (_sentence_edges, _line_edges)
_BY_LINES: Sequence[_Splitter] = (_line_edges, _sentence_edges)


def _cut(text: str, start: int, end: int, starts: list[int], budget: int) -> Iterator[tuple[int, int]]:
    """Runs of at most ``budget`` tokens and ``CHARS``, cut at a blank where there is one near the end."""
    first, last = bisect_left(starts, start), bisect_left(starts, end)
    while last - first > budget or end - start > CHARS:
        edge = min(starts[first + budget] if last - first > budget else end, start + CHARS)
        blank = text.rfind(" ", (start + edge) // 2, edge)
        edge = blank + 1 if blank >= 0 else edge
        if edge > start:  # tokens of one character (bytes of an emoji) may share their place
            yield from _divide(text, start, edge, starts, max(budget, _count(starts, start, edge)), ())
        start, first = edge, bisect_left(starts, edge) if edge > start else first + 1
    yield from _divide(text, start, end, starts, max(budget, last - first), ())


def _merge(pieces: list[_Piece], starts: list[int], budget: int, *, apart: bool) -> Iterator[_Piece]:
    """Small neighbours become one passage under the headings that they share; their own heading lines are inside it.
    ``apart``: only where they do share one, as sheets and chapters do not."""
    current: _Piece | None = None
    for piece in pieces:
        shared = _shared(current.path, piece.path) if current is not None else ()
        if current is not None and (shared or not apart) and _mergeable(current, piece, starts, budget):
            begin = current.start if current.path == shared else current.top
            current = replace(current, start=begin, end=piece.end, path=shared)
            continue
        if current is not None:
            yield current
        current = piece
    if current is not None:
        yield current


def _mergeable(a: _Piece, b: _Piece, starts: list[int], budget: int) -> bool:
    if (a.page, a.hidden) != (b.page, b.hidden) or a.path == b.path or "record" in (a.kind, b.kind):
        return False
    near = len(_shared(a.path, b.path)) >= len(b.path) - 1
    small = min(_count(starts, a.start, a.end), _count(starts, b.start, b.end)) < _SMALL
    return near and small and b.end - a.top <= CHARS and _count(starts, a.top, b.end) <= budget


def _shared(a: _Path, b: _Path) -> _Path:
    """The headings that both stand under."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:same]


def _count(starts: list[int], start: int, end: int) -> int:
    return bisect_left(starts, end) - bisect_left(starts, start)


def _marker(text: str, floor: int, place: int) -> int:
    """How many characters before ``place`` on its line belong to it: a list marker, a quote mark, an indent."""
    floor = max(floor, place - 13)
    line = max(text.rfind("\n", floor, place) + 1, floor)
    return place - line if place - line <= 12 and not any(c.isalpha() for c in text[line:place]) else 0


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while end > start and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return start, end
