"""Sentence spans of a passage, aware of Markdown, so that an answer can quote a passage verbatim.

It runs at answer time over text of any kind, so its time is linear: a pattern has one repeat at the most that is neither
possessive nor bounded.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

Span = tuple[int, int]

_FENCE = re.compile(r"[ \t>]*+(`{3,}+|~{3,}+)")
_HEADING = re.compile(r"[ \t]{0,3}#{1,6}[ \t]++")
_RULE = re.compile(
    r"\s*+(?:(?:[-*_=~][ \t]*+){3,}+$|\|?+\s*+:?+-{2,}+:?+\s*+(?:\|\s*+:?+-{2,}+:?+\s*+)*+\|?+\s*+$|:{3,}+|<!--.*-->\s*+$)"
)
_MARKER = re.compile(r"[ \t]*+(?:>[ \t]?+)*+[ \t]*+(?:[-*+•‣◦▪]|\d{1,3}[.)]|[a-zA-Z]\))[ \t]++(?:\[[ xX]\][ \t]++)?")
_QUOTE = re.compile(r"[ \t]*+(?:>[ \t]?+)++")
_ROW = re.compile(r"[ \t]*+\|.*\|[ \t]*+$")
_END = re.compile(r"(?<![.!?…؟۔])[.!?…؟۔]++[\"'”’»)\]*_`]*+(?=\s|$)|[。！？｡।॥]++[」』”’）】》\"']*+")
# A heading in bold at the beginning of its paragraph: part of the sentence that it leads in, and none by itself.
_RUN_IN = re.compile(r"\s*+(\*\*|__)[^*_\n]{1,80}+\1\s*+")
_LOOK_BACK = 24  # the longest abbreviation, with what stands before it
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[\"“‘—–-])(?:[A-Z]|e\.g|i\.e|cf|vs|etc|al|approx|resp|viz|ca|Dr|Mr|Mrs|Ms|Prof|St|Jr|Sr|Gen|Sen|Rep|Gov|Lt|Col|Capt"
    r"|Fig|Figs|Eq|Eqs|Sec|Ch|Vol|pp|p|No|Nos|Art|Ref|Refs|Tab|App|ed|eds|Inc|Ltd|Co|Corp|LLC|Bros"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|Mt|Ave|Blvd|dept|est|min|max|incl|excl|(?:[A-Za-z]\.)+[A-Za-z])\.$"
)
# After one of these an abbreviation may still end the sentence, when what follows plainly starts another.
_MAY_END = re.compile(r"(?:etc|al|Inc|Ltd|Co|Corp|LLC|Jr|Sr|(?:[A-Za-z]\.)+[A-Za-z])\.$")
_STARTER = re.compile(
    r"\s++[\"“‘(]?(?:The|This|That|These|It|In|He|She|They|We|You|A|An|But|If|However|For|As|At|On|When)\s"
)

# One question cuts the same passages several times, and the next one many of them again.
REMEMBERED, REMEMBERED_CHARS = 1_024, 4_000


def sentences(text: str) -> list[Span]:
    """Character spans of the sentences of a passage, in order; ``text[start:end]`` never has outer whitespace.

    Headings, list items, table rows and fenced code blocks are units of their own. Markers of headings and list
    items, rules and table separators are left out.
    """
    return list(_sentences(text) if len(text) <= REMEMBERED_CHARS else _sentences.__wrapped__(text))


@lru_cache(maxsize=REMEMBERED)
def _sentences(text: str) -> tuple[Span, ...]:
    spans: list[Span] = []
    for start, end, whole in _blocks(text):
        spans.extend([(start, end)] if whole else _split(text, start, end))
    trimmed = (_trim(text, span) for span in spans)
    return tuple(span for span in trimmed if span[0] < span[1])


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """Blocks as (start, end, whole): a whole one is a unit as it stands, another is split into sentences."""
    paragraph: Span | None = None
    fence: tuple[str, int] | None = None
    for start, end in _lines(text):
        line = text[start:end]
        if fence is not None:
            if _closes(line, fence[0]):
                yield fence[1], end, True
                fence = None
            continue
        opened = _FENCE.match(line)
        cut = _line_start(line)
        if paragraph is not None and (opened or cut is not None or not line.strip()):
            yield *paragraph, False
            paragraph = None
        if opened:
            fence = (opened.group(1), start + opened.start(1))
        elif cut is not None and cut >= 0:
            if _HEADING.match(line) or _ROW.match(line):
                yield start + cut, end, True
            else:
                paragraph = (start + cut, end)
        elif cut is None and line.strip():
            quote = _QUOTE.match(line)
            first = start + (quote.end() if quote else 0)
            paragraph = (paragraph[0] if paragraph else first, end)
    if paragraph is not None:
        yield *paragraph, False
    if fence is not None:
        yield fence[1], len(text), True


def _line_start(line: str) -> int | None:
    """Where the content of a line that opens a block begins: -1 for a line without any, None for running text."""
    if _RULE.match(line):
        return -1
    if _ROW.match(line):
        return 0
    opened = _HEADING.match(line) or _MARKER.match(line)
    return opened.end() if opened else None


def _closes(line: str, fence: str) -> bool:
    bare = line.strip(" \t>")
    return len(bare) >= len(fence) and set(bare) == {fence[0]}


def _lines(text: str) -> Iterator[Span]:
    start = 0
    for match in re.finditer(r"\r\n|\n|\r|\f|\u2028|\u2029", text):
        yield start, match.start()
        start = match.end()
    if start < len(text):
        yield start, len(text)


def _split(text: str, start: int, end: int) -> Iterator[Span]:
    begin = start
    for match in _END.finditer(text, start, end):
        before = text[max(begin, match.end() - _LOOK_BACK) : match.end()]
        if begin == start and match.end() < end and _RUN_IN.fullmatch(text, start, match.end()):
            continue
        if match.end() >= end or _ends(before, match.group(), text[match.end() : match.end() + 40]):
            yield begin, match.end()
            begin = match.end()
    if begin < end:
        yield begin, end


def _ends(before: str, mark: str, after: str) -> bool:
    """Whether the mark that ``before`` ends with ends a sentence."""
    following = after.lstrip()
    if mark.rstrip("\"'”’»)]*_`")[-1:] not in ".!?…":
        return True
    if following[:1].islower():
        return False
    if _ABBREVIATION.search(before):
        return bool(_MAY_END.search(before) and _STARTER.match(after))
    return True


def _trim(text: str, span: Span) -> Span:
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
