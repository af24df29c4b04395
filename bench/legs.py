"""Each leg alone: Assay's lists and postings beside FAISS and bm25s, at the same recall, without and with filters.

All get the same vectors and terms, and give 100 rows a question, one question at a time. FAISS's indexes are set, for each
filter by itself, to the fewest probes (or the least depth) with which they find as much of the exact top 10 as Assay's lists
do as they are, on other questions than those that are measured. ``sq8`` and ``hnsw`` are Assay's kinds over FAISS, as they are.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import corpus
from bench import legs_worker as worker
from bench.legs_worker import GIVEN, LEGS, TOP, Job
from bench.report import Row, at_most, kept, options, publish

FILTERS = {100: "no filter", 30: "30 % filter", 1: "1 % filter"}
DENSE = tuple(name for name in LEGS if name not in ("postings", "bm25s"))
OURS = {**dict.fromkeys(DENSE, "ivf"), "postings": "postings", "bm25s": "postings"}
BARE = {"ivf": "FAISS IVFFlat", "postings": "bm25s"}  # what a bare pair of legs is built of
# Above GIVEN rows: a million take half an hour to link, and the kinds over FAISS find lists of their own.
SLOW = {"sq8", "hnsw", "FAISS HNSW SQ8 + refinement"}
SLACK, MOST = 0.005, 0.99  # of recall: how far below ours one may be, and what is asked of none
TUNED, ASKED, ROUNDS = 150, 300, 3


@contextmanager
def process() -> Iterator[Any]:
    """Calls a function in a process that lives as long as the block."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


class Bench:
    def __init__(self, collection: corpus.Corpus, folder: Path, names: list[str], quick: bool) -> None:
        self._collection, self._folder, self._quick = collection, folder, quick
        self._names = names
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "tags.npy", collection.tags)
        np.save(folder / "query_vectors.npy", np.ascontiguousarray(collection.query_vectors))
        (folder / "queries.json").write_text(json.dumps(collection.queries))
        tuned, asked = (30, 60) if quick else (TUNED, ASKED)
        self._tuned, self._asked = list(range(tuned)), list(range(tuned, tuned + asked))
        self._exact: dict[int, NDArray[np.int64]] = {}

    def run(self) -> list[Row]:
        for name in self._names:
            self._built(name)
        rows = []
        with ExitStack() as stack:
            calls = {name: stack.enter_context(process()) for name in self._names}
            for name, call in calls.items():
                given = len(self._collection) > GIVEN and name.startswith("FAISS")
                what = "build, centres and lists given" if given else "build"
                rows.append(self._row(name, what, self._seconds(name), "s"))
                rows.append(self._row(name, "memory", call(worker.opened, self._job(name)), "GiB"))
                if (bare := BARE.get(name)) in calls and len(self._collection) <= GIVEN:
                    label = self._row(name, f"build, times that of {bare}", 0, "").name
                    rows.append(at_most(label, self._seconds(name) / self._seconds(str(bare)), "times", 1.5))
            for where in FILTERS:
                rows += self._measured(calls, where)
        return rows

    def _built(self, name: str) -> None:
        """What an earlier run has built in the same folder is taken as it is."""
        for part, work in (("terms", worker.analyse), (name, worker.build)):
            if (part == "terms" and name in DENSE) or (self._folder / part / "seconds.json").exists():
                continue
            (self._folder / part).mkdir(exist_ok=True)
            with process() as call:
                seconds = call(work, self._job(part))
            (self._folder / part / "seconds.json").write_text(json.dumps(seconds))

    def _measured(self, calls: dict[str, Any], where: int) -> list[Row]:
        knobs = {}
        for name, call in calls.items():
            least = min(MOST, self._recall(calls["ivf"], where, self._tuned, 0) - SLACK) if name in DENSE else 0.0
            choices = call(worker.knobs) or (0,)
            good = (knob for knob in choices if self._recall(call, where, self._tuned, knob) >= least)
            knobs[name] = next(good, choices[-1]) if len(choices) > 1 else 0
        seconds: dict[str, list[list[float]]] = {name: [] for name in calls}
        for _ in range(1 if self._quick else ROUNDS):  # in turns: what else the machine does hits all alike
            for name, call in calls.items():
                seconds[name].append(call(worker.taken, where, self._asked, knobs[name]))
        at = {name: {p: _percentile(seconds[name], p) for p in (50, 95)} for name in calls}
        return [row for name in calls for row in self._rows(name, calls, where, knobs[name], at)]

    def _rows(
        self, name: str, calls: dict[str, Any], where: int, knob: int, at: dict[str, dict[int, float]]
    ) -> Iterator[Row]:
        label, ours = FILTERS[where], OURS[name]
        if name in DENSE:
            recall = self._recall(calls[name], where, self._asked, knob)
            yield self._row(name, f"{label}: exact top 10 found", recall, "of 1")
        elif name != ours:
            yield self._row(name, f"{label}: the same scores as {ours}", self._same(calls, where, name), "of 1")
        if knob:
            yield self._row(name, f"{label}: set to", knob, "deep" if "HNSW" in name else "probes")
        for percent, value in at[name].items():
            yield self._row(name, f"{label}: p{percent}", value, "ms")
        if name != ours:
            for percent, value in at[name].items():
                times = value / at[ours][percent]
                yield self._row(name, f"{label}: p{percent}, times that of {ours}", times, "times")

    def _recall(self, call: Any, where: int, numbers: list[int], knob: int) -> float:
        found = call(worker.found, where, numbers, knob)
        wanted = self._nearest(where)[numbers]
        return float(
            np.mean([len(set(rows) & set(best.tolist())) / TOP for (rows, _), best in zip(found, wanted, strict=True)])
        )

    def _same(self, calls: dict[str, Any], where: int, name: str) -> float:
        """The share of questions whose ten best scores are those of the postings: both compare exactly, ties may differ."""
        pairs = zip(*(calls[leg](worker.found, where, self._asked, 0) for leg in ("postings", name)), strict=True)
        return float(np.mean([len(a) == len(b) and np.allclose(a, b, rtol=1e-4) for (_, a), (_, b) in pairs]))

    def _nearest(self, where: int) -> NDArray[np.int64]:
        if where not in self._exact:
            collection, count = self._collection, len(self._tuned) + len(self._asked)
            mask = worker.mask_of(collection.tags, where)
            self._exact[where] = corpus.exact(collection.vectors, collection.query_vectors[:count], TOP, mask)
        return self._exact[where]

    def _job(self, name: str) -> Job:
        return Job(len(self._collection), self._collection.files, self._folder / name, name)

    def _seconds(self, name: str) -> float:
        return float(json.loads((self._folder / name / "seconds.json").read_text()))

    def _row(self, name: str, what: str, value: float, unit: str) -> Row:
        leg = "dense" if name in DENSE else "sparse"
        return Row(f"{len(self._collection):,} | {leg} | {name} | {what}", value, unit)


