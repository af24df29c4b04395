"""One page of a PDF: its text as a reader sees it, and apart from that the text that no reader sees.

Most pages are taken as PDFium gives them. Where an object could be out of sight, or letters run from right to left, the
page is read letter by letter.
"""

import ctypes
import re
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import pypdfium2 as pdfium
import pypdfium2.raw as c

_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_INVISIBLE = (c.FPDF_TEXTRENDERMODE_INVISIBLE, c.FPDF_TEXTRENDERMODE_CLIP)
_WHITE = 250  # of 255, in every colour
_TINY = 1.2  # points of a letter's height
_DEPTH = 8  # forms inside forms


class PageText(NamedTuple):
    seen: str
    unseen: str


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.bottom <= y <= self.top


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What is drawn beside text: where, as the how manieth object, and whether it hides what lies under it."""

    box: _Box
    order: int
    opaque_picture: bool


@dataclass(frozen=True, slots=True)
class _Ink:
    """How a text object is drawn. ``order`` is None inside a form, whose place is not its own."""

    invisible: bool
    white: bool
    order: int | None


def page_text(page: pdfium.PdfPage) -> PageText:
    """Raises ``PdfiumError``."""
    letters = page.get_textpage()
    plain = letters.get_text_bounded()
    scene = _Scene(page)
    if not scene.suspicious and not _RIGHT_TO_LEFT.search(plain):
        return PageText(plain, "")
    return _letter_by_letter(letters, scene)


class _Scene:
    """The objects of a page, as far as they decide what of its text is seen."""

    def __init__(self, page: pdfium.PdfPage) -> None:
        self.page = _Box(*page.get_bbox())
        self.inks: dict[int, _Ink] = {}
        self.drawn: list[_Drawn] = []
        self.suspicious = False
        for order, obj in enumerate(page.get_objects(max_depth=1)):
            if obj.type == c.FPDF_PAGEOBJ_TEXT:
                self._text(obj.raw, order)
            elif obj.type == c.FPDF_PAGEOBJ_FORM:
                self.drawn.append(_Drawn(_bounds(obj.raw), order, opaque_picture=False))
                self._form(obj.raw, 1)
            elif obj.type != c.FPDF_PAGEOBJ_PATH or _coloured(obj.raw):
                picture = obj.type == c.FPDF_PAGEOBJ_IMAGE and not c.FPDFPageObj_HasTransparency(obj.raw)
                self.drawn.append(_Drawn(_bounds(obj.raw), order, picture))
                self.suspicious |= picture and bool(self.inks)

    def unseen(self, ink: _Ink | None, box: _Box) -> bool:
        x, y = (box.left + box.right) / 2, (box.bottom + box.top) / 2
        if not self.page.holds(x, y) or 0 < max(box.top - box.bottom, box.right - box.left) < _TINY:
            return True
        if ink is None:
            return False
        if ink.invisible or (ink.white and not any(d.box.holds(x, y) for d in self.drawn)):
            return True
        order = ink.order
        return order is not None and any(d.opaque_picture and d.order > order and d.box.holds(x, y) for d in self.drawn)

    def _form(self, form: Any, depth: int) -> None:
        for i in range(c.FPDFFormObj_CountObjects(form)):
            obj = c.FPDFFormObj_GetObject(form, i)
            kind = c.FPDFPageObj_GetType(obj)
            if kind == c.FPDF_PAGEOBJ_TEXT:
                self._text(obj, None)
            elif kind == c.FPDF_PAGEOBJ_FORM and depth < _DEPTH:
                self._form(obj, depth + 1)

    def _text(self, obj: Any, order: int | None) -> None:
        mode = c.FPDFTextObj_GetTextRenderMode(obj)
        red, green, blue, alpha = (ctypes.c_uint() for _ in range(4))
        filled = c.FPDFPageObj_GetFillColor(obj, red, green, blue, alpha)
        drawn = mode not in (c.FPDF_TEXTRENDERMODE_STROKE, c.FPDF_TEXTRENDERMODE_STROKE_CLIP)
        clear = bool(filled) and drawn and alpha.value == 0
        white = bool(filled) and drawn and min(red.value, green.value, blue.value) >= _WHITE
        ink = self.inks[_address(obj)] = _Ink(mode in _INVISIBLE or clear, white, order)
        self.suspicious |= ink.invisible or white or self._odd_place(obj, order)

    def _odd_place(self, obj: Any, order: int | None) -> bool:
        """Whether its letters want a look: small ones, or some beyond the page's edge. Inside a form, neither is known."""
        box = _bounds(obj)
        if order is None or box.left == box.right:
            return False
        outside = not (self.page.holds(box.left, box.bottom) and self.page.holds(box.right, box.top))
        return outside or box.top - box.bottom < _TINY


def _letter_by_letter(letters: pdfium.PdfTextPage, scene: _Scene) -> PageText:
    found: list[tuple[str, bool, _Box | None]] = []
    unseen = False
    for i in range(letters.count_chars()):
        char = chr(c.FPDFText_GetUnicode(letters, i))
        if c.FPDFText_IsGenerated(letters, i) == 1:
            found.append((char, unseen, None))
            continue
        box = _Box(*letters.get_charbox(i, loose=True))
        obj = c.FPDFText_GetTextObject(letters, i)
        unseen = scene.unseen(scene.inks.get(_address(obj)) if obj else None, box)
        found.append((char, unseen, box))
    parts: dict[bool, list[str]] = {False: [], True: []}
    for hidden, run in groupby(found, key=lambda f: f[1]):
        parts[hidden].append(_turned([(char, box) for char, _, box in run]))
    return PageText(
        *(_whole("\n".join(p.strip("\r\n") for p in parts[h]) if h else "".join(parts[h])) for h in (False, True))
    )


def _turned(run: list[tuple[str, _Box | None]]) -> str:
    """In logical order. PDFium turns what runs from right to left around, letter by letter, and so also the letters of
    one sign (a ligature, a word given as replacement text), which were in order: they share their place."""
    out: list[str] = []
    for box, group in groupby(run, key=lambda letter: letter[1]):
        text = "".join(char for char, _ in group)
        if box is not None and len(text) > 1 and _RIGHT_TO_LEFT.search(text):
            word = text[::-1].strip()
            text = f" {word} " if len(word) < len(text) else word
        out.append(text)
    return "".join(out)


def _whole(text: str) -> str:
    """Halves of signs beyond the 16-bit plane put together."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _bounds(obj: Any) -> _Box:
    sides = [ctypes.c_float() for _ in range(4)]
    if not c.FPDFPageObj_GetBounds(obj, *sides):
        return _Box(0, 0, 0, 0)
    return _Box(*(side.value for side in sides))


def _coloured(path: Any) -> bool:
    """Whether a path fills its inside with something that white shows on."""
    mode, stroke = ctypes.c_int(), ctypes.c_int()
    if not c.FPDFPath_GetDrawMode(path, mode, stroke) or mode.value == c.FPDF_FILLMODE_NONE:
        return False
    red, green, blue, alpha = (ctypes.c_uint() for _ in range(4))
    if not c.FPDFPageObj_GetFillColor(path, red, green, blue, alpha):
        return True
    return alpha.value > 0 and min(red.value, green.value, blue.value) < _WHITE


def _address(obj: Any) -> int:
    return ctypes.cast(obj, ctypes.c_void_p).value or 0
