"""What a snapshot holds, without its texts and vectors: the documents' fields, and the document of every chunk, in memory.

A search's buckets, its document, its filters (and whatever else bounds what may be seen) become one mask over chunks here,
once, and that mask binds everything: both legs, every variant, every hop, lookups and facets.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from assay.errors import IndexFault, UnknownBucket
from assay.index.files import RESTORE
from assay.index.filters import FIELDS, Field, Mask, compile_filter, over_chunks, terms_of
from assay.index.store import reading
from assay.schemas import Filter, Predicate
from assay.types import BucketInfo

_CACHED_SETS = 64
_CHUNKS = ["id", "doc_id", "page"]
_HEAVY = frozenset(["text"])


@dataclass(frozen=True, slots=True)
class Allowed:
    """The rows that a search may return; ``mask`` is None where all may. ``blocking`` is what left none, and
    ``count_without`` how many rows there are without it."""

    count: int
    mask: Mask | None
    blocking: Filter | None = None
    count_without: int | None = None


class Catalog:
    """Of one snapshot. A row is a chunk, numbered by ascending id; ``offsets`` are the rows' places in the store."""

    def __init__(self, chunks: Any, documents: Any) -> None:
        """From the two datasets. Raises ``IndexFault`` where they cannot be read, or do not belong together."""
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
        self._chunks = table.select(["page"]).take(self.offsets)
        self.buckets = self._count_buckets()
        self._cache: OrderedDict[str, Allowed] = OrderedDict()
        self._lock = threading.Lock()

    def allowed(self, buckets: Sequence[str], doc_id: str | None, filters: Filter | None) -> Allowed:
        """Raises ``UnknownBucket``, ``UnknownField`` or ``InvalidFilter``."""
        self._check_buckets(buckets)
        shown = "" if filters is None else filters.model_dump_json(by_alias=True)
        key = repr((sorted(set(buckets)), doc_id, shown))
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        found = self._allowed(buckets, doc_id, filters)
        with self._lock:
            self._cache[key] = found
            while len(self._cache) > _CACHED_SETS:
                self._cache.popitem(last=False)
        return found

    def column(self, field: Field) -> pa.ChunkedArray:
        """``filters.Frame``: numbers as floats, exact up to 2**53."""
        column = (self._chunks if field.of_chunks else self._documents)[field.column]
        return column.cast(pa.float64()) if field.type == "number" else column

    def spread(self, documents: Mask) -> Mask:
        """``filters.Frame``."""
        return documents[self.document]

    def _fields(self, buckets: Sequence[str]) -> Mapping[str, Field]:
        return FIELDS

    def _allowed(self, buckets: Sequence[str], doc_id: str | None, filters: Filter | None) -> Allowed:
        fields = self._fields(buckets)
        # What must hold, and may be given up to explain an empty result. What a caller may see at all is not among it.
        parts: list[Filter] = [] if not buckets else [Predicate(field="bucket", op="in", value=sorted(set(buckets)))]
        parts += [] if doc_id is None else [Predicate(field="doc_id", op="=", value=doc_id)]
        if filters is not None:
            compile_filter(filters, fields)  # as a whole first: its faults are told by their place in the request
            parts += terms_of(filters)
        if not parts:
            return Allowed(len(self.ids), None)
        masks = [over_chunks(compile_filter(part, fields)(self), self) for part in parts]
        mask = reduce(np.logical_and, masks)
        count = int(np.count_nonzero(mask))
        return Allowed(count, mask) if count else Allowed(0, mask, *_blocking(parts, masks))

    def _count_buckets(self) -> dict[str, BucketInfo]:
        table = self._documents.select(["bucket", "chunks"])
        counted = (
            table.group_by("bucket").aggregate([("chunks", "count"), ("chunks", "sum")]).sort_by("bucket").to_pylist()
        )
        return {
            row["bucket"]: BucketInfo(row["bucket"], row["chunks_count"], row["chunks_sum"] or 0) for row in counted
        }

    def _check_buckets(self, buckets: Sequence[str]) -> None:
        for bucket in buckets:
            if bucket not in self.buckets:
                raise UnknownBucket(f"there is no bucket '{bucket[:80]}'", "buckets", tuple(self.buckets))


def _blocking(parts: Sequence[Filter], masks: Sequence[Mask]) -> tuple[Filter, int]:
    """The part without which the most rows are left; of those that help alike, the one that the fewest rows pass."""
    passed = np.sum(masks, axis=0, dtype=np.int32)
    almost = passed == len(masks) - 1  # where one part alone fails
    without = [int(np.count_nonzero(almost & ~mask)) for mask in masks]
    best = min(range(len(parts)), key=lambda i: (-without[i], int(np.count_nonzero(masks[i]))))
    return parts[best], without[best]
