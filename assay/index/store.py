"""The source of truth: two Lance datasets, chunks with their vectors and whole documents, at versions that belong together.

A batch of documents is committed in both, and then ``state.json`` is replaced: it names the two versions. A writer that
finds newer versions than the named ones finds the leftovers of a killed batch, and restores. Readers never look at
the newest version, only at the one that a snapshot or the state names.
"""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from assay import groups
from assay.errors import IndexFault
from assay.index.buckets import BucketSchema, arrow_of, column_of, typed
from assay.index.chunk import Passage
from assay.index.extract import Document, Extracted, dumps, loads, merged
from assay.index.files import RESTORE, Layout, sync_tree, write_atomic
from assay.index.filters import INSTANT
from assay.index.parse.parsed import Raw

FORMAT = 3
_REWRITTEN = 500  # documents at a time, with their texts
_FRAGMENTS = 24  # more small ones than this and scans slow down: they are merged
_FRAGMENT = 100_000  # rows that are no longer small: merging never writes them again

_DOCUMENTS = pa.schema(
    [
        ("doc_id", pa.string()),
        ("bucket", pa.string()),
        ("uri", pa.string()),
        ("title", pa.string()),
        ("format", pa.string()),
        ("sha256", pa.string()),
        ("text", pa.large_string()),
        ("bytes", pa.int64()),
        ("chunks", pa.int32()),
        ("ingested_at", INSTANT),
        ("file_metadata", pa.string()),  # JSON: what the file says of itself, and what is said from outside of it;
        ("given_metadata", pa.string()),  # a changed schema reads them anew, a changed table needs no parsing
        ("extracted_metadata", pa.string()),  # JSON: what a model was asked, and said: see extract.dumps
        (groups.FIELD, pa.list_(pa.string())),  # null: all who see the bucket see the document
    ]
)  # and a column for every field of a bucket: see buckets.column_of


_METADATA = ("file_metadata", "given_metadata", "extracted_metadata")


def _chunks_schema(dim: int) -> pa.Schema:
    return pa.schema(
        [
            ("id", pa.int64()),
            ("doc_id", pa.string()),
            ("bucket", pa.string()),
            ("uri", pa.string()),
            ("title", pa.string()),
            ("format", pa.string()),
            ("text", pa.string()),
            ("start", pa.int64()),
            ("end", pa.int64()),
            ("ordinal", pa.int32()),
            ("heading", pa.list_(pa.string())),
            ("page", pa.int32()),
            ("hidden", pa.bool_()),
            ("ingested_at", INSTANT),
            ("vector", pa.list_(pa.float16(), dim)),
        ]
    )


@dataclass(frozen=True, slots=True)
class State:
    """The versions of the two datasets that belong together, whose vectors they hold, and the buckets' schemas.

    Ids are never used twice. ``same``: other versions of the two that hold the same, which a snapshot may still name."""

    embedder: str
    checksum: str
    dim: int
    chunks: int = 0
    documents: int = 0
    next_id: int = 1
    same: tuple[tuple[int, int], ...] = ()
    buckets: Mapping[str, BucketSchema] = field(default_factory=dict)
    format: int = FORMAT

    def holds_what(self, chunks: int, documents: int) -> bool:
        """Whether these versions hold the same."""
        return (chunks, documents) in ((self.chunks, self.documents), *self.same)


@dataclass(frozen=True, slots=True)
class Entry:
    """A document ready for the store. ``vectors``: unit, shape (len(passages), dim)."""

    doc_id: str
    bucket: str
    uri: str
    title: str
    format: str
    sha256: str
    size: int
    text: str
    passages: Sequence[Passage]
    vectors: NDArray[np.float32]
    file_metadata: Mapping[str, Raw] = field(default_factory=dict)
    given_metadata: Mapping[str, Raw] = field(default_factory=dict)
    extracted: Mapping[str, Extracted] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Held:
    """What the store knows of a document: enough to see whether anything has changed."""

    uri: str
    sha256: str
    file_metadata: Mapping[str, Raw]
    given_metadata: Mapping[str, Raw]
    extracted: Mapping[str, Extracted] = field(default_factory=dict)

    @property
    def said(self) -> dict[str, Raw]:
        """What is said from outside counts before what the file says."""
        return {**self.file_metadata, **self.given_metadata}

    def metadata(self, schema: BucketSchema) -> dict[str, Raw]:
        """All of it, merged; what a model has read comes last."""
        return merged(schema, self.said, self.extracted)


