"""Markdown and plain text. The text is the file's own, so that a citation's span stands in the file."""

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

from assay.errors import ParseFault
from assay.index.parsed import Block, Kind, Parsed

_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)(?:\r?\n)?^---[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE)
_FRONT_TITLE = re.compile(
    r"""^title:[ \t]*(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'|(.*?))[ \t]*(?:[ \t]#.*)?\r?$""", re.MULTILINE
)
_ESM = re.compile(r"\A(?:import\s[^\n]*\sfrom\s|import\s*['\"]|export\s+(?:const|default|function)\s)")
_COMMENT = re.compile(r"\A(?:<!--.*?-->|\{/\*.*?\*/\})\s*\Z", re.DOTALL)
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[*_`]{1,3}|\s*\{#[^}]*\}\s*$|<[^>]+>")
_KINDS: dict[str, Kind] = {
    "paragraph_open": "text",
    "blockquote_open": "text",
    "html_block": "text",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "table_open": "table",
    "fence": "code",
    "code_block": "code",
}
_LINE = re.compile(r"\r\n|\n|\r")
_PARAGRAPH = re.compile(r"(?:[^\n\r]*\S[^\n\r]*(?:\r\n|\n|\r|\Z))+")
_UNDERLINE = re.compile(r"([=\-~#*])\1{2,}\s*$")


def parse(text: str, stem: str) -> Parsed:
    """Blocks by CommonMark with tables; front matter, imports and comments are no content."""
    front = _FRONT.match(text)
    offset = front.end() if front else 0
    body = text[offset:]
    # The parser knows line numbers only, and \n, \r\n and \r as ends of lines: count the same ones here.
    lines = [0, *(m.end() for m in _LINE.finditer(body))]
    # Inline parsing is left out: structure is what is wanted, and it takes most of the time.
    tokens = MarkdownIt("commonmark").enable("table").disable("inline").parse(body)
    blocks: list[Block] = []
    for i, token in enumerate(tokens):
        if token.map is None or token.level != 0:
            continue
        start, end = _span(body, lines, token.map)
        if start < end and (block := _block(body, token, tokens[i + 1 : i + 2], start + offset, end + offset, offset)):
            blocks.append(block)
    if not blocks:
        raise ParseFault("the file holds no text", "empty")
    return Parsed(text, _front_title(front) or _first_heading(blocks) or stem, "md", tuple(blocks))


def parse_plain(text: str, stem: str) -> Parsed:
    """Blocks are what blank lines divide; nothing is taken for a heading."""
    blocks = []
    for match in _PARAGRAPH.finditer(text):
        start, end = _trim(text, match.start(), match.end())
        if start < end and not _UNDERLINE.fullmatch(text[start:end]):
            blocks.append(Block("text", start, end))
    if not blocks:
        raise ParseFault("the file holds no text", "empty")
    return Parsed(text, stem, "txt", tuple(blocks))


def _block(body: str, token: Token, following: list[Token], start: int, end: int, offset: int) -> Block | None:
    content = body[start - offset : end - offset]
    if token.type == "heading_open":
        name = _MARKUP.sub(lambda m: m.group(1) or "", following[0].content if following else content).strip()
        return Block("heading", start, end, int(token.tag[1:]), " ".join(name.split()))
    kind = _KINDS.get(token.type)
    if kind is None or _COMMENT.match(content) or (kind == "text" and _ESM.match(content)):
        return None
    return Block(kind, start, end)


def _span(body: str, lines: list[int], rows: list[int]) -> tuple[int, int]:
    first, last = rows
    end = lines[last] if last < len(lines) else len(body)
    start = lines[first] if first < len(lines) else len(body)
    # Leading blanks are layout, but before the first line of an indented code block they are part of it.
    return _trim(body, start, end)


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while end > start and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return start, end


def _front_title(front: re.Match[str] | None) -> str:
    found = _FRONT_TITLE.search(front.group(1)) if front else None
    if found is None:
        return ""
    double, single, bare = found.groups()
    text = double.replace('\\"', '"') if double is not None else (single or bare or "").replace("''", "'")
    return " ".join(text.split())


def _first_heading(blocks: list[Block]) -> str:
    return next((b.name for b in blocks if b.kind == "heading" and b.level == 1 and b.name), "")
