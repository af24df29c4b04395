"""Queues of one through real Serve: who finds them full is told to come again, everybody else is answered, nobody hangs."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from assay.serve_config import load
from bench.doors_clients import clients
from bench.doors_graph import QUESTION, config
from deployments.local import LocalGraph
from tests.wiring.test_api import frames

pytestmark = pytest.mark.timeout(300)

ASK = "/v1/answers"
ADMITTED = 3  # by the ingress; so that of what it admits, the driver has to refuse one


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, free_tcp_port_factory: Any) -> Iterator[LocalGraph]:
    folder = tmp_path_factory.mktemp("narrow")
    path = config(folder)
    raw = yaml.safe_load(path.read_text())
    (app,) = raw["applications"]
    app["import_path"] = "tests.wiring.narrow_graph:build_app"
    options = {item["name"]: item for item in app["deployments"]}
    options["Ingress"] |= {"max_ongoing_requests": ADMITTED, "max_queued_requests": 1}
    options["Driver"] |= {"max_ongoing_requests": 1, "max_queued_requests": 1}
    path.write_text(yaml.safe_dump(raw))
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with LocalGraph(load(path), log=folder / "log", port=free_tcp_port_factory(), environ=environ) as graph:
        graph.wait_ready(240)
        yield graph


@pytest.mark.parametrize("stream", [False, True])
def test_who_finds_a_queue_full_gets_a_503_and_the_others_their_answers(graph: LocalGraph, stream: bool) -> None:
    async def rush() -> list[httpx.Response]:
        async with clients(graph.url) as http, asyncio.timeout(120):
            body = {"question": QUESTION, "stream": stream}
            replies = await asyncio.gather(*(http.post(ASK, json=body) for _ in range(ADMITTED + 5)))
            return [*replies, await http.post(ASK, json=body)]  # their places are free again

    *replies, last = asyncio.run(rush())
    answered = [reply for reply in replies if reply.status_code == 200]
    refused = [reply for reply in replies if reply.status_code == 503]
    assert len(answered) >= 2, "the one that runs and the one that waits for it"
    assert len(answered) + len(refused) == len(replies), [reply.text for reply in replies]
    assert all(int(reply.headers["retry-after"]) > 0 for reply in refused)
    ours = [reply for reply in refused if reply.headers["content-type"] == "application/json"]
    assert ours and {reply.json()["error"]["code"] for reply in ours} == {"overloaded"}, "of the driver's queue"
    assert len(refused) > len(ours), "of Serve's own, before the ingress"
    for reply in (*answered, last):
        response = frames(reply.text)[-1]["data"]["response"] if stream else reply.json()
        assert response["status"] == "answered" and response["citations"]
