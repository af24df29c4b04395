"""One system in a process of its own: ``python -m bench.peers.worker NAME``, commands in and answers out, a line of JSON each.

It imports numpy and the one system only, so that it runs in Assay's environment and in the peers'.
"""

import asyncio
import importlib
import itertools
import json
import mmap
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

WANTED = 0.95
DEPTH = 100  # of each leg, before fusion
TOP = 10
DIM = 384
_FEW = 128  # rows
SYSTEMS = {
    "assay": "bench.peers.assay_index",
    "bare pair": "bench.peers.bare",
    "lancedb": "bench.peers.lance_db",
    "langchain": "bench.peers.lang_chain",
    "txtai": "bench.peers.txt_ai",
    "haystack": "bench.peers.hay_stack",
}

Vector = NDArray[np.float32]
Hits = list[tuple[int, str | None]]


class Block(NamedTuple):
    """Consecutive rows from ``start`` on; vectors unit, float32."""

    start: int
    texts: list[str]
    vectors: Vector
    tags: list[int]


class Query(NamedTuple):
    text: str
    vector: Vector


class Where(NamedTuple):
    """Only rows with ``low <= tag <= high``."""

    low: int
    high: int


@dataclass(frozen=True)
class Data:
    """A collection on disk. It is read, not mapped, so that none of it counts as the system's memory."""

    texts: str
    ends: str
    vectors: str
    tags: str
    queries: str
    query_vectors: str
    examples_file: str
    rows: int
    settings: dict[str, Any]

    def examples(self) -> list[tuple[Query, set[int]]]:
        """The last questions, each with its exact top 10."""
        nearest = np.load(self.examples_file).tolist()
        return list(zip(self.asked()[-len(nearest) :], map(set, nearest), strict=True))

    def blocks(self, size: int = 8192) -> Iterator[Block]:
        ends = np.fromfile(self.ends, np.int64, count=self.rows)
        tags = np.load(self.tags)
        with open(self.texts, "rb") as texts, open(self.vectors, "rb") as vectors:
            for start in range(0, self.rows, size):
                stop = min(self.rows, start + size)
                first = int(ends[start - 1]) if start else 0
                data = texts.read(int(ends[stop - 1]) - first)
                cuts = [0, *(ends[start:stop] - first).tolist()]
                wide = np.frombuffer(vectors.read((stop - start) * DIM * 2), np.float16).astype(np.float32)
                yield Block(
                    start,
                    [data[a:b].decode() for a, b in itertools.pairwise(cuts)],
                    wide.reshape(-1, DIM),
                    tags[start:stop].tolist(),
                )

    def asked(self) -> list[Query]:
        vectors = np.load(self.query_vectors)
        return [
            Query(text, vector)
            for text, vector in zip(json.loads(Path(self.queries).read_text()), vectors, strict=True)
        ]


class System(Protocol):
    """``search`` and ``dense`` may be coroutines: then clients are tasks of one event loop, and otherwise threads."""

    persists: ClassVar[bool]
    """Whether another process can open what was built. One that cannot is asked by the process that built it."""
    filters: ClassVar[bool]

    def build(self, data: Data, folder: Path) -> dict[str, float]:
        """From ready texts and vectors to something that can be searched; seconds of parts, where they can be told apart."""
        ...

    def open(self, data: Data, folder: Path) -> None: ...

    def search(self, query: Query, where: Where | None) -> Any:
        """Hybrid: the best ``DEPTH`` of each leg, fused, the best ``TOP`` of those as rows with their texts."""
        ...

    def dense(self, query: Query, where: Where | None) -> Any:
        """The rows of the dense leg's best ``TOP``."""
        ...

    # Optional: tune(examples) -> settings, chosen after opening: the cheapest whose dense leg finds ``WANTED`` of the exact
    # top 10 of these questions, which are not among those that recall is measured with.
    # Optional: search_exact(query, nearest) -> rows, the hybrid search whose dense leg finds just the rows ``nearest``.


