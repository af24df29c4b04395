"""A comparison as a picture: for each panel the means with their intervals, and beside them the paired differences."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from assay.eval.compare import Estimate, Ranking

KINDS = (".svg", ".png", ".pdf")

_BASELINE, _BETTER, _WORSE, _EVEN = "#222222", "#1a7f37", "#b42318", "#6b7280"


@dataclass(frozen=True, slots=True)
class Panel:
    """``means`` of all configurations, the baseline first; ``differences`` of the others from it. ``cost``: less is better."""

    title: str
    means: Mapping[str, Estimate]
    differences: Mapping[str, Estimate]
    goal: float | None = None
    cost: bool = False


def panels(ranking: Ranking, metrics: Sequence[str], costs: Collection[str] = ()) -> list[Panel]:
    """``costs``: those of the metrics of which less is better."""
    return [
        Panel(
            metric,
            {name: of[metric] for name, of in ranking.estimates.items() if metric in of},
            {name: of[metric].difference for name, of in ranking.against.items() if metric in of},
            cost=metric in costs,
        )
        for metric in metrics
    ]


def draw(target: Path | BinaryIO, panels: Sequence[Panel], title: str) -> None:
    """``target``: a file of one of ``KINDS``; what is written into an open one is SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = max(len(panel.means) for panel in panels)
    kind = target.suffix if isinstance(target, Path) else ".svg"
    # The same figures give the same file, and its text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "assay", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10, 0.7 + len(panels) * (0.75 + 0.24 * rows)), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left")
        grid = figure.subplots(len(panels), 2, squeeze=False, width_ratios=[3, 2])
        for (left, right), panel in zip(grid, panels, strict=True):
            _means(left, panel)
            _differences(right, panel)
        figure.savefig(target, format=kind[1:], metadata={"Date": None} if kind == ".svg" else None)


def _means(axes: Any, panel: Panel) -> None:
    colours = {name: _colour(panel.differences.get(name), panel.cost) for name in panel.means}
    _points(axes, panel.means, panel.means, colours)
    axes.set_title(panel.title, loc="left", fontweight="bold")
    if panel.goal is not None:
        axes.axvline(panel.goal, color="#2563eb", ls="--", lw=1)
        axes.annotate(f"goal {panel.goal:g}", (panel.goal, 1), xycoords=("data", "axes fraction"), color="#2563eb",
                      ha="center", va="bottom", fontsize=7)  # fmt: skip


def _differences(axes: Any, panel: Panel) -> None:
    axes.set_visible(bool(panel.differences))
    colours = {name: _colour(of, panel.cost) for name, of in panel.differences.items()}
    axes.axvline(0, color=_BASELINE, lw=1)
    _points(axes, panel.means, panel.differences, colours)
    axes.set_title(f"minus {next(iter(panel.means))}", loc="left")


def _points(axes: Any, names: Mapping[str, object], held: Mapping[str, Estimate], colours: Mapping[str, str]) -> None:
    """A row for each name, the first at the top."""
    for row, name in enumerate(names):
        if name in held:
            of = held[name]
            axes.plot([of.low, of.high], [row, row], color=colours[name], lw=1.6, solid_capstyle="butt")
            axes.plot([of.mean], [row], "o", color=colours[name], ms=4.5)
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _colour(difference: Estimate | None, cost: bool) -> str:
    if difference is None:
        return _BASELINE
    more, less = (_WORSE, _BETTER) if cost else (_BETTER, _WORSE)
    return more if difference.low > 0 else less if difference.high < 0 else _EVEN
