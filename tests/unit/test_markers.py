"""The reader of citations: every form is read, code is not, nothing else is touched, and no text takes it long."""

import re
from typing import Any

import pytest

from assay import markers, sentences
from assay.generate import split
from assay.markers import read_markers

SLOTS = ("E1", "E2", "E3", "E4", "E5")


@pytest.mark.parametrize(
    ("text", "slots", "unknown"),
    [
        ("So it is [1].", ("E1",), 0),
        ("So it is [E2].", ("E2",), 0),
        ("So it is [e2].", ("E2",), 0),
        ("So it is [1, 2].", ("E1", "E2"), 0),
        ("So it is [1-3].", ("E1", "E2", "E3"), 0),
        ("So it is [E1–E3].", ("E1", "E2", "E3"), 0),
        ("So it is [E1; E4-5].", ("E1", "E4", "E5"), 0),
        ("So it is [1][2].", ("E1", "E2"), 0),
        ("So it is [[3]].", ("E3",), 0),
        ("So it is [ 4 ].", ("E4",), 0),
        ("So it is 【5】.", ("E5",), 0),
        ("So it is [12].", (), 1),
        ("So it is [4-7].", ("E4", "E5"), 2),
        ("So it is [1-9999].", SLOTS, 46),
    ],
)
def test_markers_of_every_form_are_read(text: str, slots: tuple[str, ...], unknown: int) -> None:
    assert read_markers(text, SLOTS) == ("So it is.", slots, unknown)


@pytest.mark.parametrize(
    "text",
    ["Use `a[1]` here.", "```\nb[2]\n``` here.", "```never closed [3]", "[12345]", "[E]", "[]", "[1", "1]", "[1, a]", "a[i]",
     "[link](x)", "[" + "1" * 5_000 + "]"],
)  # fmt: skip
def test_what_is_no_citation_stays(text: str) -> None:
    assert read_markers(text, SLOTS) == (text, (), 0)


def test_no_repeat_of_the_pattern_is_without_a_bound() -> None:
    """What a regular expression does cannot be counted from outside; that each try of it is bounded can be read from it."""
    parser: Any = re._parser  # type: ignore[attr-defined]
    pattern = markers._FOUND.pattern.partition(r"|[\[【]")
    cited = parser.parse(pattern[1][1:] + pattern[2], markers._FOUND.flags & ~re.UNICODE)

    def repeats(node: Any) -> Any:
        for op, value in node:
            if str(op) in ("MAX_REPEAT", "POSSESSIVE_REPEAT"):
                yield str(op), value[1]
                yield from repeats(value[2])
            elif str(op) == "SUBPATTERN":
                yield from repeats(value[-1])

    found = list(repeats(cited))
    assert found and all(most <= 64 for _, most in found)


PATTERNS = {
    f"{module.__name__}.{name}": pattern
    for module in (markers, split, sentences)
    for name, pattern in vars(module).items()
    if isinstance(pattern, re.Pattern)
}


@pytest.mark.parametrize("name", PATTERNS)
def test_one_repeat_of_a_pattern_at_the_most_goes_back_without_a_bound(name: str) -> None:
    """A second one, behind it or within it, would try all ways to share the text between the two."""
    parser: Any = re._parser  # type: ignore[attr-defined]

    def unbounded(node: Any) -> int:
        """Of the ways through the pattern, the one with most."""
        return sum(_of(str(op), value) for op, value in node)

    def _of(op: str, value: Any) -> int:
        match op:
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                goes_back = op != "POSSESSIVE_REPEAT" and value[1] is parser.MAXREPEAT
                return goes_back + unbounded(value[2])
            case "BRANCH":
                return max(map(unbounded, value[1]))
            case "SUBPATTERN" | "ASSERT" | "ASSERT_NOT":
                return unbounded(value[-1])
            case "ATOMIC_GROUP":
                return unbounded(value)
        return 0

    pattern = PATTERNS[name]
    assert unbounded(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)) <= 1
