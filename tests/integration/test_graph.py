"""The whole graph over the KServe documentation, through its doors."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.events import AnswerEvent, CompletedEvent, ErrorEvent
from assay.schemas import AskRequest, AskResponse, SearchRequest
from tests.integration.conftest import KSERVE, ROOT, Running, assay

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

QUESTIONS = json.loads((Path(__file__).parent / "kserve_questions.json").read_text())


def ask(running: Running, question: str, **fields: object) -> AskResponse:
    return running.client.ask(AskRequest.model_validate({"question": question, **fields}))


def assert_citations_stand(response: AskResponse) -> None:
    """Each citation's span, in the cited page's own file, is its quote; each sentence has a citation, and each citation a
    sentence. Without a sentence, the answer says that nothing was found."""
    for citation in response.citations:
        text = (KSERVE / citation.uri).read_text()
        start, end = citation.span
        assert text[start:end] == citation.quote
    numbers = {citation.number for citation in response.citations}
    assert response.answer is not None
    assert bool(response.answer.sentences) is (response.status != "no_evidence"), response.status
    for sentence in response.answer.sentences:
        assert sentence.citations and set(sentence.citations) <= numbers
    assert {number for sentence in response.answer.sentences for number in sentence.citations} == numbers


def test_the_page_that_answers_is_among_the_first_five(running: Running) -> None:
    missed = []
    for q in QUESTIONS:
        found = running.client.search(SearchRequest(question=q["question"], top_k=5))
        if not {hit.uri for hit in found.hits} & set(q["pages"]):
            missed.append((q["question"], [hit.uri for hit in found.hits]))
    assert len(QUESTIONS) >= 12
    assert len(missed) <= len(QUESTIONS) // 12, missed


@pytest.fixture(scope="module")
def answers(running: Running) -> list[AskResponse]:
    """The first twelve questions, each asked once."""
    return [ask(running, q["question"], include=["trace", "evidence"]) for q in QUESTIONS[:12]]


def test_every_citation_of_every_answer_stands_in_its_page(answers: list[AskResponse]) -> None:
    for response in answers:
        assert_citations_stand(response)
        assert response.usage.llm_calls >= 2
        assert response.index_version


def test_the_answers_are_whole(answers: list[AskResponse]) -> None:
    assert [a.status for a in answers].count("answered") >= 11
    assert all(a.citations for a in answers if a.status == "answered")
    assert sum(bool(a.degraded) for a in answers) <= 1, [a.degraded for a in answers]


def test_most_answers_cite_the_page_that_answers(answers: list[AskResponse]) -> None:
    right = [bool({c.uri for c in a.citations} & set(q["pages"])) for a, q in zip(answers, QUESTIONS, strict=False)]
    assert sum(right) >= 9, right


@pytest.mark.parametrize(
    "question", ["Who painted the ceiling of the Sistine Chapel?", "How do I roast coffee beans at home?"]
)
def test_what_the_documents_do_not_hold_is_said(running: Running, question: str) -> None:
    response = ask(running, question)
    assert (response.status, response.terminated_by, response.citations) == ("no_evidence", "no_evidence", [])
    assert response.answer is not None and question in response.answer.text


def test_a_stream_shows_its_steps_and_ends_once(running: Running) -> None:
    events = list(running.client.stream(AskRequest(question=QUESTIONS[0]["question"], mode="agentic")))
    kinds = [event.type for event in events]
    for kind in ("status", "plan", "tool_call_start", "tool_call_result", "evidence", "grade", "answer", "citation"):
        assert kind in kinds
    assert [k for k in kinds if k in ("completed", "error")] == ["completed"] and kinds[-1] == "completed"
    last = events[-1]
    assert isinstance(last, CompletedEvent) and last.response.answer is not None
    assert "".join(e.delta for e in events if isinstance(e, AnswerEvent)) == last.response.answer.text
    assert len({event.request_id for event in events}) == 1


def test_pipeline_and_prose_work_too(running: Running) -> None:
    pipeline = ask(running, QUESTIONS[0]["question"], mode="pipeline", options={"expand": False})
    assert pipeline.status == "answered" and pipeline.rounds == 1 and "grade" not in pipeline.timings_ms
    assert_citations_stand(pipeline)
    prose = ask(running, QUESTIONS[0]["question"], style="prose", budget={"answer_tokens": 100})
    assert_citations_stand(prose)
    # Whether a sentence that a model of this size writes is borne out, nobody can say: what was left out is told.
    assert prose.status in ("answered", "partial", "no_evidence") and prose.answer is not None
    assert prose.answer.style == ("statement" if prose.status == "no_evidence" else "prose")
    assert "generate" in prose.timings_ms


def test_a_filter_that_empties_the_result_is_named(running: Running) -> None:
    response = ask(running, "What is a transformer?", filters={"field": "page", "op": ">", "value": 900})
    assert response.status == "clarify" and response.clarification is not None
    assert response.clarification.count_without and response.clarification.blocking is not None


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"question": ""}, 422, "question"),
        ({"question": "  "}, 422, "question"),
        ({"question": 7}, 422, "question"),
        ({"question": "x", "mode": "magic"}, 422, "mode"),
        ({"question": "x y", "buckets": ["contrcats"]}, 404, "buckets"),
        ({"question": "x y", "filters": {"field": "efective_date", "op": "=", "value": 1}}, 422, "filters.field"),
        ({"question": "x y", "budget": {"rounds": -1}}, 422, "budget.rounds"),
        ({"question": "x y", "budget": {"rounds": 99}}, 422, "budget.rounds"),
        ({"question": "x y", "top_k": 0}, 422, "top_k"),
        ({"question": "x y", "top_k": 10**12}, 422, "top_k"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_names_the_field(
    running: Running, body: dict[str, object], status: int, field: str, stream: bool
) -> None:
    answer = httpx.post(f"{running.graph.url}/v1/answers", json={**body, "stream": stream}, timeout=30)
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert error["field"] is not None and error["field"].startswith(field), error
    assert error["request_id"] == answer.headers["x-request-id"]


def test_other_bad_input_is_refused(running: Running) -> None:
    url = f"{running.graph.url}/v1/answers"
    json_type = {"content-type": "application/json"}
    assert httpx.post(url, content=b"{", headers=json_type).status_code == 400
    assert httpx.get(url).status_code == 405
    big = json.dumps({"question": "x" * 10_000_000}).encode()
    assert httpx.post(url, content=big, headers=json_type, timeout=30).status_code == 413


async def _running_in_engine(engine) -> int:  # type: ignore[no-untyped-def]
    return int((await engine._handle.stats.remote()).running)


@pytest.mark.anyio
async def test_a_client_that_goes_away_frees_the_engine(running: Running, engine) -> None:  # type: ignore[no-untyped-def]
    """HTTP, driver, stage, engine: the cancellation reaches the last of them."""
    # A question that was not asked before: what the prefix cache holds would be done before it can be seen.
    body = {"question": "Where does the storage initializer put the model that it has downloaded?", "stream": True}
    url = f"{running.graph.url}/v1/answers"
    async with httpx.AsyncClient(timeout=60) as client, client.stream("POST", url, json=body) as sent:
        async with asyncio.timeout(30):
            lines = sent.aiter_lines()  # held: an iterator that is dropped closes the response
            while "planning" not in await anext(lines):
                pass
            while not await _running_in_engine(engine):
                await asyncio.sleep(0.02)
    async with asyncio.timeout(5):
        while await _running_in_engine(engine):
            await asyncio.sleep(0.05)


@pytest.mark.anyio
async def test_by_handle(ray_address: str) -> None:
    from ray import serve

    handle = serve.get_app_handle("assay")
    response = await handle.ask.remote(AskRequest(question=QUESTIONS[0]["question"]))
    assert isinstance(response, AskResponse) and response.citations
    events = [e async for e in handle.options(stream=True).stream.remote(AskRequest(question=QUESTIONS[0]["question"]))]
    assert isinstance(events[-1], CompletedEvent)
    assert not any(isinstance(event, ErrorEvent) for event in events)


def test_the_example_runs(running: Running) -> None:
    environment = {**os.environ, "RAY_ADDRESS": running.graph.address, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "examples/by_handle.py", QUESTIONS[0]["question"]]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "[1]" in done.stdout


def test_the_ask_command_prints_a_cited_answer(running: Running) -> None:
    done = assay("ask", QUESTIONS[0]["question"], "--url", running.graph.url)
    assert done.returncode == 0, done.stderr
    assert "[1]" in done.stdout and "batcher.md" in done.stdout


def test_a_new_document_is_taken_up_by_the_running_graph(running: Running, tmp_path: Path) -> None:
    (tmp_path / "quokka.md").write_text("# Quokka gateway\n\nThe quokka gateway listens on port 7441 by default.\n")
    before = running.client.ready().index_version
    done = assay("ingest", tmp_path, "--index", running.index, "--bucket", "extra", "--base", tmp_path)
    assert done.returncode == 0, done.stderr
    until = time.monotonic() + 30
    while running.client.ready().index_version == before and time.monotonic() < until:
        time.sleep(0.2)
    response = ask(running, "On which port does the quokka gateway listen?", buckets=["extra"])
    assert response.status == "answered" and "7441" in response.citations[0].quote
    assert {c.bucket for c in response.citations} == {"extra"}


def test_metrics_count_what_was_asked(running: Running, answers: list[AskResponse]) -> None:
    """Prometheus' text, as Ray's agent serves it; it is refreshed every few seconds."""
    wanted = ("assay_answers", "assay_stage_seconds", "assay_llm_tokens", "assay_candidates", "assay_rerank_score")
    until = time.monotonic() + 60
    while missing := [name for name in wanted if name not in httpx.get(running.graph.metrics, timeout=10).text]:
        assert time.monotonic() < until, missing
        time.sleep(1)


def logged(running: Running, request_id: str) -> list[dict[str, Any]]:
    """What the replicas' files say of a request."""
    return [
        json.loads(line)
        for file in running.graph.logs.glob("replica_assay_*.log")
        for line in file.read_text().splitlines()
        if request_id in line
    ]


