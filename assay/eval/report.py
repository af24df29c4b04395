"""A comparison to read and to keep: a table, the queries that differ most, and JSON with every value."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from assay.eval.compare import LEVEL, RESAMPLES, Comparison, Estimate, Ranking
from assay.eval.setups import Setup

_SHOWN = 90  # characters of a query


def tables(ranking: Ranking, metrics: Sequence[str]) -> list[tuple[Table, str]]:
    """Means with their intervals; and of the first metric the paired differences, and the queries won, even and lost. With
    each what its signs mean."""
    means = table_of("", *metrics)
    for name, of in ranking.estimates.items():
        means.add_row(Text(plain(name)), *(Text(interval(of[metric])) for metric in metrics))
    apart = table_of(f"{metrics[0]} minus {ranking.baseline}", "difference", "won", "even", "lost")
    for name, against in ranking.against.items():
        one = against[metrics[0]]
        said = interval(one.difference, "+") + ("*" if one.certain else " ")
        apart.add_row(Text(plain(name)), Text(said), str(one.wins), str(one.ties), str(one.losses))
    shown = [(means, f"in brackets: {LEVEL:.0%} of the bootstrap over the queries\n")]
    return shown + ([(apart, "* the interval leaves out 0\n")] if ranking.against else [])


def table_of(first: str, *others: str) -> Table:
    out = Table(box=None, pad_edge=False)
    out.add_column(Text(plain(first)))
    for name in others:
        out.add_column(Text(plain(name)), justify="right")
    return out


def interval(of: Estimate, sign: str = "", digits: int = 3) -> str:
    mean, low, high = (_short(f"{value:{sign}.{digits}f}") for value in (of.mean, of.low, of.high))
    return f"{mean} [{low} {high}]"


def _short(number: str) -> str:
    """Without the zero before a point; 10.5 keeps its own."""
    return re.sub(r"^([+-]?)0\.", r"\1.", number)


def extremes(ranking: Ranking, metric: str, queries: Mapping[str, str], most: int) -> list[str]:
    """Of each configuration, the queries that it loses and wins by most against the baseline, a line each."""
    lines = []
    for name, of in ranking.against.items():
        apart = of[metric].differences if metric in of else {}
        lost = [item for item in list(apart.items())[:most] if item[1] < 0]
        won = [item for item in reversed(list(apart.items())[-most:]) if item[1] > 0]
        if most and (lost or won):
            lines.append(f"{name}, {metric} minus {ranking.baseline}:")
            lines += [f"  {by:+.3f}  {query}  {queries[query][:_SHOWN]}" for query, by in (*won, *lost)]
    return [plain(line) for line in lines]


def as_json(ranking: Ranking, setups: Sequence[Setup]) -> dict[str, Any]:
    """By configuration: what it is, its means, what sets it apart from the baseline, and every value of every query."""
    found = {}
    for setup in setups:
        values = ranking.values[setup.name]
        found[setup.name] = {
            "config": setup.config.model_dump(exclude={"implementation", "timeout_s"}),
            "index": setup.index.model_dump(),
            "legs": [*setup.legs, *(["link"] if setup.link_hop else [])],
            "means": {metric: asdict(of) for metric, of in ranking.estimates[setup.name].items()},
            "against": {metric: summary(of) for metric, of in ranking.against.get(setup.name, {}).items()},
            "queries": {q: {m: round(values[m][q], 6) for m in values} for q in next(iter(values.values()))},
        }
    bootstrap = {"level": LEVEL, "resamples": RESAMPLES}
    return {"baseline": ranking.baseline, "bootstrap": bootstrap, "configurations": found}


def summary(of: Comparison) -> dict[str, Any]:
    return {**asdict(of.difference), "wins": of.wins, "ties": of.ties, "losses": of.losses, "certain": of.certain}


def plain(text: str) -> str:
    """Queries and names come from files: no escape sequence of theirs reaches the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
