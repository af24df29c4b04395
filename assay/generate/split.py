"""Cuts what a model writes into finished units as it comes: sentences, list items, table rows.

No unit ends within a citation or a character, however the stream was cut; and none is longer than ``MOST_CHARS``, so that the
whole is read in linear time whatever is written.
"""

import re
import unicodedata
from collections.abc import Sequence

from assay.generate.grammar import finds_nothing
from assay.markers import read_markers
from assay.quotations import quotation_spans
from assay.schemas import Degraded
from assay.sentences import Span, sentences
from assay.types import Draft, Form, GenerateEvent, GenerateStyle

MOST_CHARS = 2_000
_WIDE_STOP, _CLOSING = "。！？｡।॥؟۔", "\"'”’»)」"
_STOP = ".!?…" + _WIDE_STOP
_AHEAD = 64  # characters that may have to be seen after a citation before it is known whether its sentence ends
# The citations at the end of a text: what stands before them says whether a sentence had ended.
_MARKED = re.compile(r"(?:\s*+[\[【]{1,2}[^\[\]【】\n]{1,100}[\]】]{1,2})++\s*+\Z")
_BULLET = re.compile(r"\s*+(?:[-*+•]|\d{1,3}[.)])\s++")
_RULE = re.compile(r"[\s:|]*+-[\s:|-]*+")
_JOINED = "\u200d\ufe0e\ufe0f"


class Splitter:
    """``feed`` and ``end`` give the units that are finished, without their markers and with the slots that these name."""

    def __init__(self, style: GenerateStyle, slots: Sequence[str]) -> None:
        self._style, self._slots = style, slots
        self._rest = ""
        self._seen = 0  # nothing before it ends a unit
        self._columns = 0
        self._dropped = 0

    def feed(self, text: str) -> list[Draft]:
        drafts: list[Draft] = []
        for start in range(0, len(text), MOST_CHARS):
            self._rest += text[start : start + MOST_CHARS]
            while cut := self._next():
                drafts += self._drafts(self._rest[:cut])
                self._rest, self._seen = self._rest[cut:], 0
        return drafts

    def end(self) -> list[Draft]:
        """What is left when the model has finished; text that was cut off is not asked for."""
        rest, self._rest, self._seen = self._rest, "", 0
        return self._drafts(rest)

    def faults(self) -> list[GenerateEvent]:
        """What is wrong with all that was read: markers that name no slot, of which no draft has a trace."""
        if not self._dropped:
            return []
        named = "1 citation names" if self._dropped == 1 else f"{self._dropped} citations name"
        reason = f"{named} no passage that the model was shown"
        return [GenerateEvent(degraded=Degraded(stage="generator", reason=reason, fallback="left out"))]

    @property
    def rest(self) -> str:
        return self._rest

    # ---- where a unit ends ------------------------------------------------------------------------------------------

    def _next(self) -> int:
        """Where the next unit ends; 0 where none has yet."""
        cut = self._ended()
        if 0 < cut <= MOST_CHARS:
            return cut
        # By now every end before the bound is known, however the stream was cut.
        return _safe_cut(self._rest) if len(self._rest) > MOST_CHARS + _AHEAD else 0

    def _ended(self) -> int:
        if self._style != "prose":
            seen, self._seen = self._seen, len(self._rest)
            return self._rest.find("\n", seen) + 1
        for at in [self._seen + found.end() for found in re.finditer(r"[\]】]", self._rest[self._seen :])]:
            if (end := self._after(at)) is None:
                self._seen = at - 1
                return 0
            if end:
                return end
        self._seen = len(self._rest)
        return 0

    def _after(self, at: int) -> int | None:
        """Where the sentence ends that the citation closed at ``at`` belongs to: 0 where it goes on, None where that is not
        known yet.

        The full stop stands after the citations or before them, and more citations may follow."""
        after = self._rest[at : at + _AHEAD]
        if after[:1] and after[0] in _WIDE_STOP:
            return at + 1
        unknown = None if len(after) < _AHEAD else 0
        if stops := len(after) - len(after.lstrip(_STOP)):
            return unknown if len(after) == stops else 0 if after[stops].isdigit() else at + stops
        following = after.lstrip()
        if not following:
            return unknown
        if following[0] in "[【":
            return 0
        before = _MARKED.sub("", self._rest[max(0, at - 400) : at]).rstrip(_CLOSING)
        ended = before[-1:] and before[-1] in _STOP
        return at if ended or "\n" in after[: len(after) - len(following)] else 0

    # ---- what it holds ----------------------------------------------------------------------------------------------

    def _drafts(self, raw: str) -> list[Draft]:
        """Without what says that there is no answer: no passage can bear it."""
        return [draft for draft in self._units(raw) if not finds_nothing(draft.text)]

    def _units(self, raw: str) -> list[Draft]:
        text, cited, unknown = read_markers(raw, self._slots)
        self._dropped += unknown
        if not text:
            return []
        if self._style == "list":
            return [Draft(_BULLET.sub("", text, count=1), cited, form="item")]
        if self._style == "table":
            return self._row(text, cited)
        if self._style == "plain":
            return [Draft(text, ())]
        # One citation may stand for several sentences: each of them is verified by itself.
        return [Draft(text[start:end], cited) for start, end in _whole_quotes(text, sentences(text))]

    def _row(self, text: str, cited: tuple[str, ...]) -> list[Draft]:
        """A row with as many cells as the first one, which is the header; what is no row is left out."""
        if "|" not in text or _RULE.fullmatch(text):
            return []
        cells = [" ".join(cell.split()) for cell in text.strip().strip("|").split("|")]
        form: Form = "row" if self._columns else "header"
        while cells and not cells[-1]:
            cells.pop()  # the column of citations
        if not cells:
            return []
        if form == "header":
            cells = cells[:-1] if len(cells) > 1 and cells[-1].lower() in ("source", "sources", "citation") else cells
            self._columns = len(cells)
        cells = [*cells, *[""] * self._columns][: self._columns]
        return [Draft(f"| {' | '.join(cells)} |", cited if form == "row" else (), form=form)]


def _safe_cut(text: str) -> int:
    """A place near ``MOST_CHARS`` that is in no citation and no character that several signs make up."""
    cut = text.rfind(" ", MOST_CHARS // 2, MOST_CHARS) + 1 or MOST_CHARS
    opened = max(text.rfind("[", 0, cut), text.rfind("【", 0, cut))
    if opened > cut - 400 and opened > max(text.rfind("]", 0, cut), text.rfind("】", 0, cut)):
        cut = opened or cut
    while 0 < cut < len(text) and (
        unicodedata.combining(text[cut]) or text[cut] in _JOINED or text[cut - 1] == _JOINED[0]
    ):
        cut -= 1
    return cut or MOST_CHARS


def _whole_quotes(text: str, spans: Sequence[Span]) -> list[Span]:
    """The sentences of one quotation are one: cut in two, neither half is a quote, whose words are held to the passage."""
    whole: list[Span] = []
    quoted = quotation_spans(text) if len(spans) > 1 else []
    for start, end in spans:
        goes_on = whole and any(first < whole[-1][1] and start < last for first, last in quoted)
        whole.append((whole.pop()[0] if goes_on else start, end))
    return whole
