"""Quotations in what a model writes: what stands between two marks that belong together.

Marks that look alike at both ends open nothing behind a letter or a digit (``5" pipe``), and close nothing before one. Where
words have no spaces between them, marks stand between letters.
"""

import re
from itertools import chain

from assay.sentences import Span
from assay.text import UNSPACED

MOST = 2_000  # characters, as many as a unit of an answer has
_WORD = rf"[^\W_{UNSPACED}]"
_PAIRS = (
    rf'(?<!{_WORD})"([^"]{{1,{MOST}}})"(?!{_WORD})',
    rf'„([^„“”"]{{1,{MOST}}})[“”"]',
    rf"“([^„“”]{{1,{MOST}}})”",
    rf'“([^„“”"]{{1,{MOST}}})"(?!{_WORD})',
    rf"(?<!{_WORD})”(?=\S)([^„“”]{{1,{MOST}}})(?<=\S)”(?!{_WORD})",
    rf"«([^«»]{{1,{MOST}}})»",
    rf"»([^«»]{{1,{MOST}}})«",
    rf"(?<!{_WORD})»(?=\S)([^«»]{{1,{MOST}}})(?<=\S)»(?!{_WORD})",
    rf"‹([^‹›]{{1,{MOST}}})›",
    rf"›([^‹›]{{1,{MOST}}})‹",
    rf"「([^「」]{{1,{MOST}}})」",
    rf"『([^『』]{{1,{MOST}}})』",
    rf"(?<!{_WORD})‘(?=[^\s\d])([^‘’]{{1,{MOST}}})’(?!{_WORD})",
    rf"＂([^＂]{{1,{MOST}}})＂",
    rf"〝([^〝〞〟]{{1,{MOST}}})[〞〟]",
)
_CLOSED = re.compile("|".join(_PAIRS))
# Where a citation cut a quotation in two, each part has one of its marks.
_OPENED = re.compile(rf'[„“「『]([^„“”"「」『』]{{1,{MOST}}})\Z')
_ENDED = re.compile(rf'\A([^„“”"「」『』]{{1,{MOST}}})[」』]')


def quotations(text: str) -> list[str]:
    """What stands between marks; and behind one that is not closed, or before one that was not opened."""
    closed = list(_CLOSED.finditer(text))
    before = text[: closed[0].start()] if closed else text
    behind = text[closed[-1].end() :] if closed else text
    found = chain(closed, _ENDED.finditer(before), _OPENED.finditer(behind))
    return [next(filter(None, each.groups())) for each in found]


def quotation_spans(text: str) -> list[Span]:
    """Where those stand that are closed, with their marks."""
    return [found.span() for found in _CLOSED.finditer(text)]
