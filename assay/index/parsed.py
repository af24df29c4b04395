"""What a parser makes of a file, and how it crosses from the child process: as JSON, never as a pickle."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["heading", "text", "list", "table", "code"]
Format = Literal["md", "mdx", "txt", "html", "pdf"]

FORMATS: dict[str, Format] = {
    ".md": "md",
    ".mdx": "mdx",
    ".markdown": "md",
    ".txt": "txt",
    ".text": "txt",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of structure: characters [start, end) of the text. ``level`` and ``name`` are of headings alone."""

    kind: Kind
    start: int
    end: int
    level: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """``pages``: the character where each page begins, empty for formats without pages. Blocks are in order and disjoint."""

    text: str
    title: str
    format: Format
    blocks: Sequence[Block]
    pages: Sequence[int] = ()


def dumps(parsed: Parsed) -> bytes:
    return json.dumps(asdict(parsed)).encode()


def from_fields(fields: dict[str, Any]) -> Parsed:
    return Parsed(**{**fields, "blocks": tuple(Block(**b) for b in fields["blocks"]), "pages": tuple(fields["pages"])})
