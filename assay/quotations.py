"""Quotations in what a model writes: what stands between two marks that belong together.

A mark after a digit or a letter opens nothing (``5" pipe``), and one before them closes nothing.
"""

import re

from assay.sentences import Span

MOST = 2_000  # characters, as many as a unit of an answer has
_ANY = "„“”«»‹›「」『』"
_PAIRS = (
    rf'(?<!\w)"(?=\S)([^"]{{3,{MOST}}})(?<=\S)"(?!\w)',
    rf"„([^{_ANY}]{{3,{MOST}}})[“”]",
    rf"“([^„“”]{{3,{MOST}}})”",
    rf"”([^„“”]{{3,{MOST}}})”",
    rf"«([^«»]{{3,{MOST}}})»",
    rf"»([^«»]{{3,{MOST}}})«",
    rf"‹([^‹›]{{3,{MOST}}})›",
    rf"「([^「」]{{3,{MOST}}})」",
    rf"『([^『』]{{3,{MOST}}})』",
    rf"(?<!\w)‘(?=\S)([^‘’]{{3,{MOST}}})’(?!\w)",
    rf"＂([^＂]{{3,{MOST}}})＂",
    rf"〝([^〝〞〟]{{3,{MOST}}})[〞〟]",
)
_CLOSED = re.compile("|".join(_PAIRS))
# Where a citation cut a quotation in two, each part has one of its marks.
_HALF = re.compile(rf"[„“「『]([^{_ANY}]{{3,{MOST}}})\Z|\A([^{_ANY}]{{3,{MOST}}})[」』]")


def quotations(text: str) -> list[str]:
    """What stands between marks, or behind one that is not closed."""
    return [next(filter(None, found.groups())) for marks in (_CLOSED, _HALF) for found in marks.finditer(text)]


def quotation_spans(text: str) -> list[Span]:
    """Where those stand that are closed, with their marks."""
    return [found.span() for found in _CLOSED.finditer(text)]