def test_every_stage_logs_json_under_the_requests_id(running: Running) -> None:
    request_id = "trace-me-4711"
    body = {"question": QUESTIONS[0]["question"]}
    sent = httpx.post(f"{running.graph.url}/v1/answers", json=body, headers={"x-request-id": request_id}, timeout=60)
    assert sent.json()["request_id"] == request_id
    assert sent.headers.get_list("x-request-id") == [request_id]
    until = time.monotonic() + 10
    # The door's own line is written when the response has been sent: it may come after it was read.
    while not any(line.get("deployment") == "assay_Ingress" for line in logged(running, request_id)):
        assert time.monotonic() < until, "the Ingress says nothing of the request"
        time.sleep(0.1)
    lines = logged(running, request_id)
    assert all(line["request_id"] == request_id for line in lines)
    said = {(line["deployment"].removeprefix("assay_"), line["message"]) for line in lines if "deployment" in line}
    assert {"Ingress", "Driver", "Retriever", "Reranker", "engine-small"} <= {deployment for deployment, _ in said}
    stages = {("Driver", "plan"), ("Retriever", "search"), ("Reranker", "rerank"), ("Driver", "generate")}
    assert stages <= said, said
    (answer,) = [line for line in lines if line["message"] == "answer"]
    assert answer["question_id"] == request_id and answer["usage"]["llm_calls"] >= 2
    assert answer["timings_ms"]["total"] > 0
