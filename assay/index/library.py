"""What the index holds, for people: buckets, lists of documents, and a document's text with a place in it marked."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from assay.documents.shapes import (
    BucketList,
    BucketRow,
    DocumentList,
    DocumentPart,
    DocumentRow,
    DocumentView,
    FieldRow,
    Highlight,
)
from assay.documents.types import DocumentsQuery, ReadQuery
from assay.errors import InvalidRequest, NotFound, UnknownBucket
from assay.index.catalog import Catalog
from assay.index.dense import Mask
from assay.index.reader import Reader
from assay.schemas import Facet
from assay.types import BucketInfo, Chunk, Scope

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEAD = 4  # of a page that is made around a highlight, one part in so many stands before it


class Library:
    """``reader``: of the snapshot in force; None where nothing was ever published. Raises ``IndexFault``."""

    def __init__(self, reader: Callable[[], Reader | None]) -> None:
        self._reader = reader

    async def buckets(self, scope: Scope) -> BucketList:
        """All that there are within a scope, also those that hold nothing yet."""
        return await asyncio.to_thread(self._buckets, scope)

    async def documents(self, query: DocumentsQuery) -> DocumentList:
        """Raises ``UnknownBucket``, and ``InvalidRequest`` for an ``after`` that is none."""
        return await asyncio.to_thread(self._documents, query)

    async def read(self, query: ReadQuery) -> DocumentView:
        """Raises ``NotFound``: the document, or the passage or place in it, that the scope does not have."""
        return await asyncio.to_thread(self._read, query)

    def _buckets(self, scope: Scope) -> BucketList:
        reader = self._reader()
        if reader is None:
            return BucketList(buckets=[])
        names = _names(reader.catalog, scope, None)
        rows = [_bucket(reader.catalog, name, scope) for name in names]
        return BucketList(buckets=rows, index_version=reader.manifest.id)

    def _documents(self, query: DocumentsQuery) -> DocumentList:
        reader = self._reader()
        if reader is None:
            if query.bucket is not None:
                raise _unknown(query.bucket, ())
            return DocumentList(documents=[], total=0)
        names = _names(reader.catalog, query.scope, query.bucket)
        if not names:
            return DocumentList(documents=[], total=0, index_version=reader.manifest.id)
        found = reader.catalog.documents(reader.catalog.allowed(names, None, query.scope.filters, query.scope.groups))
        page = _after(found, query.after).sort_by([("ingested_at", "descending"), ("doc_id", "ascending")])
        shown = page.slice(0, query.limit).to_pylist()
        rows = [DocumentRow(**asdict(reader.catalog.info(row["doc_id"]))) for row in shown]
        more = page.num_rows > len(shown)
        return DocumentList(
            documents=rows,
            total=found.num_rows,
            next=_cursor(shown[-1]["ingested_at"], shown[-1]["doc_id"]) if more else None,
            index_version=reader.manifest.id,
        )

    def _read(self, query: ReadQuery) -> DocumentView:
        reader = self._reader()
        names = _names(reader.catalog, query.scope, None) if reader else ()
        if reader is None or not names:
            raise NotFound("there is no such document", "doc_id")
        allowed = reader.catalog.allowed(names, query.doc_id, query.scope.filters, query.scope.groups)
        if not allowed.count:
            raise NotFound("there is no such document", "doc_id")
        return _view(reader, query, allowed.mask)


def _names(catalog: Catalog, scope: Scope, bucket: str | None) -> tuple[str, ...]:
    """The buckets that there are and that may be seen; or the asked one of them. A hidden one is told like one that is not."""
    visible = tuple(name for name in catalog.seen_buckets(scope.groups) if not scope.buckets or name in scope.buckets)
    if bucket is None:
        return visible
    if bucket not in visible:
        raise _unknown(bucket, visible)
    return (bucket,)


def _unknown(bucket: str, visible: tuple[str, ...]) -> UnknownBucket:
    return UnknownBucket(f"There is no bucket '{bucket[:80]}'.", "bucket", visible)


def _bucket(catalog: Catalog, name: str, scope: Scope) -> BucketRow:
    info = next(iter(catalog.describe((name,), scope.filters, scope.groups)), BucketInfo(name, 0, 0))
    schema = catalog.schema(name)
    counted = {field.name: field.documents for field in info.fields}
    fields = [
        FieldRow(
            name=field,
            type=said.type,
            required=said.required,
            description=said.description,
            documents=counted.get(field, 0),
            values=list(said.values),
        )
        for field, said in schema.fields.items()
    ]
    facets: dict[str, Facet] = {}
    if info.documents:
        rows = catalog.rows(catalog.allowed((name,), None, scope.filters, scope.groups))
        facets = catalog.facets(["format", *schema.fields], rows, (name,), scope.groups)
    return BucketRow(
        name=name,
        description=schema.description,
        documents=info.documents,
        chunks=info.chunks,
        fields=fields,
        facets=facets,
    )


# ---- pages of a list ------------------------------------------------------------------------------------------------


def _cursor(at: datetime, doc_id: str) -> str:
    return f"{(at - _EPOCH) // timedelta(microseconds=1)}-{doc_id}"


def _after(found: pa.Table, after: str | None) -> pa.Table:
    """What comes after a place in the order, whether a document still stands there or not."""
    if after is None:
        return found
    digits, _, doc_id = after.partition("-")
    if not (digits.isascii() and digits.isdigit() and doc_id) or len(digits) > 18:
        raise InvalidRequest("'after' is not the 'next' of another page.", "after")
    at = pa.scalar(
        int(digits), pa.timestamp("us", "UTC")
    )  # by its number: a cursor may name a year that Python has not
    older, same = pc.less(found["ingested_at"], at), pc.equal(found["ingested_at"], at)
    return found.filter(pc.or_(older, pc.and_(same, pc.greater(found["doc_id"], doc_id))))


# ---- a document -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """A passage, and what stands between it and the one before: headings, blank lines."""

    start: int
    end: int
    passage: Chunk


def _view(reader: Reader, query: ReadQuery, mask: Mask | None) -> DocumentView:
    text = reader.document(query.doc_id)
    rows = reader.catalog.rows_in(query.doc_id)
    seen = rows if mask is None else rows[mask[rows]]
    passages = sorted(reader.chunks(seen), key=lambda passage: passage.ordinal)
    parts = _parts(passages, len(text) if len(seen) == len(rows) else None)
    place = _place(query, passages, parts)
    first = _first(parts, query, place)
    last = _last(parts, first, query.max_chars)
    return DocumentView(
        document=DocumentRow(**asdict(reader.catalog.info(query.doc_id))),
        parts=[piece for part in parts[first:last] for piece in _pieces(part, text, place)],
        span=(parts[first].start, parts[last - 1].end),
        chars=len(text),
        before=parts[_earlier(parts, first, query.max_chars)].start if first else None,
        after=parts[last].start if last < len(parts) else None,
        highlight=_highlight(place, parts, text) if place else None,
        index_version=reader.manifest.id,
    )


def _parts(passages: Sequence[Chunk], chars: int | None) -> list[_Part]:
    """In order. ``chars``: of the whole text; None where some passages may not be seen: then nothing beside the others may."""
    if chars is None:
        return [_Part(p.start, p.end, p) for p in passages]
    starts = [0, *(p.end for p in passages[:-1])]
    ends = [*(p.end for p in passages[:-1]), chars]
    return [_Part(*where) for where in zip(starts, ends, passages, strict=True)]


def _place(query: ReadQuery, passages: Sequence[Chunk], parts: Sequence[_Part]) -> tuple[int, int] | None:
    """The characters to mark."""
    if query.span is None and query.chunk_id is not None:
        found = next((p for p in passages if p.id == query.chunk_id), None)
        if found is None:
            raise NotFound("the document has no such passage", "chunk_id")
        return found.start, found.end
    if query.span is None:
        return None
    start, end = query.span[0], min(query.span[1], parts[-1].end)
    if start >= end or not any(part.start < end and start < part.end for part in parts):
        raise NotFound("the document has nothing there", "span")
    return start, end


def _first(parts: Sequence[_Part], query: ReadQuery, place: tuple[int, int] | None) -> int:
    """Where the page begins: with the part of ``start``, or a little before the highlight, or with the text."""
    if query.start is not None:
        return next((i for i, part in enumerate(parts) if part.end > query.start), len(parts) - 1)
    if place is None:
        return 0
    at = next(i for i, part in enumerate(parts) if part.end > place[0])
    if parts[at].end <= query.max_chars:
        return 0
    first = _earlier(parts, at, query.max_chars // _LEAD)
    while first < at and parts[at].end - parts[first].start > query.max_chars:
        first += 1  # what was asked for comes before what leads to it
    return first


def _last(parts: Sequence[_Part], first: int, chars: int) -> int:
    """The number after the page's last part; a page has at least one."""
    last = first + 1
    while last < len(parts) and parts[last].end - parts[first].start <= chars:
        last += 1
    return last


