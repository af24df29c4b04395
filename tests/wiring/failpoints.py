"""A process that ingests and kills itself with SIGKILL at one of the steps that matter for durability.

The steps are found by running once without dying: every call of a function below is one, before it and after it.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance

from assay.index import dense, segment, snapshot, sparse, store
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser

STEPS: tuple[tuple[Any, str], ...] = (
    (DirectParser, "parse"),
    (WordEncoder, "embed_now"),
    (store, "write_atomic"),  # the state
    (lance, "write_dataset"),
    (lance.LanceDataset, "delete"),
    (dense, "build"),
    (sparse, "build"),
    (segment, "describe"),
    (snapshot, "write_atomic"),  # the manifest, and CURRENT
    (os, "fsync"),
    (os, "replace"),
    (Path, "rename"),
)


def main(folder: str, index: str, rebuild_rows: str, die_at: str) -> None:
    """Writes the steps that were taken to standard output, one a line."""
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
            step(f"before {what}")
            result = real(*args, **kwargs)
            step(f"after {what}")
            return result

        return call

    for owner, name in STEPS:
        setattr(owner, name, watched(owner, name))
    encoder = WordEncoder()
    sources = find_sources([Path(folder)], Path(folder))
    run = Ingestion(Layout(index), "docs", sources, encoder, encoder.embed_now, DirectParser())
    version = run.run(rebuild_rows=int(rebuild_rows)).index_version
    step(f"acknowledged {version}")


if __name__ == "__main__":
    main(*sys.argv[1:])
