"""How well searches rank on the shared sets, with the defaults, and whether filters hold on every path.

The collections go through the real index and its embedder: ten minutes on two cores the first time; what is embedded stays in
``--cache``. With ``--json FILE.json`` the plot is drawn beside it, and ``--table`` prints what docs/evaluation.md shows of it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from assay.cli.meter import Meter
from assay.config import AppConfig, IndexConfig
from assay.eval.compare import Estimate, Ranking
from assay.eval.plot import Panel, draw
from assay.eval.ranking import Bench
from assay.eval.report import as_json
from assay.eval.setups import setups
from assay.index.embed import SentenceEmbedder
from assay.models import resolve_model
from bench.filtered import filtered
from bench.judged import QUICK, SETS, Set
from bench.report import Row, at_least, at_most, options, publish

METRICS = ("nDCG@10", "R@5")
WORSE = 0.02  # nDCG by which the default may be worse than its better leg


def of_set(name: str, of: Set, ranking: Ranking) -> list[Row]:
    rows = []
    for config, estimates in ranking.estimates.items():
        for metric in dict.fromkeys((of.metric, METRICS[0])):
            said, value = f"{name} | {config} | {metric}", estimates[metric].mean
            aim = config == of.config and metric == of.metric
            rows.append(at_least(said, value, metric, of.goal) if aim else Row(said, value, metric))
    legs = max(ranking.estimates[leg][METRICS[0]].mean for leg in ("dense", "sparse"))
    behind = legs - ranking.estimates["default"][METRICS[0]].mean
    return [*rows, at_most(f"{name} | default | behind its better leg", behind, METRICS[0], WORSE)]


def panel(name: str, found: dict[str, Any], of: Set) -> Panel:
    def estimate(held: dict[str, Any]) -> Estimate:
        return Estimate(held["mean"], held["low"], held["high"])

    configs = found["configurations"].items()
    return Panel(
        f"{name}, {of.metric} ({found['queries']} queries)",
        {config: estimate(c["means"][of.metric]) for config, c in configs},
        {config: estimate(c["against"][of.metric]) for config, c in configs if c["against"]},
        of.goal,
    )


def markdown(measured: dict[str, dict[str, Any]]) -> str:
    """Of each set its own metric, by configuration; * where the paired interval against the default leaves out 0."""
    configs = list(next(iter(measured.values()))["configurations"])
    lines = [["set", "metric", *configs, "goal"], ["---", "---", *["---:"] * (len(configs) + 1)]]
    for name, found in measured.items():
        of = SETS[name]
        cells = []
        for c in found["configurations"].values():
            mean, against = c["means"][of.metric]["mean"], c["against"].get(of.metric)
            cells.append(f"{mean:.4f}{'*' if against and against['certain'] else ''}")
        lines.append([f"{name} ({found['queries']})", of.metric, *cells, f"{of.goal:g} by {of.config}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def measure(
    names: Sequence[str], data: Path, cache: Path, notes: Console, rows: list[Row], measured: dict[str, Any]
) -> None:
    """Adds to ``rows`` and ``measured`` what is finished, so that an interrupt leaves it there."""
    chosen = setups([])
    encoder = SentenceEmbedder(resolve_model(IndexConfig().embedder, Path(AppConfig().cache)))
    for name in names:
        notes.print(name)
        bench = Bench(SETS[name].read(data), cache, encoder)
        with Meter(notes, "documents") as meter:
            bench.index(meter.show)
        with Meter(notes) as meter:
            ranking = bench.compare(chosen, METRICS, meter.count)
        found = as_json(ranking, chosen)
        for config in found["configurations"].values():
            del config["queries"]
        sizes = {"documents": len(bench.collection.documents), "queries": len(bench.collection.queries)}
        rows += of_set(name, SETS[name], ranking)
        measured[name] = {**sizes, **found}
    notes.print("filters")
    rows += filtered(data, cache, encoder, notes)


def main(argv: Sequence[str] | None = None) -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cache", type=Path, default=Path(".assay/bench/ranking"), help="(default: %(default)s)")
        parser.add_argument(
            "--table", action="store_true", help="print the table of what --json holds, measure nothing"
        )

    args = options(__doc__ or "", argv, more)
    if args.table:
        print(markdown(json.loads(args.json.read_text())["details"]))
        return
    if not (args.data / "ranking").is_dir():
        sys.exit(f"bench.ranking: the data sets are not at {args.data}: name their folder with --data")
    rows: list[Row] = []
    measured: dict[str, Any] = {}
    beside = "embedder all-MiniLM-L6-v2, the defaults on every set, no language model"
    try:
        names = QUICK if args.quick else list(SETS)
        measure(names, args.data, args.cache, Console(stderr=True), rows, measured)
    except KeyboardInterrupt:
        beside = f"INTERRUPTED, the rest is missing; {beside}"
    publish("Ranking on the shared sets", rows, args, beside, measured)
    if args.json and measured:
        panels = [panel(name, found, SETS[name]) for name, found in measured.items()]
        draw(args.json.with_suffix(".svg"), panels, "Ranking on the shared sets, with 95 % intervals over queries")
    if beside.startswith("INTERRUPTED"):
        sys.exit(130)


if __name__ == "__main__":
    main()
