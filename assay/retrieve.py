"""The Retriever: every query through both legs under one allowed set, fused. Deterministic; no model but the embedder."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan

import numpy as np
from numpy.typing import NDArray

from assay.config import IndexConfig, Legs, RetrieverConfig
from assay.context import COMMENT, between, comments, window
from assay.errors import AssayError, IndexFault, InvalidRequest, NotFound, StageUnavailable
from assay.fuse import Fused, RankedList, best_ranks, boosted, fuse, warm
from assay.index.catalog import Allowed
from assay.index.cuda import Card
from assay.index.dense import Mask
from assay.index.embed import Encoder
from assay.index.files import Layout
from assay.index.filters import tests_in
from assay.index.library import Library
from assay.index.mirror import current
from assay.index.reader import Cosines, Reader, SparseQuery
from assay.index.snapshot import current_name, read_current
from assay.index.store import check_embedder
from assay.leads import MOST, Leads
from assay.links import SOURCES, Links
from assay.schemas import Degraded, Fusion
from assay.sharing import Shared
from assay.types import (
    BucketInfo,
    Chunk,
    Context,
    DocumentInfo,
    DocumentQuery,
    DocumentText,
    Explain,
    Hit,
    Leg,
    Scope,
    SearchQuery,
    SearchResult,
)
from assay.weigh import AGREED, Curves, dense_share, letters_per_token

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]
_ByQuery = Sequence[tuple[Rows, Scores]]

# All variants together weigh this much beside the question's 1: a small model's bad variant must not push out what the
# question itself finds (docs/search.md).
VARIANTS_WEIGHT = 0.25

# An embedder that hangs is given up before the whole search is, so that the sparse leg can still answer.
EMBED_SHARE = 0.6

# A title whose rarest word is in more passages than this, and than this share of them, names nothing ("Overview").
_COMMON, _COMMON_SHARE = 50, 0.03

# Rows, times queries or tests of a filter: up to here they take 2 ms, and half a millisecond more in another thread. What a
# query costs anyhow is the time that so many rows take.
_QUICK, _ANYHOW = 1_500_000, 200_000

# From so many rows on legs are searched in another thread: their loops do not hold the interpreter. The last two are rows that
# may be found: by one search among several, and by one that is alone in the caller's loop, where to change threads costs least.
_BESIDE, _BESIDE_OTHERS, _BESIDE_ALONE = 200_000, 25_000, 5_000

# Half of a search holds the interpreter: more threads than these only take turns, and double the slowest searches.
_THREADS = min(4, os.cpu_count() or 2)

log = logging.getLogger(__name__)

# What FAISS, torch and Lance raise when a leg cannot answer. Anything else is a bug, and no reason to go on.
_LEG_FAULTS = (RuntimeError, OSError, ValueError, MemoryError, TimeoutError, AssayError)


@dataclass(frozen=True, slots=True)
class _Answer:
    """One leg's list of rows for each query, and its score of any row (NaN where it has none). In the dense leg ``vectors`` of
    the queries, and ``cosines`` beside its lists where the sparse one answered, too."""

    leg: Leg
    lists: _ByQuery
    score: Callable[[int, Rows], Scores]
    method: str
    vectors: Scores = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    cosines: Sequence[Cosines] = ()


class LocalRetriever:
    """``ports.Retriever`` and ``ports.Embedder`` over the index of one folder.

    An index that is missing, torn or of another embedder does not fail construction: ``reasons`` says so, searches raise
    ``IndexFault``, and ``reload`` takes up the index as soon as it is whole. Call ``reload`` in a thread.
    """

    def __init__(self, index: IndexConfig, config: RetrieverConfig, embedder: Encoder) -> None:
        self._layout = Layout(index.uri, reading=True)
        self._config = config
        self._embedder = embedder
        self._card = Card() if config.device == "cuda" else None
        self._reader: Reader | None = None
        self._links: tuple[Reader, Links] | None = None
        self._leads: tuple[Reader, Leads] | None = None
        self._linking = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "search")
        self._beside = ThreadPoolExecutor(max(1, _THREADS - 1), "leg")
        self._shared = Shared[list[_Answer | Degraded]](self._beside)
        self._quick = 0
        self._fault: IndexFault | None = None
        self._unreachable: str | None = None
        self._seen: str | None = None
        self._load(self._current())

    @property
    def index_version(self) -> str | None:
        return self._reader.manifest.id if self._reader else None

    @property
    def legs(self) -> Legs | None:
        """What the index in force was built with, which need not be what the config wants now."""
        return self._reader.manifest.legs if self._reader else None

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong: a newer snapshot that cannot be taken up, and torn files of the one in force."""
        own = [str(fault) for fault in (self._unreachable, self._fault) if fault]
        return (*own, *(torn.reason for torn in (self._reader.torn if self._reader else ())))

    def reload(self) -> bool:
        """Take up a newer snapshot, if there is one; searches in progress end on the old one. True where it changed.

        While something is wrong, the snapshot in force is read anew each time: its files may have been put back.
        """
        before, whole = self.reasons, not self.reasons
        name = self._current(verify=not whole)
        if name == self._seen and (whole or self._unreachable):
            return self.reasons != before
        moved = name != self._seen
        return self._load(name) and (moved or self.reasons != before)

    @property
    def library(self) -> Library:
        return Library(self._held)

    async def embed(self, texts: Sequence[str]) -> Scores:
        return await self._embedder.embed(texts)

    async def describe(self, scope: Scope) -> tuple[BucketInfo, ...]:
        """Raises what ``search`` raises of buckets and filters."""
        return await asyncio.to_thread(self._open().catalog.describe, scope.buckets, scope.filters, scope.groups)

    async def document_lookup(self, query: DocumentQuery) -> DocumentText:
        """Raises ``NotFound``, also for a document that is outside of the buckets or the filter, and what ``search`` raises."""
        reader, mask = await self._bound(query)
        return await asyncio.to_thread(reader.part, query, mask)

    async def get_document_metadata(self, query: DocumentQuery) -> DocumentInfo:
        """As ``document_lookup``, without the text."""
        reader, _ = await self._bound(query)
        return await asyncio.to_thread(reader.catalog.info, query.doc_id)

    async def search(self, query: SearchQuery) -> SearchResult:
        """Raises ``UnknownBucket``, ``UnknownField``, ``InvalidFilter``, ``IndexFault``, or ``StageUnavailable`` where
        no leg could answer. One that could not is in ``degraded``."""
        if query.link_hop and not self._config.link_hop:
            raise InvalidRequest("The link hop is switched off here.", "legs", ("dense", "sparse"))
        reader = self._open()
        allowed = await _allowed(reader, query)
        # A fault of theirs is told before any work.
        facets = reader.catalog.facets(query.facets, np.zeros(0, np.int64), query.buckets, query.groups)
        if allowed.count == 0:
            return replace(_nothing(reader, query, allowed), facets=facets)
        vectors = await self._vectors(reader, query)
        if self._config.lead_weight or not _is_quick(reader, query):
            work = partial(self._searched, reader, query, allowed, vectors)
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._quick += 1
        try:
            alone, few = self._quick == 1, _are_few(reader, allowed)
            beside = allowed.count > _BESIDE_ALONE if alone else not few
            legs = self._begun(reader, query, allowed, vectors, alone=alone, beside=beside)
            if not few:
                await asyncio.sleep(0)  # the legs of others who ask now begin before this one is waited for
            return self._ended(reader, query, allowed, legs)
        finally:
            self._quick -= 1

    def _current(self, verify: bool = False) -> str | None:
        """What is in force; where the object store cannot be reached, what its mirror has."""
        try:
            name, self._unreachable = current(self._layout, verify=verify), None
        except IndexFault as fault:
            name, self._unreachable = current_name(self._layout), str(fault)
        return name

    def _load(self, name: str | None) -> bool:
        self._seen = name
        try:
            manifest = read_current(self._layout)
            check_embedder(manifest.embedder.model_dump(), self._embedder.name, self._embedder.checksum)
            self._reader, self._fault = Reader(self._layout, manifest, self._reader, self._card), None
            warm()
        except (AssayError, OSError) as fault:  # told, and tried again with the next look
            why = str(fault) if isinstance(fault, AssayError) else f"it cannot be read: {fault.strerror or fault}"
            self._fault = fault if isinstance(fault, IndexFault) else IndexFault(f"the index cannot be opened: {why}")
            return False
        return True

    def _held(self) -> Reader | None:
        """None where nothing was ever published, which is no fault."""
        return None if self._seen is None and self._reader is None else self._open()

    def _open(self) -> Reader:
        if self._reader is None:
            raise self._fault or IndexFault("the index has no published snapshot")
        return self._reader

    async def _bound(self, query: DocumentQuery) -> tuple[Reader, Mask | None]:
        """And which rows may be read."""
        reader = self._open()
        allowed = await _allowed(reader, query)
        if not allowed.count:
            raise NotFound("there is no such document", "doc_id")
        return reader, allowed.mask

    async def _vectors(self, reader: Reader, query: SearchQuery) -> Scores | Degraded | None:
        """Of the queries; None where the dense leg is not asked. Of what a search does, this alone waits for others."""
        if "dense" not in query.legs:
            return None
        try:
            if not reader.has("dense"):
                raise _torn_leg(reader, "dense")
            async with asyncio.timeout(EMBED_SHARE * self._config.timeout_s):
                vectors = await self._embedder.embed(query.queries)
            if not np.isfinite(vectors).all():
                raise StageUnavailable("the embedder returned no finite vector")
        except _LEG_FAULTS as e:
            return _degraded("dense", e, query.legs)
        return vectors

    def _searched(
        self, reader: Reader, query: SearchQuery, allowed: Allowed, vectors: Scores | Degraded | None
    ) -> SearchResult:
        beside = len(reader.ids) > _BESIDE
        legs = self._begun(reader, query, allowed, vectors, alone=True, beside=beside)
        return self._ended(reader, query, allowed, legs)

    def _begun(
        self,
        reader: Reader,
        query: SearchQuery,
        allowed: Allowed,
        vectors: Scores | Degraded | None,
        *,
        alone: bool,
        beside: bool,
    ) -> Callable[[], list[_Answer | Degraded]]:
        """The legs, and what each of them found as soon as it is asked for.

        Legs of many rows are searched ``beside``, in another thread, so that two cores have work: the dense one of a search
        that is alone; both where there are others, for whom this thread then does what holds the interpreter. To change threads
        takes longer than a leg of few rows, and is for nothing where there is one core.
        """
        known: list[_Answer | Degraded] = [vectors] if isinstance(vectors, Degraded) else []
        legs: list[Callable[[], _Answer | Degraded]] = []
        if isinstance(vectors, np.ndarray):
            legs.append(lambda: _guarded("dense", query.legs, lambda: self._dense(reader, vectors, allowed)))
        if "sparse" in query.legs:
            legs.append(lambda: _guarded("sparse", query.legs, lambda: self._sparse(reader, query.queries, allowed)))
        if not isinstance(vectors, np.ndarray) or len(legs) < 2 or not beside or _THREADS < 2:
            return lambda: [*known, *(leg() for leg in legs)]
        if alone:
            return lambda: self._side_by_side(reader, query, vectors, allowed, legs[1])
        if not reader.has("sparse"):
            return lambda: [leg() for leg in legs]
        asked = [reader.sparse_query(text) for text in query.queries]
        return self._shared.begun(partial(self._both, reader, vectors, asked, allowed, legs))

    def _side_by_side(
        self,
        reader: Reader,
        query: SearchQuery,
        vectors: Scores,
        allowed: Allowed,
        sparse: Callable[[], _Answer | Degraded],
    ) -> list[_Answer | Degraded]:
        """The dense leg in the other thread. Meanwhile the sparse one, and what of the rest does not hang on the dense one's
        list."""
        fetch, mask = self._config.fetch, allowed.mask
        lists = reader.dense_beside(vectors, fetch, mask, self._beside)
        found = sparse()

        def dense() -> _Answer:
            cosines = _cosines(reader, vectors, found) if isinstance(found, _Answer) else ()
            return _of_dense(reader, vectors, allowed, lists(), cosines)

        return [_guarded("dense", query.legs, dense), found]

    def _both(
        self,
        reader: Reader,
        vectors: Scores,
        asked: Sequence[SparseQuery],
        allowed: Allowed,
        legs: Sequence[Callable[[], _Answer | Degraded]],
    ) -> list[_Answer | Degraded]:
        try:
            pairs = [
                reader.search_both(*of, self._config.fetch, allowed.mask) for of in zip(vectors, asked, strict=True)
            ]
        except _LEG_FAULTS:
            return [leg() for leg in legs]  # one of the two, and it will say which
        dense, sparse, cosines = zip(*pairs, strict=True)
        return [_of_dense(reader, vectors, allowed, dense, cosines), _of_sparse(reader, asked, sparse)]

    def _ended(
        self, reader: Reader, query: SearchQuery, allowed: Allowed, legs: Callable[[], list[_Answer | Degraded]]
    ) -> SearchResult:
        found = legs()
        degraded = [*(part for part in found if isinstance(part, Degraded)), *_torn(reader, query.legs)]
        answers = [part for part in found if isinstance(part, _Answer)]
        if not answers:
            raise StageUnavailable("no leg of the index could answer: " + "; ".join(d.reason for d in degraded))
        methods: dict[str, str] = {"dense": "skipped", "sparse": "skipped", **dict.fromkeys(query.legs, "failed")}
        methods.update({answer.leg: answer.method for answer in answers})
        hits, hopped = self._fused(reader, answers, query, allowed)
        methods.update({"link": "index" if hopped else "skipped"} if query.link_hop else {})
        methods.update({"lead": "exact"} if self._leads_count(query) else {})
        explain = Explain(allowed.count, reader.catalog.total(query.groups), methods)
        result = SearchResult(hits, reader.manifest.id, explain, tuple(degraded))
        if not query.facets and query.context_chars is None:
            return result
        return _with_extras(reader, answers, query, result, allowed.mask)

    def _dense(self, reader: Reader, vectors: Scores, allowed: Allowed) -> _Answer:
        lists = [reader.search_dense(v, self._config.fetch, allowed.mask) for v in vectors]
        return _of_dense(reader, vectors, allowed, lists)

    def _sparse(self, reader: Reader, queries: Sequence[str], allowed: Allowed) -> _Answer:
        if not reader.has("sparse"):
            raise _torn_leg(reader, "sparse")
        asked = [reader.sparse_query(q) for q in queries]
        return _of_sparse(reader, asked, [reader.search_sparse(q, self._config.fetch, allowed.mask) for q in asked])

    def _fused(
        self, reader: Reader, answers: Sequence[_Answer], query: SearchQuery, allowed: Allowed
    ) -> tuple[tuple[Hit, ...], bool]:
        """The hits, and whether the link hop found any."""
        legs = {answer.leg: answer for answer in answers}
        fusion = query.fusion or self._config.fusion
        cosines: Sequence[Cosines] = ()
        if len(legs) > 1 and fusion != "rrf":
            cosines = legs["dense"].cosines or _cosines(reader, legs["dense"].vectors, legs["sparse"])
        shares = [self._dense_share(fusion, legs, cosines, i, text, allowed) for i, text in enumerate(query.queries)]
        preferred: dict[int, float] = {}
        if self._leads_count(query):
            answers, preferred = self._led(reader, answers, fusion, shares[0], allowed)
        known = {("dense", i): (legs["sparse"].lists[i][0], of.found) for i, of in enumerate(cosines)}
        lists = [_ranked(a, i, shares[i], known.get((a.leg, i))) for a in answers for i in range(len(a.lists))]
        fused = fuse(fusion, lists, self._config.rrf_k)
        if preferred:
            fused = boosted(fused, {row: preferred[row] for row in fused.ids.tolist() if row in preferred})
        chunks: dict[int, Chunk] = {}
        gains: dict[int, float] = {}
        if query.link_hop and "dense" in legs:
            gains, chunks = self._linked(reader, legs["dense"], fused, query.queries[0], allowed)
            fused = boosted(fused, gains)
        rows = fused.ids[: query.top_k]
        missing = np.array([row for row in rows.tolist() if row not in chunks], dtype=np.int64)
        chunks.update(zip(missing.tolist(), reader.chunks(missing), strict=True))
        ranks = best_ranks(lists, rows)
        for rank, row in enumerate(sorted(gains, key=lambda row: (-gains[row], row)), start=1):
            for at in np.flatnonzero(rows == row).tolist():
                ranks[at]["link"] = rank
        similar = legs["dense"].score(0, rows) if "dense" in legs else np.full(len(rows), np.nan, np.float32)
        scores = fused.scores[: query.top_k]
        of_hits = zip(rows.tolist(), scores.tolist(), ranks, similar.tolist(), strict=True)
        hits = (
            Hit(chunks[row], score, held, None if isnan(cosine) else cosine) for row, score, held, cosine in of_hits
        )
        return tuple(hits), bool(gains)

    def _dense_share(
        self,
        fusion: Fusion,
        legs: Mapping[Leg, _Answer],
        cosines: Sequence[Cosines],
        i: int,
        text: str,
        allowed: Allowed,
    ) -> float | None:
        """Of query i; None where all legs weigh the same."""
        if fusion == "rrf":
            return None
        usual = self._config.dense_weight
        if fusion == "minmax" or len(legs) < 2 or not len(legs["dense"].lists[i][0]):
            return usual
        mean, deviation, found = cosines[i]
        agreed = found[:AGREED].tolist()
        if isnan(mean) or any(map(isnan, agreed)):
            return usual  # a part of the dense leg is torn, which the result says
        best = float(legs["dense"].lists[i][1][0])

        def letters() -> float:
            return letters_per_token(text, len(self._embedder.token_starts(text)))

        scores = legs["sparse"].lists[i][1]
        curves = Curves(mean, deviation, best, allowed.count, scores, agreed, letters)
        return dense_share(curves, usual, self._config.by_standing, self._config.by_lead)

    def _leads_count(self, query: SearchQuery) -> bool:
        """Within one document there is nothing to choose."""
        return self._config.lead_weight > 0 and query.doc_id is None

    def _led(
        self, reader: Reader, answers: Sequence[_Answer], fusion: Fusion, share: float | None, allowed: Allowed
    ) -> tuple[list[_Answer], dict[int, float]]:
        """The answers, deeper in the documents and stretches whose leads are best for the question, and what the rows of these
        gain. Leads are ordered as passages are: by the same legs, weights and fusion."""
        leads = self._leads_of(reader)
        found = leads.rows(allowed.mask)
        if len(found) > MOST:
            found = leads.near(np.concatenate([answer.lists[0][0] for answer in answers]), allowed.mask)
        begun = [replace(answer, lists=[_best_first(answer, found)]) for answer in answers]
        about = fuse(fusion, [_ranked(answer, 0, share) for answer in begun], self._config.rrf_k)
        best = leads.best(about.ids, self._config.lead_documents)
        if not len(best) or about.scores[0] <= 0:
            return list(answers), {}
        score = dict(zip(about.ids.tolist(), (about.scores / about.scores[0]).tolist(), strict=True))
        within = leads.within(best, allowed.mask)
        gains: dict[int, float] = {}
        for lead, rows in reversed(
            [*zip(best.tolist(), within, strict=True)]
        ):  # of two that lead to a row the better counts
            gains.update(dict.fromkeys(rows.tolist(), self._config.lead_weight * score[lead]))
        return [_deeper(answer, np.concatenate(within)) for answer in answers], gains

    def _leads_of(self, reader: Reader) -> Leads:
        """As ``_links_of``."""
        with self._linking:
            held = self._leads
            if held is None or held[0] is not reader:
                held = self._leads = reader, Leads(reader.catalog.document)
            return held[1]

    def _linked(
        self, reader: Reader, dense: _Answer, fused: Fused, question: str, allowed: Allowed
    ) -> tuple[dict[int, float], dict[int, Chunk]]:
        """What rows gain by being mentioned, and the chunks that were read for mentions."""
        rows = fused.ids[:SOURCES]
        chunks = dict(zip(rows.tolist(), reader.chunks(rows), strict=True))
        best = max((float(scores[0]) for _, scores in dense.lists[:1] if len(scores)), default=0.0)
        limit = max(_COMMON, _COMMON_SHARE * len(reader.ids))
        gains = self._links_of(reader).hop(
            question,
            [(row, chunk.text) for row, chunk in chunks.items()],
            lambda title: reader.frequency(title) <= limit,
            lambda at: dense.score(0, at),
            allowed.mask,
            best,
        )
        return gains, chunks

    def _links_of(self, reader: Reader) -> Links:
        """Made when it is first asked for: most searches of most snapshots never do."""
        with self._linking:
            held = self._links
            if held is None or held[0] is not reader:
                held = self._links = reader, Links(reader.catalog.titles, reader.catalog.document)
            return held[1]


