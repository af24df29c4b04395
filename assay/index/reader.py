"""A snapshot opened for searching. Immutable: a retriever swaps one for the next, and searches in progress keep theirs."""

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from assay.errors import IndexFault, NotFound
from assay.index.catalog import Catalog
from assay.index.dense import Ids, Mask, Scores
from assay.index.files import REPAIR, Layout
from assay.index.segment import Segment, Torn
from assay.index.snapshot import Manifest, check_store
from assay.index.store import open_dataset, reading
from assay.types import Chunk

_COLUMNS = ["id", "doc_id", "bucket", "title", "uri", "text", "start", "end", "ordinal", "heading", "page", "hidden"]


class Reader:
    """Rows are numbered by ascending chunk id. Loading reads and checks every byte of the store and the segments.

    Raises ``IndexFault`` where the store is not what was written; a torn segment is left out, and ``torn`` names it.
    """

    def __init__(self, layout: Layout, manifest: Manifest) -> None:
        self.manifest = manifest
        check_store(layout, manifest)
        self._chunks = open_dataset(layout.chunks, manifest.chunks_version)
        self._documents = open_dataset(layout.documents, manifest.documents_version)
        self.catalog = Catalog(self._chunks, self._documents)
        self.ids: Ids = self.catalog.ids
        self.torn: list[Torn] = []
        self.segments = self._load(layout)
        self._place = self._places()

    def has(self, leg: str) -> bool:
        """Whether a leg can serve: some segment has it, or there is nothing to search."""
        return not len(self.ids) or any(getattr(segment, leg) is not None for segment in self.segments)

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
            found = self._chunks.take(self.catalog.offsets[rows].tolist(), columns=_COLUMNS).to_pylist()
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


def _best(lists: Sequence[tuple[Ids, Scores]], k: int) -> tuple[Ids, Scores]:
    if not lists:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    rows, scores = (np.concatenate(parts) for parts in zip(*lists, strict=True))
    best = np.lexsort((rows, -scores))[:k]
    return rows[best], scores[best]
