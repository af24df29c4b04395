"""The Retriever: every query through both legs under one allowed set, fused. Deterministic; no model but the embedder."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from assay.config import IndexConfig, RetrieverConfig
from assay.context import window
from assay.errors import AssayError, IndexFault, InvalidRequest, NotFound, StageUnavailable
from assay.fuse import Fused, RankedList, best_ranks, boosted, fuse
from assay.index.catalog import Allowed
from assay.index.embed import Encoder
from assay.index.files import Layout
from assay.index.mirror import current
from assay.index.reader import Reader
from assay.index.snapshot import current_name, read_current
from assay.index.store import check_embedder
from assay.links import SOURCES, Links
from assay.schemas import Degraded
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
    SearchQuery,
    SearchResult,
)
from assay.weigh import Curves, agreed_rows, dense_share, letters_per_token

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]

# All variants together weigh this much beside the question's 1: a small model's bad variant must not push out what the
# question itself finds.
VARIANTS_WEIGHT = 0.5

# A leg that hangs is given up before the whole search is, so that the other leg can still answer.
LEG_SHARE = 0.6

# Passages that stand for all: what cosine a query has with one taken at random.
_BACKGROUND = 512

# A title whose rarest word is in more passages than this, and than this share of them, names nothing ("Overview").
_COMMON, _COMMON_SHARE = 50, 0.03

log = logging.getLogger(__name__)

# What FAISS, bm25s, torch and Lance raise when a leg cannot answer. Anything else is a bug, and no reason to go on.
_LEG_FAULTS = (RuntimeError, OSError, ValueError, MemoryError, TimeoutError, AssayError)


@dataclass(frozen=True, slots=True)
class _Answer:
    """One leg's list of rows for each query, and its score of any row (NaN where it has none)."""

    leg: Leg
    lists: list[tuple[Rows, Scores]]
    score: Callable[[int, Rows], Scores]
    method: str


