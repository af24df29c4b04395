"""Documents out of an index, by their names or ids. What is published without them is acknowledged; nothing returns them."""

from collections.abc import Sequence

from assay.errors import NotFound, SetupError
from assay.index.files import REPAIR, Layout
from assay.index.ingest import doc_id_of
from assay.index.mirror import publish, writing
from assay.index.snapshot import REBUILD_ROWS, Manifest
from assay.index.store import Store, read_state


def remove(layout: Layout, bucket: str, names: Sequence[str], rebuild_rows: int = REBUILD_ROWS) -> Manifest:
    """Delete documents of a bucket, named by URI or id, and publish: all of them, or none.

    ``rebuild_rows`` as of ``publish``. Raises ``NotFound`` that names those that the bucket has not, ``SetupError`` where
    there is no index, ``IndexFault``.
    """
    with writing(layout):
        state = read_state(layout)
        if state is None:
            raise SetupError(f"there is no index at {layout.root}; {REPAIR}", "index.uri")
        store = Store(layout, state.embedder, state.checksum, state.dim)
        held = store.documents(bucket)
        ids = {name: name if name in held else doc_id_of(bucket, name) for name in names}
        if unknown := [name for name in names if ids[name] not in held]:
            raise NotFound(f"bucket '{bucket}' has no document {', '.join(map(repr, unknown))}", "document")
        store.delete(set(ids.values()))
        return publish(layout, store, rebuild_rows=rebuild_rows)
