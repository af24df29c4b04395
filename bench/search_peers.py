"""Hybrid search side by side: Assay, what others build on, and a bare pair of indexes, over the same texts and vectors.

Each system runs in a process of its own, started here, in its documented usual form: ready texts and vectors in, then
questions whose vector is given; the best 100 of each leg are fused, and the best 10 come back with their texts. Builds run
one after another; then the systems take turns on the idle machine, three times over, and the median counts.

The peers have their own environment: ``make peers``. How the collection is made: ``bench.corpus``. What a system cannot do,
or not within the limits, is a row that says so.
"""

import argparse
import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from assay.index.embed import SentenceEmbedder
from assay.models import embedder_path
from bench import corpus, search_http
from bench.corpus import Corpus
from bench.peers.assay_index import BUCKET
from bench.peers.worker import DEPTH, SYSTEMS, TOP
from bench.report import Row, at_least, at_most, kept, options, publish

ROOT = Path(__file__).parents[1]
OURS = ("assay", "bare pair")
BUILD_S, OPEN_S, ANSWERS_S, LOAD_S = 600.0, 300.0, 30.0, 60.0
MEMORY_GIB, LEFT_GIB = 14.0, 1.0  # of a system, and of the machine
OPENS = 3  # the median counts: what a machine must first find of memory differs by seconds
# For recall, and for choosing settings: the first and the last. By a hundred examples settings were chosen that find less.
QUESTIONS, EXAMPLES = 200, 300
CLIENTS = (1, 8)
Filters = list[tuple[int, int]]
# Name -> what is asked of whom: the filter of each question in turn. Assay keeps the sets of its last filters, so it is
# also asked with more different ones than it keeps.
FILTERED: dict[str, Filters] = {"1 % filter": [(7, 7)], "30 % filter": [(30, 59)]}
CHANGING: dict[str, Filters] = {
    "1 % filter, another each time": [(t, t) for t in range(100)],
    "30 % filter, another each time": [(t, t + 29) for t in range(71)],
}
PACKAGES = ("lancedb", "txtai", "langchain-classic", "rank-bm25", "haystack-ai")
GOALS = {100_000: 3.0, 1_000_000: 15.0}  # p95, ms


class Cannot(Exception):
    """A phase that a system did not finish, why, and after how many seconds."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(why, seconds)
        self.why, self.seconds = why, seconds


class Process:
    """A worker. Whatever it does not answer in time, or takes more memory for than there is, ends it: ``Cannot``."""

    def __init__(self, python: str, name: str, log: Path) -> None:
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "HAYSTACK_TELEMETRY_ENABLED": "False", "LANCE_LOG": "error"}
        with log.open("ab") as file:
            self._child = subprocess.Popen(
                [python, "-m", "bench.peers.worker", name],
                cwd=ROOT,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        self._seen = psutil.Process(self._child.pid)

    def ask(self, do: str, limit_s: float, **fields: Any) -> dict[str, Any]:
        assert self._child.stdin and self._child.stdout
        start = time.monotonic()
        self._child.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._child.stdin.flush()
        while not select.select([self._child.stdout], [], [], 0.2)[0]:
            held, taken = self._held(), time.monotonic() - start
            if limit := self._passed(held, taken, limit_s):
                self.end()
                raise Cannot(f"{do}: {limit} ({held:.1f} GiB in the end)", taken)
        line = self._child.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"fault": "the process ended"}
        if "fault" in answer:
            raise Cannot(f"{do}: {answer['fault'][:200]}", time.monotonic() - start)
        return answer

    @staticmethod
    def _passed(held: float, taken: float, limit_s: float) -> str:
        """The limit that is passed, "" for none. The last: before the kernel ends a process, which may be another one."""
        if held > MEMORY_GIB:
            return f"{MEMORY_GIB:g} GiB were too few"
        if taken > limit_s:
            return f"{limit_s:.0f} s were too few"
        if psutil.virtual_memory().available < LEFT_GIB * 2**30:
            return f"beside the others the machine had less than {LEFT_GIB:g} GiB left"
        return ""

    def end(self) -> None:
        self._child.kill()
        self._child.wait()

    def _held(self) -> float:
        try:
            return float(self._seen.memory_info().rss) / 2**30
        except psutil.NoSuchProcess:
            return 0.0


@dataclass
class Measured:
    """Of one system at one size. ``loads``: (filter's name or "", clients) -> one answer of the worker a round."""

    about: dict[str, Any] = field(default_factory=dict)
    build: dict[str, Any] = field(default_factory=dict)
    open: dict[str, Any] = field(default_factory=dict)
    slowest_open: float = 0.0
    touches: list[float] = field(default_factory=list)
    """Seconds in which a process that does nothing else gets as much memory as there is on disk, before each opening."""
    bytes: int = 0
    recall: dict[str, dict[str, float]] = field(default_factory=dict)
    loads: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)
    cannot: list[Cannot] = field(default_factory=list)