def _percentile(rounds: list[list[float]], percent: int) -> float:
    """The median of the rounds' own, in ms."""
    return 1000 * float(np.median([np.percentile(seconds, percent) for seconds in rounds]))


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--sizes", help="rows (default: 100000; with --quick 20000)")
        parser.add_argument("--legs", default=",".join(LEGS), help="default: all that are built quickly at a size")
        parser.add_argument(
            "--folder", type=Path, default=corpus.FOLDER, help="where the collection is kept (default: %(default)s)"
        )
        parser.add_argument("--work", type=Path, help="where the indexes are kept, and taken from in the next run")

    args = options((__doc__ or "").partition("\n")[0], more=more)
    if unknown := set(args.legs.split(",")) - set(LEGS):
        sys.exit(f"no such leg: {', '.join(sorted(unknown))}; there are {', '.join(LEGS)}")
    # What others are compared with is always there, and first.
    asked = {ours for name in args.legs.split(",") for ours in (OURS[name], name)}
    names = [name for name in LEGS if name in asked]
    rows = kept(args.json)
    for size in map(int, (args.sizes or ("20000" if args.quick else "100000")).split(",")):
        collection = corpus.make(size, args.folder, data=args.data)
        here = [name for name in names if size <= GIVEN or name not in SLOW]
        with tempfile.TemporaryDirectory() as folder:
            found = Bench(collection, (args.work or Path(folder)) / str(size), here, args.quick).run()
        measured = {row.name.rpartition(" | ")[0] for row in found}
        rows = [row for row in rows if row.name.rpartition(" | ")[0] not in measured] + found
        publish("Legs", rows, args, "side by side, the same vectors, terms and questions: docs/benchmarks.md")


if __name__ == "__main__":
    main()
