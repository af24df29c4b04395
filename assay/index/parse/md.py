"""Markdown and plain text. The text is the file's own, so that a citation's span stands in the file."""

import re
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from assay import groups
from assay.errors import ParseFault
from assay.index.parse.parsed import Block, Kind, Parsed, Raw

_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)(?:\r?\n)?^---[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE)
# Every line of front matter, or what stands between two rules is content: a key first (but for comments), then
# keys, items, what is indented, comments, closing brackets.
_FRONT_KEY = re.compile(r"""["']?[\w.-]+["']?[ \t]*:(?:\s|\Z)""")
_FRONT_LINE = re.compile(r"""["']?[\w.-]+["']?[ \t]*:(?:\s|\Z)|[-#\]}\s]|\Z""")
_FRONT_TITLE = re.compile(r"^title:(.*)$((?:\n(?:[ \t].*)?$)*)", re.MULTILINE)
# What says who may see the document, at its beginning: also where that is no front matter after all.
_GROUPS = re.compile(rf"\A---[ \t]*\r?\n(?:[^\n]*\n){{0,60}}?[\"']?{groups.FIELD}[\"']?[ \t]*:")
_SCALAR = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)')(?:\s+#.*)?""")
_FOLDED = re.compile(r"[|>][-+0-9]{0,2}(?:\s+#.*)?")
# In MDX alone, where lines at the start of a block are code: elsewhere people write about imports and exports.
_IMPORT = re.compile(
    r"""import\s(?:[\w*${},\s]+\sfrom\s*)?['"][^'"\n]+['"][ \t]*;?[ \t]*(?:\r?\n\s*|\Z)""",
)
_EXPORT = re.compile(
    r"export\s+(?:const|let|var|default|async|function|class|type)\b[^\n]*(?:\n\s*|\Z)|export\s*[{*][^\n]*(?:\n\s*|\Z)"
)
_COMMENT = re.compile(r"\A(?:(?:<!--(?:(?!-->).)*+-->|\{/\*(?:(?!\*/\}).)*+\*/\})\s*+)++\Z", re.DOTALL)
_HEADING_CHARS = 1_000  # what of a heading is looked at for markup
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


def parse(text: str, stem: str, *, mdx: bool = False) -> Parsed:
    """Blocks by CommonMark with tables; front matter, comments and in ``mdx`` imports and exports are no content."""
    front = _front(text)
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
        if mdx and token.type == "paragraph_open":
            start = _after_code(body, start, end)
        if start < end and (block := _block(body, token, tokens[i + 1 : i + 2], start + offset, end + offset, offset)):
            blocks.append(block)
    if not blocks:
        raise ParseFault("the file holds no text", "empty")
    title = _front_title(front) or _first_heading(blocks) or stem
    metadata, notes = _front_fields(front.group(1)) if front else (_closed(text), ())
    return Parsed(text, title, "md", tuple(blocks), (), metadata, notes)


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
        said = (following[0].content if following else content)[:_HEADING_CHARS]
        name = _MARKUP.sub(lambda m: m.group(1) or "", said).strip()
        return Block("heading", start, end, int(token.tag[1:]), " ".join(name.split()))
    kind = _KINDS.get(token.type)
    if kind is None or _COMMENT.match(content):
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


def _after_code(body: str, start: int, end: int) -> int:
    """Where the text of a paragraph of MDX begins: after its lines of imports and exports."""
    while start < end:
        if found := _IMPORT.match(body, start, end):
            start = found.end()
        elif found := _EXPORT.match(body, start, end):
            # An open bracket: the rest of the block is code too.
            start = end if found.group().rstrip().endswith(("{", "(", "[", "`", "=>", "=")) else found.end()
        else:
            break
    return start


def _front(text: str) -> re.Match[str] | None:
    found = _FRONT.match(text)
    lines = found.group(1).splitlines() if found else []
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return found if _FRONT_KEY.match(first) and all(map(_FRONT_LINE.match, lines)) else None


def _front_fields(front: str) -> tuple[dict[str, Raw], tuple[str, ...]]:
    """Scalars as their text (``1.10`` stays that), lists of scalars, and one level of nesting as ``outer.inner``."""
    try:
        # Makes nothing but texts, lists and mappings, and knows no merge keys, so that nothing can grow.
        loaded = yaml.load(front, Loader=yaml.BaseLoader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        return _closed(f"---\n{front}"), (
            f"the front matter is not YAML{f' (line {mark.line + 2})' if mark else ''}; its fields are not used",
        )
    found: dict[str, Any] = {}
    for key, value in loaded.items() if isinstance(loaded, dict) else ():
        nested = isinstance(value, dict) and key != groups.FIELD
        found.update({f"{key}.{name}": v for name, v in value.items()} if nested else {str(key): value})
    return {key: raw for key, value in found.items() if (raw := groups.kept(key, _raw(value))) is not None}, ()


def _closed(text: str) -> dict[str, Raw]:
    """Of what cannot be read as front matter, and says who may see the document all the same: nobody."""
    return {groups.FIELD: []} if _GROUPS.match(text) else {}


def _raw(value: Any) -> Raw | None:
    if isinstance(value, list):
        return [v for v in value if isinstance(v, str)] or None
    return value if isinstance(value, str) and value not in ("", "~", "null") else None


def _front_title(front: re.Match[str] | None) -> str:
    """Of YAML what titles need: quoted, bare, folded over lines. A quote that nothing closes is left out."""
    found = _FRONT_TITLE.search(front.group(1).replace("\r\n", "\n")) if front else None
    if found is None:
        return ""
    value, below = found.group(1).strip(), found.group(2)
    if _FOLDED.fullmatch(value):
        return " ".join(below.split())
    quoted = _SCALAR.fullmatch(value)
    if quoted is None:
        return " ".join(re.split(r"(?:^|\s)#", value, maxsplit=1)[0].lstrip("\"'").split())
    double, single = quoted.groups()
    text = double.replace('\\"', '"') if double is not None else single.replace("''", "'")
    return " ".join(text.split())


def _first_heading(blocks: list[Block]) -> str:
    return next((b.name for b in blocks if b.kind == "heading" and b.level == 1 and b.name), "")
