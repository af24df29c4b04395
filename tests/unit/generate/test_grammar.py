"""What the grammars admit is what the splitter reads: every unit has its citations, and no slot that is not there."""

import re
from typing import Any

import pytest

from assay.generate.grammar import NOT_FOUND, regex
from assay.generate.split import Splitter
from assay.schemas import WrittenStyle

SLOTS = ("E1", "E2")
ADMITTED: list[tuple[WrittenStyle, str, int]] = [
    ("prose", "The Moon causes the tides [E1].", 1),
    ("prose", "The Moon causes the tides [E1] [E2]. And so does the Sun [E2].", 2),
    ("prose", "iPhones and e-mail came later [E1].", 1),
    ("prose", "潮の満ち引きは月の引力で起きる [E1]。太陽も少し影響する [E2]。", 2),
    ("prose", "سبب المد والجزر هو القمر [E1].", 1),
    ("prose", 'It says that "the Moon causes tides" each day 🌙 [E2]!', 1),
    ("prose", "Call moon.pull(earth) { return tides; } twice a day [E1].", 1),
    ("list", "- The Moon [E1]\n- The Sun, a little [E1] [E2]\n", 2),
    ("list", "- 月の引力 [E1]\n", 1),
    ("table", "| Body | Share |\n| Moon | two thirds | [E1] |\n| Sun | one third | [E1] [E2] |\n", 3),
    ("table", "| A | B | C |\n| 1 | 2 | 3 | [E2] |\n", 2),
]
REFUSED: list[tuple[WrittenStyle, str]] = [
    ("prose", "The Moon causes the tides [E3]."),
    ("prose", "The Moon causes the tides."),
    ("prose", "The Moon [9] causes the tides [E1]."),
    ("prose", "- The Moon causes the tides [E1]."),
    ("prose", "# The Moon causes the tides [E1]."),
    ("prose", "The Moon causes\nthe tides [E1]."),
    ("list", "- The Moon\n"),
    ("list", "The Moon [E1]\n"),
    ("list", "- The Moon [E3]\n"),
    ("table", "| Body | Share |\n"),
    ("table", "| Body | Share |\n| Moon | two thirds |\n"),
    ("table", "| Body | Share |\n| Moon | two thirds | more | [E1] |\n"),
    ("table", "| Body | Share |\n| Moon | two thirds | [E7] |\n"),
]


@pytest.mark.parametrize(("style", "text", "units"), ADMITTED)
def test_what_is_admitted_is_read_whole(style: WrittenStyle, text: str, units: int) -> None:
    assert re.fullmatch(regex(style, SLOTS, 5), text)
    splitter = Splitter(style, SLOTS)
    drafts = [*splitter.feed(text), *splitter.end()]
    assert len(drafts) == units
    assert all(draft.slots for draft in drafts if draft.form != "header")


@pytest.mark.parametrize(("style", "text"), REFUSED)
def test_what_cites_nothing_or_what_is_not_there_is_refused(style: WrittenStyle, text: str) -> None:
    assert not re.fullmatch(regex(style, SLOTS, 5), text)


@pytest.mark.parametrize("style", ["prose", "list", "table"])
def test_every_style_may_say_that_nothing_was_found(style: Any) -> None:
    assert re.fullmatch(regex(style, SLOTS, 5), NOT_FOUND)
    assert not re.fullmatch(regex(style, SLOTS, 5), f"{NOT_FOUND} {NOT_FOUND}")


def test_units_are_counted() -> None:
    text = "The Moon causes the tides [E1]. " * 4
    assert re.fullmatch(regex("prose", SLOTS, 4), text) and not re.fullmatch(regex("prose", SLOTS, 3), text)
