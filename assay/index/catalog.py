"""What a snapshot holds, without its texts and vectors: the documents' fields, and the document of every chunk, in memory.

A search's buckets, its document, its filters (and whatever else bounds what may be seen) become one mask over chunks here,
once, and that mask binds everything: both legs, every variant, every hop, lookups and facets.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from assay import groups as access
from assay.errors import IndexFault, NotFound, UnknownBucket
from assay.groups import Groups
from assay.index.buckets import BucketSchema, column_of, fields_of
from assay.index.files import REPAIR, RESTORE, Layout
from assay.index.filters import (
    FIELDS,
    Field,
    Mask,
    all_of,
    compile_filter,
    contains,
    field_of,
    over_chunks,
    present,
    terms_of,
)
from assay.index.mirror import current
from assay.index.snapshot import read_current
from assay.index.store import naming_groups, open_dataset, reading
from assay.schemas import And, Facet, FacetValue, Filter, Predicate
from assay.types import BucketInfo, DocumentInfo, FieldInfo

_CACHED_SETS = 64
_CACHED_BUCKETS = 32
_CHUNKS = ["id", "doc_id", "page"]
_HEAVY = frozenset(["text", "sha256", "file_metadata", "given_metadata", "extracted_metadata"])
_FACET_VALUES = 50
_FACET_RANGES = 6
_NAMED_VALUES, _NAMED_CHARS = 40, 60  # of a field whose values a plan can choose among


@dataclass(frozen=True, slots=True)
class Allowed:
    """The rows that a search may return; ``mask`` is None where all may. ``blocking`` is what left none (an ``and`` of
    the fewest parts where it takes several), and ``count_without`` how many rows there are without it."""

    count: int
    mask: Mask | None
    blocking: Filter | None = None
    count_without: int | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is there for somebody: documents (None for all of them), the number of their rows, and buckets."""

    documents: Mask | None
    rows: int
    buckets: tuple[str, ...]


