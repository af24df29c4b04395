"""Stages of one's own inside a graph, in replicas of theirs and in the driver's: they answer, and what they raise is met as
docs/customising.md says."""

import logging
import traceback
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray import serve

from assay.config import AppConfig
from assay.custom import Parts
from assay.errors import BadModelOutput
from assay.models import embedder_path
from assay.schemas import AskRequest, AskResponse, Usage
from assay.types import (
    BucketInfo,
    DocumentInfo,
    DocumentQuery,
    DocumentText,
    Draft,
    GenerateEvent,
    GenerateRequest,
    Grade,
    GradeRequest,
    Plan,
    PlanRequest,
    Ranked,
    Reranked,
    RerankRequest,
    Scope,
    SearchQuery,
    SearchResult,
    Support,
    SupportRequest,
)
from graph import wire
from tests.wiring.test_graph import QUESTION, ScriptedEngine, indexed

VARIANT = "tides of the house"
ANSWER = "The gravity of the Moon causes the ocean tides on Earth."
# Stage -> what the loop does without it.
FALLBACKS = {
    "expander": "the original query alone",
    "retriever": "what the question alone found",
    "reranker": "fused order, top 5",
    "generator": "the top passage, quoted",
}


def _checked(stage: str, question: str) -> None:
    """A question may say of a stage that it is to refuse, or to break."""
    if f"{stage} refuses" in question:
        raise BadModelOutput(f"the house's {stage} has no opinion")
    if f"{stage} breaks" in question:
        raise ZeroDivisionError("a bug of the house")


class Expander:
    def __init__(self, parts: Parts) -> None: ...

    async def plan(self, request: PlanRequest) -> Plan:
        _checked("expander", request.question)
        return Plan(request.question, (VARIANT,))


class Retriever:
    """The built-in one, under the house's version."""

    def __init__(self, parts: Parts) -> None:
        self._builtin = parts.builtin

    async def search(self, request: SearchQuery) -> SearchResult:
        if len(request.queries) > 1:
            _checked("retriever", request.queries[0])
        return replace(await self._builtin.search(request), index_version="the house's")

    async def describe(self, request: Scope) -> tuple[BucketInfo, ...]:
        return await self._builtin.describe(request)

    async def document_lookup(self, request: DocumentQuery) -> DocumentText:
        return await self._builtin.document_lookup(request)

    async def get_document_metadata(self, request: DocumentQuery) -> DocumentInfo:
        return await self._builtin.get_document_metadata(request)


class Reranker:
    """By name."""

    def __init__(self, parts: Parts) -> None:
        self._builtin = parts.builtin

    async def rerank(self, request: RerankRequest) -> Reranked:
        _checked("reranker", request.question)
        hits = sorted(request.hits, key=lambda hit: hit.chunk.uri)
        return Reranked(tuple(Ranked(hit, 1.0 - place / 10, None) for place, hit in enumerate(hits)), Usage())

    async def grade(self, request: GradeRequest) -> Grade:
        return await self._builtin.grade(request)

    async def support(self, request: SupportRequest) -> Support:
        return await self._builtin.support(request)


class Generator:
    def __init__(self, parts: Parts) -> None: ...

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        _checked("generator", request.question)
        slot = next(passage.slot for passage in request.evidence if ANSWER in passage.hit.chunk.text)
        yield GenerateEvent(draft=Draft(ANSWER, (slot,)))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module", params=["deployment", "driver"])
def graph(request: pytest.FixtureRequest, index: Path) -> Any:
    own = {stage: {"implementation": f"{__name__}:{stage.title()}"} for stage in FALLBACKS}
    for stage in ("expander", "reranker", "generator"):
        own[stage]["placement"] = request.param
    answers = str(index.parent / f"{request.param}.db")
    args = AppConfig.model_validate(own | {"index": {"uri": str(index)}, "answers": {"path": answers}})
    model = str(embedder_path())
    app = wire(args, {"small": ScriptedEngine.bind(True)}, {"small": model}, model)
    return serve.run(app, name=f"own-{request.param}", _local_testing_mode=True)


def ask(graph: Any, question: str) -> tuple[AskResponse, dict[str, tuple[str, str]]]:
    """The answer, and each stage's reason and fallback, but for those of its calibration."""
    asked = AskRequest(question=question, mode="agentic", include=["tool_calls", "evidence"])
    response: AskResponse = graph.ask.remote(asked).result(timeout_s=120)
    told = [d for d in response.degraded if not d.reason.startswith("not calibrated")]
    return response, {d.stage: (d.reason, d.fallback) for d in told}


def test_stages_of_ones_own_answer_in_the_graph(graph: Any) -> None:
    """Of the built-in ones none is asked: their engine is down."""
    response, degraded = ask(graph, QUESTION)
    assert degraded == {} and response.status == "answered"
    assert VARIANT in [query for call in response.tool_calls or () for query in call.arguments["queries"]]
    assert response.index_version == "the house's"
    assert [(e.slot, e.uri) for e in response.evidence or ()] == [("E1", "mars.md"), ("E2", "moon.md")]
    assert response.answer is not None and response.answer.text.startswith(ANSWER[:-1])
    assert [citation.uri for citation in response.citations] == ["moon.md"]


@pytest.mark.parametrize("stage", FALLBACKS)
def test_what_a_stage_of_ones_own_raises_is_met_by_its_fallback(graph: Any, stage: str) -> None:
    response, degraded = ask(graph, f"{QUESTION} The {stage} refuses.")
    assert response.status == "answered" and response.citations
    assert degraded == {stage: (f"the house's {stage} has no opinion", FALLBACKS[stage])}


@pytest.mark.parametrize("stage", FALLBACKS)
def test_a_bug_in_a_stage_of_ones_own_is_a_fault_of_the_stage(
    graph: Any, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    response, degraded = ask(graph, f"{QUESTION} The {stage} breaks.")
    assert response.status == "answered" and response.citations
    assert degraded == {stage: (f"{stage} failed: ZeroDivisionError", FALLBACKS[stage])}
    logged = [r for r in caplog.records if r.levelno == logging.ERROR and r.getMessage() == f"{stage} failed"]
    stacks = ["".join(traceback.format_exception(*r.exc_info)) for r in logged if r.exc_info]
    assert stacks and all(Path(__file__).name in stack and "a bug of the house" in stack for stack in stacks)