@contextmanager
def reading(what: str = "the store cannot be read") -> Iterator[None]:
    """What Lance and pyarrow raise over damaged files, as ``IndexFault``."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as e:
        raise IndexFault(f"{what}; {RESTORE}") from e
    except BaseException as e:
        if type(e).__name__ != "PanicException":  # Rust code of Lance that trusts a file; no subclass of Exception
            raise
        raise IndexFault(f"{what}; {RESTORE}") from e


class Store:
    """The store as its one writer sees it. Open it under ``Layout.writer()``."""

    def __init__(self, layout: Layout, embedder: str, checksum: str, dim: int) -> None:
        """Opens, or creates, and undoes a batch that was cut off.

        Raises ``IndexFault`` for another embedder, and for a store that is damaged, or published but without its state.
        """
        self._layout = layout
        self._synced_s = time.time() - 2
        self.state = read_state(layout) or State(embedder, checksum, dim)
        check_embedder(self.state, embedder, checksum)
        if not layout.state.exists():
            self._create()
        with reading():
            self._undo_leftovers()
            self._check_state()
            self._add_columns()

    def documents(self, bucket: str) -> dict[str, Held]:
        """By doc_id, of those that a bucket holds."""
        columns = ["doc_id", "uri", "sha256", *_METADATA]
        with reading():
            rows = self._documents().to_table(columns=columns, filter=pc.field("bucket") == bucket).to_pylist()
            return {row["doc_id"]: Held(row["uri"], row["sha256"], *metadata_of(row)) for row in rows}

    def outlines(self, doc_ids: Collection[str]) -> dict[str, Document]:
        """Documents as a model reads them."""
        which = pc.field("doc_id").isin(sorted(doc_ids))
        with reading():
            columns = ["doc_id", "title", "ordinal", "heading", "text", "hidden"]
            rows = self._chunks().to_table(columns=columns, filter=which).to_pylist()
        titles = {row["doc_id"]: row["title"] for row in rows}
        passages: dict[str, list[tuple[Sequence[str], str, bool]]] = {doc_id: [] for doc_id in titles}
        for row in sorted(rows, key=lambda row: row["ordinal"]):
            passages[row["doc_id"]].append((row["heading"], row["text"], row["hidden"]))
        return {doc_id: Document.of(title, passages[doc_id]) for doc_id, title in titles.items()}

    def schema_of(self, bucket: str) -> BucketSchema:
        return self.state.buckets.get(bucket, BucketSchema())

    def declare(self, bucket: str, schema: BucketSchema) -> None:
        """Give a bucket a schema, and its documents the values that they have by it. Does nothing where it has that one."""
        if self.state.buckets.get(bucket) == schema:
            return
        documents = self._documents()
        known = set(documents.schema.names)
        columns = {column_of(name, f.type): arrow_of(f.type) for name, f in schema.fields.items()}
        if new := [pa.field(name, kind) for name, kind in columns.items() if name not in known]:
            documents.add_columns(pa.schema(new))
        state, self.state = self.state, replace(self.state, buckets={**self.state.buckets, bucket: schema})
        old = {column_of(name, f.type) for name, f in state.buckets.get(bucket, BucketSchema()).fields.items()}
        if old or columns:
            self._rewrite(pc.field("bucket") == bucket, lambda row: {**row, **dict.fromkeys(old)})
        self._commit(self._chunks().latest_version, self._documents().latest_version, self.state.next_id)

    def describe(self, said: Mapping[str, tuple[Mapping[str, Raw], Mapping[str, Extracted]]]) -> None:
        """Other metadata for documents, by doc_id: what is given from outside, and what is extracted. Their texts, chunks and
        vectors stay."""
        if not said:
            return
        columns = {
            doc_id: {"given_metadata": json.dumps(dict(given)), "extracted_metadata": dumps(extracted)}
            for doc_id, (given, extracted) in said.items()
        }
        self._rewrite(pc.field("doc_id").isin(list(said)), lambda row: {**row, **columns[row["doc_id"]]})
        self._commit(self.state.chunks, self._documents().latest_version, self.state.next_id)

    def _rewrite(self, which: pc.Expression, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Replace rows of documents, with their values by the bucket's schema. Nothing of it counts before a commit."""
        documents = self._documents()
        ids = documents.to_table(columns=["doc_id"], filter=which)["doc_id"].to_pylist()
        for start in range(0, len(ids), _REWRITTEN):
            these = pc.field("doc_id").isin(ids[start : start + _REWRITTEN])
            rows = documents.to_table(filter=these).to_pylist()
            changed = [self._with_values(change(row)) for row in rows]
            table = pa.Table.from_pylist(changed, documents.schema)
            documents.delete(these)
            documents = lance.write_dataset(table, documents.uri, mode="append")

    def _with_values(self, row: dict[str, Any]) -> dict[str, Any]:
        """A document's row with the columns of its bucket's fields."""
        schema = self.schema_of(row["bucket"])
        own, given, extracted = metadata_of(row)
        raw = merged(schema, {**own, **given}, extracted)
        values = typed(schema, raw).values if schema.fields else {}
        may_see = groups.groups_of({**own, **given})[0]
        return {**row, groups.FIELD: may_see, **{column_of(n, f.type): values.get(n) for n, f in schema.fields.items()}}

    def put(self, entries: Sequence[Entry], now: datetime | None = None) -> None:
        """Commit documents; one that is there already is replaced with all its chunks."""
        if not entries:
            return
        instant = now or datetime.now(UTC)
        rows = _chunk_rows(entries, self.state.next_id, instant)
        same = pc.field("doc_id").isin([e.doc_id for e in entries])
        chunks, documents = self._chunks(), self._documents()
        chunks.delete(same)
        if rows:
            chunks = lance.write_dataset(_chunk_table(rows, entries, self.state.dim), chunks.uri, mode="append")
        documents.delete(same)
        described = [self._with_values(_document_row(e, instant)) for e in entries]
        table = pa.Table.from_pylist(described, documents.schema)
        documents = lance.write_dataset(table, documents.uri, mode="append")
        self._commit(chunks.latest_version, documents.latest_version, self.state.next_id + len(rows))

    def delete(self, doc_ids: Collection[str]) -> None:
        """Take documents out, with all their chunks."""
        if not doc_ids:
            return
        chunks, documents = self._chunks(), self._documents()
        for dataset in (chunks, documents):
            dataset.delete(pc.field("doc_id").isin(sorted(doc_ids)))
        self._commit(chunks.latest_version, documents.latest_version, self.state.next_id)

    def tidy(self) -> bool:
        """Merge small fragments, where there are many. Versions that an older snapshot may still read stay for an hour."""
        chunks, documents = self._chunks(), self._documents()
        if max(sum(f.count_rows() < _FRAGMENT for f in d.get_fragments()) for d in (chunks, documents)) <= _FRAGMENTS:
            return False
        for dataset in (chunks, documents):
            dataset.optimize.compact_files(target_rows_per_fragment=_FRAGMENT)
        self._commit(chunks.latest_version, documents.latest_version, self.state.next_id, same=True)
        return True

    def forget_versions(self, chunks: Collection[int], documents: Collection[int], older_than_s: float) -> None:
        """Delete old versions, and the files that only they need, but for these ones."""
        for dataset, kept in ((self._chunks(), chunks), (self._documents(), documents)):
            old = [v["version"] for v in dataset.versions() if time.time() - v["timestamp"].timestamp() > older_than_s]
            if unused := [version for version in old if version not in kept]:
                dataset.cleanup_old_versions(versions=unused)

    @reading()
    def files(self) -> dict[str, Path]:
        """The files of the newest versions: their names in the index, and where they lie."""
        names = [f"{Path(d.uri).name}/{name}" for d in (self._chunks(), self._documents()) for name in _files_of(d)]
        return {name: self._layout.root / name for name in names}

    @reading()
    def ids(self) -> NDArray[np.int64]:
        return np.asarray(self._chunks().to_table(columns=["id"])["id"].to_numpy(), dtype=np.int64)

    def rows(
        self, ids: NDArray[np.int64], columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.float16]]]:
        """Columns (``id`` among them) and vectors (as stored) of chunks, in parts, in the store's order."""
        with reading():
            # New ids are the highest: a bound and a mask, where a list of ids would be as long as the answer.
            for batch in self._chunks().to_batches(
                columns=[*columns, "vector"], filter=pc.field("id") >= int(ids.min())
            ):
                part = batch.filter(pa.array(np.isin(batch["id"].to_numpy(), ids)))
                if part.num_rows:
                    yield part.drop_columns(["vector"]), vectors_of(part["vector"], self.state.dim)

    def _chunks(self) -> Any:
        return lance.dataset(self._layout.chunks)

    def _documents(self) -> Any:
        return lance.dataset(self._layout.documents)

    def _create(self) -> None:
        if self._layout.current.exists() or any(self._layout.snapshots.glob("*.json")):
            raise IndexFault(f"the index {self._layout.root} was published, but state.json is missing; {RESTORE}")
        for uri in (self._layout.chunks, self._layout.documents):
            shutil.rmtree(uri, ignore_errors=True)  # a creation that was cut off
        chunks = lance.write_dataset(_chunks_schema(self.state.dim).empty_table(), self._layout.chunks, mode="create")
        documents = lance.write_dataset(_DOCUMENTS.empty_table(), self._layout.documents, mode="create")
        self._commit(chunks.version, documents.version, self.state.next_id)

    def _undo_leftovers(self) -> None:
        versions = []
        for uri, version in ((self._layout.chunks, self.state.chunks), (self._layout.documents, self.state.documents)):
            dataset = open_dataset(uri, version)
            if dataset.latest_version != version:
                dataset.restore()
            versions.append(lance.dataset(uri).version)
        if versions != [self.state.chunks, self.state.documents]:
            self._commit(versions[0], versions[1], self.state.next_id, same=True)

    def _add_columns(self) -> None:
        """Those that an older version did not write yet."""
        documents = self._documents()
        if new := [column for column in _DOCUMENTS if column.name not in documents.schema.names]:
            documents.add_columns(pa.schema(new))
            if groups.FIELD in [column.name for column in new] and (named := naming_groups(documents)):
                self._rewrite(pc.field("doc_id").isin(named), lambda row: row)
            self._commit(self.state.chunks, self._documents().latest_version, self.state.next_id)

    def _check_state(self) -> None:
        """What a damaged state would do most harm with: an id used twice, vectors of another length."""
        highest = int(self.ids().max(initial=0))
        dim = self._chunks().schema.field("vector").type.list_size
        if self.state.next_id <= highest or self.state.dim != dim:
            raise IndexFault(f"{self._layout.state.name} does not belong to the store beside it; {RESTORE}")

    def _commit(self, chunks: int, documents: int, next_id: int, *, same: bool = False) -> None:
        """``same``: these versions hold what those before did."""
        for uri in (self._layout.chunks, self._layout.documents):
            sync_tree(Path(uri), self._synced_s)
        self._synced_s = time.time() - 2  # clocks of file systems are coarse
        before = (*self.state.same, (self.state.chunks, self.state.documents)) if same else ()
        self.state = replace(self.state, chunks=chunks, documents=documents, next_id=next_id, same=before)
        fields = {name: getattr(self.state, name) for name in State.__slots__}
        fields["buckets"] = {
            name: schema.model_dump(by_alias=True, mode="json") for name, schema in self.state.buckets.items()
        }
        write_atomic(self._layout.state, json.dumps(fields, indent=1).encode())


