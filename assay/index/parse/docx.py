"""Word: paragraphs, headings by style or outline level, lists, tables, text boxes, notes and comments.

The body is walked as XML: python-docx leaves out text boxes, content controls and hidden runs.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import docx
from docx.opc.exceptions import OpcError, PackageNotFoundError
from lxml import etree

from assay.errors import ParseFault
from assay.index.parse.out import Writer, told, words
from assay.index.parse.package import office
from assay.index.parse.parsed import Parsed, Raw

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"  # says the same again
_TINY = 3  # half points
_LEVEL = re.compile(r"heading (\d)", re.IGNORECASE)
_SIGNS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_PASSED = frozenset(_W + name for name in ("del", "moveFrom", "instrText", "rPr", "pPr", "tblPr"))


def parse(data: bytes, stem: str) -> Parsed:
    try:
        document = docx.Document(office(data))
        body = document.element.body
    except (OpcError, PackageNotFoundError, KeyError, ValueError, AttributeError, etree.XMLSyntaxError) as e:
        raise ParseFault(f"the file is no readable Word document ({type(e).__name__})", "malformed") from None
    out, styles = Writer(), _Styles(document)
    _walk(body, out, styles)
    for name, title in (("footnotes", "Footnotes"), ("endnotes", "Endnotes"), ("comments", "Comments")):
        _notes(document, name, title, out, styles)
    properties = core_properties(document.core_properties)
    heading = next((b.name for b in out.blocks if b.kind == "heading" and b.level == 1), "")
    return out.parsed(str(properties.get("title") or heading or stem), "docx", properties, "the document has no text")


def core_properties(core: Any) -> dict[str, Raw]:
    """The core properties of an office file, by their common names."""

    def said(name: str) -> str:
        try:
            value: Any = getattr(core, name, None)
        except (ValueError, TypeError, AttributeError):  # a date that is none
            return ""
        if isinstance(value, datetime):  # those without a zone are UTC, says the standard
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
        return str(value or "").strip()

    return told(
        title=said("title"), author=said("author") or said("creator"), subject=said("subject"),
        keywords=words(said("keywords")), created=said("created"), modified=said("modified"), language=said("language"),
    )  # fmt: skip


class _Styles:
    """Of each paragraph style: the heading level, whether it is a list, whether its text is hidden. By style id."""

    def __init__(self, document: Any) -> None:
        self._level: dict[str, int] = {}
        self._hidden: set[str] = set()
        self._list: set[str] = set()
        elements = {s.get(_W + "styleId"): s for s in document.styles.element.iter(_W + "style")}
        for key in elements:
            for element in _based(elements, key):
                name = _value(element.find(_W + "name"))
                found = _LEVEL.fullmatch(name)
                outline = element.find(f"{_W}pPr/{_W}outlineLvl")
                level = int(found.group(1)) if found else 1 if name.lower() == "title" else _outline(outline)
                if level:
                    self._level.setdefault(key, level)
                if _on(element.find(f"{_W}rPr/{_W}vanish")):
                    self._hidden.add(key)
                if name.lower().startswith("list"):
                    self._list.add(key)

    def level(self, paragraph: Any) -> int:
        outline = paragraph.find(f"{_W}pPr/{_W}outlineLvl")
        return _outline(outline) or self._level.get(_style(paragraph, "pPr/{W}pStyle"), 0)

    def is_list(self, paragraph: Any) -> bool:
        numbered = paragraph.find(f"{_W}pPr/{_W}numPr")
        return numbered is not None or _style(paragraph, "pPr/{W}pStyle") in self._list

    def hides(self, run: Any) -> bool:
        paragraph = next(run.iterancestors(_W + "p"), None)
        if _style(run, "rPr/{W}rStyle") in self._hidden:
            return True
        return paragraph is not None and _style(paragraph, "pPr/{W}pStyle") in self._hidden


def _based(elements: dict[str, Any], key: str) -> Iterator[Any]:
    for _ in range(20):
        element = elements.get(key)
        if element is None:
            return
        yield element
        key = _value(element.find(_W + "basedOn"))


def _walk(parent: Any, out: Writer, styles: _Styles) -> None:
    for child in parent.iterchildren(tag=etree.Element):
        if child.tag == _W + "p":
            _paragraph(child, out, styles)
        elif child.tag == _W + "tbl":
            _table(child, out, styles)
        elif child.tag not in _PASSED:  # content controls, insertions, custom XML: what they hold
            _walk(child, out, styles)


def _paragraph(paragraph: Any, out: Writer, styles: _Styles) -> None:
    seen, hidden = _texts(paragraph, styles)
    level = styles.level(paragraph)
    if seen and level:
        out.heading(seen, level)
    elif seen and styles.is_list(paragraph):
        out.block("list", f"- {' '.join(seen.split())}")
    else:
        out.block("text", seen)
    out.block("text", hidden, hidden=True)
    for box in _boxes(paragraph):
        _walk(box, out, styles)


def _table(table: Any, out: Writer, styles: _Styles) -> None:
    """Merged cells once; what is hidden, and boxes, after it."""
    rows, unseen = [], []
    for row in table.iterchildren(_W + "tr"):
        cells = []
        for cell in row.iter(_W + "tc"):
            if next(cell.iterancestors(_W + "tc"), None) is not None:
                continue  # of a table inside: part of the outer cell's text
            texts = [_texts(paragraph, styles) for paragraph in cell.iter(_W + "p")]
            cells.append(" ".join(seen for seen, _ in texts if seen))
            unseen += [hidden for _, hidden in texts if hidden]
        rows.append(cells)
    out.table(rows)
    out.block("text", "\n".join(unseen), hidden=True)


def _texts(paragraph: Any, styles: _Styles) -> tuple[str, str]:
    """What a reader sees, and what not. Text boxes are apart, deletions gone."""
    seen: list[str] = []
    hidden: list[str] = []
    stack = [*paragraph.iterchildren(tag=etree.Element)][::-1]
    while stack:
        node = stack.pop()
        if node.tag == _W + "r":
            (hidden if _unseen(node, styles) else seen).append(_run(node))
        elif node.tag.endswith("}oMath"):
            seen.append("".join(node.itertext()))
        elif node.tag not in _PASSED and node.tag not in (_FALLBACK, _W + "txbxContent"):
            stack += [*node.iterchildren(tag=etree.Element)][::-1]
    return "".join(seen).strip(), "".join(hidden).strip()


def _run(run: Any) -> str:
    parts = []
    for child in run.iterchildren(tag=etree.Element):
        if child.tag == _W + "t":
            parts.append(child.text or "")
        elif child.tag.startswith(_W):
            parts.append(_SIGNS.get(child.tag[len(_W) :], ""))
    return "".join(parts)


def _unseen(run: Any, styles: _Styles) -> bool:
    """Hidden by its font, or white on no colour of its own, or too small to be seen."""
    font = run.find(_W + "rPr")
    if font is None:
        return styles.hides(run)
    vanish = font.find(_W + "vanish")
    white = _value(font.find(_W + "color")).upper() == "FFFFFF" and not _backed(run)
    size = _value(font.find(_W + "sz"))
    tiny = size.isdigit() and int(size) <= _TINY
    return (_on(vanish) if vanish is not None else styles.hides(run)) or white or tiny


def _backed(run: Any) -> bool:
    """Whether a colour lies under a run: its own, its paragraph's, cell's or table's, or that of a shape."""
    for at in (run, *run.iterancestors()):
        if at.tag.endswith(("}wsp", "}pict")):
            return True
        if at.tag in (_W + "r", _W + "p", _W + "tc", _W + "tbl"):
            fills = [shade.get(_W + "fill") or "" for shade in at.iter(_W + "shd")]
            if any(fill.lower() not in ("", "auto", "ffffff") for fill in fills) or any(
                True for _ in at.iter(_W + "highlight")
            ):
                return True
    return False


