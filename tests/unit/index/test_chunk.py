from assay.index.chunk import CHARS, Passage, chunk, passage_text
from assay.index.parse import md
from assay.index.parse.parsed import Block, Parsed
from tests.unit.index.fakes import WordEncoder

starts = WordEncoder().token_starts


def passages(text: str, budget: int = 40) -> list[tuple[str, tuple[str, ...]]]:
    return [(text[p.start : p.end], p.heading) for p in chunk(md.parse(text, "stem"), starts(text), budget)]


def words(n: int, word: str = "word") -> str:
    return " ".join([word] * n)


def test_headings_are_kept_and_sections_stay_apart() -> None:
    text = f"# Top\n\n{words(30)}.\n\n## One\n\n{words(30)}.\n\n## Two\n\n{words(30)}."
    assert [heading for _, heading in passages(text)] == [("Top",), ("Top", "One"), ("Top", "Two")]


def test_small_sections_join_with_their_heading_lines() -> None:
    text = "# Top\n\n## One\n\nShort.\n\n## Two\n\nAlso short.\n"
    assert passages(text) == [("# Top\n\n## One\n\nShort.\n\n## Two\n\nAlso short.", ("Top",))]


def test_tables_and_code_stay_whole_where_they_fit() -> None:
    code = "```\n" + "\n".join(["x = 1"] * 8) + "\n```"
    text = f"{words(30)}.\n\n{code}\n\n{words(30)}.\n"
    assert any(passage == code for passage, _ in passages(text))


def test_large_blocks_are_cut_at_sentences_rows_and_lines() -> None:
    prose = " ".join(f"Sentence {i} {words(8)}." for i in range(12))
    assert all(passage.endswith(".") for passage, _ in passages(prose))
    table = "| a | b |\n|---|---|\n" + "\n".join(f"| {i} | {words(10)} |" for i in range(12))
    assert all(passage.startswith("|") and passage.endswith("|") for passage, _ in passages(table))
    code = "```\n" + "\n".join(f"line {i} = {words(10)}" for i in range(12)) + "\n```"
    assert all("\n" not in p or p.startswith(("line", "```")) for p, _ in passages(code))


def test_a_line_without_end_is_cut_by_tokens() -> None:
    found = passages(words(500))
    assert len(found) == 13
    assert all(len(starts(passage)) <= 40 for passage, _ in found)


def test_no_passage_is_longer_than_a_page_of_text() -> None:
    blob = "The key is " + "deadbeef" * 2_000 + " and ends."
    found = [passage for passage, _ in passages(blob)]
    assert "".join("".join(found).split()) == "".join(blob.split())
    assert max(map(len, found)) <= CHARS
    gaps = [passage for passage, _ in passages("One\n" + " " * 10_000 + "two.")]
    assert gaps == ["One", "two."]
    small = f"# A\n\n{'x' * 3_000}\n\n# B\n\n{'y' * 3_000}"
    assert len(passages(small)) == 2


def test_no_passage_crosses_a_page() -> None:
    text = "First page.\fSecond page."
    parsed = Parsed(text, "t", "pdf", [Block("text", 0, 11), Block("text", 12, 24)], [0, 12])
    assert chunk(parsed, starts(text)) == [Passage(0, 11, (), 1), Passage(12, 24, (), 2)]


def test_a_document_of_headings_is_text() -> None:
    assert passages("# Only\n\n## Headings\n") == [("# Only\n\n## Headings", ())]


def test_front_matter_and_comments_are_no_content() -> None:
    text = "---\ntitle: 'It''s here'\nkeywords: secret\n---\n<!-- todo -->\n\nBody.\n"
    parsed = md.parse(text, "stem")
    assert (parsed.title, passages(text)) == ("It's here", [("Body.", ())])


def test_the_title_is_said_once() -> None:
    assert passage_text("T", ("T", "H"), "x") == "T > H\nx"


def test_names_leave_room_for_the_passage() -> None:
    prefix, _, text = passage_text("long " * 40, ("word " * 40,), "x").partition("\n")
    assert (len(prefix.split()), text) == (64, "x")
    assert len(passage_text("標" * 200, (), "x")) == 66