def _earlier(parts: Sequence[_Part], at: int, chars: int) -> int:
    """The first part from which there are at most so many characters to the part ``at``, or else the one before that."""
    first = max(0, at - 1)
    while first > 0 and parts[at].start - parts[first - 1].start <= chars:
        first -= 1
    return first


def _pieces(part: _Part, text: str, place: tuple[int, int] | None) -> list[DocumentPart]:
    cuts = [part.start, part.end]
    if place is not None:
        cuts[1:1] = [cut for cut in place if part.start < cut < part.end]
    return [
        DocumentPart(
            text=text[start:end],
            span=(start, end),
            chunk_id=part.passage.id,
            page=part.passage.page,
            heading=list(part.passage.heading),
            hidden=part.passage.hidden,
            marked=place is not None and place[0] <= start and end <= place[1],
        )
        for start, end in pairwise(cuts)
        if start < end
    ]


def _highlight(place: tuple[int, int], parts: Sequence[_Part], text: str) -> Highlight:
    """Of what may be seen of it."""
    inside = [part for part in parts if part.start < place[1] and place[0] < part.end]
    shown = "".join(text[max(place[0], part.start) : min(place[1], part.end)] for part in inside)
    passage, hidden = inside[0].passage, any(part.passage.hidden for part in inside)
    return Highlight(span=place, page=passage.page, heading=list(passage.heading), text=shown, hidden=hidden)
