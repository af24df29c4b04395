"""Reads the citations that a model writes, in every form that models have, in one pass over the text."""

import re
from collections.abc import Sequence

# [E1], [1], [1, 2], [E1-E3], [[3]], [ 4 ] and the full-width brackets that some models write; code is left alone. Every repeat
# is bounded or possessive, so that no text takes more than one pass.
_FOUND = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`"
    r"|[\[【]{1,2}+\s{0,3}+(?P<cited>E?\d{1,4}(?:\s{0,3}+[,;–-]\s{0,3}+E?\d{1,4}){0,63})\s{0,3}+[\]】]{1,2}+",
    re.DOTALL | re.IGNORECASE,
)
_MOST_OF_A_RANGE = 50
_YEARS = 1000  # from here on it may be one: "the law of [2019]"


def read_markers(text: str, slots: Sequence[str]) -> tuple[str, tuple[str, ...], int]:
    """The text without its citation markers, the slots they name in order, and how many named no slot.

    Lists and ranges are read; markers inside code are left alone.
    """
    known = set(slots)
    cited: dict[str, None] = {}
    pieces: list[str] = []
    unknown, last = 0, 0
    for found in _FOUND.finditer(text):
        if (body := found["cited"]) is None:
            continue
        for number in _numbers(body):
            if (slot := f"E{number}") in known:
                cited[slot] = None
            elif number < _YEARS:
                unknown += 1
        pieces.append(text[last : found.start()].rstrip(" \t"))
        last = found.end()
    pieces.append(text[last:])
    return "".join(pieces).strip(), tuple(cited), unknown


def _numbers(body: str) -> list[int]:
    found: list[int] = []
    for part in re.split("[,;]", body):
        ends = [int(n) for n in re.findall(r"\d+", part)]
        found += range(ends[0], min(ends[-1], ends[0] + _MOST_OF_A_RANGE) + 1) if len(ends) == 2 else ends
    return found