def _is_quick(reader: Reader, query: SearchQuery) -> bool:
    """Whether a search takes a few milliseconds of the caller's loop at the most. Nothing but the two legs is so sure to."""
    more = query.link_hop or query.facets or query.context_chars is not None or reader.torn
    return not more and len(query.queries) * (len(reader.ids) + _ANYHOW) <= _QUICK


def _are_few(reader: Reader, allowed: Allowed) -> bool:
    """For one search among several."""
    return len(reader.ids) <= _BESIDE and allowed.count <= _BESIDE_OTHERS


async def _allowed(reader: Reader, query: SearchQuery | DocumentQuery) -> Allowed:
    """At once, for a filter that was asked before; another one may take milliseconds."""
    asked = query.buckets, query.doc_id, query.filters, query.groups
    held = reader.catalog.held(*asked)
    if held is not None:
        return held
    tests = 1 if query.filters is None else tests_in(query.filters)
    if tests * len(reader.ids) <= _QUICK:
        return reader.catalog.allowed(*asked)
    return await asyncio.to_thread(reader.catalog.allowed, *asked)


def _of_dense(
    reader: Reader, vectors: Scores, allowed: Allowed, lists: _ByQuery, cosines: Sequence[Cosines] = ()
) -> _Answer:
    method = "exact" if reader.is_exact(allowed.mask) else "index"
    return _Answer("dense", lists, lambda i, rows: reader.cosines(vectors[i], rows), method, vectors, cosines)