class LocalRetriever:
    """``ports.Retriever`` and ``ports.Embedder`` over the index of one folder.

    An index that is missing, torn or of another embedder does not fail construction: ``reasons`` says so, searches raise
    ``IndexFault``, and ``reload`` takes up the index as soon as it is whole. Call ``reload`` in a thread.
    """

    def __init__(self, index: IndexConfig, config: RetrieverConfig, embedder: Encoder) -> None:
        self._layout = Layout(index.uri, reading=True)
        self._config = config
        self._embedder = embedder
        self._reader: Reader | None = None
        self._links: tuple[Reader, Links] | None = None
        self._linking = threading.Lock()
        self._fault: IndexFault | None = None
        self._unreachable: str | None = None
        self._seen: str | None = None
        self._load(self._current())

    @property
    def index_version(self) -> str | None:
        return self._reader.manifest.id if self._reader else None

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

    async def embed(self, texts: Sequence[str]) -> Scores:
        return await self._embedder.embed(texts)

    async def buckets(self) -> tuple[BucketInfo, ...]:
        return tuple(self._open().catalog.buckets.values())

    async def lookup(self, doc_id: str) -> str:
        """The text of a document, in which spans count. Raises ``NotFound``."""
        return await asyncio.to_thread(self._open().document, doc_id)

    async def document_lookup(self, query: DocumentQuery) -> DocumentText:
        """Raises ``NotFound``, also for a document that is outside of the buckets or the filter, and what ``search`` raises."""
        return await asyncio.to_thread(self._bound(query).part, query)

    async def get_document_metadata(self, query: DocumentQuery) -> DocumentInfo:
        """As ``document_lookup``, without the text."""
        return await asyncio.to_thread(lambda: self._bound(query).catalog.info(query.doc_id))

    async def search(self, query: SearchQuery) -> SearchResult:
        """Raises ``UnknownBucket``, ``UnknownField``, ``InvalidFilter``, ``IndexFault``, or ``StageUnavailable`` where
        no leg could answer. One that could not is in ``degraded``."""
        if query.link_hop and not self._config.link_hop:
            raise InvalidRequest("The link hop is switched off here.", "legs", ("dense", "sparse"))
        reader = self._open()
        allowed = await asyncio.to_thread(reader.catalog.allowed, query.buckets, query.doc_id, query.filters)
        nothing = np.zeros(0, np.int64)
        facets = reader.catalog.facets(
            query.facets, nothing, query.buckets
        )  # a fault of theirs is told before any work
        if allowed.count == 0:
            return replace(_nothing(reader, query, allowed), facets=facets)
        found = await asyncio.gather(
            self._guarded("dense", query, self._dense(reader, query, allowed)) if "dense" in query.legs else _skip(),
            self._guarded("sparse", query, self._sparse(reader, query, allowed)) if "sparse" in query.legs else _skip(),
        )
        degraded = [*(part for part in found if isinstance(part, Degraded)), *_torn(reader, query.legs)]
        answers = [part for part in found if isinstance(part, _Answer)]
        if not answers:
            raise StageUnavailable("no leg of the index could answer: " + "; ".join(d.reason for d in degraded))
        methods: dict[str, str] = {"dense": "skipped", "sparse": "skipped", **dict.fromkeys(query.legs, "failed")}
        methods.update({answer.leg: answer.method for answer in answers})
        hits, hopped = await asyncio.to_thread(self._fused, reader, answers, query, allowed)
        methods.update({"link": "index" if hopped else "skipped"} if query.link_hop else {})
        explain = Explain(allowed.count, len(reader.ids), methods)
        result = SearchResult(hits, reader.manifest.id, explain, tuple(degraded))
        if not query.facets and query.context_chars is None:
            return result
        return await asyncio.to_thread(_with_extras, reader, answers, query, result)

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
            self._reader, self._fault = Reader(self._layout, manifest, self._reader), None
        except IndexFault as fault:
            self._fault = fault
            return False
        return True

    def _open(self) -> Reader:
        if self._reader is None:
            raise self._fault or IndexFault("the index has no published snapshot")
        return self._reader

    def _bound(self, query: DocumentQuery) -> Reader:
        reader = self._open()
        if not reader.catalog.allowed(query.buckets, query.doc_id, query.filters).count:
            raise NotFound("there is no such document", "doc_id")
        return reader

    async def _guarded(self, leg: Leg, query: SearchQuery, work: Awaitable[_Answer]) -> _Answer | Degraded:
        try:
            async with asyncio.timeout(LEG_SHARE * self._config.timeout_s):
                return await work
        except _LEG_FAULTS as e:
            log.warning("the %s leg failed", leg, exc_info=e)
            why = "took too long" if isinstance(e, TimeoutError) else f"failed: {type(e).__name__}"
            reason = str(e) if isinstance(e, AssayError) else f"the {leg} leg {why}"
            return Degraded(stage="retriever", reason=reason, fallback=_fallback(leg, query.legs))

    async def _dense(self, reader: Reader, query: SearchQuery, allowed: Allowed) -> _Answer:
        if not reader.has("dense"):
            raise StageUnavailable("the dense leg is torn")
        vectors = await self._embedder.embed(query.queries)
        if not np.isfinite(vectors).all():
            raise StageUnavailable("the embedder returned no finite vector")

        def run() -> _Answer:
            lists = [reader.search_dense(v, self._config.fetch, allowed.mask) for v in vectors]
            method = "exact" if reader.is_exact(allowed.mask) else "index"
            return _Answer("dense", lists, lambda i, rows: reader.cosines(vectors[i], rows), method)

        return await asyncio.to_thread(run)

    async def _sparse(self, reader: Reader, query: SearchQuery, allowed: Allowed) -> _Answer:
        if not reader.has("sparse"):
            raise StageUnavailable("the sparse leg is torn")

        def run() -> _Answer:
            asked = [reader.sparse_query(q) for q in query.queries]
            lists = [reader.search_sparse(q, self._config.fetch, allowed.mask) for q in asked]
            method = "index" if any(len(rows) for rows, _ in lists) else "skipped"
            return _Answer("sparse", lists, lambda i, rows: reader.bm25(asked[i], rows), method)

        return await asyncio.to_thread(run)

    def _fused(
        self, reader: Reader, answers: Sequence[_Answer], query: SearchQuery, allowed: Allowed
    ) -> tuple[tuple[Hit, ...], bool]:
        """The hits, and whether the link hop found any."""
        found = [rows for answer in answers for rows, _ in answer.lists]
        union = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
        legs = {answer.leg: answer for answer in answers}
        shares = [self._dense_share(reader, legs, i, text, allowed) for i, text in enumerate(query.queries)]
        lists = [
            RankedList(
                answer.leg,
                _pairs(rows, scores),
                _weight(answer.leg, shares[i]) * _query_weight(i, len(answer.lists)),
                dict(_pairs(union, answer.score(i, union))),
            )
            for answer in answers
            for i, (rows, scores) in enumerate(answer.lists)
        ]
        fused = fuse(self._config.fusion, lists, self._config.rrf_k)
        ranks = best_ranks(lists)
        chunks: dict[int, Chunk] = {}
        gains: dict[int, float] = {}
        if query.link_hop and "dense" in legs:
            gains, chunks = self._linked(reader, legs["dense"], fused, query.queries[0], allowed)
            fused = boosted(fused, gains)
            for rank, row in enumerate(sorted(gains, key=lambda row: (-gains[row], row)), start=1):
                ranks[row] = {**ranks.get(row, {}), "link": rank}
        rows = np.array([row for row, _ in fused[: query.top_k]], dtype=np.int64)
        missing = np.array([row for row in rows.tolist() if row not in chunks], dtype=np.int64)
        chunks.update(zip(missing.tolist(), reader.chunks(missing), strict=True))
        similarity = legs["dense"].score(0, rows) if "dense" in legs else np.full(len(rows), np.nan)
        hits = tuple(
            Hit(chunks[row], score, ranks.get(row, {}), float(cosine) if np.isfinite(cosine) else None)
            for (row, score), cosine in zip(fused[: query.top_k], similarity, strict=True)
        )
        return hits, bool(gains)

    def _dense_share(
        self, reader: Reader, legs: Mapping[Leg, _Answer], i: int, text: str, allowed: Allowed
    ) -> float | None:
        """Of query i; None where all legs weigh the same."""
        if self._config.fusion == "rrf":
            return None
        usual = self._config.dense_weight
        if self._config.fusion == "minmax" or len(legs) < 2 or not len(legs["dense"].lists[i][0]):
            return usual
        background = legs["dense"].score(i, _spread(len(reader.ids)))
        rows, scores = legs["sparse"].lists[i]
        agreed = legs["dense"].score(i, agreed_rows(rows))
        if not (np.isfinite(background).all() and np.isfinite(agreed).all()):
            return usual  # a part of the dense leg is torn, which the result says
        letters = letters_per_token(text, len(self._embedder.token_starts(text)))
        best = float(legs["dense"].lists[i][1][0])
        curves = Curves(background, best, allowed.count, scores, agreed, letters)
        return dense_share(curves, usual, self._config.by_standing, self._config.by_lead)

    def _linked(
        self, reader: Reader, dense: _Answer, fused: Fused, question: str, allowed: Allowed
    ) -> tuple[dict[int, float], dict[int, Chunk]]:
        """What rows gain by being mentioned, and the chunks that were read for mentions."""
        rows = np.array([row for row, _ in fused[:SOURCES]], dtype=np.int64)
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


