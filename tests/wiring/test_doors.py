"""The whole graph with a fake engine, behind two replicas of its ingress: one answer by every door, and streams that drop."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from assay.serve_config import load
from bench.doors import FILE_BYTES, FILES, Watch, drop, upload
from bench.doors_clients import clients, events_until, every_door
from bench.doors_graph import QUESTION, STAYS, WORKS, config
from deployments.attach import attached
from deployments.local import LocalGraph, descendants
from tests.wiring.test_api import frames

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, free_tcp_port_factory: Any) -> Iterator[LocalGraph]:
    folder = tmp_path_factory.mktemp("doors")
    # Stages with replicas of their own, as on a cluster: a question makes more calls, each of which may be lost.
    path = config(folder, ingresses=2, grace_s=3, placement="deployment")
    with LocalGraph(load(path), log=folder / "serve.log", port=free_tcp_port_factory()) as graph:
        graph.wait_ready(240)
        yield graph


@pytest.fixture(scope="module")
def watch(graph: LocalGraph) -> Iterator[Watch]:
    with attached(graph.address):
        yield Watch(graph)


def begun(graph: LocalGraph, question: str, count: int) -> str:
    """The id of a resumable stream that dropped at an event."""

    async def asked() -> str:
        async with clients(graph.url) as http:
            return (await events_until(http, question, count, resumable=True))[1]

    return asyncio.run(asked())


def take_up(graph: LocalGraph, id_: str, last: int) -> list[dict[str, Any]]:
    reply = httpx.get(
        f"{graph.url}/v1/streams/{id_}", headers={"last-event-id": str(last)}, timeout=60, trust_env=False
    )
    assert reply.status_code == 200, reply.text
    return frames(reply.text)


@pytest.mark.usefixtures("watch")
def test_one_answer_by_every_door(graph: LocalGraph) -> None:
    found = every_door(graph.url, QUESTION)
    assert set(found) == {"HTTP", "SSE", "OpenAI", "MCP", "Python handle", "CLI"}
    assert "gravity of the Moon" in found["HTTP"].text and "moon.md" in found["HTTP"].citations
    assert set(found.values()) == {found["HTTP"]}


def test_questions_that_take_for_ever_hold_up_nobody(graph: LocalGraph, watch: Watch) -> None:
    """One in planning and one in scoring; others are answered beside them, and so is who looks whether the graph lives."""

    async def beside() -> list[tuple[str, int]]:
        async with clients(graph.url) as http:
            words = [f"{QUESTION} {word}" for word in (STAYS, WORKS)]
            slow = [asyncio.create_task(http.post("/v1/answers", json={"question": text})) for text in words]
            try:
                await asyncio.to_thread(watch.until, lambda: watch.engine() == len(slow))
                async with asyncio.timeout(60):
                    replies = [await http.post("/v1/answers", json={"question": QUESTION}) for _ in range(4)]
                    replies += [await http.get("/healthz") for _ in range(4)]
                assert await asyncio.to_thread(watch.engine) == len(slow), "they are still at it"
                assert not any(task.done() for task in slow)
            finally:
                for task in slow:
                    task.cancel()
                await asyncio.gather(*slow, return_exceptions=True)
            return [(reply.json()["status"], reply.status_code) for reply in replies]

    assert asyncio.run(beside()) == [("answered", 200)] * 4 + [("ok", 200)] * 4
    watch.until(lambda: watch.left().nothing)


def test_two_hundred_that_drop_leave_nothing(graph: LocalGraph, watch: Watch) -> None:
    asyncio.run(drop(graph.url, 200))  # what a first rush leaves open for the next is not lost
    watch.until(lambda: watch.left().nothing)
    time.sleep(2)
    before = watch.left().descriptors
    asyncio.run(drop(graph.url, 200))
    watch.until(lambda: watch.left().nothing)
    watch.until(lambda: watch.left().descriptors <= before)


def test_a_stream_is_taken_up_through_either_replica(graph: LocalGraph) -> None:
    id_ = begun(graph, QUESTION, 3)
    whole = take_up(graph, id_, 0)
    assert [e["id"] for e in whole] == [str(n + 1) for n in range(len(whole))]
    assert whole[-1]["event"] == "completed"
    until, asked = time.monotonic() + 40, 0
    while asked < 12 or len(served_by(graph, id_)) < 2:
        # After a rush of callers that dropped, Serve's proxy may take one replica for busy for ten seconds.
        assert time.monotonic() < until, served_by(graph, id_)
        assert take_up(graph, id_, asked % 4) == whole[asked % 4 :]
        asked += 1


def served_by(graph: LocalGraph, id_: str) -> list[str]:
    """Names of the logs of the ingress' replicas that were asked for a stream."""
    return [path.name for path in graph.logs.glob("*Ingress*") if f"/v1/streams/{id_}" in path.read_text()]


