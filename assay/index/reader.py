"""A snapshot opened for searching. Immutable: a retriever swaps one for the next, and searches in progress keep theirs."""

import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from math import isnan, log, sqrt
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from assay.context import beginning
from assay.errors import IndexFault, NotFound
from assay.index import kernels
from assay.index.catalog import Catalog
from assay.index.cuda import Card
from assay.index.dense import Ids, Mask, Scores
from assay.index.files import REPAIR, RESTORE, Buffer, Layout, fault_of, read_checked
from assay.index.lists import Lists, compiled
from assay.index.passages import COLUMNS
from assay.index.passages import FILE as PASSAGES
from assay.index.segment import FileEntry, Placed, Segment, Torn, open_passages
from assay.index.snapshot import Manifest
from assay.index.sparse import Weighted
from assay.index.store import open_dataset, reading
from assay.text import content_terms, languages_of, query_terms
from assay.types import Chunk, DocumentQuery, DocumentText

_Checked = tuple[FileEntry, tuple[int, ...] | None]
Found = TypeVar("Found")
_SELECTIONS = 64  # filters whose masks are kept for each segment
_BACKGROUND = 4096  # rows that stand for all: what cosine a query has with one taken at random
_LOOKS = 4_000  # at what another thread does, .2 ms: to be woken when it has done it takes half as long
_NAMED = 50  # pages or headings, where the one that is asked for is not there


@dataclass(frozen=True, slots=True)
class SparseQuery:
    """A query as the sparse leg looks for it: of each segment, the postings of its terms, weighted over all segments."""

    parts: tuple[Weighted | None, ...]