def _weight(leg: Leg, dense: float | None) -> float:
    return 1.0 if dense is None else dense if leg == "dense" else 1 - dense


@lru_cache(maxsize=8)
def _spread(rows: int) -> Rows:
    """Rows at even distances."""
    return np.linspace(0, rows - 1, min(rows, _BACKGROUND)).astype(np.int64)


def _query_weight(number: int, queries: int) -> float:
    return 1.0 if number == 0 else VARIANTS_WEIGHT / (queries - 1)


def _pairs(rows: Rows, scores: Scores) -> list[tuple[int, float]]:
    known = np.isfinite(scores)
    return list(zip(rows[known].tolist(), scores[known].tolist(), strict=True))


def _nothing(reader: Reader, query: SearchQuery, allowed: Allowed) -> SearchResult:
    methods = {"dense": "skipped", "sparse": "skipped"}
    explain = Explain(0, len(reader.ids), methods, allowed.blocking, allowed.count_without)
    return SearchResult((), reader.manifest.id, explain)


def _with_extras(reader: Reader, answers: Sequence[_Answer], query: SearchQuery, result: SearchResult) -> SearchResult:
    """Facets over all documents that a leg found, not only those of the hits; and each hit's text around its match."""
    found = [rows for answer in answers for rows, _ in answer.lists]
    rows = np.unique(np.concatenate([*found, reader.rows_of([hit.chunk.id for hit in result.hits])]))
    facets = reader.catalog.facets(query.facets, rows, query.buckets)
    chars = query.context_chars
    hits = result.hits if chars is None else _with_context(reader, result.hits, query.queries[0], chars)
    return replace(result, hits=hits, facets=facets)


def _with_context(reader: Reader, hits: Sequence[Hit], question: str, chars: int) -> tuple[Hit, ...]:
    wider = {hit.chunk.doc_id for hit in hits if len(hit.chunk.text) < chars}
    texts = reader.texts(sorted(wider))

    def context(chunk: Chunk) -> Context:
        offset, text = (0, texts[chunk.doc_id]) if len(chunk.text) < chars else (chunk.start, chunk.text)
        start, end = window(text, (chunk.start - offset, chunk.end - offset), question, chars)
        return Context(text[start:end], (start + offset, end + offset))

    return tuple(replace(hit, context=context(hit.chunk)) for hit in hits)


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


async def _skip() -> None:
    return None
