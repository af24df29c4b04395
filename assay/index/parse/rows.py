"""CSV, JSON and JSON lines. A row keeps its header, a record is a unit of its own."""

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import Any

from assay.errors import ParseFault
from assay.index.parse.out import MOST_CHARS, Writer
from assay.index.parse.parsed import Format, Parsed

MOST_COLUMNS = 2_000
_MOST_LINES = 200_000  # of values that one record may have
_CELL_CHARS = 1_000_000
_DELIMITERS = ",;\t|"
_BAD_SHARE = 0.1


def parse_csv(text: str, stem: str, *, delimiter: str = "") -> Parsed:
    """Raises ``ParseFault``: ``malformed`` for a quote that nothing closes, ``too_large`` for too many columns."""
    out = Writer()
    csv.field_size_limit(_CELL_CHARS)
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter or _delimiter(text), strict=True)
        out.table(_checked(rows))
    except csv.Error as e:
        raise ParseFault(f"the table cannot be read ({e})", "malformed") from None
    return out.parsed(stem, "csv", {}, "the table has no cells")


def _checked(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    cells = 0
    for row in rows:
        cells += len(row)
        if len(row) > MOST_COLUMNS:
            raise ParseFault(f"a row has {len(row)} columns, more than {MOST_COLUMNS}", "too_large")
        if cells > MOST_CHARS // 10:
            raise ParseFault(f"the table has more than {MOST_CHARS // 10} cells", "too_large")
        yield row


def _delimiter(text: str) -> str:
    """The sign that divides the first lines into the same number of cells, more than one; a comma where none does."""
    lines = [line for line in text[:20_000].splitlines()[:20] if line.strip()][:-1] or text[:20_000].splitlines()[:1]

    def evenness(sign: str) -> tuple[float, int]:
        counts = [len(re.sub(r'"[^"]*"', "", line).split(sign)) for line in lines]
        usual = max(counts, key=counts.count, default=1)
        return (counts.count(usual) / len(counts) if usual > 1 else 0.0, usual)

    return max(_DELIMITERS, key=evenness) if lines else ","


def parse_json(text: str, stem: str) -> Parsed:
    """The items of a list are records, and so are those of the lists of objects inside an object, under its key; the rest
    of an object is one record."""
    value = _loads(text)
    out, lists = Writer(), {}
    if isinstance(value, dict):
        lists = {key: held for key, held in value.items() if _objects(held)}
        value = [{key: held for key, held in value.items() if key not in lists}]
    for record in value if isinstance(value, list) else [value]:
        _record(record, out)
    for key, records in lists.items():
        out.heading(key, 1)
        for record in records:
            _record(record, out)
    return _done(out, stem, "json")


def _objects(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(item, dict) for item in value)


def parse_jsonl(text: str, stem: str) -> Parsed:
    """A record a line. Lines that are no JSON are noted, and where they are many the file is refused."""
    out, lines, bad = Writer(), 0, []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        lines += 1
        try:
            _record(_loads(line), out)
        except ParseFault as fault:
            if fault.reason != "malformed":
                raise
            bad.append(number)
    if len(bad) > _BAD_SHARE * lines:
        raise ParseFault(f"{len(bad)} of {lines} lines are no JSON, the first is line {bad[0]}", "malformed")
    if bad:
        out.notes.append(f"{len(bad)} of {lines} lines are no JSON and were left out, the first is line {bad[0]}")
    return _done(out, stem, "jsonl")


def _done(out: Writer, stem: str, format: Format) -> Parsed:
    return out.parsed(stem, format, {}, "the file holds no values")


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_int=str, parse_float=str)
    except RecursionError:
        raise ParseFault("the JSON is nested too deeply", "too_large") from None
    except ValueError as e:
        raise ParseFault(f"the file is no JSON ({e})", "malformed") from None


def _record(value: Any, out: Writer) -> None:
    """One value a line, named by its path: ``address.city: Oslo``; a list of plain values on one line."""
    lines: list[str] = []
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, dict):
            stack += [(f"{path}.{key}" if path else key, inner) for key, inner in reversed(item.items())]
        elif isinstance(item, list) and any(isinstance(i, dict | list) for i in item):
            stack += [(f"{path}[{n}]", inner) for n, inner in reversed(list(enumerate(item)))]
        else:
            shown = ", ".join(map(_shown, item)) if isinstance(item, list) else _shown(item)
            if shown:
                lines.append(f"{path}: {shown}" if path else shown)
                if len(lines) > _MOST_LINES:
                    raise ParseFault(f"a record has more than {_MOST_LINES} values", "too_large")
    out.block("record", "\n".join(lines))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return ("true" if value else "false") if isinstance(value, bool) else str(value).strip()
