"""Files to a published snapshot: read, compare by hash, parse, chunk, embed, store batch by batch, then publish once.

What a batch has stored stays stored, whatever happens afterwards: a run that was cut off goes on where it stopped.
"""

import hashlib
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from assay.config import Legs
from assay.documents.names import doc_id_of
from assay.errors import ParseFault, SetupError
from assay.groups import Groups, groups_of, may_see
from assay.index.buckets import BUCKET, BucketSchema, FieldSchema, typed
from assay.index.chunk import CHUNKER, Passage, chunk, passage_text
from assay.index.embed import Encoder
from assay.index.extract import Document, Extracted, Extraction, lacking, merged
from assay.index.files import Layout, interrupt_after
from assay.index.metadata import Given
from assay.index.mirror import publish, writing
from assay.index.parse.parsed import FORMATS, Parsed, Raw
from assay.index.parse.parser import Parser
from assay.index.snapshot import REBUILD_ROWS
from assay.index.store import Entry, Held, Store

Outcome = Literal["ingested", "replaced", "described", "unchanged", "skipped", "failed"]

_STEP = 64
_ASKED = 16  # documents that are read before a model is asked about them
_BATCH_CHUNKS = 256  # what is embedded and committed at a time: about 20 s of work on two cores
_SKIPPED = frozenset(["unsupported", "empty", "sidecar"])  # nothing is lost without them, so they are no failure


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one file; "described": it is as it was, and something else is said about it. ``reason`` is one of
    ``assay.errors.Reason``, or "partial" for one of whose content some was left out; it and ``message`` are empty where there
    is nothing to tell."""

    uri: str
    outcome: Outcome
    chunks: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: files with an outcome, bytes worked through (of files in hand, in part), chunks embedded."""

    files: int
    total_files: int
    bytes: int
    total_bytes: int
    chunks: int


