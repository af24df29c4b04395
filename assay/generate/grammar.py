"""What a model may write: units that each end with slots of the prompt, so that no citation can be invented.

``regex`` for every engine with grammars; ``lark`` for those of llguidance, which can also hold a quote to the very words of
the passage whose slot follows it.
"""

import json
import re
from collections.abc import Sequence

from assay.schemas import WrittenStyle
from assay.types import Evidence

NOT_FOUND = "The evidence does not answer this."
_MARKS = " \t\n-*+•|>#\"'“"  # of a list, a row, a quote or emphasis
_STOP = "[.!?。！？।؟]"
# No bracket that could look like a citation, no line of its own, and nothing that begins a block of Markdown.
_FIRST, _REST = r"[^\s\[\]【】|`*#-]", r"[^\[\]【】\n]"
_CELL = r"[^\s\[\]【】|\n][^\[\]【】|\n]{0,80}"
# As the above without quotation marks, for grammars in which these belong to quotes.
_FREE_FIRST, _FREE = r"[^\s\[\]【】|`*#\"“”«»「」-]", r"[^\[\]【】\n\"“”«»「」]"
# A line break would end a list's item, a mark of its own the quote; and brackets look like a citation.
_QUOTE = r"[^\[\]【】\n\"“”«»「」]{3,2000}"


def finds_nothing(said: str) -> bool:
    """Whether it begins with ``NOT_FOUND``, whatever mark stands before that. What follows is not believed: an answer that
    begins so is none."""
    return said.lstrip(_MARKS).startswith(NOT_FOUND)


def regex(style: WrittenStyle, slots: Sequence[str], most: int) -> str:
    """``most`` units of a style, or the plain statement that nothing was found."""
    slot = f"({'|'.join(slots)})"
    cited = rf"( \[{slot}\]){{1,3}}"
    body = {
        "prose": rf"({_FIRST}{_REST}{{7,280}}{cited}{_STOP} ?){{1,{most}}}",
        "list": rf"(- {_FIRST}{_REST}{{2,280}}{cited}\n){{1,{most}}}",
        "table": "(" + "|".join(_table(columns, cited, most) for columns in (2, 3, 4)) + ")",
    }[style]
    return rf"({body}|{re.escape(NOT_FOUND)})"


def _table(columns: int, cited: str, most: int) -> str:
    cells = r" \| ".join([_CELL] * columns)
    return rf"\| {cells} \|\n(\| {cells} \|{cited} \|\n){{1,{most}}}"


def lark(style: WrittenStyle, evidence: Sequence[Evidence], most: int) -> str:
    """As ``regex``; and what stands between quotation marks is from the passage that is cited next, word for word.

    A terminal takes all that it can: so the space before a citation belongs to the words before it."""
    rules = _lark_table(most) if style == "table" else _lark_units(style, evidence, most)
    cite = " | ".join(f'"[{e.slot}]"' for e in evidence)
    return "\n".join(["%llguidance {}", *rules, 'cites: cite (" "? cite){0,2}', f"cite: {cite}"])


def _lark_units(style: WrittenStyle, evidence: Sequence[Evidence], most: int) -> list[str]:
    lead, end = ('"- " ', '"\\n"') if style == "list" else ("", f"/{_STOP} ?/")
    units, quotes = [f"{lead}WORDS cites {end}"], list[str]()
    for number, e in enumerate(evidence, 1):
        words = " ".join(e.hit.chunk.text.split())
        if not re.search(_QUOTE, words):
            continue  # with nothing to go on with, a quote that was begun could not end
        units.append(f'{lead}WORDS? "\\"" QUOTE_{number} "\\"" REST? "[{e.slot}]" {end}')
        quotes.append(f"QUOTE_{number}: WORDS_{number} & /{_QUOTE}/")
        quotes.append(f"WORDS_{number}: %regex {json.dumps({'substring_words': words})}")
    return [
        f"start: {json.dumps(NOT_FOUND)} | unit{{1,{most}}}",
        f"unit: {' | '.join(units)}",
        f"WORDS: /{_FREE_FIRST}{_FREE}{{2,280}}/",
        f"REST: /{_FREE}{{1,200}}/",
        *quotes,
    ]


def _lark_table(most: int) -> list[str]:
    """A cell takes the space before the next bar."""
    tables = []
    for columns in (2, 3, 4):
        cells = '"| " ' + ' "| " '.join(["CELL"] * columns)
        tables.append(f'{cells} "|\\n" ({cells} "| " cites " |\\n"){{1,{most}}}')
    return [f"start: {json.dumps(NOT_FOUND)} | {' | '.join(tables)}", f"CELL: /{_CELL}/"]
