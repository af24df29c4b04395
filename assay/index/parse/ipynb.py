"""Notebooks: Markdown cells as Markdown, code cells as code with what they printed."""

import json
from typing import Any

from assay.errors import ParseFault
from assay.index.parse import md
from assay.index.parse.out import Writer, told
from assay.index.parse.parsed import Parsed

_OUTPUT_CHARS = 4_000  # of one cell's output: the rest is logs


def parse(text: str, stem: str) -> Parsed:
    try:
        book = json.loads(text)
    except RecursionError:
        raise ParseFault("the JSON is nested too deeply", "too_large") from None
    except ValueError as e:
        raise ParseFault(f"the notebook is no JSON ({e})", "malformed") from None
    cells = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise ParseFault("the file is no notebook of version 4: it has no list of cells", "malformed")
    described = book.get("metadata") if isinstance(book.get("metadata"), dict) else {}
    language = str((described.get("language_info") or {}).get("name") or "python")
    out, title = Writer(), str(described.get("title") or "")
    for cell in cells:
        source = _text(cell.get("source"))
        if not source.strip():
            continue
        if cell.get("cell_type") == "markdown":
            inner = _markdown(source)
            title = title or next((b.name for b in inner.blocks if b.kind == "heading"), "")
            out.splice(inner)
        elif cell.get("cell_type") == "code":
            out.block("code", _fenced(source, language))
            out.block("code", _fenced(_outputs(cell.get("outputs")), ""))
        else:
            out.block("text", source.strip())
    authors = [str(a.get("name")) for a in described.get("authors") or [] if isinstance(a, dict) and a.get("name")]
    properties = told(title=title, author=", ".join(authors))
    return out.parsed(title or stem, "ipynb", properties, "the notebook's cells are empty")


def _markdown(source: str) -> Parsed:
    try:
        return md.parse(source, "")
    except ParseFault:  # a comment alone
        return Parsed("", "", "md", ())


def _fenced(text: str, language: str) -> str:
    text = text.strip("\n").rstrip()
    fence = "````" if "```" in text else "```"
    return f"{fence}{language}\n{text}\n{fence}" if text.strip() else ""


def _outputs(outputs: Any) -> str:
    """What a reader sees below a cell: printed text, results as text, errors; pictures have none."""
    texts = []
    for output in outputs if isinstance(outputs, list) else []:
        if isinstance(output, dict):
            data = output.get("data")
            shown = data.get("text/plain") if isinstance(data, dict) else output.get("text")
            texts.append(_text(shown) or ": ".join(str(output[k]) for k in ("ename", "evalue") if output.get(k)))
    text = "\n".join(t.rstrip("\n") for t in texts if t.strip())
    return text if len(text) <= _OUTPUT_CHARS else text[:_OUTPUT_CHARS] + "\n..."


def _text(source: Any) -> str:
    return "".join(map(str, source)) if isinstance(source, list) else source if isinstance(source, str) else ""