def read_state(layout: Layout) -> State | None:
    """None where no index has been begun. Raises ``IndexFault`` where the file is damaged."""
    try:
        fields = json.loads(layout.state.read_bytes())
        if fields["format"] != FORMAT:
            raise IndexFault(
                f"the index {layout.root} has format {fields['format']}, this version reads {FORMAT}; "
                f"move its folder away and ingest anew"
            )
        buckets = {str(name): BucketSchema.model_validate(schema) for name, schema in fields.pop("buckets").items()}
        same = tuple((int(chunks), int(documents)) for chunks, documents in fields.pop("same", ()))
        state = State(**fields, same=same, buckets=buckets)
        plain = {name: kind for name, kind in State.__annotations__.items() if name not in ("buckets", "same")}
        wrong = [name for name, kind in plain.items() if type(getattr(state, name)) is not kind]
        if wrong:
            raise ValueError(f"{wrong[0]} is not {plain[wrong[0]].__name__}")
        return state
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as e:
        raise IndexFault(f"{layout.state} is damaged ({e}); {RESTORE}") from e


def check_embedder(held: State | Mapping[str, Any], name: str, checksum: str) -> None:
    """Raises ``IndexFault`` that names both embedders where they differ: vectors of two are never mixed."""
    other, other_checksum = (
        (held.embedder, held.checksum) if isinstance(held, State) else (held["name"], held["checksum"])
    )
    if other_checksum != checksum:
        raise IndexFault(
            f"the index was made by the embedder '{other}' ({other_checksum[:8]}), not by '{name}' ({checksum[:8]}); "
            f"use that one, or ingest into another index",
            field="index.embedder",
            allowed=(str(other),),
        )