class Bench:
    def __init__(self, collection: Corpus, folder: Path, peers: Path, settings: dict[str, Any], quick: bool) -> None:
        self._corpus, self._folder, self._quick = collection, folder, quick
        self._python = {name: sys.executable if name in OURS else str(peers / "bin" / "python") for name in SYSTEMS}
        np.save(folder / "tags.npy", collection.tags)
        np.save(folder / "query_vectors.npy", collection.query_vectors)
        (folder / "queries.json").write_text(json.dumps(collection.queries))
        np.save(folder / "examples.npy", corpus.exact(collection.vectors, collection.query_vectors[-EXAMPLES:], TOP))
        texts, ends, vectors = collection.files
        self._data = {
            "texts": str(texts),
            "ends": str(ends),
            "vectors": str(vectors),
            "tags": str(folder / "tags.npy"),
            "queries": str(folder / "queries.json"),
            "query_vectors": str(folder / "query_vectors.npy"),
            "examples_file": str(folder / "examples.npy"),
            "rows": len(collection),
            "settings": settings,
        }
        self._running: dict[str, Process] = {}
        self._exact: dict[tuple[int, int] | None, NDArray[np.int64]] = {}
        self.found: dict[str, Measured] = {}

    def run(self, names: Sequence[str]) -> dict[str, Measured]:
        for name in names:
            self.found[name] = Measured()
            self._try(name, self._start, name)
        for name in list(self._running):
            self._try(name, self._answers, name)
        rounds, seconds = (1, 2.0) if self._quick else (3, 3.0)
        for number in range(rounds):
            for label, clients in itertools.product(("", *FILTERED, *CHANGING), CLIENTS):
                for name in list(self._running):
                    if self._asked(name, label, number):
                        self._try(name, self._load, name, label, clients, seconds, number * 101)
        self.close()
        return self.found

    def http(self, names: Sequence[str]) -> list[Row]:
        if "assay" not in names or self.found["assay"].cannot:
            return []
        questions = self._corpus.queries[: 100 if self._quick else 400]
        start, goal = f"{len(self._corpus):,} | assay | ", 80.0 if len(self._corpus) == 100_000 else None
        return search_http.measure(self._folder / "assay", BUCKET, questions, self._folder, start, goal)

    def close(self) -> None:
        for process in self._running.values():
            process.end()
        self._running.clear()

    def _try(self, name: str, step: Any, *given: Any) -> None:
        print(
            f"{len(self._corpus):,} {name}: {step.__name__.strip('_')} {' '.join(map(str, given[1:]))}", file=sys.stderr
        )
        try:
            step(*given)
        except Cannot as e:
            print(f"  cannot: {e.why}", file=sys.stderr)
            self.found[name].cannot.append(e)
            if (process := self._running.pop(name, None)) is not None:
                process.end()

    def _process(self, name: str) -> Process:
        process = self._running[name] = Process(self._python[name], name, self._folder / "workers.log")
        self.found[name].about = process.ask("about", 120)
        process.ask("data", 60, **self._data)
        return process

    def _start(self, name: str) -> None:
        folder, found = self._folder / name.replace(" ", "-"), self.found[name]
        folder.mkdir()
        process = self._process(name)
        found.build = process.ask("build", BUILD_S, folder=str(folder))
        found.bytes = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        if found.about["persists"]:
            opens = []
            for _ in range(1 if self._quick else OPENS):
                process.end()
                found.touches.append(self._touch(name, found.bytes))
                process = self._process(name)
                opens.append(process.ask("open", OPEN_S, folder=str(folder)))
            found.slowest_open = max(o["seconds"] for o in opens)
            found.open = opens[-1] | {
                "seconds": median(o["seconds"] for o in opens),
                "answered": median(o["answered"] for o in opens),
            }

    def _touch(self, name: str, size: int) -> float:
        """A virtual machine gets its memory from its host when it first uses it, which no opening is to be charged with."""
        process = Process(self._python[name], name, self._folder / "workers.log")
        try:
            return float(process.ask("touch", OPEN_S, bytes=size)["seconds"])
        finally:
            process.end()

    def _answers(self, name: str) -> None:
        found, count = self.found[name], 50 if self._quick else QUESTIONS
        wheres: dict[str, tuple[int, int] | None] = {"": None}
        if found.about["filters"]:
            wheres.update((label, filters[0]) for label, filters in FILTERED.items())
        for label, where in wheres.items():
            nearest = self._nearest(where)
            answers = self._running[name].ask(
                "answers",
                2 * ANSWERS_S + LOAD_S,
                count=count,
                seconds=ANSWERS_S,
                where=where,
                nearest=None if where else nearest[:count].tolist(),
            )
            self._check(answers, where)
            found.recall[label] = {
                "dense": _shared(answers["dense"], nearest[:, :TOP].tolist()),
                "hybrid": _shared(answers["hybrid"], answers["exact"]),
                "queries": len(answers["dense"]),
            }

    def _nearest(self, where: tuple[int, int] | None) -> NDArray[np.int64]:
        if where not in self._exact:
            queries = self._corpus.query_vectors[:QUESTIONS]
            self._exact[where] = corpus.exact(self._corpus.vectors, queries, DEPTH, self._allowed(where))
        return self._exact[where]

    def _allowed(self, where: tuple[int, int] | None) -> NDArray[np.bool_]:
        tags = self._corpus.tags
        return np.ones(len(tags), bool) if where is None else (tags >= where[0]) & (tags <= where[1])

    def _check(self, answers: dict[str, Any], where: tuple[int, int] | None) -> None:
        """A row outside the filter, one that no search may see, or another row's text: such answers count for nothing."""
        allowed = self._allowed(where)
        for rows, texts in zip(answers["hybrid"], answers["texts"], strict=True):
            for row, text in zip(rows, texts, strict=True):
                if not 0 <= row < len(self._corpus) or not allowed[row]:
                    raise Cannot(f"answers: row {row} is not among those that may be found", 0)
                if text is not None and text.strip() != self._corpus.texts[row].strip():
                    raise Cannot(f"answers: the text of row {row} is another one's", 0)

    def _asked(self, name: str, label: str, number: int) -> bool:
        """A system that answers one question a second or less shows that in one round."""
        if number and _rate(self.found[name].loads["", 1]) <= 1:
            return False
        return not label or (self.found[name].about["filters"] and (label in FILTERED or name == "assay"))

    def _load(self, name: str, label: str, clients: int, seconds: float, offset: int) -> None:
        wheres = {**FILTERED, **CHANGING}.get(label)
        answer = self._running[name].ask("load", LOAD_S, clients=clients, seconds=seconds, offset=offset, wheres=wheres)
        self.found[name].loads.setdefault((label, clients), []).append(answer)


