"""What a tool is, what it may use, and what it gives back."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from assay.bound import BoundRetriever
from assay.schemas import Degraded, Filter
from assay.types import Hit


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call may use. ``retriever`` holds the request's buckets and filter in whatever it is asked."""

    retriever: BoundRetriever
    link_hop: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """``hits`` become evidence, each once and in a slot of its own; ``note`` is read beside them, and cannot be cited.

    ``filters`` and ``index_version`` are what held for this call, for the audit log, and ``documents`` what the note tells of.
    ``empty``: nothing was found, and the note only says why.
    """

    hits: tuple[Hit, ...] = ()
    note: str = ""
    filters: Filter | None = None
    index_version: str | None = None
    degraded: tuple[Degraded, ...] = ()
    empty: bool = False
    documents: tuple[str, ...] = ()


class Tool(Protocol):
    """A tool. ``parameters`` is the JSON schema of its arguments, an object; a property ``bucket`` is narrowed to the names of
    the request's buckets. What it raises as an ``AssayError`` is told to the model, which may try something else."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput: ...


def passage_id(*parts: object) -> int:
    """The id of a passage that is no chunk of the index: negative, and the same for the same parts."""
    digest = hashlib.sha256("\x00".join(map(str, parts)).encode()).digest()
    return -1 - int.from_bytes(digest[:6], "big")