def open_dataset(uri: str, version: int) -> Any:
    """A Lance dataset at one version. Raises ``IndexFault`` where it is not there, or damaged."""
    with reading(f"{Path(uri).name} cannot be opened at version {version}"):
        return lance.dataset(uri, version=version)


def _files_of(dataset: Any) -> list[str]:
    """What a version is read from, relative to the dataset's folder. None of it is ever written again."""
    versions, number = Path(dataset.uri) / "_versions", dataset.version
    newer = versions / f"{2**64 - 1 - number:020}.manifest"  # named so that the newest is listed first
    manifest = newer if newer.exists() else versions / f"{number}.manifest"
    names = [f"_versions/{manifest.name}"]
    for fragment in dataset.get_fragments():
        names += [f"data/{file.path}" for file in fragment.data_files()]
        names += [fragment.deletion_file()] if fragment.deletion_file() else []
    return names


def vectors_of(column: pa.Array, dim: int) -> NDArray[np.float16]:
    """A vector column, shape (rows, dim)."""
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(-1, dim)


def _chunk_rows(entries: Iterable[Entry], first: int, instant: datetime) -> list[dict[str, Any]]:
    placed = [(e, ordinal, passage) for e in entries for ordinal, passage in enumerate(e.passages)]
    return [
        {
            "id": first + i,
            "doc_id": e.doc_id,
            "bucket": e.bucket,
            "uri": e.uri,
            "title": e.title,
            "format": e.format,
            "text": e.text[p.start : p.end],
            "start": p.start,
            "end": p.end,
            "ordinal": ordinal,
            "heading": list(p.heading),
            "page": p.page,
            "hidden": p.hidden,
            "ingested_at": instant,
        }
        for i, (e, ordinal, p) in enumerate(placed)
    ]


