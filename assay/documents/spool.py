"""Jobs as folders: an upload's files, what was asked, and a log of what became of it. Everything that is known of a job is
on disk, so that any replica can tell it, and whoever works on it may die.

::

    incoming/ID/            an upload that is arriving; gone, or renamed, when the request ends
    jobs/ID/request.json    who asked for what; written once
    jobs/ID/log.jsonl       one record a line: the job's events, appended by whoever works on it
    jobs/ID/files/          the files, until the job has ended
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from ulid import ULID

from assay.documents.shapes import (
    Job,
    JobCompletedEvent,
    JobEvent,
    JobFile,
    JobFileEvent,
    JobProgress,
    JobProgressEvent,
    JobStatus,
    JobStatusEvent,
)
from assay.errors import NotFound, Overloaded
from assay.events import ErrorEvent
from assay.groups import Groups
from assay.schemas import ErrorBody, Shape

LEASE_S = 30.0  # a job whose log nobody has touched for so long is not being worked on
_UPLOAD_GRACE_S = 86_400.0  # an upload that is still arriving by then is a leftover
_ID = re.compile(r"job_[0-9A-Z]{26}")


class Stored(Shape):
    """A file of a job, and what it is called in the job's folder: nothing of a name that was sent."""

    name: str
    bytes: int
    doc_id: str
    stored: str


class Asked(Shape):
    """What a job is to do, for whom, with the groups that they hold. ``metadata``: by file name."""

    id: str
    owner: str
    groups: tuple[str, ...] | None
    bucket: str
    created_at: float
    files: list[Stored]
    metadata: dict[str, dict[str, Any]] = {}


class Ended(Shape):
    """``error``: why not all of it could be done."""

    type: Literal["ended"] = "ended"
    index_version: str | None = None
    searchable: bool | None = None
    undeclared: dict[str, int] = {}
    not_asked: list[str] = []
    unused: list[str] = []
    error: ErrorBody | None = None


Said = JobStatusEvent | JobProgressEvent | JobFileEvent | Ended


class Record(Shape):
    at: float
    event: Annotated[Said, Field(discriminator="type")]