# ---- the rows -------------------------------------------------------------------------------------------------------


def rows_of(size: int, found: dict[str, Measured]) -> list[Row]:
    """Names are ``size | system | what``, which ``bench.plots`` reads."""
    rows = [row for name, measured in found.items() for row in _system(f"{size:,} | {name} | ", name, size, measured)]
    return rows + _against(size, found)


def _system(start: str, name: str, size: int, m: Measured) -> list[Row]:
    rows = [Row(f"{start}cannot: {e.why}", e.seconds, "s") for e in m.cannot]
    if m.build:
        seconds = m.build["seconds"]
        rows += [Row(f"{start}build, all", seconds, "s"), Row(f"{start}build, rate", size / seconds, "rows/s")]
        rows += [Row(f"{start}build, {part}", taken, "s") for part, taken in m.build["parts"].items()]
        rows.append(Row(f"{start}build, peak memory", m.build["memory"]["peak"], "GiB"))
        rows.append(Row(f"{start}on disk", m.bytes / 2**30, "GiB"))
    if m.open:
        rows += [Row(f"{start}chosen, {name}", value, "") for name, value in m.open["settings"].items()]
        goal = 5.0 if name == "assay" and size == 1_000_000 else None
        rows.append(_bound(f"{start}open", m.open["seconds"], "s", goal))
        rows.append(_bound(f"{start}open, slowest of {OPENS}", m.slowest_open, "s", goal))
        touched = f"{start}before each, only touching as much memory"
        rows.append(Row(f"{touched}, slowest", max(m.touches), "s"))
        rows.append(Row(f"{touched}, fastest", min(m.touches), "s"))
        rows.append(Row(f"{start}open, to the first answer", m.open["answered"], "s"))
    for label, recall in m.recall.items():
        what = f"{label + ': ' if label else ''}exact top 10 found by the dense leg"
        goal = 0.95 if name == "assay" and size in GOALS else None
        rows.append(_bound(start + what, recall["dense"], f"of 1 ({recall['queries']:.0f} queries)", goal, least=True))
        if not np.isnan(recall["hybrid"]):
            what = "top 10 that an exact dense leg would give, found"
            rows.append(_bound(start + what, recall["hybrid"], "of 1", goal, least=True))
    for (label, clients), rounds in m.loads.items():
        at = f"{start}{label + ', ' if label else ''}{clients} client{'s' if clients > 1 else ''}: "
        goal = GOALS.get(size) if name == "assay" and clients == 1 else None
        rows.append(Row(f"{at}questions a second", _rate(rounds), "1/s"))
        rows.append(Row(f"{at}p50", _percentile(rounds, 50), "ms"))
        rows.append(_bound(f"{at}p95", _percentile(rounds, 95), "ms", goal))
    if m.loads:
        last = [answer["memory"] for rounds in m.loads.values() for answer in rounds][-1]
        goal = 4.0 if name == "assay" and size == 1_000_000 else None
        rows.append(_bound(f"{start}memory while answering, resident", last["resident"], "GiB", goal))
        rows.append(Row(f"{start}memory while answering, of it not backed by files", last["private"], "GiB"))
    return rows