@dataclass(slots=True)
class Report:
    bucket: str
    rows: list[Row] = field(default_factory=list)
    index_version: str = ""
    bytes: int = 0
    """Of the files that were ingested or replaced."""
    seconds: float = 0.0
    undeclared: dict[str, int] = field(default_factory=dict)
    """Metadata that the bucket's schema does not name: in how many files."""
    unused_rows: list[str] = field(default_factory=list)
    """Rows of the metadata table that are of no file."""
    not_asked: list[str] = field(default_factory=list)
    """Fields that a model should have read out of documents, where the run had none."""

    def count(self, outcome: Outcome) -> int:
        return sum(row.outcome == outcome for row in self.rows)

    def summary(self) -> dict[str, Any]:
        """As JSON: what came of the files, by outcome and by reason, how much and how fast, and then every row."""
        chunks = sum(row.chunks for row in self.rows)
        return {
            "bucket": self.bucket,
            "index_version": self.index_version,
            "files": len(self.rows),
            "outcomes": dict(Counter(row.outcome for row in self.rows)),
            "reasons": dict(Counter(row.reason for row in self.rows if row.reason)),
            "bytes": self.bytes,
            "chunks": chunks,
            "seconds": self.seconds,
            "chunks_per_s": round(chunks / self.seconds, 1) if self.seconds else None,
            "undeclared": self.undeclared,
            "unused_rows": self.unused_rows,
            "not_asked": self.not_asked,
            "rows": [asdict(row) for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Source:
    """``fault`` is what keeps it from being read, where that shows already; ``name``: the file's, if not its path's."""

    path: Path
    uri: str
    size: int = 0
    fault: ParseFault | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """A parsed document, ready for the store but for its vectors, where it does not have them yet (shape (passages, dim),
    unit). Without passages, one whose file holds no text any more."""

    source: Source
    doc_id: str
    sha256: str
    size: int
    title: str
    format: str
    text: str
    passages: Sequence[Passage]
    outcome: Outcome
    notes: Sequence[str] = ()
    file_metadata: Mapping[str, Raw] = field(default_factory=dict)
    given: Mapping[str, Raw] = field(default_factory=dict)
    extracted: Mapping[str, Extracted] = field(default_factory=dict)
    problems: Sequence[str] = ()
    vectors: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class _Described:
    """A document whose file is as it was, and about which something else is said."""

    source: Source
    doc_id: str
    given: Mapping[str, Raw]
    extracted: Mapping[str, Extracted]
    problems: Sequence[str]


# What all files come to, in any order, with the hashes of the documents that are known. A ``Row`` is of one with nothing
# to store.
Reads = Callable[[Sequence[Source], Mapping[str, str]], Iterator[Read | Row]]

# What a model makes of documents, each with the fields that it is to find.
Extract = Callable[[Sequence[tuple[Document, Mapping[str, FieldSchema]]]], Sequence[Extraction]]


def find_sources(paths: Sequence[Path], base: Path | None = None) -> list[Source]:
    """The files under the paths, each once, in order. Hidden ones, and links that lead out of a path, are left out.

    ``uri`` is the path from ``base`` where the file lies under it, and otherwise a ``file://`` URI. Without a base it
    begins with the given path's own name, wherever the command runs. What cannot be read, be it a folder, has a
    ``fault``. Raises ``SetupError``: a path that does not exist, two files of one name.
    """
    found: dict[Path, Source] = {}
    named: dict[str, Path] = {}
    for path in paths:
        if not os.path.exists(path):
            raise SetupError(f"'{path}' does not exist")
        root = Path(os.path.realpath(path))
        for file, fault in _walk(root) if root.is_dir() else [(root, None)]:
            if file in found:
                continue
            source = found[file] = _source(file, base or root.parent, fault)
            if (other := named.setdefault(source.uri, file)) != file:
                raise SetupError(f"'{other}' and '{file}' would both be named '{source.uri}'; give a base above both")
    return list(found.values())


def _source(file: Path, base: Path, fault: OSError | None) -> Source:
    name = file.relative_to(base).as_posix() if file.is_relative_to(base) else file.as_uri()
    uri = os.fsencode(name).decode(errors="backslashreplace")
    if fault is not None:
        return Source(file, uri, fault=ParseFault(f"the folder cannot be read ({fault.strerror})", "unreadable"))
    if uri != name:
        return Source(file, uri, fault=ParseFault("the file's name is not UTF-8; rename it", "unreadable"))
    try:
        status = file.stat()
    except OSError as e:
        return Source(file, uri, fault=ParseFault(f"the file cannot be read ({e.strerror})", "unreadable"))
    if not stat.S_ISREG(status.st_mode):
        return Source(file, uri, fault=ParseFault("it is no regular file", "unsupported"))
    return Source(file, uri, status.st_size)


class Ingestion:
    """One run over one bucket. ``report`` can be read at any time, also after an interrupt: what it shows as ingested or
    replaced is stored.

    ``embed`` is the encoder's blocking form: texts to unit vectors of shape (n, dim). ``reads`` is what reads the files, by
    default ``read``, one after the other; a bulk run reads them on many machines. Everything else is the same.
    """

    def __init__(
        self,
        layout: Layout,
        bucket: str,
        sources: Sequence[Source],
        encoder: Encoder,
        embed: Callable[[Sequence[str]], NDArray[np.float32]],
        parser: Parser,
        progress: Callable[[Progress], None] = lambda _: None,
        reads: Reads | None = None,
        schema: BucketSchema | None = None,
        given: Given | None = None,
        extract: Extract | None = None,
        groups: Groups = None,
        writer: str = "",
    ) -> None:
        """``schema``: None for the one that the bucket has; ``given``: what is said of the files from outside of them;
        ``extract``: who finds the fields whose schema says so; without it they stay as they are, which the report says.
        ``groups``: those that the ``writer`` holds; where a document has a file's name and they do not see it, the file is
        another document."""
        if not BUCKET.fullmatch(bucket):
            raise SetupError(f"a bucket's name has letters, digits and . _ - only; '{bucket[:80]}' does not", "bucket")
        self.report = Report(bucket)
        self._layout, self._sources, self._encoder, self._embed = layout, sources, encoder, embed
        self._parser, self._progress, self._reads = parser, progress, reads or self._one_by_one
        self._source_of = {source.uri: source for source in sources}
        self._begun = time.monotonic()
        self._wanted, self._schema = schema, schema or BucketSchema()
        self._given = given or Given([source.path for source in sources])
        self._extract = extract
        self._groups, self._writer = groups, writer
        self._hidden: set[str] = set()
        self._undeclared: Counter[str] = Counter()
        self._total_bytes = sum(source.size for source in sources)
        self._bytes = self._chunks = 0

    def run(self, legs: Legs | None = None, *, rebuild: bool = False, rebuild_rows: int = REBUILD_ROWS) -> Report:
        """Bring the bucket up to date with the sources, and publish. Documents that are not among the sources stay.

        ``rebuild``: build the legs anew from the store even where they seem whole; ``legs`` and ``rebuild_rows`` as of
        ``publish``. Raises ``IndexFault``: another writer, another embedder, a damaged store.
        """
        with writing(self._layout):
            store = Store(self._layout, self._encoder.name, self._encoder.checksum, self._encoder.dim)
            self._fill(store)
            done = publish(self._layout, store, legs, rebuild=rebuild, rebuild_rows=rebuild_rows)
            self.report.index_version = done.id
        self.report.seconds = round(time.monotonic() - self._begun, 3)
        return self.report

    def _fill(self, store: Store) -> None:
        if self._wanted is not None:
            store.declare(self.report.bucket, self._wanted)
        self._schema = store.schema_of(self.report.bucket)
        held = store.documents(self.report.bucket)
        batch: list[Read] = []
        described: list[_Described] = []
        if self._groups is not None:
            self._hidden = {doc_id for doc_id, document in held.items() if not may_see(self._groups, document.said)}
        known = {doc_id: document.sha256 for doc_id, document in held.items()}
        for read, extraction in self._extracted(self._reads(self._documents(), known), store, held):
            done = self._with_metadata(read, held, extraction)
            if isinstance(done, Row):
                self._tell(self._source_of[done.uri], done)
            elif isinstance(done, _Described):
                described.append(done)
            else:
                batch.append(done)
            if sum(len(r.passages) for r in batch) + len(described) >= _BATCH_CHUNKS:
                self._store(store, batch, described)
                batch, described = [], []
        self._store(store, batch, described)
        self._account(held)

    def _documents(self) -> list[Source]:
        """The sources less those that are other files' metadata."""
        for source in self._sources:
            if owner := self._given.sidecars.get(source.path):
                said = f"it is the metadata of {owner.name}"
                self._tell(source, Row(source.uri, "skipped", reason="sidecar", message=said))
        return [source for source in self._sources if source.path not in self._given.sidecars]

    def _extracted(
        self, reads: Iterator[Read | Row], store: Store, held: Mapping[str, Held]
    ) -> Iterator[tuple[Read | Row, Extraction]]:
        """Each with what a model finds in it, for the fields that nothing else gives; a few documents at a time."""
        if not (wanted := [name for name, f in self._schema.fields.items() if f.extract]) or self._extract is None:
            self.report.not_asked = wanted
            yield from ((read, Extraction()) for read in reads)
            return
        while group := list(islice(reads, _ASKED)):
            lacks = [self._lacks(read, held) for read in group]
            stored = [doc_id for doc_id, fields in lacks if fields and doc_id in held]
            outlines = store.outlines(stored) if stored else {}
            asked = [
                (_outline(read) if isinstance(read, Read) else outlines[doc_id], fields)
                for read, (doc_id, fields) in zip(group, lacks, strict=True)
                if fields
            ]
            found = iter(self._extract(asked) if asked else ())
            for read, (_, fields) in zip(group, lacks, strict=True):
                yield read, next(found) if fields else Extraction()

    def _lacks(self, read: Read | Row, held: Mapping[str, Held]) -> tuple[str, Mapping[str, FieldSchema]]:
        """A document, and the fields that a model is to be asked for."""
        if (isinstance(read, Row) and read.outcome != "unchanged") or (isinstance(read, Read) and not read.passages):
            return "", {}
        source = self._source_of[read.uri] if isinstance(read, Row) else read.source
        doc_id = self.id_of(source.uri)
        own = read.file_metadata if isinstance(read, Read) else held[doc_id].file_metadata
        try:
            said = {**own, **self._given.of(source.uri, source.path)}
        except ParseFault:  # which ``_with_metadata`` tells
            return doc_id, {}
        return doc_id, lacking(self._schema, said, {} if isinstance(read, Read) else held[doc_id].extracted)

    def _with_metadata(
        self, read: Read | Row, held: Mapping[str, Held], extraction: Extraction
    ) -> Read | Row | _Described:
        """What is said of a file, with it; a ``Row`` where its metadata fails it, or where nothing is new."""
        if isinstance(read, Row) and read.outcome != "unchanged":
            return read
        source, lost = self._source_of[read.uri] if isinstance(read, Row) else read.source, extraction.problems
        try:
            given = self._given.of(source.uri, source.path)
            if isinstance(read, Read):
                extracted = extraction.fields
                problems = self._check({**read.file_metadata, **given}, extracted, lost) if read.passages else ()
                return replace(read, given=given, extracted=extracted, problems=problems)
            document = held[self.id_of(source.uri)]
            extracted = {**document.extracted, **extraction.fields}
            problems = self._check({**document.file_metadata, **given}, extracted, lost)
        except ParseFault as e:
            return Row(source.uri, "failed", reason=e.reason, message=e.message)
        if given != document.given_metadata or extraction.fields:
            return _Described(source, self.id_of(source.uri), given, extracted, problems)
        return Row(source.uri, "unchanged", 0, *_said(problems))

    def _check(
        self, said: Mapping[str, Raw], extracted: Mapping[str, Extracted], lost: Sequence[str]
    ) -> tuple[str, ...]:
        """What of a file's metadata cannot be used, with what was ``lost`` before. Raises ``ParseFault`` where a required field
        is missing."""
        found = typed(self._schema, merged(self._schema, said, extracted))
        found = found._replace(problems=(*found.problems, *groups_of(said)[1], *lost))
        if found.missing:
            why = "".join(f"; {problem}" for problem in found.problems)
            raise ParseFault(f"required, and not there: {', '.join(found.missing)}{why}", "metadata")
        self._undeclared.update(found.undeclared)
        return found.problems

    def _account(self, held: Mapping[str, Held]) -> None:
        """What else is to be said of the metadata: that documents of earlier runs lack what is required now, too."""
        self.report.undeclared = dict(self._undeclared.most_common()) if self._schema.fields else {}
        self.report.unused_rows = list(self._given.unused_rows)
        told = {self.id_of(uri) for uri in self._source_of}
        for doc_id, document in held.items():
            if doc_id not in told and (missing := typed(self._schema, document.metadata(self._schema)).missing):
                message = f"required, and not there: {', '.join(missing)}"
                self.report.rows.append(Row(document.uri, "unchanged", reason="metadata", message=message))

    def id_of(self, uri: str) -> str:
        """Of the document that a file of this run is, or becomes; known for sure once the run has begun."""
        doc_id = doc_id_of(self.report.bucket, uri)
        return doc_id if doc_id not in self._hidden else doc_id_of(self.report.bucket, f"{uri}\0{self._writer}")

    def _one_by_one(self, sources: Sequence[Source], known: Mapping[str, str]) -> Iterator[Read | Row]:
        return (self.read(source, known) for source in sources)

    def read(self, source: Source, known: Mapping[str, str]) -> Read | Row:
        """Without touching the index. A ``Row`` where there is nothing to store: unchanged, skipped or failed."""
        doc_id = self.id_of(source.uri)
        outcome: Outcome = "replaced" if doc_id in known else "ingested"
        data = b""
        try:
            if source.fault is not None:
                raise source.fault
            data = self._parser.read(source.path)
            digest = _hash(data)
            if known.get(doc_id) == digest:
                return Row(source.uri, "unchanged")
            parsed = self._parser.parse(data, source.name or source.path.name)
            passages = self._passages(parsed)
        except ParseFault as e:
            if e.reason == "empty" and doc_id in known:  # its old text must not be found any more
                path = Path(source.name or source.path.name)
                return Read(
                    source, doc_id, _hash(data), len(data), path.stem, FORMATS[path.suffix.lower()], "", (), outcome
                )
            outcome = "skipped" if e.reason in _SKIPPED else "failed"
            return Row(source.uri, outcome, reason=e.reason, message=e.message)
        return Read(
            source, doc_id, digest, len(data), parsed.title, parsed.format, parsed.text, passages, outcome, parsed.notes,
            parsed.metadata,
        )  # fmt: skip

    def _passages(self, parsed: Parsed) -> Sequence[Passage]:
        try:
            return chunk(parsed, self._encoder.token_starts(parsed.text))
        except Exception as e:  # whatever a text does to the tokenizer or the chunker is this file's fault
            raise ParseFault(f"the text cannot be divided into passages: {type(e).__name__}", "malformed") from e

    def embedded(self, reads: Sequence[Read]) -> list[Read]:
        """The same with their vectors; those that lack them are embedded together."""
        bare = [r for r in reads if r.vectors is None]
        texts = [passage_text(r.title, p.heading, r.text[p.start : p.end]) for r in bare for p in r.passages]
        vectors = self._embedded(texts, sum(r.source.size for r in bare))
        ends = iter(np.cumsum([len(r.passages) for r in bare]).tolist())
        return [
            r if r.vectors is not None else replace(r, vectors=vectors[(end := next(ends)) - len(r.passages) : end])
            for r in reads
        ]

    def _store(self, store: Store, batch: Sequence[Read], described: Sequence[_Described]) -> None:
        self._chunks += sum(len(r.passages) for r in batch if r.vectors is not None)
        batch = self.embedded(batch)
        with interrupt_after():  # what is stored is in the report, whenever Ctrl-C comes
            store.put([self._entry(r) for r in batch])
            for r in batch:
                why = _said(r.problems, r.notes)
                if not r.passages:
                    why = ("empty", "the file holds no text any more; its old text is out of the index")
                self._tell(r.source, Row(r.source.uri, r.outcome, len(r.passages), *why))
            store.describe({d.doc_id: (d.given, d.extracted) for d in described})
            for d in described:
                self._tell(d.source, Row(d.source.uri, "described", 0, *_said(d.problems)))

    def _entry(self, r: Read) -> Entry:
        assert r.vectors is not None
        return Entry(
            doc_id=r.doc_id,
            bucket=self.report.bucket,
            uri=r.source.uri,
            title=r.title,
            format=r.format,
            sha256=r.sha256,
            size=r.size,
            text=r.text,
            passages=r.passages,
            vectors=r.vectors,
            file_metadata=r.file_metadata,
            given_metadata=r.given,
            extracted=r.extracted,
        )

    def _embedded(self, texts: Sequence[str], batch_bytes: int) -> NDArray[np.float32]:
        """In small steps, so that progress moves and an interrupt is heard."""
        parts = [np.zeros((0, self._encoder.dim), np.float32)]
        for start in range(0, len(texts), _STEP):
            parts.append(self._embed(texts[start : start + _STEP]))
            self._chunks += len(parts[-1])
            self._show(batch_bytes * min(len(texts), start + _STEP) // len(texts))
        return np.concatenate(parts)

    def _tell(self, source: Source, row: Row) -> None:
        self.report.rows.append(row)
        self._bytes += source.size
        self.report.bytes += source.size if row.outcome in ("ingested", "replaced") else 0
        self.report.seconds = round(time.monotonic() - self._begun, 3)
        self._show(0)

    def _show(self, in_hand: int) -> None:
        done = self._bytes + in_hand
        self._progress(Progress(len(self.report.rows), len(self._sources), done, self._total_bytes, self._chunks))


def _said(problems: Sequence[str], notes: Sequence[str] = ()) -> tuple[str, ...]:
    """Reason and message of a row, where there is something to say."""
    if not problems and not notes:
        return ()
    return "partial" if notes else "metadata", "; ".join([*notes, *problems])


def _outline(read: Read) -> Document:
    return Document.of(read.title, [(p.heading, read.text[p.start : p.end], p.hidden) for p in read.passages])


def _hash(data: bytes) -> str:
    """Of the content, and of how it is read: a better chunker reaches files that have not changed."""
    digest = hashlib.sha256(b"chunker %d\0" % CHUNKER)
    digest.update(data)
    return digest.hexdigest()


def _walk(root: Path) -> Iterator[tuple[Path, OSError | None]]:
    """Files, and with the error the folders that cannot be read."""
    faults: list[OSError] = []
    for folder, folders, files in os.walk(root, onerror=faults.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(folder) / name
            if not name.startswith(".") and Path(os.path.realpath(path)).is_relative_to(root):
                yield path, None
    for fault in faults:
        yield Path(fault.filename), fault