class Catalog:
    """Of one snapshot. A row is a chunk, numbered by ascending id; ``offsets`` are the rows' places in the store."""

    def __init__(self, chunks: Any, documents: Any, schemas: Mapping[str, BucketSchema]) -> None:
        """From the two datasets, and the snapshot's schemas. Raises ``IndexFault`` where the datasets cannot be read, or do not
        belong together."""
        with reading():
            table = chunks.to_table(columns=_CHUNKS)
            self._documents: pa.Table = documents.to_table(
                columns=[name for name in documents.schema.names if name not in _HEAVY]
            )
        ids = np.asarray(table["id"].to_numpy(), dtype=np.int64)
        self.offsets: NDArray[np.int64] = np.argsort(ids, kind="stable")
        self.ids: NDArray[np.int64] = ids[self.offsets]
        held = pc.index_in(table["doc_id"], value_set=self._documents["doc_id"])
        if held.null_count:
            raise IndexFault(f"the store has chunks of no document; {RESTORE}")
        self.document: NDArray[np.int32] = held.to_numpy().astype(np.int32)[self.offsets]
        self._of_chunks = {"page": table["page"].take(self.offsets).cast(pa.float64())}
        self._schemas = schemas
        self.buckets = self._count_buckets()
        self._cache: OrderedDict[str, Allowed] = OrderedDict()
        self._of_buckets: OrderedDict[tuple[tuple[str, ...], Groups], Mask | None] = OrderedDict()
        self._named, self._restricted = self._groups(documents)
        self._of_groups: OrderedDict[Groups, _Seen] = OrderedDict()
        self._lock = threading.Lock()

    def allowed(
        self, buckets: Sequence[str], doc_id: str | None, filters: Filter | None, groups: Groups = ()
    ) -> Allowed:
        """For whoever holds these groups. Raises ``UnknownBucket``, ``UnknownField`` or ``InvalidFilter``."""
        if (held := self.held(buckets, doc_id, filters, groups)) is not None:
            return held
        self._check_buckets(buckets, groups)
        found = self._allowed(buckets, doc_id, filters, groups)
        with self._lock:
            self._cache[_key(buckets, doc_id, filters, groups)] = found
            while len(self._cache) > _CACHED_SETS:
                self._cache.popitem(last=False)
        return found

    def held(
        self, buckets: Sequence[str], doc_id: str | None, filters: Filter | None, groups: Groups = ()
    ) -> Allowed | None:
        """What ``allowed`` found when it was last asked this; None where it was not, or long ago."""
        key = _key(buckets, doc_id, filters, groups)
        with self._lock:
            if (found := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
            return found

    @property
    def titles(self) -> list[str | None]:
        """Of the documents, as ``document`` numbers them."""
        titles: list[str | None] = self._documents["title"].to_pylist()
        return titles

    def column(self, field: Field) -> pa.ChunkedArray:
        """``filters.Frame``: numbers as floats, exact up to 2**53."""
        if field.of_chunks:
            return self._of_chunks[field.column]
        column = self._documents[field.column]
        return column.cast(pa.float64()) if field.type == "number" else column

    def spread(self, documents: Mask) -> Mask:
        """``filters.Frame``."""
        return documents[self.document]

    def seen_buckets(self, groups: Groups) -> tuple[str, ...]:
        """Those that there are for whoever holds these groups."""
        return self._seen(groups).buckets

    def total(self, groups: Groups) -> int:
        """The rows that there are for whoever holds these groups."""
        return self._seen(groups).rows

    def fields(self, buckets: Sequence[str], groups: Groups = ()) -> Mapping[str, Field]:
        """What may be asked of these buckets, or of all. A field that only some of them have is missing in the others."""
        said: dict[str, dict[str, Field]] = {}
        for bucket in sorted(set(buckets)) or self._seen(groups).buckets:
            for name, field in fields_of(self.schema(bucket)).items():
                said.setdefault(name, {})[bucket] = field
        found = dict(FIELDS)
        for name, by_bucket in said.items():
            alike = len({field.type for field in by_bucket.values()}) == 1
            clash = () if alike else tuple(f"a {field.type} in '{bucket}'" for bucket, field in by_bucket.items())
            found[name] = replace(next(iter(by_bucket.values())), clash=clash)
        return found

    def describe(self, buckets: Sequence[str], filters: Filter | None, groups: Groups = ()) -> tuple[BucketInfo, ...]:
        """The buckets as they are within a filter: counts are those of its passages and documents alone, and values of fields
        those of its documents. Raises what ``allowed`` raises."""
        allowed = self.allowed(buckets, None, filters, groups)
        places, passages = np.unique(self.document[self.rows(allowed)], return_counts=True)
        held = self._documents.drop_columns("chunks").take(pa.array(places)).append_column("chunks", pa.array(passages))
        named = held["bucket"].to_pylist()
        return tuple(
            self._within(bucket, held.filter(pc.equal(held["bucket"], bucket.name)))
            for bucket in self.buckets.values()
            if bucket.name in named
        )

    def _within(self, bucket: BucketInfo, held: pa.Table) -> BucketInfo:
        fields = fields_of(self.schema(bucket.name))
        return replace(
            bucket,
            documents=held.num_rows,
            chunks=pc.sum(held["chunks"]).as_py(),
            fields=tuple(
                replace(
                    info,
                    documents=int(present(column := held[fields[info.name].column]).sum()),
                    values=_few(column) if info.type in ("text", "list") else (),
                )
                for info in bucket.fields
            ),
        )

    def facets(
        self, names: Sequence[str], rows: NDArray[np.int64], buckets: Sequence[str], groups: Groups = ()
    ) -> dict[str, Facet]:
        """Over the documents of some rows. Raises ``UnknownField`` or ``InvalidFilter``."""
        if not names:
            return {}
        fields = self.fields(buckets, groups)
        asked = {name: field_of(name, fields, f"facets[{i}]") for i, name in enumerate(names)}
        return {name: self._facet(field, rows) for name, field in asked.items()}

    def info(self, doc_id: str) -> DocumentInfo:
        """Raises ``NotFound``."""
        return self._info(self._documents.slice(self.row_of(doc_id), 1).to_pylist()[0])

    def documents(self, allowed: Allowed) -> pa.Table:
        """``doc_id`` and ``ingested_at`` of those that have a passage among the allowed ones."""
        places = np.arange(len(self._documents)) if allowed.mask is None else np.unique(self.document[allowed.mask])
        held = self._documents.take(pa.array(places))
        return held.filter(pc.greater(held["chunks"], 0)).select(["doc_id", "ingested_at"])

    def _info(self, held: dict[str, Any]) -> DocumentInfo:
        schema = self.schema(held["bucket"])
        values = {name: held[field.column] for name, field in fields_of(schema).items()}
        return DocumentInfo(
            **{name: held[name] for name in ("doc_id", "bucket", "title", "uri", "format", "bytes", "chunks")},
            ingested_at=_shown(held["ingested_at"]),
            metadata={name: _shown(value) for name, value in values.items() if value not in (None, [])},
        )

    def row_of(self, doc_id: str) -> int:
        """A document's place in the store. Raises ``NotFound``."""
        row = pc.index(self._documents["doc_id"], doc_id).as_py()
        if row < 0:
            raise NotFound("there is no such document", "doc_id")
        return int(row)

    def schema(self, bucket: str) -> BucketSchema:
        return self._schemas.get(bucket, BucketSchema())

    def rows(self, allowed: Allowed) -> NDArray[np.int64]:
        return np.arange(len(self.ids)) if allowed.mask is None else np.flatnonzero(allowed.mask)

    def rows_in(self, doc_id: str) -> NDArray[np.int64]:
        """A document's passages. Raises ``NotFound``."""
        return np.flatnonzero(self.document == self.row_of(doc_id))

    def _facet(self, field: Field, rows: NDArray[np.int64]) -> Facet:
        """A document counts once for each of its values; dates count by year."""
        documents = self.document[rows]
        places = rows if field.of_chunks else np.unique(documents)
        values = self.column(field).take(pa.array(places)).to_pylist()
        owners = documents if field.of_chunks else places
        pairs = {(int(o), item) for o, v in zip(owners, values, strict=True) for item in _items(v)}
        counts = Counter(item for _, item in pairs)
        missing = len(set(owners.tolist())) - len({owner for owner, _ in pairs})
        if field.type == "number" and len(counts) > _FACET_RANGES:
            return Facet(values=_ranges(pairs), missing=missing)
        # Years and numbers in their order, everything else by how often it is there.
        in_order = field.type in ("number", "date")
        ordered = sorted(counts.items(), key=lambda item: (0 if in_order else -item[1], item[0]))
        shown = [FacetValue(value=value, count=count) for value, count in ordered[:_FACET_VALUES]]
        return Facet(values=shown, missing=missing, more=max(0, len(ordered) - _FACET_VALUES))

    def _allowed(self, buckets: Sequence[str], doc_id: str | None, filters: Filter | None, groups: Groups) -> Allowed:
        fields = self.fields(buckets, groups)
        # What must hold, and may be given up to explain an empty result. Buckets and groups must not: they may be all that a
        # caller can see, and how much passes without them tells of the others.
        parts: list[Filter] = [] if doc_id is None else [Predicate(field="doc_id", op="=", value=doc_id)]
        if filters is not None:
            compile_filter(filters, fields)  # as a whole first: its faults are told by their place in the request
            parts += terms_of(filters)
        inside = self._inside(buckets, groups)
        if not parts:
            return Allowed(len(self.ids) if inside is None else int(np.count_nonzero(inside)), inside)
        held = [compile_filter(part, fields)(self) for part in parts]
        mask = over_chunks(all_of(held, self), self)
        mask = mask if inside is None else mask & inside
        if count := int(np.count_nonzero(mask)):
            return Allowed(count, mask)
        everywhere = np.ones(len(self.ids), np.bool_) if inside is None else inside
        masks = [over_chunks(part, self) & everywhere for part in held]
        return Allowed(0, mask, *_blocking(parts, masks, everywhere))

    def _inside(self, buckets: Sequence[str], groups: Groups) -> Mask | None:
        """The rows of some buckets that a holder of some groups sees, None for all: kept, since the same come with ever new
        filters."""
        seen = self._seen(groups).documents
        if not buckets and seen is None:
            return None
        key = (tuple(sorted(set(buckets))), groups)
        with self._lock:
            held = self._of_buckets.get(key)
        if held is None:
            documents = np.ones(self._documents.num_rows, np.bool_) if seen is None else seen
            if buckets:
                documents = (
                    documents & compile_filter(Predicate(field="bucket", op="in", value=list(key[0])))(self).mask
                )
            held = self.spread(documents)
            with self._lock:
                self._of_buckets[key] = held
                while len(self._of_buckets) > _CACHED_BUCKETS:
                    self._of_buckets.popitem(last=False)
        return held

    def _groups(self, documents: Any) -> tuple[pa.ChunkedArray | None, Mask]:
        """The groups that documents name, where any does, and which do. Raises ``IndexFault`` where an older version has put
        them in and not yet under their groups."""
        if access.FIELD in self._documents.column_names:
            named = self._documents[access.FIELD]
            restricted = np.asarray(named.is_valid().to_numpy(zero_copy_only=False), np.bool_)
            return (named if restricted.any() else None), restricted
        with reading():
            if naming_groups(documents):
                raise IndexFault(f"the index was written by a version that did not know '{access.FIELD}'; {REPAIR}")
        return None, np.zeros(self._documents.num_rows, np.bool_)

    def _seen(self, groups: Groups) -> _Seen:
        if groups is None or self._named is None:
            return _Seen(None, len(self.ids), tuple(self.buckets))
        with self._lock:
            held = self._of_groups.get(groups)
        if held is None:
            documents = ~self._restricted | contains(self._named, groups)
            named = set(pc.unique(self._documents["bucket"].filter(pa.array(documents))).to_pylist())
            buckets = tuple(name for name, bucket in self.buckets.items() if name in named or not bucket.documents)
            held = _Seen(documents, int(np.count_nonzero(self.spread(documents))), buckets)
            with self._lock:
                self._of_groups[groups] = held
                while len(self._of_groups) > _CACHED_BUCKETS:
                    self._of_groups.popitem(last=False)
        return held

    def _count_buckets(self) -> dict[str, BucketInfo]:
        """Those that hold documents, and those that have a schema."""
        table = self._documents
        counted = {
            row["bucket"]: (row["chunks_count"], row["chunks_sum"] or 0)
            for row in table.group_by("bucket").aggregate([("chunks", "count"), ("chunks", "sum")]).to_pylist()
        }
        return {
            name: BucketInfo(name, *counted.get(name, (0, 0)), *self._described(name))
            for name in sorted({*counted, *self._schemas})
        }

    def _described(self, bucket: str) -> tuple[str, tuple[FieldInfo, ...]]:
        schema = self.schema(bucket)
        here = self._documents.filter(pc.field("bucket") == bucket) if schema.fields else self._documents
        return schema.description, tuple(
            FieldInfo(name, f.type, f.required, f.description, int(present(here[column_of(name, f.type)]).sum()))
            for name, f in schema.fields.items()
        )

    def _check_buckets(self, buckets: Sequence[str], groups: Groups) -> None:
        seen = self._seen(groups).buckets
        for bucket in buckets:
            if bucket not in seen:
                raise UnknownBucket(f"there is no bucket '{bucket[:80]}'", "buckets", seen)


def open_catalog(layout: Layout) -> Catalog:
    """Of the snapshot in force, without its legs and without reading every byte. Raises ``IndexFault``."""
    current(layout)
    manifest = read_current(layout)
    chunks = open_dataset(layout.chunks, manifest.chunks_version)
    return Catalog(chunks, open_dataset(layout.documents, manifest.documents_version), manifest.buckets)


def _key(buckets: Sequence[str], doc_id: str | None, filters: Filter | None, groups: Groups) -> str:
    tests = "" if filters is None else filters.model_dump_json(by_alias=True)
    return repr((sorted(set(buckets)), doc_id, tests, groups))


def _blocking(parts: Sequence[Filter], masks: Sequence[Mask], inside: Mask) -> tuple[Filter, int] | tuple[None, None]:
    """Of the rows ``inside``: the fewest parts without which any are left, as an ``and`` where they are several; of as many,
    those without which the most are; of equal ones, those that the fewest pass. None where there is no row to be left."""
    if not inside.any():
        return None, None
    fails = ~np.array(masks)
    failed = np.count_nonzero(fails, axis=0)
    near = np.flatnonzero(inside & (failed == failed[inside].min()))
    fails = fails[:, near]
    label = np.zeros(len(near), np.int64)  # of the set of parts that a row fails
    for eight in np.packbits(fails, axis=0):
        _, first, label, counts = np.unique(
            256 * label + eight, return_index=True, return_inverse=True, return_counts=True
        )
    most = [np.flatnonzero(fails[:, at]).tolist() for at in first[counts == counts.max()]]
    passed = [int(np.count_nonzero(mask)) for mask in masks]
    chosen = min(most, key=lambda these: (sum(passed[i] for i in these), these))
    blocking = [parts[i] for i in chosen]
    return blocking[0] if len(blocking) == 1 else And(and_=blocking), int(counts.max())


def _few(column: pa.ChunkedArray) -> tuple[str, ...]:
    """The values of a column where they are few and short enough to choose among; none of them otherwise."""
    items = pc.list_flatten(column) if pa.types.is_list(column.type) else column
    values = [value for value in pc.unique(items).to_pylist() if value is not None]
    few = len(values) <= _NAMED_VALUES and all(len(value) <= _NAMED_CHARS for value in values)
    return tuple(sorted(values)) if few else ()


def _items(value: Any) -> list[Any]:
    if isinstance(value, datetime):
        return [str(value.year)]
    return value if isinstance(value, list) else [] if value is None else [value]


def _ranges(pairs: Collection[tuple[int, float]]) -> list[FacetValue]:
    """A few ranges that hold about as many documents each; their bounds are values that there are."""
    values = np.sort(np.array([value for _, value in pairs]))
    cuts = np.unique(values[[len(values) * i // _FACET_RANGES for i in range(_FACET_RANGES)]])
    place = np.searchsorted(cuts, values, side="right") - 1
    return [
        FacetValue(value=float(own[0]), to=float(own[-1]), count=len(own))
        for number in range(len(cuts))
        if len(own := values[place == number])
    ]


def _shown(value: Any) -> Any:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
