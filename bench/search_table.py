"""The rows of ``bench.search_peers`` as the tables of docs/benchmarks.md: ``python -m bench.search_table FILE.json``."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Rows = Mapping[tuple[str, str], float]
"""(system, what) -> value, of one size."""

COLUMNS = {
    "questions/s, 1 client": "1 client: questions a second",
    "8 clients": "8 clients: questions a second",
    "p50 ms": "1 client: p50",
    "p95 ms": "1 client: p95",
    "p95 ms, 8 clients": "8 clients: p95",
    "exact top 10 found": "exact top 10 found by the dense leg",
    "build s": "build, all",
    "rows/s": "build, rate",
    "open s": "open",
    "resident GiB": "memory while answering, resident",
}
FILTERED = ("1 % filter", "1 % filter, another each time", "30 % filter", "30 % filter, another each time")


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def sizes(rows: Sequence[Mapping[str, object]]) -> dict[str, dict[tuple[str, str], float]]:
    found: dict[str, dict[tuple[str, str], float]] = {}
    for row in rows:
        size, system, what = str(row["name"]).split(" | ", 2)
        found.setdefault(size, {})[system, what] = float(str(row["value"]))
    return found


def speed(rows: Rows) -> str:
    systems = list(dict.fromkeys(system for system, _ in rows))
    body = [[s, *(number(rows.get((s, what))) for what in COLUMNS.values())] for s in systems]
    return table(["system", *COLUMNS], body)


def filtered(rows: Rows) -> str:
    body = []
    for label in FILTERED:
        for system in dict.fromkeys(system for system, _ in rows):
            keys = [f"{label}, {c}: {w}" for c in ("1 client", "8 clients") for w in ("questions a second", "p95")]
            if (system, keys[0]) in rows:
                recall = rows.get((system, f"{label}: exact top 10 found by the dense leg"))
                body.append([f"{label}: {system}", *(number(rows.get((system, key))) for key in keys), number(recall)])
    return table(
        ["", "questions/s, 1 client", "p95 ms", "questions/s, 8 clients", "p95 ms", "exact top 10 found"], body
    )


def goals(rows: Sequence[Mapping[str, object]]) -> str:
    body = []
    for row in (row for row in rows if row["goal"]):
        measured = f"{number(float(str(row['value'])))} {row['unit']}"
        holds = "yes" if row["holds"] else "**no**"
        body.append([str(row["name"]).replace(" | ", ", "), measured, str(row["goal"]), holds])
    return table(["what", "measured", "goal", "holds"], body)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="what bench.search_peers wrote with --json")
    rows = json.loads(parser.parse_args(argv).file.read_text())["rows"]
    for size, found in sizes(rows).items():
        print(f"#### {size} rows\n\n{speed(found)}\nUnder a filter:\n\n{filtered(found)}")
        if cannot := [(system, what) for system, what in found if what.startswith("cannot: ")]:
            print(
                "\n".join(f"- {system} {what.replace('cannot: ', 'could not ', 1)}" for system, what in cannot) + "\n"
            )
    print(f"#### Goals\n\n{goals(rows)}")


if __name__ == "__main__":
    main()
