"""The doors under load: clients that go away, streams on which nothing happens beside busy ones, one question by every door.

The graph is whole but for its engine (``bench.doors_graph``). What is left after clients have gone is counted: calls in the
engine, requests in every replica, and descriptors of every process.
"""

import asyncio
import base64
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
import ray
from ray import serve

from assay.client import Client
from assay.documents.shapes import Job
from assay.schemas import SearchRequest
from assay.serve_config import load
from bench.doors_clients import clients, events_until, every_door
from bench.doors_graph import ENGINE, QUESTION, STAYS, WORKS, config
from bench.report import Row, at_most, options, publish
from deployments.attach import attached
from deployments.local import LocalGraph, descendants

DROPPED, IDLE, ACTIVE = 200, 100, 20
AT = 3  # the event at which they drop
GRACE_S = 5.0
MB = 2**20
FILES, FILE_BYTES = 30, 2 * MB


@dataclass(frozen=True, slots=True)
class Left:
    """What a graph is busy with, and holds."""

    engine: int
    requests: int
    descriptors: int

    @property
    def nothing(self) -> bool:
        return self.engine == 0 and self.requests == 0


class Watch:
    """Looks into a graph from outside of it; needs a connection to its Ray."""

    def __init__(self, graph: LocalGraph) -> None:
        self._graph = graph
        self._engine = serve.get_deployment_handle(ENGINE, "assay")

    def engine(self) -> int:
        return int(self._engine.running.remote().result(timeout_s=10).value)

    def left(self) -> Left:
        engine = self.engine()
        return Left(engine, self.requests(), sum(_descriptors(p) for p in descendants(self._graph.pid)))

    def requests(self) -> int:
        """In every replica of every deployment, the engine's own count apart."""
        names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
        replicas = [ray.get_actor(name, namespace="serve") for name in names if name.startswith("SERVE_REPLICA::")]
        return sum(ray.get([replica.get_num_ongoing_requests.remote() for replica in replicas], timeout=10))

    def memory(self) -> float:
        """Bytes of all of its processes; what they share is counted once."""
        return sum(_memory(process) for process in descendants(self._graph.pid))

    def until(self, holds: Callable[[], bool], seconds: float = 60) -> float:
        """Seconds until it holds. Raises ``TimeoutError``."""
        start = time.perf_counter()
        while not holds():
            if time.perf_counter() - start > seconds:
                raise TimeoutError(f"not so after {seconds:.0f} s: {self.left()}")
            time.sleep(0.02)
        return time.perf_counter() - start


def _descriptors(process: psutil.Process) -> int:
    try:
        return int(process.num_fds())
    except psutil.Error:
        return 0


def _memory(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss)
    except psutil.Error:
        return 0.0


# ---- clients that go away -------------------------------------------------------------------------------------------


async def drop(url: str, count: int, resumable: bool = False) -> list[str]:
    """So many streams at once, all of them closed at their third event, when all engine calls that follow take for ever."""
    async with clients(url) as http:
        asked = (events_until(http, f"{QUESTION} {WORKS}", AT, resumable) for _ in range(count))
        return [id for _, id in await asyncio.gather(*asked)]


def dropped(graph: LocalGraph, watch: Watch, count: int, quick: bool) -> list[Row]:
    asyncio.run(drop(graph.url, count))  # what a first rush leaves open for the next is not lost
    watch.until(lambda: watch.left().nothing)
    time.sleep(1 if quick else 5)
    before = watch.left()
    asyncio.run(drop(graph.url, count))
    idle_s = watch.until(lambda: watch.left().nothing)
    time.sleep(1 if quick else 5)
    after = watch.left()
    said = f"{count} streams dropped at event {AT}"
    rows = [
        at_most(f"{said}: engine and replicas are idle after", idle_s, "s", 2.0),
        at_most(f"{said}: requests left in any replica", after.requests, "", 0),
        at_most(f"{said}: descriptors more than before", after.descriptors - before.descriptors, "", 0),
    ]
    asyncio.run(drop(graph.url, count, resumable=True))
    held_s = watch.until(lambda: watch.left().nothing)
    name = f"the same with resumable and a grace of {GRACE_S:g} s: engine and replicas are idle after"
    return [*rows, at_most(name, held_s, "s", GRACE_S + 2)]


# ---- streams on which nothing happens -------------------------------------------------------------------------------


