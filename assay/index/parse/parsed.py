"""What a parser makes of a file, and how it crosses from the child process: as JSON, never as a pickle."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["heading", "text", "list", "table", "code", "record"]
Format = Literal[
    "md",
    "mdx",
    "txt",
    "html",
    "csv",
    "tsv",
    "json",
    "jsonl",
    "pdf",
    "docx",
    "pptx",
    "xlsx",
    "eml",
    "msg",
    "epub",
    "ipynb",
]

# What a file says of itself, as it says it: texts stay texts, and the bucket's schema decides what they mean. Properties
# that every kind of file has are called title, author, subject, keywords (a list), created, modified and language, dates
# in ISO 8601.
Raw = str | int | float | bool | list[str | int | float | bool]

FORMATS: dict[str, Format] = {
    ".md": "md",
    ".mdx": "mdx",
    ".markdown": "md",
    ".txt": "txt",
    ".text": "txt",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".pdf": "pdf",
    ".docx": "docx",
    ".docm": "docx",
    ".pptx": "pptx",
    ".pptm": "pptx",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    ".eml": "eml",
    ".msg": "msg",
    ".epub": "epub",
    ".ipynb": "ipynb",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of structure: characters [start, end) of the text. ``level`` and ``name`` are of headings alone.

    ``hidden``: no reader of the file sees it (an invisible text layer, a hidden sheet), so it is not to be trusted."""

    kind: Kind
    start: int
    end: int
    level: int = 0
    name: str = ""
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """``pages``: the character where each page begins, empty for formats without pages. Blocks are in order and disjoint.

    ``notes``: what of the file could not be used, for the report, where that is no reason to leave it out."""

    text: str
    title: str
    format: Format
    blocks: Sequence[Block]
    pages: Sequence[int] = ()
    metadata: Mapping[str, Raw] = field(default_factory=dict)
    notes: Sequence[str] = ()


def dumps(parsed: Parsed) -> bytes:
    return json.dumps(asdict(parsed)).encode()


def from_fields(fields: dict[str, Any]) -> Parsed:
    tuples = {name: tuple(fields[name]) for name in ("pages", "notes")}
    return Parsed(**{**fields, **tuples, "blocks": tuple(Block(**b) for b in fields["blocks"])})
