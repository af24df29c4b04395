"""Hostile text costs the splitter and the reader of markers no more than its length."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from assay.generate.split import MOST_CHARS, Splitter
from assay.markers import read_markers
from assay.types import GenerateStyle
from tests.unit.generate.test_split import SLOTS


def lines_run(work: Callable[[], object], *files: str) -> int:
    """Lines of Python that run in these files: a count of steps, which no other process can disturb."""
    count = 0

    def local(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        return local if frame.f_code.co_filename.endswith(files) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


HOSTILE = [
    "]",
    "[",
    "[E1",
    "[E1]",
    "[E1] ",
    "] ",
    "[[",
    "a",
    "` [1] ",
    "```",
    "[1,",
    ". ",
    "\n",
    "|",
    "| a |\n",
    "潮",
    "[E1]。",
]


@pytest.mark.parametrize(
    ("style", "text"), [*(("prose", text) for text in HOSTILE), ("list", "\n"), ("table", "| a |\n")]
)
def test_steps_of_splitting_grow_with_the_length_alone(style: GenerateStyle, text: str) -> None:
    """Twice the text takes twice the steps; and what is looked at again at each step is bounded, so that a step is too."""
    files = ("split.py", "markers.py", "sentences.py")
    longest = 0

    def run(length: int) -> None:
        nonlocal longest
        splitter, hostile = Splitter(style, SLOTS), text * length
        for start in range(0, length, 3):
            splitter.feed(hostile[start : start + 3])
            longest = max(longest, len(splitter.rest))
        splitter.end()

    small, large = (lines_run(lambda n=n: run(n), *files) for n in (3_000, 6_000))  # type: ignore[misc]
    assert large <= 2.4 * small
    assert longest <= MOST_CHARS + 100


@pytest.mark.parametrize("text", ["[1]", "[1,", "[[", "`", "` [1] ", "``` ", "[1]`a`", " ", "[1 ", "[E1-"])
def test_steps_of_reading_markers_grow_with_the_length_alone(text: str) -> None:
    small, large = (lines_run(lambda n=n: read_markers(text * n, SLOTS), "markers.py") for n in (500, 1_000))  # type: ignore[misc]
    assert large <= 2.2 * small + 20
