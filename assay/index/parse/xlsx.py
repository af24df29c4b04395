"""Excel: a sheet is a heading, and each block of rows that blank rows divide is a table. What is hidden is marked."""

import re
import zipfile
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any

import openpyxl
from lxml import etree
from openpyxl.utils.exceptions import InvalidFileException

from assay.errors import ParseFault
from assay.index.parse.docx import core_properties
from assay.index.parse.out import MOST_CHARS, Writer
from assay.index.parse.package import office
from assay.index.parse.parsed import Parsed
from assay.index.parse.rows import MOST_COLUMNS

_MOST_CELLS = MOST_CHARS // 10
_ROW = re.compile(rb"<(?:\w+:)?row\b([^>]*)>")
_COL = re.compile(rb"<(?:\w+:)?col\b([^>]*)>")
_ATTRIBUTE = re.compile(rb'\b(r|min|max|hidden)="(\w+)"')
_FAULTS = (KeyError, ValueError, AttributeError, TypeError, IndexError, zipfile.BadZipFile, etree.XMLSyntaxError)


def parse(data: bytes, stem: str) -> Parsed:
    package = office(data)
    try:
        book = openpyxl.load_workbook(package, read_only=True, data_only=True, keep_links=False)
        sheets = list(book.worksheets)
    except (InvalidFileException, *_FAULTS) as e:
        raise ParseFault(f"the file is no readable workbook ({type(e).__name__})", "malformed") from None
    out, cells = Writer(), 0
    for sheet in sheets:
        sheet.reset_dimensions()  # what the file says of its size may be anything
        hidden = sheet.sheet_state != "visible"
        try:
            rows, columns = _hidden(package, sheet)
            named = False
            for table, unseen in _tables(sheet, rows, columns):
                cells += sum(map(len, table))
                if cells > _MOST_CELLS:
                    raise ParseFault(f"the workbook has more than {_MOST_CELLS} cells", "too_large")
                if not named:
                    out.heading(sheet.title + (" (hidden sheet)" if hidden else ""), 1)
                    named = True
                out.table(table, hidden=hidden or unseen)
        except _FAULTS as e:
            raise ParseFault(f"the sheet '{sheet.title[:100]}' cannot be read ({type(e).__name__})") from None
    properties = core_properties(book.properties)
    return out.parsed(str(properties.get("title") or stem), "xlsx", properties, "the sheets have no cells")


def _hidden(package: Any, sheet: Any) -> tuple[set[int], set[int]]:
    """Numbers (from 1) of hidden rows and columns. The library reads them only together with every cell's style."""
    with zipfile.ZipFile(package) as parts:
        xml = parts.read(sheet._worksheet_path.lstrip("/"))
    if b"hidden=" not in xml:
        return set(), set()
    rows = {int(a[b"r"]) for a in _attributes(_ROW, xml) if b"r" in a}
    columns: set[int] = set()
    for a in _attributes(_COL, xml):
        columns.update(range(int(a[b"min"]), min(int(a[b"max"]), MOST_COLUMNS) + 1))
    return rows, columns


def _attributes(tag: re.Pattern[bytes], xml: bytes) -> Iterator[dict[bytes, bytes]]:
    for match in tag.finditer(xml):
        found = dict(_ATTRIBUTE.findall(match.group(1)))
        if found.get(b"hidden") in (b"1", b"true"):
            yield found


def _tables(sheet: Any, rows: set[int], columns: set[int]) -> Iterator[tuple[list[list[str]], bool]]:
    """Blocks of rows, each whole in sight or whole out of it: hidden rows and columns stand in blocks of their own."""
    seen: list[list[str]] = []
    unseen: list[list[str]] = []
    for number, values in enumerate(sheet.iter_rows(values_only=True), start=1):
        if len(values) > MOST_COLUMNS and any(v is not None for v in values[MOST_COLUMNS:]):
            raise ParseFault(f"a row has {len(values)} columns, more than {MOST_COLUMNS}", "too_large")
        cells = [_shown(value) for value in values[:MOST_COLUMNS]]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            yield from _blocks(seen, unseen)
            seen, unseen = [], []
        elif number in rows:
            unseen.append(cells)
        else:
            seen.append([c for i, c in enumerate(cells, 1) if i not in columns])
            if columns:
                unseen.append([c for i, c in enumerate(cells, 1) if i in columns])
    yield from _blocks(seen, unseen)


def _blocks(seen: list[list[str]], unseen: list[list[str]]) -> Iterator[tuple[list[list[str]], bool]]:
    for rows, hidden in ((seen, False), (unseen, True)):
        if any(any(row) for row in rows):
            yield rows, hidden


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ")
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value).strip()
