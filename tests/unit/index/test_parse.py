import pytest

from assay.errors import ParseFault
from assay.index import parse as p
from assay.index.parsed import Format, Parsed


def read(data: bytes | str, format: Format = "md") -> Parsed:
    return p.parse(data if isinstance(data, bytes) else data.encode(), format, "stem")


def kinds(parsed: Parsed) -> list[tuple[str, str]]:
    return [(b.kind, parsed.text[b.start : b.end]) for b in parsed.blocks]


def test_markdown_text_is_the_files_own() -> None:
    text = "# A *title*\r\n\r\nText.\r\n\r\n- one\r\n- two\r\n"
    parsed = read("\ufeff" + text)
    assert (parsed.text, parsed.title) == (text, "A title")
    assert kinds(parsed) == [("heading", "# A *title*"), ("text", "Text."), ("list", "- one\r\n- two")]


def test_title_falls_back_to_the_name() -> None:
    assert read("## Not the title\n\nText").title == "stem"
    assert read("One.\n\nTwo.", "txt").title == "stem"


def test_front_matter_title_wins() -> None:
    parsed = read('---\ntitle: "The \\"name\\""\n---\n# Other\n\nText')
    assert parsed.title == 'The "name"'
    assert kinds(parsed)[0] == ("heading", "# Other")


def test_html_in_markdowns_shape() -> None:
    page = """<html><head><title>T &amp; U</title><style>x{}</style></head><body><nav>menu</nav><h1>Head <i>line</i></h1>
    <p>One <b>bold</b>word.<br>Next</p><ul><li>a<li>b<ul><li>c</ul></ul><pre><code>x  = 1
y</code></pre><table><tr><th>k<th>v<tr><td>a|b<td>2</table><script>evil()</script><p hidden>no</p>tail"""
    parsed = read(page, "html")
    assert parsed.title == "T & U"
    assert kinds(parsed) == [
        ("heading", "# Head line"),
        ("text", "One boldword.\nNext"),
        ("list", "- a\n- b\n- c"),
        ("code", "```\nx  = 1\ny\n```"),
        ("table", "| k | v |\n| a\\|b | 2 |"),
        ("text", "tail"),
    ]


def test_deep_html_ends() -> None:
    assert "x" in read("<div>" * 1000 + "x", "html").text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("Grüße".encode("cp1252"), "Grüße"),
        ("\ufeffé è".encode("utf-16-le"), "é è"),
        ("\ufeffé è".encode("utf-16-be"), "é è"),
        (b"plain", "plain"),
    ],
)
def test_encodings(data: bytes, text: str) -> None:
    assert read(data, "txt").text == text


def test_html_says_its_encoding() -> None:
    assert "日本" in read('<meta charset="shift_jis"><p>日本</p>'.encode("shift_jis"), "html").text


@pytest.mark.parametrize(
    ("data", "format", "reason"),
    [
        (b"", "md", "empty"),
        (b" \n\t", "txt", "empty"),
        (b"---\ntitle: x\n---\n", "md", "empty"),
        (b"*** --- !!!", "txt", "empty"),
        (b"<html><body><script>x</script></body></html>", "html", "empty"),
        (b"\x89PNG\x00\x00 not text \xff", "txt", "malformed"),
        ("日本語の文章です。".encode("shift_jis"), "txt", "mojibake"),
        (b"<meta charset=ascii>\xff\xfea", "html", "mojibake"),
        ("Ã©tÃ© Ã  la plage, forÃªt, cafÃ©, dÃ©jÃ  vu, garÃ§on".encode(), "txt", "mojibake"),
        ("\ue001\ue002\ue003\ue004 a".encode(), "md", "mojibake"),
        (b"%PDF-1.4 nonsense", "pdf", "malformed"),
    ],
)
def test_refused_by_name(data: bytes, format: Format, reason: str) -> None:
    with pytest.raises(ParseFault) as fault:
        read(data, format)
    assert fault.value.reason == reason
