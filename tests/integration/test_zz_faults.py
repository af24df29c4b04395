"""Replicas that hang and die in the running graph: the answer is degraded and says so. Last, since the engine must come back.

Named so that it runs after all that needs a healthy graph.
"""

import re
import signal
import time
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest

from assay.schemas import AskRequest
from assay.simple import simple
from tests.integration.conftest import Running
from tests.integration.test_graph import QUESTIONS, assert_citations_stand

if TYPE_CHECKING:
    # Importing ray where tests are collected would fix its authentication mode before conftest.py sets it.
    from deployments.remote import RemoteLLM

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

# One that the expander is asked about, so that its fallback is seen as well.
QUESTION = next(q["question"] for q in QUESTIONS if not simple(q["question"]))


def test_a_hung_reranker_ends_in_a_degraded_answer(running: Running) -> None:
    replica = running.replica("Reranker")
    replica.send_signal(signal.SIGSTOP)
    try:
        started = time.monotonic()
        response = running.client.ask(AskRequest.model_validate({"question": QUESTION, "budget": {"deadline_s": 30}}))
        assert time.monotonic() - started < 35
    finally:
        replica.send_signal(signal.SIGCONT)
    assert response.status in ("answered", "partial")
    reranker = [d for d in response.degraded if d.stage == "reranker"]
    assert reranker and "timeout" in reranker[0].reason and reranker[0].fallback.startswith("fused order")
    assert response.citations
    assert_citations_stand(response)
    until = time.monotonic() + 60  # Ray's agent refreshes it every few seconds
    while not re.search(r'assay_degraded\w*\{[^}]*stage="reranker"', httpx.get(running.graph.metrics, timeout=10).text):
        assert time.monotonic() < until, "no metric tells of the fallback"
        time.sleep(1)


def test_a_killed_engine_ends_in_a_degraded_answer_and_comes_back(running: Running) -> None:
    running.replica("engine-small").kill()
    planned = f"{QUESTION} And which other ways are there?"  # a simple lookup would not be planned
    response = running.client.ask(AskRequest.model_validate({"question": planned, "budget": {"deadline_s": 15}}))
    stages = {d.stage for d in response.degraded}
    assert {"expander", "reranker", "generator"} <= stages, response.degraded
    assert response.citations
    assert_citations_stand(response)
    until = time.monotonic() + 480  # usually 100
    while running.client.ready().status != "ready":
        assert time.monotonic() < until, "the engine did not come back"
        time.sleep(1)
    again = running.client.ask(AskRequest(question=QUESTION))
    assert again.status == "answered" and again.degraded == []


def test_a_hung_engine_is_found_and_replaced(running: Running, engine: "RemoteLLM") -> None:
    """Its process is stopped, not dead: nothing but a missing token tells. The start of the next one is not waited for, since
    the test before has shown that it comes."""
    replica, process = running.replica("engine-small"), psutil.Process(engine._handle.stats.remote().result().pid)
    process.send_signal(signal.SIGSTOP)
    response = running.client.ask(AskRequest.model_validate({"question": QUESTION, "budget": {"deadline_s": 20}}))
    assert {"expander", "reranker", "generator"} <= {d.stage for d in response.degraded}, response.degraded
    assert response.citations
    until = time.monotonic() + 110  # three checks of 10 s and their pauses, then Serve's turn
    while alive(process) or alive(replica) or not running.has_replica("engine-small"):
        assert time.monotonic() < until, "the hung engine was not replaced"
        time.sleep(0.5)


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it also says so of one that ended while it was looked at
        return False
