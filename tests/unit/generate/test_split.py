"""The streaming splitter: the same units however the stream was cut, no citation or character in two."""

import unicodedata
from collections.abc import Sequence

import pytest

from assay.generate.grammar import NOT_FOUND
from assay.generate.split import MOST_CHARS, Splitter
from assay.types import Draft, GenerateStyle

SLOTS = ("E1", "E2", "E3")


def split(style: GenerateStyle, pieces: Sequence[str]) -> list[Draft]:
    splitter = Splitter(style, SLOTS)
    return [draft for piece in pieces for draft in splitter.feed(piece)] + splitter.end()


def shown(style: GenerateStyle, text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(draft.text, draft.slots) for draft in split(style, [text])]


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("Tides rise [E1]. Ebbs fall [E2].", [("Tides rise.", ("E1",)), ("Ebbs fall.", ("E2",))]),
        ("Tides rise. [E1] Ebbs fall. [E2]", [("Tides rise.", ("E1",)), ("Ebbs fall.", ("E2",))]),
        ("Tides rise [E1] [E2]. Ebbs fall [E2]", [("Tides rise.", ("E1", "E2")), ("Ebbs fall", ("E2",))]),
        ("Tides rise [1, 2]; ebbs [E3] fall.", [("Tides rise; ebbs fall.", ("E1", "E2", "E3"))]),
        ("Tides rise [E9]. Ebbs fall [E1].", [("Tides rise.", ()), ("Ebbs fall.", ("E1",))]),
        ("It rises. It falls [E1].", [("It rises.", ("E1",)), ("It falls.", ("E1",))]),
        ("Use `a[1]` here [E1]. So.", [("Use `a[1]` here.", ("E1",)), ("So.", ())]),
        ("潮は月で起きる[E1]。昼に二度[E2]。", [("潮は月で起きる。", ("E1",)), ("昼に二度。", ("E2",))]),
        ("潮は月で起きる。[E1]昼に二度。【2】", [("潮は月で起きる。", ("E1",)), ("昼に二度。", ("E2",))]),
        ("المد بسبب القمر [E1]؟ نعم [E2].", [("المد بسبب القمر؟", ("E1",)), ("نعم.", ("E2",))]),
        ('He said "it rises" [E1] and left.', [('He said "it rises" and left.', ("E1",))]),
        ('He said "it rises." [E1] He left [E2].', [('He said "it rises."', ("E1",)), ("He left.", ("E2",))]),
        ('He said "it rises. It falls" [E1].', [('He said "it rises. It falls".', ("E1",))]),
        ('It is so. "It rises! It falls," he said. So it is [E1].', [
            ("It is so.", ("E1",)), ('"It rises! It falls," he said.', ("E1",)), ("So it is.", ("E1",))
        ]),
        ("He said “it rises.\n\nIt falls” [E1].", [("He said “it rises.\n\nIt falls”.", ("E1",))]),
        ("他说「潮起。潮落」[E1]。", [("他说「潮起。潮落」。", ("E1",))]),
        ('It is 5" wide. It is blue. It is 6" high [E1].', [
            ('It is 5" wide.', ("E1",)), ("It is blue.", ("E1",)), ('It is 6" high.', ("E1",))
        ]),
        ("It is 5” wide. It is blue. It is 6” high [E1].", [
            ("It is 5” wide.", ("E1",)), ("It is blue.", ("E1",)), ("It is 6” high.", ("E1",))
        ]),
        ('他说"潮起。潮落"[E1]。', [('他说"潮起。潮落"。', ("E1",))]),
        ('A stray " mark. It is blue [E1].', [('A stray " mark.', ("E1",)), ("It is blue.", ("E1",))]),
        ("Der „Port“ ist offen. Er ist blau [E1].", [("Der „Port“ ist offen.", ("E1",)), ("Er ist blau.", ("E1",))]),
        ("Er sagt „es steigt. Es fällt“ [E1].", [("Er sagt „es steigt. Es fällt“.", ("E1",))]),
        ("“It rises.\n\n“It falls.” So it is [E1].", [
            ("“It rises.", ("E1",)), ("“It falls.”", ("E1",)), ("So it is.", ("E1",))
        ]),
        ("Version [E1].5 is out [E2].", [("Version.5 is out.", ("E1", "E2"))]),
        ("It costs 5 euros (Dr. Who says) [E1]. Yes [E1].", [
            ("It costs 5 euros (Dr. Who says).", ("E1",)), ("Yes.", ("E1",))
        ]),
        ("", []),
        ("[E1].", [(".", ("E1",))]),
    ],
)  # fmt: skip
def test_sentences(text: str, units: list[tuple[str, tuple[str, ...]]]) -> None:
    assert shown("prose", text) == units


def test_items() -> None:
    text = "Here they are:\n- one [E1]\n* two [2]\n3. three [E3]\n\n- four [E1]"
    assert shown("list", text) == [
        ("Here they are:", ()),
        ("one", ("E1",)),
        ("two", ("E2",)),
        ("three", ("E3",)),
        ("four", ("E1",)),
    ]


def test_rows() -> None:
    text = "Sure!\n| Name | Fee | Source |\n|---|:-:|---|\n| Acme | 5 | [E1] |\n| Bolt | 7 [2] |\n| Cone | 1 | 2 | 3 |\n| D |"
    drafts = split("table", [text])
    assert [(d.form, d.text, d.slots) for d in drafts] == [
        ("header", "| Name | Fee |", ()),
        ("row", "| Acme | 5 |", ("E1",)),
        ("row", "| Bolt | 7 |", ("E2",)),
        ("row", "| Cone | 1 |", ()),
        ("row", "| D |  |", ()),
    ]


@pytest.mark.parametrize("sign", ["👩‍👩‍👧", "e\u0301", "ก็", "❤️", "東", "\u0628\u064b"])
def test_a_cut_for_length_leaves_characters_and_citations_whole(sign: str) -> None:
    for lead in range(3):
        drafts = split("prose", ["x" * lead + sign * 2 * MOST_CHARS])
        assert len(drafts) > 1 and "".join(d.text for d in drafts) == "x" * lead + sign * 2 * MOST_CHARS
        for draft in drafts[1:]:
            assert not unicodedata.combining(draft.text[0]) and draft.text[0] not in "\u200d\ufe0f"
    for lead in range(MOST_CHARS - 12, MOST_CHARS + 2):
        drafts = split("prose", ["x" * lead + "[E1, E2]" + "y" * MOST_CHARS])
        assert {slot for draft in drafts for slot in draft.slots} == {"E1", "E2"}
        assert not any("[" in draft.text or "]" in draft.text for draft in drafts)


def test_that_nothing_is_found_is_no_unit_of_an_answer() -> None:
    said = f"The Moon causes the tides [E1]. {NOT_FOUND} The Sun is far [E1]."
    assert [draft.text for draft in split("prose", [said])] == ["The Moon causes the tides.", "The Sun is far."]
