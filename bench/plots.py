"""Growth plots of ``bench.search_peers``: ``python -m bench.plots FILE.json FILE.svg``."""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes

PANELS = {
    "1 client: questions a second": "questions a second, 1 client",
    "8 clients: questions a second": "questions a second, 8 clients",
    "1 client: p95": "p95 in ms, 1 client",
    "30 % filter, 1 client: p95": "p95 in ms, 1 client, 30 % filter",
    "build, rate": "rows a second into the index",
    "memory while answering, resident": "resident memory while answering, GiB",
}
SYSTEMS = ("assay", "bare pair", "lancedb", "langchain", "txtai", "haystack")
COLOURS = dict(zip(SYSTEMS, matplotlib.color_sequences["tab10"], strict=False))

Lines = dict[str, dict[str, dict[int, float]]]


def lines(path: Path) -> Lines:
    """What -> system -> rows -> value."""
    found: Lines = defaultdict(lambda: defaultdict(dict))
    for row in json.loads(path.read_text())["rows"]:
        size, system, what = row["name"].split(" | ", 2)
        if what in PANELS:
            found[what][system][int(size.replace(",", ""))] = row["value"]
    return found


def draw(axes: Axes, title: str, systems: dict[str, dict[int, float]]) -> None:
    for system, points in systems.items():
        sizes = sorted(points)
        axes.plot(
            sizes,
            [points[s] for s in sizes],
            "o-",
            label=system,
            color=COLOURS[system],
            lw=2.5 if system == "assay" else 1.2,
        )
    axes.set(xscale="log", yscale="log", title=title)
    axes.grid(alpha=0.3)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, metavar="FILE.json", help="what bench.search_peers wrote with --json")
    parser.add_argument("target", type=Path, metavar="FILE.svg", help="where the plots go")
    args = parser.parse_args(argv)
    found = lines(args.source)
    figure, panels = pyplot.subplots(2, 3, figsize=(14, 8), layout="constrained")
    for axes, (what, title) in zip(panels.flat, PANELS.items(), strict=True):
        draw(axes, title, found[what])
    for axes in panels[-1]:
        axes.set_xlabel("rows")
    handles = {h.get_label(): h for axes in panels.flat for h in axes.get_legend_handles_labels()[0]}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    pyplot.rcParams["svg.hashsalt"] = "assay"
    figure.savefig(args.target, metadata={"Date": None})


if __name__ == "__main__":
    main()
