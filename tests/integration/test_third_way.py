"""The real graph by its other doors: a file of questions, an answer asked again, and a conversation with tools."""

import json
from pathlib import Path

import pytest

from assay.schemas import AskRequest
from tests.integration.conftest import KSERVE, Running, assay
from tests.integration.test_graph import QUESTIONS, ask, assert_citations_stand

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_a_file_of_questions_is_answered_and_one_of_them_asked_again(running: Running, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"question": q["question"], "mode": "pipeline"} for q in QUESTIONS[:2]]
    rows.append({"question": QUESTIONS[0]["question"], "top_k": 10**6})
    source.write_text("\n".join(map(json.dumps, rows)))
    done = assay("batch", source, out, "--address", running.graph.address, "--concurrency", "2")
    assert done.returncode == 4 and "2 of 3 rows answered, 1 failed" in done.stderr, done.stderr
    assert "a minute" in done.stderr and "1 failed" in done.stderr
    *answered, failed = map(json.loads, out.read_text().splitlines())
    assert failed["error"]["field"] == "top_k" and failed["answer"] is None
    for line in answered:
        assert line["status"] == "answered" and line["usage"]["llm_calls"] >= 2 and line["degraded"] == []
        for citation in line["citations"]:
            start, end = citation["span"]
            assert (KSERVE / citation["uri"]).read_text()[start:end] == citation["quote"]
    again = assay("replay", answered[0]["answer_id"], "--url", running.graph.url, "--json")
    assert again.returncode in (0, 4), again.stderr  # a model may say something else: then what differs is shown
    told = json.loads(again.stdout)
    assert told["then"]["id"] == answered[0]["answer_id"] != told["now"]["id"]
    assert told["then"]["index_version"] == told["now"]["index_version"] == answered[0]["index_version"]


def test_mode_tools_is_a_conversation_with_the_engine_whose_answer_is_held_to_the_evidence(running: Running) -> None:
    """A model of this size calls no tool by itself, and what it says is seldom borne out: then the generator answers."""
    asked = {"mode": "tools", "include": ["tool_calls", "trace", "evidence"], "budget": {"answer_tokens": 96}}
    response = ask(running, QUESTIONS[0]["question"], **asked)
    assert response.status == "answered" and response.citations and response.tool_calls is not None
    assert response.tool_calls[0].tool == "search_hybrid" and response.tool_calls[0].outcome == "ok"
    assert [step for step in response.trace or () if step.stage == "agent"] and response.usage.llm_calls >= 1
    assert not [d for d in response.degraded if "no room" in d.reason]
    assert_citations_stand(response)


def test_a_request_of_mode_tools_that_asks_for_another_form_is_refused(running: Running) -> None:
    with pytest.raises(Exception, match="prose"):
        running.client.ask(AskRequest(question="Why?", mode="tools", style="table"))
