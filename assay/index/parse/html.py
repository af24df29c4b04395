"""HTML to text in Markdown's shape: headings, list items, tables and code stay what they are, navigation goes."""

import re
from collections.abc import Iterator
from typing import Any

from selectolax.lexbor import LexborHTMLParser

from assay.index.parse.out import Writer
from assay.index.parse.parsed import Kind, Parsed, Raw

_DROPPED = frozenset(
    "script style noscript template svg annotation annotation-xml iframe object nav footer button select option dialog"
    " head canvas".split()
)
_UNSEEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
# Elements whose inside is no markup: closed at once, as XHTML may, they swallow the page.
_CLOSED_AT_ONCE = re.compile(r"<(script|style|title|textarea|iframe|noframes|xmp)(\s[^<>]*)?/>", re.IGNORECASE)
_XHTML = re.compile(
    r"\s*<\?xml|[^>]*?<!doctype[^>]*xhtml|(?:[^<]|<(?!html))*<html[^>]*w3\.org/1999/xhtml", re.IGNORECASE
)
_BLOCKS = frozenset(
    "address article aside blockquote body caption dd details div dl dt fieldset figcaption figure form h1 h2 h3 h4 h5 h6"
    " header hr html li main ol p pre section summary table tbody td tfoot th thead tr ul".split()
)
# A page's own names of what other kinds of files call by one name; the first that it has counts.
_COMMON = {
    "author": ("author", "article:author", "dc.creator", "dcterms.creator"),
    "subject": ("description", "dc.description", "og:description"),
    "created": ("article:published_time", "dcterms.created", "dc.date", "date"),
    "modified": ("article:modified_time", "dcterms.modified", "last-modified"),
}
_DEPTH = 400  # deeper nesting than any page has: what lies below is read as plain text
_SPACE = re.compile(r"[ \t\r\n\f\v\u00a0]+")


class _Writer(Writer):
    """With the words of the paragraph in hand."""

    def __init__(self) -> None:
        super().__init__()
        self._inline: list[str] = []

    def inline(self, text: str) -> None:
        self._inline.append(text)

    def flush(self, kind: Kind = "text", prefix: str = "") -> None:
        text = _tidy("".join(self._inline))
        self._inline.clear()
        if text:
            self.block(kind, prefix + text)


def parse(html: str, stem: str) -> Parsed:
    html = html.replace("\x00", "")
    tree = LexborHTMLParser(_CLOSED_AT_ONCE.sub(r"<\1\2></\1>", html) if _XHTML.match(html[:4096]) else html)
    title = tree.css_first("head > title")
    titled = _tidy(title.text()) if title is not None else ""
    properties = _properties(tree, titled)
    if tree.body is not None:
        _drop_unseen(tree.body)
    heading = tree.css_first("h1")
    writer = _Writer()
    if tree.body is not None:
        _walk(tree.body, writer, 0)
    writer.flush()
    named = titled or (_line(heading) if heading is not None else "") or stem
    return writer.parsed(named, "html", properties, "the page holds no text")


def _properties(tree: LexborHTMLParser, title: str) -> dict[str, Raw]:
    """The page's ``meta`` elements by their lower-case names, and the common properties from those that mean them."""
    found: dict[str, Raw] = {"title": title} if title else {}
    for meta in tree.css("meta[content]"):
        name = (meta.attributes.get("name") or meta.attributes.get("property") or "").strip().lower()
        if name and name not in found and (content := _tidy(meta.attributes.get("content") or "")):
            found[name] = content
    for common, names in _COMMON.items():
        said = next((found[name] for name in names if name in found), None)
        if said is not None:
            found[common] = said
    if isinstance(words := found.get("keywords"), str):
        found["keywords"] = [word for part in re.split("[,;]", words) if (word := part.strip())]
    html = tree.css_first("html")
    if html is not None and (language := html.attributes.get("lang")):
        found.setdefault("language", language)
    return found


def _drop_unseen(root: Any) -> None:
    """Take out what no reader sees. Only the outermost of what nests: with it goes what it holds."""
    unseen: list[Any] = []
    stack = [root]
    while stack:
        for child in _children(stack.pop()):
            (unseen if _unseen(child) else stack).append(child)
    for node in unseen:
        node.decompose()


def _unseen(node: Any) -> bool:
    tag = node.tag
    if tag == "-text":
        return False
    if not tag or tag in _DROPPED or tag.startswith(("-", "_", "!")):
        return True
    attributes = node.attributes
    return (
        "hidden" in attributes
        or (attributes.get("aria-hidden") or "").lower() == "true"
        or bool(_UNSEEN_STYLE.search(attributes.get("style") or ""))
    )


def _walk(node: Any, writer: _Writer, depth: int) -> None:
    for child in _children(node):
        tag = child.tag
        if tag == "-text":
            writer.inline(_SPACE.sub(" ", child.text_content or ""))
        elif tag == "br":
            writer.inline("\n")
        elif tag == "img":
            writer.inline(f" {child.attributes.get('alt') or ''} ")
        elif tag not in _BLOCKS:
            _walk(child, writer, depth + 1) if depth < _DEPTH else writer.inline(_line(child))
        else:
            writer.flush()
            _block(child, tag, writer, depth)


def _block(node: Any, tag: str, writer: _Writer, depth: int) -> None:
    if depth >= _DEPTH:
        writer.inline(_line(node))
        writer.flush()
    elif re.fullmatch(r"h[1-6]", tag):
        if name := _line(node):
            writer.block("heading", f"{'#' * int(tag[1])} {name}", int(tag[1]), name)
    elif tag == "pre":
        if code := _inside(node, raw=True).strip("\n").rstrip():
            fence = "`" * (3 + max((len(run) - 2 for run in re.findall(r"`{3,}", code)), default=0))
            writer.block("code", f"{fence}\n{code}\n{fence}")
    elif tag == "table" and not node.css_first("table table"):
        captions = [caption for c in node.css("caption") if (caption := _line(c))]
        if rows := captions + [row for tr in node.css("tr") if (row := _row(tr))]:
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
        elif depth < _DEPTH and child.css_first("ul, ol, pre, table"):
            writer.flush("list", "- ")
            _walk_item(child, writer, depth + 1)
        elif child.tag in ("br", "img"):
            writer.inline(f" {child.attributes.get('alt') or ''} ")
        else:
            words = _SPACE.sub(" ", _inside(child))
            writer.inline(f" {words} " if child.tag in _BLOCKS else words)
    writer.flush("list", "- ")


def _row(tr: Any) -> str:
    cells = [_line(c).replace("|", "\\|") for c in tr.css("td, th")]
    return "| " + " | ".join(cells) + " |" if any(cells) else ""


def _inside(node: Any, *, raw: bool = False) -> str:
    """The text inside, blanks where blocks and lines begin; ``raw``: as it stands, for code."""
    parts: list[str] = []
    stack: list[Any] = [*_children(node)][::-1]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            parts.append(item)
        elif item.tag == "-text":
            parts.append(item.text_content or "")
        elif item.tag == "br":
            parts.append("\n")
        elif item.tag == "img":
            parts.append(f" {item.attributes.get('alt') or ''} ")
        else:
            before, after = ("", "") if item.tag not in _BLOCKS else ("", "\n") if raw else (" ", " ")
            stack += [after, *[*_children(item)][::-1], before]
    return "".join(parts)


def _line(node: Any) -> str:
    return " ".join(_inside(node).split())


def _children(node: Any) -> Iterator[Any]:
    child = node.child
    while child is not None:
        yield child
        child = child.next


def _tidy(text: str) -> str:
    lines = (_SPACE.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)
