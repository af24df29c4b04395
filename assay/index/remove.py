"""Documents out of an index, by their names or ids, and a snapshot without them.

Whoever opens the index after that finds nothing of them. A graph that serves it meanwhile takes the snapshot up with its
retrievers' next look, which begins up to ``index.poll_s`` later; only ``DELETE /v1/documents`` waits for that before answering.
"""

from collections.abc import Sequence, Set

import pyarrow.compute as pc

from assay.documents.names import doc_id_of
from assay.errors import IndexFault, NotFound, SetupError
from assay.index.files import REPAIR, Layout
from assay.index.mirror import publish, writing
from assay.index.snapshot import REBUILD_ROWS, Manifest, read_current
from assay.index.store import Store, open_dataset, read_state, reading


def remove(layout: Layout, bucket: str, names: Sequence[str], rebuild_rows: int = REBUILD_ROWS) -> Manifest:
    """Delete documents of a bucket, named by URI or id, and publish: all of them, or none.

    What an earlier call took out of the store, and did not live to publish, counts as there. ``rebuild_rows`` as of
    ``publish``. Raises ``NotFound`` that names those that the bucket has not, ``SetupError`` where there is no index,
    ``IndexFault``.
    """
    with writing(layout):
        state = read_state(layout)
        if state is None:
            raise SetupError(f"there is no index at {layout.root}; {REPAIR}", "index.uri")
        store = Store(layout, state.embedder, state.checksum, state.dim)
        held = store.documents(bucket)
        there = set(held)
        if not all(_id(bucket, name, there) in there for name in names):
            there |= _served(layout, bucket)
        ids = {name: _id(bucket, name, there) for name in names}
        if unknown := [name for name in names if ids[name] not in there]:
            raise NotFound(f"bucket '{bucket}' has no document {', '.join(map(repr, unknown))}", "document")
        store.delete(held.keys() & set(ids.values()))
        return publish(layout, store, rebuild_rows=rebuild_rows)


def _id(bucket: str, name: str, there: Set[str]) -> str:
    return name if name in there else doc_id_of(bucket, name)


def _served(layout: Layout, bucket: str) -> set[str]:
    """Ids of the bucket's documents in the snapshot in force."""
    try:
        manifest = read_current(layout)
    except IndexFault:
        return set()
    documents = open_dataset(layout.documents, manifest.documents_version)
    with reading():
        found = documents.to_table(columns=["doc_id"], filter=pc.field("bucket") == bucket)
    return set(found["doc_id"].to_pylist())
