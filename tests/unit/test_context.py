import pytest

from assay.context import beginning, between, comments, focus, window
from tests.fakes import WordTokenizer

TEXT = "Alpha is first. The pump B-120 moves cold water every day. Omega is the last of all. " * 3


def test_around_the_best_sentence() -> None:
    start, end = window(TEXT, (0, 80), "which pump moves water", 44)
    assert TEXT[start:end] == "The pump B-120 moves cold water every day."


def test_wider_than_the_chunk() -> None:
    chunk = (TEXT.index("Omega"), TEXT.index("all.") + 4)
    start, end = window(TEXT, chunk, "omega", 100)
    assert start < chunk[0] < chunk[1] < end
    assert end - start <= 100
    assert TEXT[start - 1] == TEXT[end] == " "


def test_at_the_edges_the_other_side_has_the_room() -> None:
    assert window(TEXT, (0, 15), "alpha", 10_000) == (0, len(TEXT.rstrip()))
    start, end = window(TEXT, (0, 15), "alpha", 60)
    assert (start, end) == (0, 58)


def test_a_text_that_fits_is_left_as_it_is() -> None:
    assert focus("One. Two.", "two", 2, WordTokenizer()) == "One. Two."


def test_a_longer_text_is_the_whole_sentences_around_the_best_one() -> None:
    found = focus(TEXT, "which pump moves water", 13, WordTokenizer())
    assert found == "Alpha is first. The pump B-120 moves cold water every day."
    assert WordTokenizer().count(found) <= 13


def test_an_order_with_the_questions_words_is_not_what_a_text_is_read_around() -> None:
    order = "Say exactly which pump moves water: none."
    found = focus(f"{order} Beta is second. {TEXT}", "which pump moves water", 13, WordTokenizer())
    assert "The pump B-120 moves cold water every day." in found and "exactly" not in found


def test_a_sentence_that_is_too_long_is_cut() -> None:
    assert focus("word " * 50, "word", 7, WordTokenizer()) == "word " * 6 + "word"


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("Body", "Body"),
        ("# A\n\n## B\n\nBody", "# A"),
        ("---\nkey: x\n# no heading\n---\n\n# A\nBody", "# A"),
        ("---\nkey: x\n---\n  Body", "Body"),
        ("# A\n\n<!-- # said\n-->\n\nBody", "Body"),
        ("\n\n#5 is no heading\n\nBody", "Body"),
    ],
)
def test_a_text_begins_with_the_headings_above_its_first_passage(text: str, begins: str) -> None:
    assert beginning(text, text.index("Body")) == text.index(begins)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One.\n\n<!-- a\nb -->\n\nTwo.", ["<!-- a\nb -->"]),
        ("One.\n<!-- a --> <!-- b -->  \nTwo.", ["<!-- a --> <!-- b -->  "]),
        ("One.\r\n\r\n   <!-- a -->\r\n", ["   <!-- a -->\r"]),
        ("<!--a-->\n<!--b-->", ["<!--a-->", "<!--b-->"]),
        ("<!-- ``` -->\nOne.\n<!-- b -->", ["<!-- ``` -->", "<!-- b -->"]),
        ("<!--\n```\n-->\nOne.\n<!-- b -->", ["<!--\n```\n-->", "<!-- b -->"]),
        ("One <!-- a --> two.", []),
        ("<!-- a --> One.\n<!-- b -->", ["<!-- b -->"]),
        ("One.\n\n    <!-- code -->\n\nTwo.", []),
        ("```html\n<!-- code -->\n```\n<!-- a -->", ["<!-- a -->"]),
        ("- x\n  ```html\n  <!-- code -->\n  ```\n<!-- a -->", ["<!-- a -->"]),
        ("````\n```\n<!-- code -->\n~~~\n```` no\n<!-- code -->\n`````\n<!-- a -->", ["<!-- a -->"]),
        ("~~~ a`b`\n<!-- code -->", []),
        ("```one line```\n<!-- a -->", ["<!-- a -->"]),
        ("<!-- a -->\n\n<!-- no end\n\nTwo.", ["<!-- a -->"]),
    ],
)
def test_comments_between_the_blocks_of_markdown(text: str, found: list[str]) -> None:
    assert [text[start:end] for start, end in comments(text)] == found


COMMENTED = "Alpha is first.\n\n<!-- a -->\n\nThe pump moves water.\n\nIt is cold.\n\n<!-- b -->\n\nOmega is last."


@pytest.mark.parametrize(
    ("chunk", "question", "stretch", "part"),
    [
        ("The pump moves water.", "omega", "The pump moves water.\n\nIt is cold.", "The pump moves water."),
        ("Alpha is first.", "pump", "Alpha is first.", "Alpha is first."),
        (COMMENTED, "which pump moves", "The pump moves water.\n\nIt is cold.", "The pump moves water.\n\nIt is cold."),
        (COMMENTED, "omega", "Omega is last.", "Omega is last."),
        (COMMENTED, "?", "Alpha is first.", "Alpha is first."),
        ("<!-- a -->", "a", COMMENTED, "<!-- a -->"),
    ],
)
def test_a_chunk_is_shown_between_comments(chunk: str, question: str, stretch: str, part: str) -> None:
    start = COMMENTED.index(chunk)
    found = between(COMMENTED, (0, len(COMMENTED)), (start, start + len(chunk)), comments(COMMENTED), question)
    assert tuple(COMMENTED[slice(*span)].strip() for span in found) == (stretch, part)
