"""Whether a text is one: refuses what a wrong encoding, or a font without a Unicode map, has made of it."""

import re

from assay.errors import ParseFault

# Letters that no text has in numbers: undecodable, private use (fonts without a Unicode map), controls, unassigned.
_GARBAGE = re.compile("[\ufffd\ue000-\uf8ff\x00-\x08\x0e-\x1a\x1c-\x1f\x80-\x84\x86-\x9f\ufffe\uffff]|\\(cid:\\d+\\)")
_MOST_GARBAGE = 0.05
# UTF-8 read as Latin-1 or cp1252, written again: an accented capital A before a second odd sign, many times over.
_TWICE = re.compile(
    "[\u00c3\u00c2][\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u2018-\u203a\u20ac\u2122]|\u00e2\u20ac"
)


def check_legible(text: str) -> None:
    """Refuses a text without letters, and one that is garbage or twice-encoded for the most part."""
    seen = len(re.sub(r"\s", "", text))
    if not re.search(r"\w", text):
        raise ParseFault("the file holds no text", "empty")
    if len("".join(_GARBAGE.findall(text))) > _MOST_GARBAGE * seen:
        raise ParseFault("the text is garbage: its characters have no Unicode meaning", "mojibake")
    odd = sum(c > "\x7f" for c in text)
    if odd > 10 and sum(map(len, _TWICE.findall(text))) > 0.5 * odd:
        raise ParseFault("the text was encoded twice (it has 'Ã©' for 'é'); convert it to UTF-8", "mojibake")
