"""What is asked of the library: frozen values that cross from the driver to the retriever."""

from dataclasses import dataclass

from assay.types import Scope


@dataclass(frozen=True, slots=True)
class DocumentsQuery:
    """A page of documents: of one bucket or of all, within a scope. ``after`` is the ``next`` of the page before."""

    scope: Scope
    bucket: str | None = None
    limit: int = 50
    after: str | None = None


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """A document, as long as it is within the scope. ``span`` or ``chunk_id``: what is to be marked. ``start``: the character
    that the page begins with, or a little before it; None for the highlight, or else the beginning."""

    doc_id: str
    scope: Scope
    span: tuple[int, int] | None = None
    chunk_id: int | None = None
    start: int | None = None
    max_chars: int = 50_000
