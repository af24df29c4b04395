"""A process that ingests, deletes or compacts, and kills itself with SIGKILL at one of the steps that matter for durability.

The steps are found by running once without dying: every call of a function below is one, before it and after it.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
from lance.dataset import DatasetOptimizer

from assay.index import dense, snapshot, sparse
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from assay.index.mirror import compact
from assay.index.remove import remove
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser

STEPS: tuple[tuple[Any, str], ...] = (
    (DirectParser, "parse"),
    (WordEncoder, "embed_now"),
    (lance, "write_dataset"),
    (lance.LanceDataset, "delete"),
    (dense, "build"),
    (sparse, "build"),
    (os, "fsync"),
    (os, "replace"),
    (Path, "rename"),
    (DatasetOptimizer, "compact_files"),
    (lance.LanceDataset, "cleanup_old_versions"),
    (shutil, "rmtree"),
)


def main(what: str, folder: str, index: str, rebuild_rows: str, die_at: str) -> None:
    """Writes the steps that were taken to standard output, one a line. ``delete`` takes the first document of the folder."""
    number = 0

    def step(name: str) -> None:
        nonlocal number
        number += 1
        print(name, flush=True)
        if number == int(die_at):
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(owner: Any, name: str) -> Callable[..., Any]:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            what = f"{getattr(owner, '__name__', owner)}.{name}"
            what += f" {replaced(Path(args[1]))}" if owner is os and name == "replace" else ""
            step(f"before {what}")
            result = real(*args, **kwargs)
            step(f"after {what}")
            return result

        return call

    for owner, name in STEPS:
        setattr(owner, name, watched(owner, name))
    # Nobody has the old snapshots open: what they alone need is swept at once, not in an hour.
    snapshot._GRACE_S = 0.0
    version = WORK[what](Layout(index), Path(folder), int(rebuild_rows))
    step(f"acknowledged {version}")


def replaced(target: Path) -> str:
    """``CURRENT``, ``state.json``, or ``snapshots`` for a manifest, whose own name is another each time."""
    return target.parent.name if target.parent.name == "snapshots" else target.name


def ingest(layout: Layout, folder: Path, rebuild_rows: int) -> str | None:
    encoder = WordEncoder()
    run = Ingestion(layout, "docs", find_sources([folder], folder), encoder, encoder.embed_now, DirectParser())
    return run.run(rebuild_rows=rebuild_rows).index_version


def delete(layout: Layout, folder: Path, rebuild_rows: int) -> str:
    return remove(layout, "docs", [min(path.name for path in folder.iterdir())], rebuild_rows).id


def compacted(layout: Layout, folder: Path, rebuild_rows: int) -> str | None:
    manifest = compact(layout)
    return manifest.id if manifest else None


WORK: dict[str, Callable[[Layout, Path, int], str | None]] = {"ingest": ingest, "delete": delete, "compact": compacted}

if __name__ == "__main__":
    main(*sys.argv[1:])
