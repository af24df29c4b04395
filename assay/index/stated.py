"""Whether a value stands in a text, in one of the ways in which people write it."""

import re
from collections.abc import Callable
from datetime import date

from assay.schemas import FieldType
from assay.text import normalise

_NUMBER = re.compile(r"(?<![\w.,])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\d])")
_MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip


def stated(value: str | float | bool, kind: FieldType, text: str) -> bool:
    """A text: word for word, but for case and spaces. A number: as a number of its own, thousands commas or not. A date (ISO
    8601): in figures in any order of its parts, or with the month's English name."""
    checks: dict[FieldType, Callable[[str, str], bool]] = {"text": _text, "number": _number, "date": _date}
    return kind not in checks or checks[kind](str(value), _plain(text))


def _plain(text: str) -> str:
    return " ".join(normalise(text).split())


def _text(value: str, text: str) -> bool:
    wanted = _plain(value)
    # A word's edge is one where words are divided by spaces: "art" does not stand in "party", 東京 does in 東京は.
    start = r"(?<!\w)" if wanted[:1].isalnum() and wanted[0] < "\u2e80" else ""
    end = r"(?!\w)" if wanted[-1:].isalnum() and wanted[-1] < "\u2e80" else ""
    return bool(wanted) and re.search(start + re.escape(wanted) + end, text) is not None


def _number(value: str, text: str) -> bool:
    wanted = float(value)
    return any(float(found.group().replace(",", "")) == wanted for found in _NUMBER.finditer(text))


def _date(value: str, text: str) -> bool:
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
    return re.search(rf"(?<!\d)(?:{'|'.join(ways)})(?!\d)", text) is not None
