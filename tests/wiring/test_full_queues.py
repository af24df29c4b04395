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
from tests.wiring.narrow_graph import PLAN_S
from tests.wiring.test_api import frames

pytestmark = pytest.mark.timeout(300)

ASK = "/v1/answers"
ADMITTED = 3  # by the ingress: one more than the driver takes


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
    """One question runs and one waits for it; then the driver's queue is full, which the ingress says. In a rush Serve itself
    refuses, before the ingress: how many is a matter of moments, and each of them is told alike."""

    async def asked() -> tuple[list[httpx.Response], list[httpx.Response], httpx.Response]:
        async with clients(graph.url) as http, asyncio.timeout(200):

            def ask() -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(http.post(ASK, json={"question": QUESTION, "stream": stream}))

            await ask()  # every replica has found its way to the others
            in_turn = []
            for _ in range(ADMITTED + 1):
                in_turn.append(ask())
                await asyncio.sleep(PLAN_S / 6)
            one_by_one = await asyncio.gather(*in_turn)
            at_once = await asyncio.gather(*(ask() for _ in range(20)))
            return one_by_one, at_once, await ask()  # their places are free again

    one_by_one, at_once, last = asyncio.run(asked())
    assert [reply.status_code for reply in one_by_one] == [200, 200, 503, 503], [reply.text for reply in one_by_one]
    assert {reply.json()["error"]["code"] for reply in one_by_one[2:]} == {"overloaded"}
    assert {reply.status_code for reply in at_once} == {200, 503}
    for reply in (*one_by_one, *at_once, last):
        if reply.status_code == 503:
            assert int(reply.headers["retry-after"]) > 0
        else:
            response = frames(reply.text)[-1]["data"]["response"] if stream else reply.json()
            assert response["status"] == "answered" and response["citations"]