def _cosines(reader: Reader, vectors: Scores, sparse: _Answer) -> list[Cosines]:
    return [reader.cosines_beside(*of) for of in zip(vectors, (rows for rows, _ in sparse.lists), strict=True)]


def _of_sparse(reader: Reader, asked: Sequence[SparseQuery], lists: _ByQuery) -> _Answer:
    method = "index" if any(len(rows) for rows, _ in lists) else "skipped"
    return _Answer("sparse", lists, lambda i, rows: reader.bm25(asked[i], rows), method)


def _guarded(leg: Leg, legs: Sequence[Leg], work: Callable[[], _Answer]) -> _Answer | Degraded:
    try:
        return work()
    except _LEG_FAULTS as e:
        return _degraded(leg, e, legs)


def _degraded(leg: Leg, fault: Exception, legs: Sequence[Leg]) -> Degraded:
    known = isinstance(fault, AssayError)  # says all that a stack would
    log.warning("the %s leg failed: %s", leg, fault, exc_info=None if known else fault)
    why = "took too long" if isinstance(fault, TimeoutError) else f"failed: {type(fault).__name__}"
    reason = str(fault) if known else f"the {leg} leg {why}"
    return Degraded(stage="retriever", reason=reason, fallback=_fallback(leg, legs))


def _weight(leg: Leg, dense: float | None) -> float:
    return 1.0 if dense is None else dense if leg == "dense" else 1 - dense


