import pytest

from assay.errors import ParseFault
from assay.index import parse as p
from assay.index.parse.parsed import Format, Parsed


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
        ("“It’s” — 5 € …".encode("cp1252"), "“It’s” — 5 € …"),
        ("日本語の文章です。カタカナも".encode("cp932"), "日本語の文章です。カタカナも"),
        ("日本語の文章です。カタカナも".encode("euc-jp"), "日本語の文章です。カタカナも"),
        ("这是一个测试文件，用来检查编码。".encode("gb18030"), "这是一个测试文件，用来检查编码。"),
        ("這是一個測試文件，用來檢查編碼。".encode("big5"), "這是一個測試文件，用來檢查編碼。"),
        ("이것은 인코딩을 확인하는 시험 파일입니다.".encode("euc-kr"), "이것은 인코딩을 확인하는 시험 파일입니다."),
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
        ("Это русский текст".encode("koi8-r"), "txt", "mojibake"),
        (b"<meta charset=euc-jp>\xff\xfea", "html", "mojibake"),
        (b"<meta charset=unicode_escape>\\ud800 \xff", "html", "mojibake"),
        (b"<p></p><!-- " + b"x" * 3000 + b" -->", "html", "no_text"),
        ("Ã©tÃ© Ã  la plage, forÃªt, cafÃ©, dÃ©jÃ  vu, garÃ§on".encode(), "txt", "mojibake"),
        ("\ue001\ue002\ue003\ue004 a".encode(), "md", "mojibake"),
        (b"%PDF-1.4 nonsense", "pdf", "malformed"),
    ],
)
def test_refused_by_name(data: bytes, format: Format, reason: str) -> None:
    with pytest.raises(ParseFault) as fault:
        read(data, format)
    assert fault.value.reason == reason


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("iso-8859-1", "cp1252", "don’t “quote” café"),
        ("US-ASCII", "cp1252", "don’t"),
        ("gb2312", "gbk", "朱镕基 好的"),
        ("x-sjis", "cp932", "①日本"),
        ("euc-kr", "cp949", "똠방각하"),
    ],
)
def test_declared_encodings_are_taken_as_browsers_take_them(label: str, codec: str, text: str) -> None:
    assert read(f'<meta charset="{label}"><p>{text}'.encode(codec), "html").text == text


def test_a_prolog_says_its_encoding() -> None:
    page = '<?xml version="1.0" encoding="iso-8859-1"?><html><body><p>Grüße'
    assert read(page.encode("latin-1"), "html").text == "Grüße"


@pytest.mark.parametrize(
    ("text", "title", "first"),
    [
        ("---\nImportant one.\n\nSecond.\n\n---\n\nRest.", "stem", "Important one."),
        ("---\n## 1.0\n- a\n---\n## 0.9\n- b\n", "stem", "## 1.0"),
        ("---\n\ntitle: no\n\ntext about it\n\n---\n\nmore", "stem", "title: no"),
        ("---\r\n# a comment is no key\r\n---\r\nBody", "a comment is no key", "# a comment is no key"),
        ("---\n# a comment\ntitle: T\n---\nBody", "T", "Body"),
        ("---\ntitle: >-\n  Real\n  title\ntags: [a]\n---\nBody", "Real title", "Body"),
        ("---\r\ntitle: |\r\n  Real title\r\n---\r\nBody", "Real title", "Body"),
        ('---\ntitle: "unclosed\nfoo: [\n---\nBody', "unclosed", "Body"),
        ("---\ntitle: plain # said\nlist:\n- a\n---\nBody", "plain", "Body"),
    ],
)
def test_front_matter_is_keys_and_a_rule_is_content(text: str, title: str, first: str) -> None:
    parsed = read(text)
    assert (parsed.title, kinds(parsed)[0][1]) == (title, first)


def test_imports_and_exports_are_code_in_mdx_alone() -> None:
    text = "import A from './a'\nimport {\n  B,\n} from 'b';\nText right after.\n\n"
    text += "export const x = () => {\n  y\n}\n\nimport duties differ."
    assert kinds(read(text, "mdx")) == [("text", "Text right after."), ("text", "import duties differ.")]
    assert read(text, "mdx").format == "md"
    assert len(kinds(read(text))) == 3


def test_text_between_comments_is_content() -> None:
    assert kinds(read("<!-- a --> mid <!-- b -->\n\n<!-- c --> <!-- d -->"))[0][1] == "<!-- a --> mid <!-- b -->"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<form id=aspnetForm><h1>Title</h1><p>Body.</p></form>", "# Title\n\nBody."),
        ("<table><caption>Table <b>3</b></caption><tr><td>a<td>b</table>", "Table 3\n| a | b |"),
        ("<ul><li>x<br>y<span hidden>NO</span><p><script>NO</script>z</p></ul>", "- x y z"),
        ("<table><tr><td>a<script>NO</script><br>b<style>NO</style><td>b<b>old</b></table>", "| a b | bold |"),
        ("<h2>Head<style>NO</style><br>line</h2>x", "## Head line\n\nx"),
        ("<p style='color:red; DISPLAY : none'>NO</p><p aria-hidden=true>NO</p><div hidden><p hidden>NO</div>x", "x"),
        ("<ul><li>one<div><ul><li>a</ul></div><pre>x<br>  y</pre></ul>", "- one\n- a\n\n```\nx\n  y\n```"),
        ("<?xml version='1.0'?><html><head><title/><script src='a'/></head><body><p>seen</p></body></html>", "seen"),
    ],
)
def test_html_shows_what_a_reader_sees(page: str, text: str) -> None:
    assert read(page, "html").text == text


def test_the_title_is_the_heads() -> None:
    assert (
        read("<body><svg><title>icon</title></svg><h1>Real <br>one<script>x</script></h1>", "html").title == "Real one"
    )


def test_names_are_bounded() -> None:
    parsed = read("# " + "word " * 20_000 + "\n\nText")
    assert len(parsed.title) <= p.NAME_CHARS
    assert len(parsed.blocks[0].name) <= p.NAME_CHARS
