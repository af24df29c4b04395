"""HTML to text in Markdown's shape: headings, list items, tables and code stay what they are, navigation goes."""

import re
from collections.abc import Iterator
from typing import Any

from selectolax.lexbor import LexborHTMLParser

from assay.errors import ParseFault
from assay.index.parsed import Block, Kind, Parsed

_DROPPED = frozenset(
    "script style noscript template svg math iframe object nav footer button select option form dialog head canvas".split()
)
_BLOCKS = frozenset(
    "address article aside blockquote body dd details div dl dt fieldset figcaption figure h1 h2 h3 h4 h5 h6 header hr html"
    " li main ol p pre section summary table tbody td tfoot th thead tr ul".split()
)
_DEPTH = 400  # deeper nesting than any page has: what lies below is read as plain text
_SPACE = re.compile(r"[ \t\r\n\f\v\u00a0]+")


class _Writer:
    """Collects blocks; every block ends with a blank line."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.blocks: list[Block] = []
        self._place = 0
        self._inline: list[str] = []

    def inline(self, text: str) -> None:
        self._inline.append(text)

    def flush(self, kind: Kind = "text", prefix: str = "") -> None:
        text = _tidy("".join(self._inline))
        self._inline.clear()
        if text:
            self.block(kind, prefix + text)

    def block(self, kind: Kind, text: str, level: int = 0, name: str = "") -> None:
        joined = bool(self.blocks) and kind == "list" and self.blocks[-1].kind == "list"
        if joined:  # one list, one block: only a line break between its items
            self.parts[-1] = "\n"
            self._place -= 1
            last = self.blocks.pop()
            start = last.start
        else:
            start = self._place
        end = self._place + len(text)
        self.blocks.append(Block(kind, start, end, level, name))
        self.parts += [text, "\n\n"]
        self._place = end + 2


def parse(html: str, stem: str) -> Parsed:
    tree = LexborHTMLParser(html.replace("\x00", ""))
    heading = tree.css_first("h1")
    title = tree.css_first("title")
    writer = _Writer()
    if tree.body is not None:
        _walk(tree.body, writer, 0)
    writer.flush()
    if not writer.blocks:
        raise ParseFault("the page holds no text", "empty")
    named = next((t for node in (title, heading) if node is not None and (t := _tidy(node.text()))), stem)
    return Parsed("".join(writer.parts).rstrip("\n"), named, "html", tuple(writer.blocks))


def _walk(node: Any, writer: _Writer, depth: int) -> None:
    for child in _children(node):
        tag = child.tag
        if tag == "-text":
            writer.inline(_SPACE.sub(" ", child.text_content or ""))
        elif tag in _DROPPED or "hidden" in child.attributes or not tag or tag.startswith(("-", "_", "!")):
            continue
        elif tag == "br":
            writer.inline("\n")
        elif tag == "img":
            writer.inline(f" {child.attributes.get('alt') or ''} ")
        elif tag not in _BLOCKS:
            _walk(child, writer, depth + 1) if depth < _DEPTH else writer.inline(child.text())
        else:
            writer.flush()
            _block(child, tag, writer, depth)


def _block(node: Any, tag: str, writer: _Writer, depth: int) -> None:
    if depth >= _DEPTH:
        writer.inline(node.text(separator=" "))
        writer.flush()
    elif re.fullmatch(r"h[1-6]", tag):
        if name := _tidy(node.text(separator=" ")):
            writer.block("heading", f"{'#' * int(tag[1])} {name}", int(tag[1]), name)
    elif tag == "pre":
        if code := node.text().strip("\n").rstrip():
            fence = "`" * (3 + max((len(run) - 2 for run in re.findall(r"`{3,}", code)), default=0))
            writer.block("code", f"{fence}\n{code}\n{fence}")
    elif tag == "table" and not node.css_first("table table"):
        if rows := [row for tr in node.css("tr") if (row := _row(tr))]:
            writer.block("table", "\n".join(rows))
    elif tag == "li":
        _walk_item(node, writer, depth)
    else:
        _walk(node, writer, depth + 1)
        writer.flush()


def _walk_item(node: Any, writer: _Writer, depth: int) -> None:
    """An item's own words become one line; lists and code inside it follow."""
    for child in _children(node):
        if child.tag in ("ul", "ol", "pre", "table"):
            writer.flush("list", "- ")
            _block(child, child.tag, writer, depth + 1)
        elif child.tag == "-text":
            writer.inline(_SPACE.sub(" ", child.text_content or ""))
        elif child.tag not in _DROPPED:
            writer.inline(
                " " + _SPACE.sub(" ", child.text(separator=" ")) + " " if child.tag in _BLOCKS else child.text()
            )
    writer.flush("list", "- ")


def _row(tr: Any) -> str:
    cells = [_tidy(c.text(separator=" ")).replace("\n", " ").replace("|", "\\|") for c in tr.css("td, th")]
    return "| " + " | ".join(cells) + " |" if any(cells) else ""


def _children(node: Any) -> Iterator[Any]:
    child = node.child
    while child is not None:
        yield child
        child = child.next


def _tidy(text: str) -> str:
    lines = (_SPACE.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)