async def beside(url: str, watch: Watch, idle: int, active: int, times: int) -> list[Row]:
    async with clients(url) as http, AsyncExitStack() as stack:
        await _first_events(http, active, 2)  # what they need once, they have
        before = watch.memory()
        held = []  # an iterator that nobody holds closes its stream
        for _ in range(idle):
            body = {"question": f"{QUESTION} {STAYS}", "stream": True}
            reply = await stack.enter_async_context(http.stream("POST", "/v1/answers", json=body))
            held.append(reply.aiter_raw())
            await anext(held[-1])
        await asyncio.to_thread(watch.until, lambda: watch.engine() == idle)
        await asyncio.sleep(2)
        grown = (watch.memory() - before) / idle / MB
        taken = await _first_events(http, active, times)
    said = f"{active} active streams beside {idle} idle ones"
    return [
        at_most(f"{said}: first event, p95 of {len(taken)}", 1000 * float(np.percentile(taken, 95)), "ms", 500),
        Row(f"{said}: first event, median", 1000 * float(np.median(taken)), "ms"),
        at_most(f"memory for each of {idle} idle streams, over all processes", grown, "MB", 1.0),
    ]


async def _first_events(http: httpx.AsyncClient, active: int, times: int) -> list[float]:
    """Seconds to the first event; each client asks again as soon as it has its answer."""

    async def one() -> list[float]:
        return [await _whole(http) for _ in range(times)]

    return [seconds for each in await asyncio.gather(*(one() for _ in range(active))) for seconds in each]


async def _whole(http: httpx.AsyncClient) -> float:
    start, first, last = time.perf_counter(), 0.0, b""
    async with http.stream("POST", "/v1/answers", json={"question": QUESTION, "stream": True}) as reply:
        async for piece in reply.aiter_raw():
            first = first or time.perf_counter() - start
            last = (last + piece)[-100_000:]
    if b"event: completed" not in last:
        raise RuntimeError(f"HTTP {reply.status_code}, and no answer: {last[-300:]!r}")
    return first


# ---- one question by every door -------------------------------------------------------------------------------------


def doors(graph: LocalGraph) -> list[Row]:
    found = every_door(graph.url, QUESTION)
    first = found["HTTP"]
    if not first.text or first.citations == "[]":
        raise RuntimeError(f"no cited answer to compare: {first}")
    others = [name for name, said in found.items() if said != first]
    name = f"doors with another answer or other citations than HTTP, of {', '.join(found)}"
    return [at_most(name, len(others), f"of {len(found)}", 0)]


# ---- a large upload -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Seconds until all files were taken, until their job had ended, and from then on until a search found the last one."""

    taken: float
    ended: float
    found: float
    job: Job


def upload(url: str, count: int, size: int) -> Uploaded:
    """So many pages of ``size`` bytes, nearly all of which are the picture in it. Raises ``RuntimeError``: one was not read."""
    rng = np.random.default_rng(7)
    said = "<h1>Station {n}</h1><p>The lighthouse number {n} is named Ostrava{n}.</p>"
    pictures = (base64.b64encode(rng.bytes(size * 3 // 4)).decode() for _ in range(count))
    page = "<html><body>" + said + "<img src='data:{picture}'></body></html>"
    files = [(f"station-{n}.html", page.format(n=n, picture=each).encode()) for n, each in enumerate(pictures)]
    last = SearchRequest(question=f"Which lighthouse is named Ostrava{count - 1}?", buckets=["stations"])
    with Client(url) as client:
        start = time.perf_counter()
        begun = client.upload("stations", files)
        taken = time.perf_counter() - start
        job = client.wait(begun.id)
        ended = time.perf_counter() - start
        while not any(f"Ostrava{count - 1}." in hit.text for hit in client.search(last).hits):
            if time.perf_counter() - start - ended > 60:
                raise RuntimeError("what was uploaded is not found a minute after its job has ended")
        found = time.perf_counter() - start - ended
    if wrong := [file for file in job.files if file.outcome != "ingested"]:
        raise RuntimeError(f"{len(wrong)} of {count} files were not ingested: {wrong[0]}")
    return Uploaded(taken, ended, found, job)


def uploaded(graph: LocalGraph, count: int, size: int) -> list[Row]:
    done = upload(graph.url, count, size)
    said = f"{count * size / MB:.0f} MB in {count} files by POST /v1/documents"
    return [
        Row(f"{said}: all taken after", done.taken, "s"),
        Row(f"{said}: read, embedded and served after", done.ended, "s"),
        at_most(f"{said}: found by POST /v1/search after the job's end", done.found, "s", 2.0),
    ]


def main() -> None:
    args = options(__doc__ or "")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        path = config(folder, grace_s=GRACE_S)
        with LocalGraph(load(path), log=folder / "serve.log", port=8767) as graph:
            graph.wait_ready(300)
            with attached(graph.address):
                rows, watch = doors(graph), Watch(graph)
                rows += dropped(graph, watch, 40 if args.quick else DROPPED, args.quick)
                idle = 20 if args.quick else IDLE
                rows += asyncio.run(beside(graph.url, watch, idle, ACTIVE, 2 if args.quick else 10))
                rows += uploaded(graph, FILES, FILE_BYTES)
    publish("the doors under load", rows, args)


if __name__ == "__main__":
    main()