def _boxes(paragraph: Any) -> Iterator[Any]:
    for box in paragraph.iter(_W + "txbxContent"):
        above = list(box.iterancestors())
        if not any(a.tag == _FALLBACK for a in above) and next(box.iterancestors(_W + "p"), None) is paragraph:
            yield box


def _notes(document: Any, name: str, title: str, out: Writer, styles: _Styles) -> None:
    """A part of its own: footnotes, endnotes, comments with their authors."""
    part = next((p for p in document.part.package.iter_parts() if str(p.partname) == f"/word/{name}.xml"), None)
    if part is None:
        return
    root = etree.fromstring(part.blob, etree.XMLParser(resolve_entities=False, no_network=True))
    lines = []
    for note in root.iterchildren(tag=etree.Element):
        if note.get(_W + "type") in (None, "normal"):
            text = " ".join(seen for p in note.iter(_W + "p") if (seen := _texts(p, styles)[0]))
            author = note.get(_W + "author")
            lines.append(f"{author}: {text}" if author and text else text)
    if any(lines):
        out.heading(title, 1)
        for line in filter(None, lines):
            out.block("list", f"- {' '.join(line.split())}")


def _style(element: Any, path: str) -> str:
    return _value(element.find(_W + path.replace("{W}", _W)))


def _value(element: Any) -> str:
    return (element.get(_W + "val") or "") if element is not None else ""


def _on(element: Any) -> bool:
    return element is not None and _value(element).lower() not in ("0", "false", "off")


def _outline(element: Any) -> int:
    value = _value(element)
    return int(value) + 1 if value.isdigit() and int(value) < 9 else 0