def _query_weight(number: int, queries: int) -> float:
    return 1.0 if number == 0 else VARIANTS_WEIGHT / (queries - 1)


def _ranked(
    answer: _Answer, number: int, dense_share: float | None, known: tuple[Rows, Scores] | None = None
) -> RankedList:
    """A leg's list for one query; it can score what other lists found, which it may have done already."""
    rows, scores = answer.lists[number]
    weight = _weight(answer.leg, dense_share) * _query_weight(number, len(answer.lists))
    return RankedList(answer.leg, rows, scores, weight, partial(answer.score, number), known)


def _best_first(answer: _Answer, rows: Rows) -> tuple[Rows, Scores]:
    """Rows by a leg's score for the question, without those that it says nothing of: BM25's 0 is no match."""
    scores = answer.score(0, rows)
    known = np.isfinite(scores) & (scores > 0 if answer.leg == "sparse" else True)
    rows, scores = rows[known], scores[known]
    order = np.lexsort((rows, -scores))
    return rows[order], scores[order]


def _deeper(answer: _Answer, rows: Rows) -> _Answer:
    """With more rows in its list for the question."""
    more = _best_first(answer, np.union1d(answer.lists[0][0], rows))
    return replace(answer, lists=[more, *answer.lists[1:]])


def _nothing(reader: Reader, query: SearchQuery, allowed: Allowed) -> SearchResult:
    methods = {"dense": "skipped", "sparse": "skipped"}
    explain = Explain(0, reader.catalog.total(query.groups), methods, allowed.blocking, allowed.count_without)
    return SearchResult((), reader.manifest.id, explain)