def _against(size: int, found: dict[str, Measured]) -> list[Row]:
    """Assay beside the fastest peer, and its build beside the bare pair's."""
    rows, ours = [], found.get("assay", Measured())
    for key, rounds in ours.loads.items():
        theirs = {n: _rate(m.loads[key]) for n, m in found.items() if n not in OURS and key in m.loads}
        if not theirs:
            continue
        fastest = max(theirs, key=lambda n: theirs[n])
        label, clients = key
        asked = f"{label + ', ' if label else ''}{clients} client{'s' if clients > 1 else ''}"
        name = f"{size:,} | assay | times as fast as {fastest}, {asked}"
        goal = 12.0 if size in GOALS and not label else None
        rows.append(_bound(name, _rate(rounds) / theirs[fastest], "times", goal, least=True))
    bare = found.get("bare pair", Measured())
    if ours.build and bare.build:
        times = ours.build["seconds"] / bare.build["seconds"]
        rows.append(at_most(f"{size:,} | assay | build, all, beside the bare pair", times, "times", 1.5))
    return rows


def _shared(found: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> float:
    """The mean share of what was wanted that was found; NaN where nothing was."""
    shares = [len(set(f) & set(w)) / len(w) for f, w in zip(found, wanted, strict=False) if w]
    return float(np.mean(shares)) if shares else float("nan")


def _bound(name: str, value: float, unit: str, goal: float | None, least: bool = False) -> Row:
    if goal is None:
        return Row(name, value, unit)
    return (at_least if least else at_most)(name, value, unit, goal)


def _rate(rounds: Sequence[dict[str, Any]]) -> float:
    return float(np.median([len(r["latencies"]) / r["seconds"] for r in rounds]))


def _percentile(rounds: Sequence[dict[str, Any]], percent: int) -> float:
    """The median of the rounds' own, in ms."""
    return 1000 * float(np.median([np.percentile(r["latencies"], percent) for r in rounds]))


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--sizes", default="10000,100000,1000000", help="rows (default: %(default)s)")
        parser.add_argument("--systems", default=",".join(SYSTEMS), help="default: %(default)s")
        parser.add_argument(
            "--peers", type=Path, default=Path(".venv-peers"), help="their environment (default: %(default)s)"
        )
        parser.add_argument(
            "--folder", type=Path, default=corpus.FOLDER, help="where the collection is kept (default: %(default)s)"
        )
        parser.add_argument(
            "--http", type=int, default=100_000, help="the size asked over HTTP too (default: %(default)s)"
        )
        parser.add_argument("--work", type=Path, help="where the indexes are made; 20 GB for a million rows")

    args = options((__doc__ or "").partition("\n")[0], more=more)
    names = args.systems.split(",")
    if unknown := set(names) - set(SYSTEMS):
        sys.exit(f"no such system: {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    if set(names) - set(OURS) and not (args.peers / "bin" / "python").exists():
        sys.exit(f"the peers' environment {args.peers} is missing: run 'make peers', or name one with --peers")
    if args.work is not None:
        args.work.mkdir(parents=True, exist_ok=True)
    encoder = SentenceEmbedder(str(embedder_path()))
    settings = {"embedder": encoder.name, "checksum": encoder.checksum}
    rows = kept(args.json)
    for size in map(int, args.sizes.split(",")):
        collection = corpus.make(size, args.folder, data=args.data)
        with tempfile.TemporaryDirectory(dir=args.work) as folder:
            bench = Bench(collection, Path(folder), args.peers, settings, args.quick)
            try:
                found = rows_of(size, bench.run(names))
                rows = _kept_and(rows, size, names, found)
                _publish(rows, args)  # before what else may fail
                if size == args.http:
                    rows = _kept_and(rows, size, names, found + bench.http(names))
                    _publish(rows, args)
            finally:
                bench.close()


def _kept_and(rows: list[Row], size: int, names: Sequence[str], found: list[Row]) -> list[Row]:
    measured = tuple(f"{size:,} | {name} | " for name in names)
    rows = [row for row in rows if not row.name.startswith(measured)] + found
    return sorted(rows, key=lambda row: int(row.name.partition(" | ")[0].replace(",", "")))


def _publish(rows: list[Row], args: argparse.Namespace) -> None:
    beside = f"side by side with {_versions(args.peers / 'bin' / 'python')}: docs/benchmarks.md"
    publish("Hybrid search", rows, args, beside)


def _versions(python: Path) -> str:
    """Of the peers, in their environment."""
    if not python.exists():
        return "no peer"
    script = f"from importlib.metadata import version\nprint(', '.join(f'{{n}} {{version(n)}}' for n in {PACKAGES}))"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
