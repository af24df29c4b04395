"""The shapes of ``/v1/documents`` and ``/v1/buckets``, and the events of a job."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from assay.events import ErrorEvent
from assay.schemas import ErrorBody, Facet, FieldType, Shape

Outcome = Literal["ingested", "replaced", "described", "unchanged", "skipped", "failed"]
JobStatus = Literal["queued", "running", "interrupted", "completed", "failed"]
BucketName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


# ---- jobs -----------------------------------------------------------------------------------------------------------


class JobFile(Shape):
    """One file of an upload; ``outcome``: what became of it, null until that is known. What is ingested or replaced is stored.

    ``reason`` and ``message`` as in the report of ``assay ingest``: why it failed or was skipped, or what was left out."""

    name: str
    bytes: int
    doc_id: str
    outcome: Outcome | None = None
    chunks: int = 0
    reason: str = ""
    message: str = ""


class JobProgress(Shape):
    """Files with an outcome, bytes worked through (of files in hand, in part), passages embedded."""

    files: int
    total_files: int
    bytes: int
    total_bytes: int
    chunks: int


class Job(Shape):
    """``interrupted``: whoever worked on it is gone; it goes on when the ingester is back. ``completed``: every file has an
    outcome, and ``searchable`` says whether all searches use ``index_version``. ``failed``: ``error`` says why; what has an
    outcome by then stays."""

    id: str
    bucket: str
    status: JobStatus
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    files: list[JobFile]
    progress: JobProgress
    index_version: str | None = None
    searchable: bool | None = Field(
        None,
        description="Of a job that has an `index_version`: whether every replica searches it. false: not within ten seconds; "
        "each takes it up as soon as it can.",
    )
    undeclared: dict[str, int] = Field(
        {}, description="Metadata that the bucket's schema does not name: in how many files."
    )
    not_asked: list[str] = Field(
        [], description="Fields that a model should have read out of documents; none is configured."
    )
    unused: list[str] = Field([], description="Names in `metadata` that no file of the upload has.")
    error: ErrorBody | None = None


class _JobEvent(Shape):
    request_id: str = ""


class JobStatusEvent(_JobEvent):
    type: Literal["status"] = "status"
    state: Literal["queued", "running"]


class JobProgressEvent(_JobEvent):
    type: Literal["progress"] = "progress"
    progress: JobProgress


class JobFileEvent(_JobEvent):
    """A file has its outcome."""

    type: Literal["file"] = "file"
    file: JobFile


class JobCompletedEvent(_JobEvent):
    """Always last where the job could be run; ``job`` is what ``GET`` says of it."""

    type: Literal["completed"] = "completed"
    job: Job


JobEvent = Annotated[
    JobStatusEvent | JobProgressEvent | JobFileEvent | JobCompletedEvent | ErrorEvent, Field(discriminator="type")
]

parse_job_event = TypeAdapter[JobEvent](JobEvent).validate_json


# ---- documents ------------------------------------------------------------------------------------------------------


class DocumentRow(Shape):
    """A document without its text. ``metadata``: by the fields of its bucket; dates as UTC instants in ISO 8601."""

    doc_id: str
    bucket: str
    title: str
    uri: str
    format: str
    bytes: int
    chunks: int
    ingested_at: str
    metadata: dict[str, str | bool | float | list[str]] = {}


class DocumentList(Shape):
    """``total``: of all pages. ``next``: what ``after`` must be for the next page; null on the last one."""

    documents: list[DocumentRow]
    total: int
    next: str | None = None
    index_version: str | None = None


class DocumentPart(Shape):
    """The characters of ``span``. ``page`` (from 1) and ``heading`` are where they stand; ``chunk_id`` is the passage they are
    of; ``hidden``: no reader of the file sees them; ``marked``: they are of the highlight."""

    text: str
    span: tuple[int, int]
    chunk_id: int
    page: int | None = None
    heading: list[str] = []
    hidden: bool = False
    marked: bool = False


class Highlight(Shape):
    """``hidden``: no reader of the file sees some of its text."""

    span: tuple[int, int]
    page: int | None = None
    heading: list[str] = []
    text: str
    hidden: bool = False


class DocumentView(Shape):
    """A document's text from ``span[0]`` to ``span[1]``, of ``chars`` in all (characters are code points).

    ``parts`` are in order; put together they are the text, but for what may not be seen. A part is cut where the highlight
    begins and ends. ``before`` and ``after``: the ``start`` of the pages around this one; null where there is none."""

    document: DocumentRow
    parts: list[DocumentPart]
    span: tuple[int, int]
    chars: int
    before: int | None = None
    after: int | None = None
    highlight: Highlight | None = None
    index_version: str


class FieldRow(Shape):
    """A field of a bucket's schema. ``documents``: how many have it. ``values``: all that it may be, where that is said."""

    name: str
    type: FieldType
    required: bool = False
    description: str = ""
    documents: int = 0
    values: list[str] = []


class BucketRow(Shape):
    """``facets``: how many documents have which value, by field; of all formats too."""

    name: str
    description: str = ""
    documents: int
    chunks: int
    fields: list[FieldRow] = []
    facets: dict[str, Facet] = {}


class BucketList(Shape):
    """``index_version``: null where nothing was ever published."""

    buckets: list[BucketRow]
    index_version: str | None = None
