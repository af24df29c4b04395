"""A process that writes to an index, and kills itself with SIGKILL at one of the steps that matter for durability.

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
from obstore.store import ObjectStoreMethods

from assay.index import dense, remote, snapshot, sparse
from assay.index.buckets import BucketSchema
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from assay.index.metadata import Given, MetadataRows
from assay.index.mirror import compact
from assay.index.remove import remove
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser

STEPS: tuple[tuple[Any, str], ...] = (
    (DirectParser, "parse"),
    (WordEncoder, "embed_now"),
    (lance, "write_dataset"),
    (lance.LanceDataset, "delete"),
    (lance.LanceDataset, "add_columns"),
    (dense, "build"),
    (sparse, "build"),
    (os, "fsync"),
    (os, "replace"),
    (Path, "rename"),
    (DatasetOptimizer, "compact_files"),
    (lance.LanceDataset, "cleanup_old_versions"),
    (shutil, "rmtree"),
    (ObjectStoreMethods, "put"),
)


def main(what: str, folder: str, index: str, rebuild_rows: str, die_at: str) -> None:
    """Writes the steps that were taken to standard output, one a line. ``delete`` takes the first document of the folder.

    ``die_at``: a step's number, or the name of the first one to die at."""
    number = 0

    def step(name: str) -> None:
        nonlocal number
        number += 1
        print(name, flush=True)
        if die_at in (str(number), name):
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(owner: Any, name: str) -> Callable[..., Any]:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            what = f"{getattr(owner, '__name__', owner)}.{name}"
            if name in ("replace", "put"):
                what += f" {placed(str(args[1]))}"
            if what.endswith("writer.lock"):  # renewed every few seconds
                return real(*args, **kwargs)
            step(f"before {what}")
            result = real(*args, **kwargs)
            step(f"after {what}")
            return result

        return call

    for owner, name in STEPS:
        setattr(owner, name, watched(owner, name))
    # Nobody has the old snapshots open: what they alone need is swept at once, not in an hour.
    snapshot._GRACE_S = 0.0
    remote._TRANSFERS = 1
    version = WORK[what](Layout(index), Path(folder), int(rebuild_rows))
    step(f"acknowledged {version}")


def placed(target: str) -> str:
    """The name of a file or an object; for one that is called otherwise each time, that of its folder."""
    folder, _, name = target.rpartition("/")
    folder = folder.rpartition("/")[2]
    return folder if folder in ("snapshots", "states", "blobs") else name


def ingest(layout: Layout, folder: Path, rebuild_rows: int) -> str | None:
    encoder = WordEncoder()
    run = Ingestion(layout, "docs", find_sources([folder], folder), encoder, encoder.embed_now, DirectParser())
    return run.run(rebuild_rows=rebuild_rows).index_version


def describe(layout: Layout, folder: Path, rebuild_rows: int) -> str | None:
    """A schema for the bucket, and by it a number for each document of the folder: how many come before it."""
    encoder, sources = WordEncoder(), find_sources([folder], folder)
    schema = BucketSchema.model_validate({"fields": {"place": {"type": "number"}}})
    given = Given([], MetadataRows({source.uri: {"place": n} for n, source in enumerate(sources)}))
    parts = (layout, "docs", sources, encoder, encoder.embed_now, DirectParser())
    return Ingestion(*parts, schema=schema, given=given).run(rebuild_rows=rebuild_rows).index_version


def delete(layout: Layout, folder: Path, rebuild_rows: int) -> str:
    return remove(layout, "docs", [min(path.name for path in folder.iterdir())], rebuild_rows).id


def compacted(layout: Layout, folder: Path, rebuild_rows: int) -> str | None:
    manifest = compact(layout)
    return manifest.id if manifest else None


WORK: dict[str, Callable[[Layout, Path, int], str | None]] = {
    "ingest": ingest,
    "describe": describe,
    "delete": delete,
    "compact": compacted,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