def test_sixty_megabytes_in_many_files_go_through_the_proxy(graph: LocalGraph) -> None:
    done = upload(graph.url, FILES, FILE_BYTES)
    assert [file.bytes for file in done.job.files] == [pytest.approx(FILE_BYTES, rel=0.01)] * FILES
    assert done.job.status == "completed"


def test_gone_for_good_with_resumable_frees_the_engine(graph: LocalGraph, watch: Watch) -> None:
    id_ = begun(graph, f"{QUESTION} {STAYS}", 1)
    assert watch.engine() == 1
    watch.until(lambda: watch.left().nothing)
    assert take_up(graph, id_, 1)[-1]["data"]["error"]["code"] == "abandoned"


def test_haproxy_opens_the_graphs_port_alone(graph: LocalGraph) -> None:
    """Serve's template would have two more, on all interfaces."""
    of_it = [p for p in descendants(graph.pid) if p.name() == "haproxy" and p.status() != psutil.STATUS_ZOMBIE]
    assert of_it
    open_ = {c.laddr for p in of_it for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert open_ == {("127.0.0.1", graph.port)}


def test_who_asks_through_haproxy_has_an_address_of_their_own(graph: LocalGraph, watch: Watch) -> None:
    """Not HAProxy's, and none that they give themselves: without keys, connections from elsewhere are refused by it."""
    given = {"x-forwarded-for": "203.0.113.9"}
    transport = httpx.HTTPTransport(local_address="127.0.0.5")
    with httpx.Client(transport=transport, base_url=graph.url, timeout=60) as http:
        reply = http.post("/v1/search", json={"question": QUESTION}, headers={**given, "x-request-id": "req_address"})
    assert reply.status_code == 200, reply.text
    told = list[Any]()

    def written() -> bool:
        files = (graph.log.parent / "audit").glob("audit-*.jsonl")
        lines = (json.loads(line) for file in files for line in file.read_text().splitlines())
        told[:] = [line["address"] for line in lines if line["request_id"] == "req_address"]
        return bool(told)

    watch.until(written)
    assert told == ["127.0.0.5"]


@pytest.mark.parametrize("name", ["Driver", "Ingress"])
def test_a_replica_that_dies_ends_its_streams_with_an_error(graph: LocalGraph, name: str) -> None:
    """The last test: it leaves a graph that mends itself."""
    id_ = begun(graph, f"{QUESTION} {WORKS}", 3)
    for process in replicas(graph, name):
        process.kill()
    until = time.monotonic() + 60
    while (reply := look(f"{graph.url}/v1/streams/{id_}")) is None or reply.status_code != 200:
        assert time.monotonic() < until, reply
        time.sleep(0.2)
    events = frames(reply.text)
    assert [e["event"] for e in events].count("error") == 1
    assert events[-1]["data"]["error"]["code"] == "stage_unavailable"
    while (reply := look(f"{graph.url}/readyz")) is None or reply.status_code != 200:
        assert time.monotonic() < until, reply
        time.sleep(0.2)


def look(url: str) -> httpx.Response | None:
    """None where the process that was asked died meanwhile: HAProxy closes a kept connection without a word then."""
    try:
        return httpx.get(url, timeout=60, trust_env=False)
    except httpx.RemoteProtocolError:
        return None


def replicas(graph: LocalGraph, name: str) -> list[psutil.Process]:
    found = [p for p in descendants(graph.pid) if f"ServeReplica:assay:{name}" in " ".join(p.cmdline())]
    assert found
    return found