class Reader:
    """Rows are numbered by ascending chunk id. Loading reads and checks every byte of the store and the segments, but for
    what a reader ``before`` has checked and nobody has touched since, and for passages: those are read and checked one by one,
    as they are shown. Of a segment that ``before`` found torn they are all checked, lest it seems mended until the next search.

    Raises ``IndexFault`` where the store is not what was written; a torn segment is left out, and ``torn`` names it.
    """

    def __init__(
        self, layout: Layout, manifest: Manifest, before: "Reader | None" = None, card: Card | None = None
    ) -> None:
        self.manifest, self._card = manifest, card
        self._lost: list[Torn] = []
        held = {s.segment.entry.id: s.segment for s in before.segments if not s.segment.torn} if before else {}
        kept = [held[e.id] if e.id in held and held[e.id].entry == e else None for e in manifest.segments]
        torn = {s.segment.entry.id for s in before.segments if s.segment.torn} if before else set()
        known: dict[str, _Checked] = before._checked if before else {}
        # What the files of the store look like when they are found to be right.
        self._checked: dict[str, _Checked] = {
            name: (entry, _stamp(layout.root / name)) for name, entry in manifest.files.items()
        }
        doubted = {layout.root / name: e[0] for name, e in self._checked.items() if e != known.get(name)}
        new = {
            layout.segments / entry.id / name: file
            for entry, segment in zip(manifest.segments, kept, strict=True)
            for name, file in (() if segment else entry.files.items())
            if name != PASSAGES
        }
        with ThreadPoolExecutor(2) as pool:  # hashing and reading leave the interpreter's lock alone
            read = _begun(pool, _read, new)
            compared = _begun(pool, fault_of, doubted)  # beside all that follows: from a disk it takes longest
            try:
                self._open(layout, self._segments(layout, kept, read, torn))
            except Exception:
                _raise_first(layout, compared)
                raise
            _raise_first(layout, compared)

    def _open(self, layout: Layout, loaded: Sequence[Segment]) -> None:
        """Nothing of it counts before the store's files are found to be right."""
        manifest = self.manifest
        self._chunks = open_dataset(layout.chunks, manifest.chunks_version)
        self._documents = open_dataset(layout.documents, manifest.documents_version)
        self.catalog = Catalog(self._chunks, self._documents, manifest.buckets)
        self.ids: Ids = self.catalog.ids
        self.segments = [Placed(segment, self.ids) for segment in loaded]
        self._place = self._places()
        self._in_one = len(self.segments) == 1 and bool((self._place[0] == 0).all())
        self._counts = [s.segment.sparse.counts(s.alive) if s.segment.sparse else None for s in self.segments]
        self._languages = languages_of(self)
        self._searched = sum(s.count for s in self.segments if s.segment.sparse)
        self._mean, self._covariance = self._moments()
        self._selected: OrderedDict[int, tuple[Mask, list[tuple[Mask | None, int]]]] = OrderedDict()
        self._lock = threading.Lock()
        for segment in loaded:
            segment.warm()
        some = np.zeros(manifest.embedder.dim, np.float32)  # what is compiled with the first search is with this one
        self.background(some)
        if self._in_one and (sparse := loaded[0].sparse):
            self.search_both(some, SparseQuery((sparse.some(),)), 1, None)
            with ThreadPoolExecutor(1) as pool:
                self.dense_beside(some[None], 1, None, pool)()

    @property
    def torn(self) -> list[Torn]:
        """What is found to be so by now."""
        return [*self._lost, *(torn for s in self.segments for torn in s.segment.torn)]

    def has(self, leg: str) -> bool:
        """Whether a leg can serve: some segment has it, or there is nothing to search."""
        return not len(self.ids) or any(getattr(s.segment, leg) is not None for s in self.segments)

    def is_exact(self, mask: Mask | None) -> bool:
        """Whether the dense leg compares all rows of the mask."""
        return all(
            s.segment.dense.is_exact(count)
            for s, (_, count) in zip(self.segments, self._select(mask), strict=True)
            if s.segment.dense
        )

    def search_dense(self, query: Scores, k: int, mask: Mask | None) -> tuple[Ids, Scores]:
        """The best k rows for a unit vector of shape (dim,), and their cosines."""
        lists = []
        for s, (selected, count) in zip(self.segments, self._select(mask), strict=True):
            if s.segment.dense and count:
                positions, scores = s.segment.dense.search(query, k, selected, count)
                lists.append(_allowed(s, selected, positions, scores))
        return _best(lists, k)

    def dense_beside(
        self, queries: Scores, k: int, mask: Mask | None, pool: Executor
    ) -> Callable[[], list[tuple[Ids, Scores]]]:
        """``search_dense`` of each query in another thread, begun at once; gives what it found, when it is called.

        For one query of one segment with lists that thread runs its compiled loop alone, and this one sees in memory that it
        has ended: otherwise each would wait for the other to let go of the interpreter, and to be woken."""
        task = None
        if self._in_one and len(queries) == 1:
            s, (selected, count) = self.segments[0], self._select(mask)[0]
            task = s.segment.dense.task(queries[0], k, selected, count) if isinstance(s.segment.dense, Lists) else None
        if task is None:
            lists = pool.submit(lambda: [self.search_dense(query, k, mask) for query in queries])
            time.sleep(0)  # lets go of the interpreter, without which it would begin when this thread's next loop does
            return lists.result
        positions, scores, state = np.empty(k, np.int64), np.empty(k, np.float32), np.zeros(1, np.int64)
        running = pool.submit(kernels.scan_into, task, positions, scores, state)
        kernels.awaited(state, 1, _LOOKS)

        def ended() -> list[tuple[Ids, Scores]]:
            if kernels.awaited(state, 2, _LOOKS) < 2:
                running.result()
            found = int(state[0]) - 2
            return [_allowed(s, selected, positions[:found], scores[:found])]

        return ended

    def cosines(self, query: Scores, rows: Ids) -> Scores:
        """Of a unit vector with the chunks at some rows; NaN where their dense leg is missing."""
        return self._each(rows, lambda _, s, at: s.dense.cosines(query, at) if s.dense else None)

    def background(self, query: Scores) -> tuple[float, float]:
        """Mean and standard deviation of a query's cosines with all rows, or of very many with those at even distances; NaN
        where a part of the dense leg is missing. From the vectors' moments: cheaper than 512 cosines, and exact."""
        mean, variance = kernels.moments(self._mean, self._covariance, compiled(query))
        return mean, variance if isnan(variance) else sqrt(max(0.0, variance))

    def sparse_query(self, text: str) -> SparseQuery:
        """Without terms where no segment has one."""
        times = Counter(query_terms(text, self, self._languages))
        weights = [(term, n * self._rarity(term)) for term, n in times.items()]
        return SparseQuery(
            tuple(s.segment.sparse.weighted(weights) if s.segment.sparse else None for s in self.segments)
        )

    def search_sparse(self, query: SparseQuery, k: int, mask: Mask | None) -> tuple[Ids, Scores]:
        """The best k rows above 0, and their BM25 scores."""
        lists = []
        for s, part, (selected, count) in zip(self.segments, query.parts, self._select(mask), strict=True):
            if s.segment.sparse and part and count:
                positions, scores = s.segment.sparse.search(part, k, selected, count)
                lists.append(_allowed(s, selected, positions, scores))
        return _best(lists, k)

    def search_both(
        self, vector: Scores, query: SparseQuery, k: int, mask: Mask | None
    ) -> tuple[tuple[Ids, Scores], tuple[Ids, Scores]]:
        """``search_dense`` and ``search_sparse``; of one segment with lists in one go, which other threads cannot interrupt."""
        if self._in_one and (part := query.parts[0]):
            s, (selected, count) = self.segments[0], self._select(mask)[0]
            dense, sparse = s.segment.dense, s.segment.sparse
            if isinstance(dense, Lists) and sparse:
                of_dense, of_sparse = dense.task(vector, k, selected, count), sparse.task(part, k, selected, count)
                if of_dense and of_sparse:
                    near, matching = kernels.both(of_dense, of_sparse)
                    return _allowed(s, selected, *near), _allowed(s, selected, *matching)
        return self.search_dense(vector, k, mask), self.search_sparse(query, k, mask)

    def bm25(self, query: SparseQuery, rows: Ids) -> Scores:
        """Of the chunks at some rows; NaN where their sparse leg is missing."""

        def scores(number: int, s: Segment, at: Ids) -> Scores | None:
            part = query.parts[number]
            return s.sparse.scores(part, at) if s.sparse and part else None

        return self._each(rows, scores)

    def __contains__(self, term: object) -> bool:
        """Whether some segment has the term: the vocabulary of the whole index."""
        for s in self.segments:  # noqa: SIM110  # any() takes three times as long, and this is asked ten times in a search
            if s.segment.sparse is not None and term in s.segment.sparse:
                return True
        return False

    def frequency(self, text: str) -> int:
        """How many rows have the text's rarest content term, by the sparse legs; all of them for a text without any."""
        return min(map(self._rows_with, content_terms(text)), default=len(self.ids))

    def _rows_with(self, term: str) -> int:
        rows = 0
        for s, counts in zip(self.segments, self._counts, strict=True):
            if s.segment.sparse and counts is not None and (place := s.segment.sparse.place(term)) >= 0:
                rows += int(counts[place])
        return rows

    def _rarity(self, term: str) -> float:
        """Over all segments, so that a score does not hang on the one that holds the chunk."""
        rows = self._rows_with(term)
        return log(1 + (self._searched - rows + 0.5) / (rows + 0.5))

    def _each(self, rows: Ids, score: Callable[[int, Segment, Ids], Scores | None]) -> Scores:
        """Scores that segments give to positions, for rows of any segments."""
        if self._in_one and (scores := score(0, self.segments[0].segment, self._place[1][rows])) is not None:
            return scores
        out = np.full(len(rows), np.nan, np.float32)
        segments = self._place[0][rows]
        for number, s in enumerate(self.segments):
            here = np.flatnonzero(segments == number)
            if len(here) and (scores := score(number, s.segment, self._place[1][rows[here]])) is not None:
                out[here] = scores
        return out

    def _moments(self) -> tuple[Scores, Scores]:
        """Of the vectors: their mean, shape (dim,), and covariance, shape (dim, dim)."""
        count = min(len(self.ids), _BACKGROUND)
        vectors = self._vectors(np.linspace(0, len(self.ids) - 1, count).astype(np.int64) if count else self.ids)
        of_each = np.float32(1 / max(1, count))
        mean = vectors.sum(0) * of_each
        vectors -= mean
        return mean, vectors.T @ vectors * of_each

    def _vectors(self, rows: Ids) -> Scores:
        """Of some rows, shape (n, dim); NaN where their dense leg is missing."""
        out = np.full((len(rows), self.manifest.embedder.dim), np.nan, np.float32)
        for number, s in enumerate(self.segments):
            if s.segment.dense:
                here = np.flatnonzero(self._place[0][rows] == number)
                out[here] = s.segment.dense.vectors(self._place[1][rows[here]])
        return out

    def _select(self, mask: Mask | None) -> list[tuple[Mask | None, int]]:
        """The mask within each segment, and how many rows it has there; kept, since searches share their filters."""
        if mask is None:
            return [s.select(None) for s in self.segments]
        with self._lock:
            if (held := self._selected.get(id(mask))) is not None:
                self._selected.move_to_end(id(mask))
                return held[1]
        selected = [s.select(mask) for s in self.segments]
        with self._lock:
            self._selected[id(mask)] = (mask, selected)  # held, so that no other mask can get its id
            while len(self._selected) > _SELECTIONS:
                self._selected.popitem(last=False)
        return selected

    def rows_of(self, ids: Sequence[int]) -> Ids:
        return np.searchsorted(self.ids, np.asarray(ids, dtype=np.int64))

    def chunks(self, rows: Ids) -> list[Chunk]:
        """In the order of the rows."""
        if self._in_one and (held := self.segments[0].segment.passages(self._place[1][rows])) is not None:
            return held
        found: dict[int, Chunk] = {}
        segments, positions = self._place[0][rows], self._place[1][rows]
        for number in set(segments.tolist()):
            here = segments == number
            held = self.segments[number].segment.passages(positions[here]) if number >= 0 else None
            found.update(zip(rows[here].tolist(), self._stored(rows[here]) if held is None else held, strict=True))
        return [found[row] for row in rows.tolist()]

    def _stored(self, rows: Ids) -> list[Chunk]:
        with reading():
            found = self._chunks.take(self.catalog.offsets[rows].tolist(), columns=list(COLUMNS)).to_pylist()
        return [Chunk(**{**row, "heading": tuple(row["heading"])}) for row in found]

    def document(self, doc_id: str) -> str:
        """A document's text, in which spans count. Raises ``NotFound``."""
        return self.texts([doc_id])[doc_id]

    def texts(self, doc_ids: Sequence[str]) -> dict[str, str]:
        """Texts of documents by their ids. Raises ``NotFound``."""
        places = [self.catalog.row_of(doc_id) for doc_id in doc_ids]
        with reading():
            found = self._documents.take(places, columns=["text"])["text"].to_pylist() if places else []
        return dict(zip(doc_ids, found, strict=True))

    def runs(self, doc_id: str, mask: Mask | None) -> list[tuple[int, int]] | None:
        """Where the passages of a document that the mask allows lie, neighbours as one; None where all of it is allowed: a
        filter on pages may allow a part. Raises ``NotFound``."""
        rows = self.catalog.rows_in(doc_id)
        if mask is None or mask[rows].all():
            return None
        runs: list[list[int]] = []
        last = -2
        for passage in sorted(self.chunks(rows[mask[rows]]), key=lambda passage: passage.ordinal):
            if passage.ordinal == last + 1:
                runs[-1][1] = passage.end
            else:
                runs.append([passage.start, passage.end])
            last = passage.ordinal
        return [(start, end) for start, end in runs]

    def content(self, doc_id: str, text: str) -> tuple[int, int]:
        """Of a document's text, without what its file says of itself before that. Raises ``NotFound``."""
        first = self.chunks(self.catalog.rows_in(doc_id)[:1])
        return beginning(text, first[0].start) if first else 0, len(text)

    @cached_property
    def hidden(self) -> Mask:
        """Which rows hold text that no reader of the file sees."""
        with reading():
            column = self._chunks.to_table(columns=["hidden"])["hidden"]
        return np.asarray(column.to_numpy(), np.bool_)[self.catalog.offsets]

    def seen(self, mask: Mask | None) -> Mask | None:
        """The rows of a mask without the hidden ones; None where neither leaves any out."""
        if not self.hidden.any():
            return mask
        return ~self.hidden if mask is None else mask & ~self.hidden

    def has_hidden(self, doc_id: str, start: int, end: int) -> bool:
        """Whether some of a document's characters are hidden. Raises ``NotFound``."""
        rows = self.catalog.rows_in(doc_id)
        return any(passage.start < end and start < passage.end for passage in self.chunks(rows[self.hidden[rows]]))

    def part(self, query: DocumentQuery, mask: Mask | None) -> DocumentText:
        """Raises ``NotFound``: the document, or a page, heading or place that it does not have among the allowed passages."""
        text = self.document(query.doc_id)
        start, end = self._place_in(query, text, mask)
        runs = self.runs(query.doc_id, mask)
        if runs is not None:
            own = next(((low, high) for low, high in runs if low < max(end, start + 1) and high > start), None)
            if own is None:
                raise NotFound("the document has nothing there", "span")
            start, end = max(start, own[0]), min(end, own[1])
        end = min(end, start + query.max_chars)
        hidden = self.has_hidden(query.doc_id, start, end)
        return DocumentText(self.catalog.info(query.doc_id), text[start:end], (start, end), len(text), hidden)

    def _place_in(self, query: DocumentQuery, text: str, mask: Mask | None) -> tuple[int, int]:
        if query.span is not None:
            return min(query.span[0], len(text)), min(query.span[1], len(text))
        if query.page is None and query.heading is None:
            return self.content(query.doc_id, text)
        rows = self.catalog.rows_in(query.doc_id)
        passages = self.chunks(rows if mask is None else rows[mask[rows]])
        if query.page is not None:
            found = [p for p in passages if p.page == query.page]
            there, field = {str(p.page) for p in passages if p.page is not None}, "page"
        else:
            found = [p for p in passages if query.heading in p.heading]
            line = re.search(rf"^#*[ \t]*{re.escape(query.heading or '')}[ \t]*$", text, re.MULTILINE)
            if not found and line:  # of a section so short that it shares a passage with others
                return line.start(), len(text)
            there, field = {name for p in passages for name in p.heading}, "heading"
        if not found:
            asked = query.page if query.page is not None else query.heading
            shown = tuple(sorted(there, key=lambda name: (len(name), name) if field == "page" else (0, name))[:_NAMED])
            raise NotFound(f"the document has no {field} '{str(asked)[:80]}' with text", field, shown)
        return min(p.start for p in found), max(p.end for p in found)

    def _segments(
        self,
        layout: Layout,
        kept: Sequence[Segment | None],
        read: Mapping[Path, "Future[Buffer | IndexFault]"],
        torn: Collection[str],
    ) -> list[Segment]:
        segments = []
        for of, segment in zip(self.manifest.segments, kept, strict=True):
            files = {name: read.get(layout.segments / of.id / name) for name in of.files}
            shown = partial(open_passages, layout, of, whole=of.id in torn)
            try:
                whole = {name: file.result() if file else None for name, file in files.items()}
                segments.append(segment or Segment(of, whole, shown, self._card))
            except IndexFault as e:
                self._lost.append(Torn(None, f"segment {of.id}: {e}; {REPAIR}"))
        return segments

    def _places(self) -> tuple[Ids, Ids]:
        """Row -> its segment's number and its position there; -1 where no segment has it."""
        segment, position = np.full(len(self.ids), -1), np.full(len(self.ids), -1)
        for number, s in enumerate(self.segments):
            alive = np.flatnonzero(s.rows >= 0)
            segment[s.rows[alive]], position[s.rows[alive]] = number, alive
        return segment, position