class Spool:
    """``clock``: seconds since the epoch. All of it blocks: call it in a thread."""

    def __init__(self, root: Path, max_waiting: int = 100, clock: Callable[[], float] = time.time) -> None:
        self._root, self._max_waiting, self._clock = root.expanduser(), max_waiting, clock
        self._jobs, self._incoming = self._root / "jobs", self._root / "incoming"
        self._ended: set[str] = set()

    def begin(self) -> Path:
        """A folder for an upload, whose ``files`` it takes. Raises ``Overloaded``."""
        if len(self.waiting()) >= self._max_waiting:
            raise Overloaded(f"{self._max_waiting} uploads wait to be read already; try again later.")
        folder = self._incoming / str(ULID())
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "files").mkdir(parents=True)
        return folder

    def drop(self, folder: Path) -> None:
        """What was not accepted."""
        shutil.rmtree(folder, ignore_errors=True)

    def accept(
        self,
        folder: Path,
        owner: str,
        groups: Groups,
        bucket: str,
        files: Sequence[Stored],
        metadata: dict[str, dict[str, Any]],
    ) -> Job:
        """From here on it is a job, which outlives this process and a power failure."""
        asked = Asked(
            id=f"job_{ULID()}",
            owner=owner,
            groups=groups,
            bucket=bucket,
            created_at=self._clock(),
            files=list(files),
            metadata=metadata,
        )
        (folder / "request.json").write_text(asked.model_dump_json())
        (folder / "log.jsonl").write_bytes(self._line(JobStatusEvent(state="queued")))
        for path in (folder / "request.json", folder / "log.jsonl", *(folder / "files").iterdir()):
            _sync(path)
        for path in (folder / "files", folder):
            _sync(path)
        self._jobs.mkdir(parents=True, exist_ok=True)
        folder.rename(self._jobs / asked.id)
        _sync(self._jobs)
        return self.read(asked.id, owner)

    def read(self, id_: str, owner: str) -> Job:
        """Raises ``NotFound``: there is no such job, or it is another's."""
        asked, records = self._owned(id_, owner), self.log(id_)
        alive = self._clock() - self._log(id_).stat().st_mtime < LEASE_S
        return _folded(asked, records, alive)

    def events(self, id_: str, owner: str, after: int) -> list[tuple[int, JobEvent]]:
        """Those after so many, with their numbers from 1; of a job that has ended at least the last. Raises ``NotFound``."""
        asked, records = self._owned(id_, owner), self.log(id_)
        if isinstance(records[-1].event, Ended):
            after = min(after, len(records) - 1)
        told: list[JobEvent] = []
        for record in records[after:]:
            event = record.event
            if not isinstance(event, Ended):
                told.append(event)
            elif event.error is not None:
                told.append(ErrorEvent(error=event.error))
            else:
                told.append(JobCompletedEvent(job=_folded(asked, records, True)))
        return list(enumerate(told, start=after + 1))

    def size(self, id_: str) -> int:
        """Of the log, which grows with each record: cheap to poll. Raises ``NotFound``."""
        try:
            return self._log(id_).stat().st_size
        except FileNotFoundError:
            raise _none() from None

    # ---- for the one who works on the jobs ----------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """Jobs that have not ended, the oldest first."""
        try:
            ids = {entry.name for entry in os.scandir(self._jobs)}
        except FileNotFoundError:
            return []
        self._ended &= ids
        for id_ in ids - self._ended:
            if not (self._jobs / id_ / "files").is_dir():
                self._ended.add(id_)
        return sorted(ids - self._ended)

    def asked(self, id_: str) -> Asked:
        return Asked.model_validate_json((self._jobs / id_ / "request.json").read_bytes())

    def file(self, id_: str, stored: str) -> Path:
        return self._jobs / id_ / "files" / stored

    def log(self, id_: str) -> list[Record]:
        """Without a last line that is not whole, which its writer did not live to write."""
        lines = self._log(id_).read_bytes().split(b"\n")[:-1]
        return [Record.model_validate_json(line) for line in lines]

    def mend(self, id_: str) -> None:
        """Cut a last line off that is not whole, so that the next one can be appended."""
        data = self._log(id_).read_bytes()
        if whole := len(data) - len(data.rpartition(b"\n")[2]) if not data.endswith(b"\n") else 0:
            os.truncate(self._log(id_), whole)

    def say(self, id_: str, events: Iterable[Said]) -> None:
        """All of it or, where the disk does not take it, nothing: half a line would make the next one unreadable."""
        with self._log(id_).open("ab", buffering=0) as file:
            whole, lines = file.tell(), memoryview(b"".join(map(self._line, events)))
            try:
                while lines:
                    lines = lines[file.write(lines) :]
            except OSError:
                file.truncate(whole)
                raise

    def touch(self, id_: str) -> None:
        """Say that the job is being worked on."""
        os.utime(self._log(id_))

    def end(self, id_: str, how: Ended) -> None:
        """The last record, and then the files go."""
        self.say(id_, [how])
        _sync(self._log(id_))
        self.discard(id_)

    def discard(self, id_: str) -> None:
        shutil.rmtree(self._jobs / id_ / "files")

    def sweep(self, keep_s: float) -> None:
        """Forget jobs that ended so long ago, and uploads that were cut off with their process."""
        now = self._clock()
        waiting = set(self.waiting())
        for folder, age in ((self._jobs, keep_s), (self._incoming, _UPLOAD_GRACE_S)):
            for entry in os.scandir(folder) if folder.is_dir() else ():
                if entry.name not in waiting and now - entry.stat().st_mtime > age:
                    shutil.rmtree(entry.path, ignore_errors=True)

    def _owned(self, id_: str, owner: str) -> Asked:
        if not _ID.fullmatch(id_):
            raise _none()
        try:
            asked = self.asked(id_)
        except FileNotFoundError:
            raise _none() from None
        if asked.owner != owner:
            raise _none()
        return asked

    def _log(self, id_: str) -> Path:
        return self._jobs / id_ / "log.jsonl"

    def _line(self, event: Said) -> bytes:
        return Record(at=self._clock(), event=event).model_dump_json().encode() + b"\n"


def _none() -> NotFound:
    return NotFound("There is no such job, or no more.", "id")


def _folded(asked: Asked, records: Sequence[Record], alive: bool) -> Job:
    files = {f.name: JobFile(name=f.name, bytes=f.bytes, doc_id=f.doc_id) for f in asked.files}
    total = sum(f.bytes for f in asked.files)
    progress = JobProgress(files=0, total_files=len(files), bytes=0, total_bytes=total, chunks=0)
    status: JobStatus = "queued"
    started: float | None = None
    ended: tuple[float, Ended] | None = None
    for record in records:
        match record.event:
            case JobStatusEvent(state=state):
                status = state
                started = started or (record.at if state == "running" else None)
            case JobProgressEvent(progress=now):
                progress = now
            case JobFileEvent(file=file):
                files[file.name] = file
            case Ended() as how:
                ended = record.at, how
    if ended is not None:
        status = "completed" if ended[1].error is None else "failed"
    elif status == "running" and not alive:
        status = "interrupted"
    how = ended[1] if ended else Ended()
    return Job(
        id=asked.id,
        bucket=asked.bucket,
        status=status,
        created_at=_time(asked.created_at),
        started_at=_time(started),
        ended_at=_time(ended[0] if ended else None),
        files=list(files.values()),
        progress=progress,
        index_version=how.index_version,
        searchable=how.searchable,
        undeclared=how.undeclared,
        not_asked=how.not_asked,
        unused=how.unused,
        error=how.error,
    )


def _time(at: float | None) -> Any:
    """ISO 8601, UTC."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