class Worker:
    def __init__(self, name: str) -> None:
        self._new: Callable[[], System] = importlib.import_module(SYSTEMS[name]).System
        self._system = self._new()
        self._data: Data | None = None
        self._queries: list[Query] = []

    def about(self) -> dict[str, Any]:
        return {"persists": self._system.persists, "filters": self._system.filters, "memory": _memory()}

    def data(self, **fields: Any) -> dict[str, Any]:
        self._data = Data(**fields)
        self._queries = self._data.asked()
        return {}

    def build(self, folder: str) -> dict[str, Any]:
        """What is loaded on first use does not count, as imports do not: a few rows are built, and thrown away, before."""
        assert self._data is not None
        with tempfile.TemporaryDirectory() as scratch:
            self._new().build(replace(self._data, rows=min(_FEW, self._data.rows)), Path(scratch))
        start = time.perf_counter()
        parts = self._system.build(self._data, Path(folder))
        return {"seconds": time.perf_counter() - start, "parts": parts, "memory": _memory()}

    def open(self, folder: str) -> dict[str, Any]:
        """Until the first question is answered: what is loaded on first use counts."""
        assert self._data is not None
        start = time.perf_counter()
        self._system.open(self._data, Path(folder))
        opened = time.perf_counter() - start
        _now(self._system.search(self._queries[0], None))
        answered = time.perf_counter() - start
        tune = getattr(self._system, "tune", None)
        settings = tune(self._data.examples()) if tune else {}
        return {"seconds": opened, "answered": answered, "settings": settings, "memory": _memory()}

    def touch(self, bytes: int) -> dict[str, Any]:
        """Only writing to each page of so much memory that this process has not had yet."""
        start = time.perf_counter()
        np.empty(bytes, np.uint8)[:: mmap.PAGESIZE] = 1
        return {"seconds": time.perf_counter() - start}

    def answers(
        self, count: int, seconds: float, where: Sequence[int] | None = None, nearest: Sequence[list[int]] | None = None
    ) -> dict[str, Any]:
        """Of the first queries the rows and texts of the hybrid search, and the rows of the dense leg.

        ``nearest``: the exact best ``DEPTH`` rows of each query. With them also ``exact``: the rows of a hybrid search
        whose dense leg found just those, where the system can be brought to it. ``seconds``: after which no further one is
        asked; for these, as many again.
        """
        only, until = (None if where is None else Where(*where)), time.monotonic() + seconds
        answers: dict[str, Any] = {"hybrid": [], "texts": [], "dense": [], "exact": []}
        for query in self._queries[:count]:
            found: Hits = _now(self._system.search(query, only))
            answers["hybrid"].append([row for row, _ in found])
            answers["texts"].append([text for _, text in found])
            answers["dense"].append(_now(self._system.dense(query, only)))
            if time.monotonic() > until:
                break
        if search_exact := getattr(self._system, "search_exact", None):
            until = time.monotonic() + seconds
            for query, near, _ in zip(self._queries, nearest or [], answers["hybrid"], strict=False):
                answers["exact"].append(_now(search_exact(query, near)))
                if time.monotonic() > until:
                    break
        return answers

    def load(
        self, clients: int, seconds: float, offset: int, wheres: Sequence[Sequence[int]] | None = None
    ) -> dict[str, Any]:
        """Questions by so many clients at once, each asking the next as soon as it has an answer: seconds of each one."""
        filters = None if wheres is None else [Where(*where) for where in wheres]
        taken: list[float] = []
        turn = _Turn(self._queries, filters, offset)
        warm = time.perf_counter() + 0.2
        while True:
            _now(self._system.search(*turn.next()))
            if (start := time.perf_counter()) > warm:
                break
        until = start + seconds
        if asyncio.iscoroutinefunction(self._system.search):
            _LOOP.run_until_complete(_tasks(self._system.search, turn, clients, until, taken))
        else:
            _threads(self._system.search, turn, clients, until, taken)
        return {"latencies": taken, "seconds": time.perf_counter() - start, "memory": _memory()}


class _Turn:
    """Which query comes next, and under which filter."""

    def __init__(self, queries: Sequence[Query], filters: Sequence[Where] | None, offset: int) -> None:
        self._queries, self._filters, self._at = queries, filters, offset
        self._lock = threading.Lock()

    def next(self) -> tuple[Query, Where | None]:
        with self._lock:
            at, self._at = self._at, self._at + 1
        return self._queries[at % len(self._queries)], self._filters[at % len(self._filters)] if self._filters else None


_LOOP = asyncio.new_event_loop()


def _now(found: Any) -> Any:
    return _LOOP.run_until_complete(found) if asyncio.iscoroutine(found) else found


async def _tasks(search: Any, turn: _Turn, clients: int, until: float, taken: list[float]) -> None:
    async def client() -> None:
        while time.perf_counter() < until:
            query, where = turn.next()
            start = time.perf_counter()
            await search(query, where)
            taken.append(time.perf_counter() - start)

    await asyncio.gather(*(client() for _ in range(clients)))


def _threads(search: Any, turn: _Turn, clients: int, until: float, taken: list[float]) -> None:
    faults: list[BaseException] = []

    def client() -> None:
        try:
            while time.perf_counter() < until and not faults:
                query, where = turn.next()
                start = time.perf_counter()
                search(query, where)
                taken.append(time.perf_counter() - start)
        except BaseException as e:
            faults.append(e)
            raise

    if clients == 1:
        client()
        return
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def _memory() -> dict[str, float]:
    """GiB: resident now, of it not backed by files, and the most so far."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = {"resident": "VmRSS", "private": "RssAnon", "peak": "VmHWM"}
    return {name: int(status[key].split()[0]) / 2**20 for name, key in names.items()}


def cheapest(
    choices: Sequence[dict[str, int]],
    examples: Sequence[tuple[Query, set[int]]],
    dense: Callable[[dict[str, int], Query], list[int]],
) -> dict[str, int]:
    """The first of the choices, which get dearer, that finds what is wanted; else the last."""
    for choice in choices:
        found = [len(exact & set(dense(choice, query))) / len(exact) for query, exact in examples]
        if sum(found) / len(found) >= WANTED:
            return choice
    return choices[-1]


def main(name: str) -> None:
    # Libraries print what they like; the answers go to the standard output that we were given.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(name)
    for line in sys.stdin:
        command = json.loads(line)
        call: Callable[..., dict[str, Any]] = getattr(worker, command.pop("do"))
        try:
            answer = call(**command)
        except Exception as e:  # noqa: BLE001  # whatever a system raises is its answer
            traceback.print_exc()
            answer = {"fault": f"{type(e).__name__}: {e}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
