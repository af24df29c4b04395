"""A search without an answer: ``SearchRequest`` to ``SearchResponse``, for every door."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from assay.config import RetrieverConfig
from assay.errors import AssayError, InvalidRequest, StageTimeout
from assay.ports import Reranker, Retriever
from assay.schemas import Degraded, SearchExplain, SearchHit, SearchRequest, SearchResponse, Usage
from assay.types import LEGS, Context, Hit, RerankRequest, SearchQuery, SearchResult

T = TypeVar("T")


class Search:
    """Searches by the ports of the two stages. Without a ``reranker`` (there is no graph) a request for one is refused."""

    def __init__(
        self,
        retriever: Retriever,
        config: RetrieverConfig,
        reranker: Reranker | None = None,
        rerank_timeout_s: float = 15,
    ) -> None:
        self._retriever, self._config = retriever, config
        self._reranker, self._rerank_timeout_s = reranker, rerank_timeout_s

    async def __call__(self, request: SearchRequest, request_id: str) -> SearchResponse:
        """Raises what the retriever raises, and ``StageTimeout`` after its time. A reranker that fails leaves the fused order,
        which ``degraded`` says."""
        start = time.perf_counter()
        if request.rerank and self._reranker is None:
            raise InvalidRequest("Reranking needs the models of a running graph.", "rerank", ("false",))
        query = _query(request, request_id)
        if request.rerank:
            query = replace(query, top_k=max(request.top_k, self._config.fetch))
        found = await _within(self._retriever.search(query), "retriever", self._config.timeout_s)
        timings, usage = {"retrieve": _ms_since(start)}, Usage()
        if self._reranker is not None and request.rerank and found.hits:
            begun = time.perf_counter()
            found, usage = await self._reranked(self._reranker, request, found, request_id)
            timings["rerank"] = _ms_since(begun)
        return _response(found, request_id, usage, {**timings, "total": _ms_since(start)})

    async def _reranked(
        self, reranker: Reranker, request: SearchRequest, found: SearchResult, request_id: str
    ) -> tuple[SearchResult, Usage]:
        asked = RerankRequest(request.question, found.hits, request.top_k, request_id, request.cache_salt, gains=False)
        try:
            done = await _within(reranker.rerank(asked), "reranker", self._rerank_timeout_s)
        except AssayError as fault:
            return _fell_back(found, found.hits[: request.top_k], str(fault), "fused order"), Usage()
        hits = tuple(replace(ranked.hit, score=ranked.score) for ranked in done.ranked)
        if not done.faults:
            return replace(found, hits=hits), done.usage
        reason = f"{done.faults} of {len(found.hits)} passages could not be scored"
        return _fell_back(found, hits, reason, "their fused order"), done.usage


def _query(request: SearchRequest, request_id: str) -> SearchQuery:
    return SearchQuery(
        queries=(request.question,),
        buckets=tuple(request.buckets),
        filters=request.filters,
        doc_id=request.doc_id,
        legs=tuple(leg for leg in LEGS if leg in request.legs),
        link_hop="link" in request.legs,
        fusion=request.fusion,
        top_k=request.top_k,
        facets=tuple(request.facets),
        context_chars=request.context_chars,
        request_id=request_id,
        groups=request.groups,
    )


async def _within(work: Awaitable[T], stage: str, timeout_s: float) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        raise StageTimeout(f"{stage}: timeout after {timeout_s:.1f} s") from None


def _ms_since(start: float) -> float:
    return round(1000 * (time.perf_counter() - start), 2)


def _fell_back(found: SearchResult, hits: tuple[Hit, ...], reason: str, fallback: str) -> SearchResult:
    degraded = Degraded(stage="reranker", reason=reason, fallback=fallback)
    return replace(found, hits=hits, degraded=(*found.degraded, degraded))


def _response(found: SearchResult, request_id: str, usage: Usage, timings_ms: dict[str, float]) -> SearchResponse:
    explain = found.explain
    return SearchResponse(
        request_id=request_id,
        hits=[_hit(hit) for hit in found.hits],
        facets=dict(found.facets),
        explain=SearchExplain(
            allowed_rows=explain.allowed_rows,
            total_rows=explain.total_rows,
            methods=dict(explain.methods),
            blocking=explain.blocking,
            count_without=explain.count_without,
        ),
        degraded=list(found.degraded),
        index_version=found.index_version,
        usage=usage,
        timings_ms=timings_ms,
    )


def _hit(hit: Hit) -> SearchHit:
    chunk = hit.chunk
    around = hit.context or Context(chunk.text, (chunk.start, chunk.end))
    return SearchHit(
        chunk_id=chunk.id,
        doc_id=chunk.doc_id,
        bucket=chunk.bucket,
        title=chunk.title,
        uri=chunk.uri,
        page=chunk.page,
        heading=list(chunk.heading),
        span=(chunk.start, chunk.end),
        hidden=chunk.hidden,
        score=hit.score,
        ranks=dict(hit.ranks),
        similarity=hit.similarity,
        text=around.text,
        text_span=around.span,
    )
