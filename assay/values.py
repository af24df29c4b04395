"""The numbers and dates of a sentence as values that compare, whatever way they are written, and the sentence without them."""

import re
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from assay.text import content_terms, terms
from assay.words import STOP

_NO_UNIT = STOP - {"of"} | {
    "since",
    "until",
    "per",
    "via",
    "plus",
    "minus",
    "although",
    "because",
    "which",
    "who",
    "when",
}

_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = r"(?P<month{0}>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = r"(?P<day{0}>\d{{1,2}})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year{0}>[12]\d{{3}})"
_SMALL = {
    word: n
    for n, word in enumerate(
        """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
        eighteen nineteen twenty""".split()
    )
} | {word: 10 * n for n, word in enumerate("thirty forty fifty sixty seventy eighty ninety".split(), 3)}
_SCALES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "bn": 1e9}
_WORD = rf"(?:{'|'.join(sorted(_SMALL, key=len, reverse=True))})"
# What looks like a number and is a name: versions, ranges, ordinals, dates of digits whose order nobody knows, B-120.
_OPAQUE = r"\d+(?:\.\d+){2,}|\d+(?:[/:–—-]\d+)+|\d+(?:st|nd|rd|th)\b|\d+,\d{1,2}(?!\d)|[^\W\d_][\w.-]*\d[\w.-]*"
_FOUND = re.compile(
    "|".join(
        (
            r"(?P<iso>\b[12]\d{3}-\d{2}-\d{2}(?!\d))",
            rf"\b{_DAY.format(1)}\s+(?:of\s+)?{_MONTH.format(1)},?\s+{_YEAR.format(1)}\b",
            rf"\b{_MONTH.format(2)}\s+{_DAY.format(2)},?\s+{_YEAR.format(2)}\b",
            rf"\b{_MONTH.format(3)}\s+{_YEAR.format(3)}\b",
            rf"(?<=\bin |\bby |\bof )(?:the year )?{_YEAR.format(4)}\b(?![,.]?\d|%)",
            rf"(?<=since |until |after |uring |efore )(?:the year )?{_YEAR.format(5)}\b(?![,.]?\d|%)",
            rf"(?<![\w.])(?P<opaque>{_OPAQUE})",
            r"(?P<currency>[$€£¥]\s?)?(?<![\w.,])(?:"
            r"(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)"
            rf"|(?P<tens>{_WORD})(?:-(?P<ones>{_WORD}))?(?:\s*\(\s*(?P<told>\d+)\s*\))?(?![\w-]*\w))"
            r"(?:\s?(?P<scale>hundred|thousand|million|billion|trillion|bn)\b)?(?P<percent>\s?(?:%|percent\b|per\s?cent\b))?"
            r"(?P<glued>[a-z°]{1,4}\b)?",
        )
    ),
    re.IGNORECASE,
)
_UNITS = {
    "%": "percent",
    "€": "euro",
    "eur": "euro",
    "$": "dollar",
    "usd": "dollar",
    "£": "pound",
    "gbp": "pound",
    "¥": "yen",
    "s": "second",
    "sec": "second",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "ms": "millisecond",
}
# Before a number: part of what it is the number of, never its value.
_LABELS = frozenset(
    """version section chapter figure fig table page step article clause part phase appendix example no number rfc release
    level type stage class grade round season episode volume line option case question note ref""".split()
)
_QUALIFIER = re.compile(
    r"\b(about|around|approximately|roughly|nearly|almost|over|under|(?:more|less|fewer|greater|other) than|at (?:least|most)"
    r"|up to|within|between|only|another|first|last|next|other|additional|every|each)\s*$",
    re.IGNORECASE,
)
_NEXT = re.compile(r"[\s-]*([^\W\d_][\w'’]*)")
_BEFORE = re.compile(r"([^\W\d_][\w-]*)\s*$")

# Of a sentence, so that each is read in bounded time: numbers that are looked at, and characters before one that are.
MOST_NUMBERS, LOOK_BACK = 12, 40

Kind = Literal["number", "date"]


@dataclass(frozen=True, slots=True)
class Value:
    """``key``: of a number its value; of a date (year, month, day) as far as it goes, 0 for what is not said. ``unit``: stems
    of what the number counts, any of which names it. ``about``: what bounds it ("at least")."""

    kind: Kind
    key: float | tuple[int, int, int]
    unit: frozenset[str]
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """``rest``: the text without its values. ``opaque``: numbers that are names."""

    values: tuple[Value, ...]
    rest: str
    opaque: frozenset[str]