def _begun(
    pool: ThreadPoolExecutor, work: Callable[[Path, dict[str, Any]], Found], files: Mapping[Path, FileEntry]
) -> "dict[Path, Future[Found]]":
    """The largest first: two threads end together."""
    paths = sorted(files, key=lambda path: -files[path].bytes)
    return {path: pool.submit(work, path, files[path].model_dump()) for path in paths}


def _read(path: Path, expected: dict[str, Any]) -> Buffer | IndexFault:
    try:
        return read_checked(path, expected)
    except IndexFault as e:
        return e


def _raise_first(layout: Layout, compared: Mapping[Path, "Future[str | None]"]) -> None:
    """Raises ``IndexFault`` where a file of the store is not the one that was written, before what came of reading it."""
    for path, work in compared.items():
        if fault := work.result():
            raise IndexFault(f"{path.relative_to(layout.root)} {fault}; {RESTORE}") from None


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Differs after anybody has written to the file; None where it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _allowed(s: Placed, selected: Mask | None, positions: Ids, scores: Scores) -> tuple[Ids, Scores]:
    """As rows. Each is looked at again, whatever the leg returned."""
    if selected is not None and not (kept := selected[positions]).all():
        positions, scores = positions[kept], scores[kept]
    return s.rows[positions], scores


def _best(lists: Sequence[tuple[Ids, Scores]], k: int) -> tuple[Ids, Scores]:
    if not lists:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    if len(lists) == 1:
        return lists[0]
    rows, scores = (np.concatenate(parts) for parts in zip(*lists, strict=True))
    best = np.lexsort((rows, -scores))[:k]
    return rows[best], scores[best]
