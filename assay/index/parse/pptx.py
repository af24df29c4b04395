"""PowerPoint: a slide is a page under its title; shapes from top to bottom, tables, charts, and the speaker's notes."""

from collections.abc import Iterator
from typing import Any

from lxml import etree
from pptx import Presentation
from pptx.enum.shapes import MSO_SHAPE_TYPE, PP_PLACEHOLDER
from pptx.exc import PythonPptxError

from assay.errors import ParseFault
from assay.index.parse.docx import core_properties
from assay.index.parse.out import Writer
from assay.index.parse.package import office
from assay.index.parse.parsed import Parsed

_DEPTH = 20  # groups inside groups
_BAND = 100_000  # EMU, about a tenth of an inch: shapes this near in height stand beside each other


def parse(data: bytes, stem: str) -> Parsed:
    try:
        show = Presentation(office(data))
        slides = list(show.slides)
    except (PythonPptxError, KeyError, ValueError, AttributeError, etree.XMLSyntaxError) as e:
        raise ParseFault(f"the file is no readable presentation ({type(e).__name__})", "malformed") from None
    out = Writer()
    for number, slide in enumerate(slides, start=1):
        out.page()
        hidden = slide._element.get("show") == "0"
        _slide(slide, number, out, hidden)
    if not any(b.kind != "heading" for b in out.blocks) and not any(s.shapes.title for s in slides):
        raise ParseFault("the slides have no text", "empty")
    properties = core_properties(show.core_properties)
    return out.parsed(str(properties.get("title") or stem), "pptx", properties, "the slides have no text")


def _slide(slide: Any, number: int, out: Writer, hidden: bool) -> None:
    title = slide.shapes.title
    name = " ".join(title.text_frame.text.split()) if title is not None else ""
    out.heading((name or f"Slide {number}") + (" (hidden slide)" if hidden else ""), 1)
    for shape in _ordered(slide.shapes):
        if title is None or shape.shape_id != title.shape_id:
            _shape(shape, out, hidden, 0)
    if slide.has_notes_slide and (frame := slide.notes_slide.notes_text_frame) is not None and frame.text.strip():
        out.block("text", f"Notes: {_text(frame)}", hidden=hidden)


def _ordered(shapes: Any) -> list[Any]:
    return sorted(shapes, key=lambda s: ((s.top or 0) // _BAND, s.left or 0))


def _shape(shape: Any, out: Writer, hidden: bool, depth: int) -> None:
    if shape.shape_type == MSO_SHAPE_TYPE.GROUP:
        for inner in _ordered(shape.shapes) if depth < _DEPTH else ():
            _shape(inner, out, hidden, depth + 1)
    elif getattr(shape, "has_table", False) and shape.has_table:
        out.table(([cell.text for cell in row.cells] for row in shape.table.rows), hidden=hidden)
    elif getattr(shape, "has_chart", False) and shape.has_chart:
        _chart(shape, out, hidden)
    elif shape.has_text_frame:
        if not _furniture(shape):
            out.block("text", _text(shape.text_frame), hidden=hidden)
    else:
        described = next(shape._element.iter("{*}cNvPr"), None)
        out.block("text", _picture("" if described is None else described.get("descr") or ""), hidden=hidden)


def _furniture(shape: Any) -> bool:
    """The slide's number, which says nothing."""
    return shape.is_placeholder and shape.placeholder_format.type == PP_PLACEHOLDER.SLIDE_NUMBER


def _picture(alternative: str) -> str:
    text = " ".join(alternative.split())
    return f"Picture: {text}" if text else ""


def _text(frame: Any) -> str:
    lines = [" ".join(p.text.replace("\v", " ").split()) for p in frame.paragraphs]
    return "\n".join(line for line in lines if line)


def _chart(shape: Any, out: Writer, hidden: bool) -> None:
    try:
        rows = list(_series(shape.chart))
    except (KeyError, ValueError, AttributeError, NotImplementedError, IndexError):  # kinds the library does not know
        out.notes.append("a chart could not be read")
        return
    out.table(rows, hidden=hidden)


def _series(chart: Any) -> Iterator[list[str]]:
    plot = chart.plots[0]
    title = chart.chart_title.text_frame.text if chart.has_title and chart.chart_title.has_text_frame else "Chart"
    categories = [str(category) for category in plot.categories]
    yield [title, *(series.name for series in plot.series)]
    values = [list(series.values) for series in plot.series]
    for i, category in enumerate(categories):
        yield [category, *(f"{v[i]:g}" if i < len(v) and v[i] is not None else "" for v in values)]