def values_of(sentence: str) -> Parsed:
    """Of the sentence's first ``MOST_NUMBERS`` numbers; what comes after them stays in the rest."""
    if not any(map(str.isdigit, sentence)) and _SMALL.keys().isdisjoint(re.split(r"\W+", sentence.casefold())):
        return Parsed((), sentence, frozenset())
    values: list[Value] = []
    opaque: list[str] = []
    rest: list[str] = []
    at = 0
    for found in islice(_FOUND.finditer(sentence), MOST_NUMBERS):
        value = None if found["opaque"] else _value(sentence, found)
        rest.append(sentence[at : found.start()])
        at = found.end()
        if value is not None:
            values.append(value)
        elif found["opaque"] or found["digits"]:
            opaque.append(found.group().casefold())
        else:
            rest.append(found.group())
    rest.append(sentence[at:])
    return Parsed(tuple(values), " ".join(rest), frozenset(opaque))


def same(a: Value, b: Value) -> bool:
    """Whether both may be meant at once: the year alone does not gainsay the day."""
    if a.kind != b.kind:
        return False
    if isinstance(a.key, tuple) and isinstance(b.key, tuple):
        return all(not x or not y or x == y for x, y in zip(a.key, b.key, strict=True))
    return a.key == b.key and (not a.unit or not b.unit or bool(a.unit & b.unit))


def comparable(a: Value, b: Value) -> bool:
    """Whether both say how much of one thing, or when."""
    if a.kind != b.kind or a.about != b.about:
        return False
    return a.kind == "date" or bool(a.unit & b.unit) or not (a.unit or b.unit)


def _value(sentence: str, found: re.Match[str]) -> Value | None:
    about = _before(_QUALIFIER, sentence, found)
    bound = about.group(1).casefold() if about else ""
    if day := _day(found):
        return Value("date", day, frozenset(), bound, found.group())
    amount = _amount(found)
    unit, told = _unit(sentence, found)
    if amount is None or unit is None or (found["tens"] and not unit):
        return None
    if not unit and found["digits"] and len(found["digits"]) == 4 and 1000 <= amount <= 2100:
        return Value("date", (int(amount), 0, 0), unit, bound, found.group())
    text = f"{found.group()}{told}".strip()
    return Value("number", amount, unit, bound, text)


def _before(what: re.Pattern[str], sentence: str, found: re.Match[str]) -> re.Match[str] | None:
    return what.search(sentence, max(0, found.start() - LOOK_BACK), found.start())


def _day(found: re.Match[str]) -> tuple[int, int, int] | None:
    if found["iso"]:
        year, month, day = map(int, found["iso"].split("-"))
        return year, month, day
    groups = found.groupdict()
    for n in "12345":
        if said := groups[f"year{n}"]:
            named = (groups.get(f"month{n}") or "?").casefold()
            which = next((i for i, name in enumerate(_MONTHS, 1) if name.startswith(named)), 0)
            return int(said), which, int(groups.get(f"day{n}") or 0)
    return None


def _amount(found: re.Match[str]) -> float | None:
    """None for words that only look like a number's: without regard to case, ``i`` finds the Turkish dotless one too."""
    amount: float | None
    if said := found["digits"] or found["told"]:
        amount = float(said.replace(",", ""))
    else:
        words = [_SMALL.get(word.casefold()) for word in (found["tens"], found["ones"]) if word]
        amount = None if None in words else float(sum(filter(None, words)))
    scale = _SCALES.get(found["scale"].casefold()) if found["scale"] else 1.0
    return None if amount is None or scale is None else amount * scale


def _unit(sentence: str, found: re.Match[str]) -> tuple[frozenset[str] | None, str]:
    """Stems of the unit and how it is written behind the number; None for a number that is a label or a part of a name."""
    if found["currency"]:
        return frozenset((_UNITS[found["currency"].strip()],)), ""
    if found["percent"]:
        return frozenset(("percent",)), ""
    if found["glued"]:
        return _stems(found["glued"]), ""
    before = _before(_BEFORE, sentence, found)
    label = before.group(1) if before else ""
    if label.casefold() in _LABELS:
        return None, ""
    unit: list[str] = []
    at = end = found.end()
    while (
        len(unit) < 2 and (word := _NEXT.match(sentence, at)) and (written := word.group(1)).casefold() not in _NO_UNIT
    ):
        at = word.end()
        if written.casefold() != "of":
            unit.append(written)
            end = at if len(unit) == 1 else end
    if unit:
        return frozenset[str]().union(*map(_stems, unit)), sentence[found.end() : end]
    if label[:1].isupper() and before and before.start():
        return None, ""
    return (_stems(label) if label and label.casefold() not in STOP else frozenset()), ""


def _stems(word: str) -> frozenset[str]:
    plain = _UNITS.get(word.casefold().rstrip("."), word)
    return frozenset(content_terms(plain) or terms(plain))
