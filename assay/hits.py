"""A search without an answer: ``SearchRequest`` to ``SearchResponse``, for every door."""

import asyncio
import time

from assay.errors import StageTimeout
from assay.ports import Retriever
from assay.schemas import SearchExplain, SearchHit, SearchRequest, SearchResponse
from assay.types import LEGS, Context, Hit, SearchQuery


async def search(request: SearchRequest, retriever: Retriever, timeout_s: float, request_id: str) -> SearchResponse:
    """Raises what the retriever raises, and ``StageTimeout`` after ``timeout_s`` seconds."""
    start = time.perf_counter()
    query = SearchQuery(
        queries=(request.question,),
        buckets=tuple(request.buckets),
        filters=request.filters,
        doc_id=request.doc_id,
        legs=tuple(leg for leg in LEGS if leg in request.legs),
        link_hop="link" in request.legs,
        top_k=request.top_k,
        facets=tuple(request.facets),
        context_chars=request.context_chars,
        request_id=request_id,
    )
    try:
        async with asyncio.timeout(timeout_s):
            found = await retriever.search(query)
    except TimeoutError:
        raise StageTimeout(f"retriever: timeout after {timeout_s:.1f} s") from None
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
        timings_ms={"total": round(1000 * (time.perf_counter() - start), 2)},
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
        text=around.text,
        text_span=around.span,
    )