def _chunk_table(rows: list[dict[str, Any]], entries: Sequence[Entry], dim: int) -> pa.Table:
    schema = _chunks_schema(dim)
    vectors = np.concatenate([e.vectors for e in entries]).astype(np.float16)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dim)
    table = pa.Table.from_pylist(rows, schema.remove(schema.get_field_index("vector")))
    return table.append_column(schema.field("vector"), column)


def _document_row(e: Entry, instant: datetime) -> dict[str, Any]:
    return {
        "doc_id": e.doc_id,
        "bucket": e.bucket,
        "uri": e.uri,
        "title": e.title,
        "format": e.format,
        "sha256": e.sha256,
        "text": e.text,
        "bytes": e.size,
        "chunks": len(e.passages),
        "ingested_at": instant,
        "file_metadata": json.dumps(dict(e.file_metadata)),
        "given_metadata": json.dumps(dict(e.given_metadata)),
        "extracted_metadata": dumps(e.extracted),
    }


def metadata_of(row: Mapping[str, Any]) -> tuple[dict[str, Raw], dict[str, Raw], dict[str, Extracted]]:
    """Of a document's row: what the file says, what is said from outside, and what a model has read."""
    return json.loads(row["file_metadata"]), json.loads(row["given_metadata"]), loads(row["extracted_metadata"])


def naming_groups(documents: Any) -> list[str]:
    """The documents (a Lance dataset) whose metadata says who may see them: to be looked for where no column has it."""
    rows = documents.to_table(columns=["doc_id", *_METADATA[:2]]).to_pylist()
    return [row["doc_id"] for row in rows if any(f'"{groups.FIELD}"' in row[name] for name in _METADATA[:2])]


def extracted_counts(layout: Layout, version: int, bucket: str, schema: BucketSchema) -> dict[str, int]:
    """Field -> in how many of a bucket's documents a model has read its value."""
    documents = open_dataset(layout.documents, version)
    if _METADATA[-1] not in documents.schema.names:
        return {}
    with reading():
        rows = documents.to_table(columns=list(_METADATA), filter=pc.field("bucket") == bucket).to_pylist()
    counts: Counter[str] = Counter()
    for own, given, extracted in map(metadata_of, rows):
        counts.update(merged(schema, {**own, **given}, extracted).keys() - own.keys() - given.keys())
    return dict(counts)
