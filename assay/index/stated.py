"""Whether a value stands in a text, in one of the ways in which people write it."""

import re
from collections.abc import Callable
from datetime import date

from assay.schemas import FieldType
from assay.text import normalise

_NUMBER = re.compile(r"(?<![\w.,])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\d)")
_MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip


class Statements:
    """A text that is asked for values. A text stands there word for word, but for case and spaces; a number as a number of its
    own, thousands commas or not; a date (ISO 8601) in figures in any order of its parts, or with the month's English name."""

    def __init__(self, text: str) -> None:
        self._text = _plain(text)

    def have(self, value: str | float | bool, kind: FieldType) -> bool:
        """True for what cannot be looked up, a boolean or a list."""
        checks: dict[FieldType, Callable[[str], bool]] = {
            "text": self._words,
            "number": self._number,
            "date": self._date,
        }
        return kind not in checks or checks[kind](str(value))

    def _words(self, value: str) -> bool:
        wanted = _plain(value)
        # A word's edge is one where words are divided by spaces: "art" does not stand in "party", 東京 does in 東京は.
        start = r"(?<!\w)" if wanted[:1].isalnum() and wanted[0] < "\u2e80" else ""
        end = r"(?!\w)" if wanted[-1:].isalnum() and wanted[-1] < "\u2e80" else ""
        return bool(wanted) and re.search(start + re.escape(wanted) + end, self._text) is not None

    def _number(self, value: str) -> bool:
        wanted = float(value)
        return any(float(found.group().replace(",", "")) == wanted for found in _NUMBER.finditer(self._text))

    def _date(self, value: str) -> bool:
        try:
            moment = date.fromisoformat(value)
        except ValueError:
            return False
        year, month, day = rf"(?:{moment.year}|'?{moment.year % 100:02})", f"0?{moment.month}", f"0?{moment.day}"
        whole, name = str(moment.year), _MONTHS[moment.month - 1]
        named = rf"(?:{name}|{name[:3]}\.?|{name[:4]}\.)"
        nth = rf"{day}(?:st|nd|rd|th)?"
        ways = (
            rf"{whole}[-/.]{month}[-/.]{day}",
            rf"{month}[-/.]{day}[-/.]{year}",
            rf"{day}[-/.] ?{month}[-/.] ?{year}",
            rf"{named} {nth},? (?:of )?{whole}",
            rf"{nth}(?: day)?(?: of)?[ -]{named},?[ -]{whole}",
            rf"{whole}年 ?{month}月 ?{day}日",
        )
        return re.search(rf"(?<!\d)(?:{'|'.join(ways)})(?!\d)", self._text) is not None


def _plain(text: str) -> str:
    return " ".join(normalise(text).split())