def _with_extras(
    reader: Reader, answers: Sequence[_Answer], query: SearchQuery, result: SearchResult, mask: Mask | None
) -> SearchResult:
    """Facets over all documents that a leg found, not only those of the hits; and each hit's text around its match."""
    found = [rows for answer in answers for rows, _ in answer.lists]
    rows = np.unique(np.concatenate([*found, reader.rows_of([hit.chunk.id for hit in result.hits])]))
    facets = reader.catalog.facets(query.facets, rows, query.buckets, query.groups)
    chars = query.context_chars
    hits = result.hits if chars is None else _with_context(reader, result.hits, query.queries[0], chars, mask)
    return replace(result, hits=hits, facets=facets)


def _with_context(reader: Reader, hits: Sequence[Hit], question: str, chars: int, mask: Mask | None) -> tuple[Hit, ...]:
    """What surrounds a match is of its document, and of its neighbours as far as those are allowed. Around a hit that is not
    hidden nothing is: a hit says of all its text whether it is to be trusted. Front matter is no text, nor are comments."""
    read = [hit.chunk for hit in hits if len(hit.chunk.text) < chars or COMMENT in hit.chunk.text]
    wider = sorted({(chunk.doc_id, chunk.hidden) for chunk in read})
    texts = reader.texts(sorted({doc_id for doc_id, _ in wider}))
    seen = reader.seen(mask) if wider else mask
    runs = {(doc_id, hidden): reader.runs(doc_id, mask if hidden else seen) for doc_id, hidden in wider}
    left_out = {doc_id: _comments(reader, doc_id, text) for doc_id, text in texts.items()}

    def context(chunk: Chunk) -> Context:
        place = run = (chunk.start, chunk.end)
        offset, text = chunk.start, chunk.text
        if (chunk.doc_id, chunk.hidden) in runs:
            offset, text = 0, texts[chunk.doc_id]
            if len(chunk.text) < chars:
                whole = runs[chunk.doc_id, chunk.hidden] or [reader.content(chunk.doc_id, text)]
                run = next((low, high) for low, high in whole if low <= chunk.start < high)
            run, place = between(text, run, place, left_out[chunk.doc_id], question)
        shown = text[run[0] - offset : run[1] - offset]
        start, end = window(shown, (place[0] - run[0], place[1] - run[0]), question, chars)
        return Context(shown[start:end], (start + run[0], end + run[0]))

    return tuple(replace(hit, context=context(hit.chunk)) for hit in hits)


def _comments(reader: Reader, doc_id: str, text: str) -> list[tuple[int, int]]:
    """In other formats what looks like one is text that somebody reads."""
    return comments(text) if COMMENT in text and reader.catalog.info(doc_id).format == "md" else []


def _torn_leg(reader: Reader, leg: Leg) -> StageUnavailable:
    """Of a leg that no segment has. Of the files that it lacks the first is named: what mends one mends them all."""
    reasons = (reason for of, reason in reader.torn if of in (leg, None))
    return StageUnavailable(next(reasons, f"the {leg} leg is torn"))


def _torn(reader: Reader, legs: Sequence[Leg]) -> list[Degraded]:
    """A leg that serves without one of its segments answers from a part of the documents, which must be said."""
    return [
        Degraded(stage="retriever", reason=reason, fallback="the rest of the index")
        for leg, reason in reader.torn
        if leg is None or (leg in legs and reader.has(leg))
    ]


def _fallback(leg: Leg, legs: Sequence[Leg]) -> str:
    other = "sparse" if leg == "dense" else "dense"
    return f"the {other} leg alone" if other in legs else "none"
