"""A snapshot opened for searching. Immutable: a retriever swaps one for the next, and searches in progress keep theirs."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from assay.errors import IndexFault, NotFound, UnknownBucket
from assay.index.dense import Ids, Mask, Scores
from assay.index.files import REPAIR, Layout
from assay.index.filters import all_of, compile_filter, terms_of
from assay.index.segment import Segment, Torn
from assay.index.snapshot import Manifest, check_store
from assay.index.store import open_dataset, reading
from assay.schemas import Filter, Predicate
from assay.types import BucketInfo, Chunk

_CACHED_SETS = 64
_MOST_COUNTED = 8  # parts of a filter that left nothing: each is a scan
_COLUMNS = ["id", "doc_id", "bucket", "title", "uri", "text", "start", "end", "ordinal", "heading", "page", "hidden"]


@dataclass(frozen=True, slots=True)
class Allowed:
    """The rows that a search may return; ``mask`` is None where all may. ``blocking`` is what left none."""

    count: int
    mask: Mask | None
    blocking: Filter | None = None
    count_without: int | None = None


class Reader:
    """Rows are numbered by ascending chunk id. Loading reads and checks every byte of the store and the segments.

    Raises ``IndexFault`` where the store is not what was written; a torn segment is left out, and ``torn`` names it.
    """

    def __init__(self, layout: Layout, manifest: Manifest) -> None:
        self.manifest = manifest
        check_store(layout, manifest)
        self._chunks = open_dataset(layout.chunks, manifest.chunks_version)
        self._documents = open_dataset(layout.documents, manifest.documents_version)
        with reading():
            ids = np.asarray(self._chunks.to_table(columns=["id"])["id"].to_numpy(), dtype=np.int64)
            self.buckets = self._count_buckets()
        self._offsets = np.argsort(ids, kind="stable")
        self.ids: Ids = ids[self._offsets]
        self.torn: list[Torn] = []
        self.segments = self._load(layout)
        self._place = self._places()
        self._cache: OrderedDict[str, Allowed] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, leg: str) -> bool:
        """Whether a leg can serve: some segment has it, or there is nothing to search."""
        return not len(self.ids) or any(getattr(segment, leg) is not None for segment in self.segments)

    def allowed(self, buckets: Sequence[str], doc_id: str | None, filters: Filter | None) -> Allowed:
        """Raises ``UnknownBucket``, ``UnknownField`` or ``InvalidFilter``."""
        self._check_buckets(buckets)
        if not buckets and doc_id is None and filters is None:
            return Allowed(len(self.ids), None)
        shown = "" if filters is None else filters.model_dump_json(by_alias=True)
        key = repr((sorted(set(buckets)), doc_id, shown))
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        with reading():
            found = self._allowed(buckets, doc_id, filters)
        with self._lock:
            self._cache[key] = found
            while len(self._cache) > _CACHED_SETS:
                self._cache.popitem(last=False)
        return found

    def search_dense(self, query: NDArray[np.float32], k: int, mask: Mask | None) -> tuple[Ids, Scores]:
        """The best k rows for a unit vector of shape (dim,), and their cosines."""
        return _best([s.search_dense(query, k, mask) for s in self.segments if s.dense], k)

    def search_sparse(self, query: str, k: int, mask: Mask | None) -> tuple[Ids, Scores, Scores]:
        """The best k rows above 0, their BM25 scores, and the scores of all rows (0 where the leg is missing)."""
        complete = np.zeros(len(self.ids), np.float32)
        lists = []
        for segment in self.segments:
            if segment.sparse:
                rows, scores, whole = segment.search_sparse(query, k, mask)
                lists.append((rows, scores))
                alive = segment.rows >= 0
                complete[segment.rows[alive]] = whole[alive]
        return *_best(lists, k), complete

    def cosines(self, query: NDArray[np.float32], rows: Ids) -> Scores:
        """Of a unit vector with the chunks at some rows; NaN where their dense leg is missing."""
        out = np.full(len(rows), np.nan, np.float32)
        for number, segment in enumerate(self.segments):
            here = self._place[0][rows] == number
            if segment.dense and here.any():
                out[here] = segment.dense.cosines(query, self._place[1][rows[here]])
        return out

    def rows_of(self, ids: Sequence[int]) -> Ids:
        return np.searchsorted(self.ids, np.asarray(ids, dtype=np.int64))

    def chunks(self, rows: Ids) -> list[Chunk]:
        """In the order of the rows."""
        if not len(rows):
            return []
        with reading():
            found = self._chunks.take(self._offsets[rows].tolist(), columns=_COLUMNS).to_pylist()
        return [Chunk(**{**row, "heading": tuple(row["heading"])}) for row in found]

    def document(self, doc_id: str) -> str:
        """A document's text, in which spans count. Raises ``NotFound``."""
        with reading():
            found = self._documents.to_table(columns=["text"], filter=pc.field("doc_id") == doc_id)
        if not found.num_rows:
            raise NotFound("there is no such document", "doc_id")
        return str(found["text"][0].as_py())

    def _load(self, layout: Layout) -> list[Segment]:
        segments = []
        for entry in self.manifest.segments:
            try:
                segments.append(Segment(layout, entry, self.ids))
            except IndexFault as e:
                self.torn.append(Torn(None, f"segment {entry.id}: {e}; {REPAIR}"))
        self.torn += [torn for segment in segments for torn in segment.torn]
        return segments

    def _places(self) -> tuple[Ids, Ids]:
        """Row -> its segment's number and its position there; -1 where no segment has it."""
        segment, position = np.full(len(self.ids), -1), np.full(len(self.ids), -1)
        for number, s in enumerate(self.segments):
            alive = np.flatnonzero(s.rows >= 0)
            segment[s.rows[alive]], position[s.rows[alive]] = number, alive
        return segment, position

    def _count_buckets(self) -> dict[str, BucketInfo]:
        table = self._documents.to_table(columns=["bucket", "chunks"])
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

    def _allowed(self, buckets: Sequence[str], doc_id: str | None, filters: Filter | None) -> Allowed:
        fixed = [pc.field("bucket").isin(sorted(set(buckets)))] if buckets else []
        whole = [] if filters is None else [compile_filter(filters)]
        document: list[Filter] = [] if doc_id is None else [Predicate(field="doc_id", op="=", value=doc_id)]
        whole += [compile_filter(d) for d in document]
        ids = self._chunks.to_table(columns=["id"], filter=all_of([*fixed, *whole]))["id"].to_numpy()
        if len(ids):
            mask = np.zeros(len(self.ids), bool)
            mask[self.rows_of(ids)] = True
            return Allowed(len(ids), mask)
        blocking, without = self._blocking(fixed, [*document, *(() if filters is None else terms_of(filters))])
        return Allowed(0, np.zeros(len(self.ids), bool), blocking, without)

    def _blocking(self, fixed: list[pc.Expression], parts: list[Filter]) -> tuple[Filter | None, int | None]:
        """The part without which the most rows would be left; the first of equals. Only the first few are tried."""
        best: tuple[Filter | None, int | None] = (None, None)
        for i, part in enumerate(parts[:_MOST_COUNTED]):
            rest = [compile_filter(other) for j, other in enumerate(parts) if j != i]
            count = int(self._chunks.count_rows(filter=all_of([*fixed, *rest])))
            if best[1] is None or count > best[1]:
                best = (part, count)
        return best


def _best(lists: Sequence[tuple[Ids, Scores]], k: int) -> tuple[Ids, Scores]:
    if not lists:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    rows, scores = (np.concatenate(parts) for parts in zip(*lists, strict=True))
    best = np.lexsort((rows, -scores))[:k]
    return rows[best], scores[best]
