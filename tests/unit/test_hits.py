"""A search by request: what is asked of the two stages, and what is left of it when the reranker fails."""

import asyncio
from dataclasses import replace

import pytest

from assay.config import RerankerConfig, RetrieverConfig
from assay.errors import AssayError, BadModelOutput, InvalidRequest, StageUnavailable
from assay.hits import Search
from assay.rerank import LLMReranker
from assay.schemas import Facet, FacetValue, Predicate, SearchRequest
from assay.types import (
    Grade,
    GradeRequest,
    Reranked,
    RerankRequest,
    ScoreRequest,
    SearchQuery,
    SearchResult,
    Support,
    SupportRequest,
)
from tests.fakes import ListRetriever, ScriptedLLM, WordTokenizer, chunk

pytestmark = pytest.mark.anyio
QUESTION = "what causes ocean tides"
CHUNKS = [
    chunk(1, "ocean tides and ocean tides again"),
    chunk(2, "causes of tides, an ocean of them"),
    chunk(3, "what causes ocean tides is the Moon"),
]

COUNTED = {"type": Facet(values=[FacetValue(value="Lease", count=2)], missing=1)}


def searching(llm: ScriptedLLM, **reranking: float) -> tuple[Search, ListRetriever]:
    retriever = ListRetriever(*CHUNKS)
    reranker = LLMReranker(llm, WordTokenizer(), RerankerConfig(method="listwise", weight=1.0))
    return Search(retriever, RetrieverConfig(fetch=50), reranker, **reranking), retriever


def asked(**rest: object) -> SearchRequest:
    return SearchRequest.model_validate({"question": QUESTION, "top_k": 2, **rest})


async def test_without_rerank_no_model_is_asked() -> None:
    search, retriever = searching(llm := ScriptedLLM())
    found = await search(asked(fusion="rrf"), "r1")
    assert (llm.history, found.usage.llm_calls, found.degraded) == ([], 0, [])
    assert [(q.fusion, q.top_k) for q in retriever.history] == [("rrf", 2)]
    assert set(found.timings_ms) == {"retrieve", "total"}


async def test_all_that_is_asked_reaches_the_retriever() -> None:
    search, retriever = searching(ScriptedLLM())
    pdfs = Predicate(field="format", op="=", value="pdf")
    request = asked(
        buckets=["docs"], filters=pdfs.model_dump(), doc_id="doc_1", legs=["link", "dense"], fusion="rrf", top_k=7,
        facets=["type", "signed"], context_chars=90,
    )  # fmt: skip
    await search(request.seen_by(("hr",)), "r1")
    assert retriever.history == [
        SearchQuery(
            (QUESTION,), ("docs",), pdfs, "doc_1", ("dense",), True, "rrf", 7, ("type", "signed"), 90, "r1", ("hr",)
        )
    ]


async def test_a_hit_says_whether_a_reader_sees_it_and_facets_come_along() -> None:
    class Counting(ListRetriever):
        async def search(self, query: SearchQuery) -> SearchResult:
            return replace(await super().search(query), facets=COUNTED)

    seen, hidden = chunk(1, "ocean tides"), replace(chunk(2, "ocean"), hidden=True)
    found = await Search(Counting(seen, hidden), RetrieverConfig())(asked(), "r1")
    assert [(hit.chunk_id, hit.hidden) for hit in found.hits] == [(1, False), (2, True)]
    assert found.facets == COUNTED


async def test_rerank_fetches_many_and_keeps_the_models_best() -> None:
    search, retriever = searching(ScriptedLLM('{"grades": [1, 9, 10]}'))
    plain = await search(asked(top_k=3), "r1")
    found = await search(asked(rerank=True), "r2")
    assert [q.top_k for q in retriever.history] == [3, 50]
    fused = [hit.chunk_id for hit in plain.hits]
    assert [hit.chunk_id for hit in found.hits] == [fused[2], fused[1]]
    assert found.hits[0].score > found.hits[1].score
    assert found.hits[0].similarity == plain.hits[2].similarity
    assert (found.usage.llm_calls, found.degraded) == (1, [])
    assert set(found.timings_ms) == {"retrieve", "rerank", "total"}


async def test_a_search_asks_for_nothing_that_only_a_grade_needs() -> None:
    llm = ScriptedLLM()
    reranker = LLMReranker(llm, WordTokenizer(), RerankerConfig(method="title"))
    found = await Search(ListRetriever(*CHUNKS), RetrieverConfig(), reranker)(asked(rerank=True), "r1")
    (scored,) = llm.history
    assert isinstance(scored, ScoreRequest) and len(scored.items) == 2 * len(CHUNKS), "each title twice, and no passage"
    assert not any(CHUNKS[0].text in item.context for item in scored.items) and found.degraded == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (StageUnavailable("reranker is not available"), "reranker is not available"),
        (BadModelOutput("no grades"), "no grades"),
        ('{"grades": [1]}', "1 grades for 3 passages"),
        ("[", "not of their schema"),
    ],
)
async def test_a_reranker_that_fails_leaves_the_fused_order_and_says_so(said: str | AssayError, reason: str) -> None:
    search, _ = searching(ScriptedLLM(said))
    plain = await search(asked(), "r1")
    found = await search(asked(rerank=True), "r2")
    assert found.hits == plain.hits
    assert [(d.stage, d.fallback) for d in found.degraded] == [("reranker", "fused order")]
    assert reason in found.degraded[0].reason


async def test_a_reranker_that_hangs_is_given_up() -> None:
    search, _ = searching(ScriptedLLM("{}", delay_s=60), rerank_timeout_s=0.01)
    found = await search(asked(rerank=True), "r1")
    assert (len(found.hits), found.degraded[0].reason) == (2, "reranker: timeout after 0.0 s")


async def test_passages_that_could_not_be_scored_are_told() -> None:
    class Partly:
        async def rerank(self, request: RerankRequest) -> Reranked:
            whole = await LLMReranker(ScriptedLLM(), WordTokenizer(), RerankerConfig()).rerank(request)
            return Reranked(whole.ranked, whole.usage, faults=1)

        async def grade(self, request: GradeRequest) -> Grade:
            raise NotImplementedError

        async def support(self, request: SupportRequest) -> Support:
            raise NotImplementedError

    found = await Search(ListRetriever(*CHUNKS), RetrieverConfig(), Partly())(asked(rerank=True), "r1")
    told = found.degraded[0]
    assert (told.reason, told.fallback) == ("1 of 3 passages could not be scored", "their fused order")


async def test_where_there_is_no_graph_rerank_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="running graph"):
        await Search(ListRetriever(*CHUNKS), RetrieverConfig())(asked(rerank=True), "r1")


async def test_nothing_found_is_not_reranked() -> None:
    search, _ = searching(llm := ScriptedLLM())
    assert (await search(asked(question="zzqq", rerank=True), "r1")).hits == []
    assert llm.history == []


async def test_cancelling_a_search_cancels_the_reranker() -> None:
    search, _ = searching(ScriptedLLM("{}", delay_s=60))
    task = asyncio.create_task(search(asked(rerank=True), "r1"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
