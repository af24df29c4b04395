"""The audit log: who asked what, which documents were read for it, which were cited. One JSON line each, in files that rotate.

A line waits in memory until its own thread has written it, so that no request waits for a disk. While the disk does not take
them, lines go on waiting and ``fault`` says so; when too many do, ``check`` refuses what comes next: nothing is served
that could not be told. Each process writes files of its own, found by a lock: lines of two never interleave.
"""

import json
import logging
import os
import socket
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal, Self

from filelock import FileLock, Timeout

from assay.config import AuditConfig
from assay.errors import AssayError, SetupError
from assay.events import CompletedEvent, ErrorEvent, Event, EvidenceEvent, of_documents
from assay.schemas import AskResponse

log = logging.getLogger("assay.audit")

# Refusals have files of their own: a flood of them must not push out what was served.
Kind = Literal["audit", "refused"]
KINDS: tuple[Kind, ...] = ("audit", "refused")
_PROCESSES = 1_000  # that may write into one folder from one machine
_MOST = 1_000  # documents in one line


class AuditUnavailable(AssayError):
    code = "audit_unavailable"
    status = 503
    retryable = True


class Audit:
    """``config.folder`` None: nothing is written."""

    def __init__(self, config: AuditConfig) -> None:
        """Raises ``SetupError``: it cannot be written."""
        self.texts, self._most = config.texts, config.waiting
        self.fault: str | None = None
        self._waiting: deque[tuple[Kind, logging.LogRecord]] = deque()
        self._thread = ThreadPoolExecutor(1, "audit")
        self._files: dict[Kind, _File] = {}
        self._closed = False
        if config.folder is None:
            return
        folder = Path(config.folder).expanduser()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock, name = _own(folder)
            self._files = {kind: _File(folder / f"{kind}-{name}.jsonl", config) for kind in KINDS}
        except OSError as fault:
            why = fault.strerror or type(fault).__name__
            raise SetupError(f"the audit log cannot be written to '{folder}' (ingress.audit.folder): {why}") from fault

    def check(self) -> None:
        """Raises ``AuditUnavailable`` where too much waits to be written."""
        if len(self._waiting) >= self._most:
            self.retry()
            raise AuditUnavailable("Requests cannot be told in the audit log at present; try again in a moment.")

    def write(self, kind: Kind, line: dict[str, Any]) -> None:
        if not self._files:
            return
        # ASCII: a file's size is then its length, and no line breaks where a text says so.
        text = json.dumps(line, separators=(",", ":"))
        self._waiting.append((kind, logging.makeLogRecord({"msg": text})))
        self.retry()

    def retry(self) -> None:
        """Writes what waits, in the thread."""
        if self._waiting and self._closed:  # an answer that ends later than its server: there is nobody to hold up
            self._drain()
        elif self._waiting:
            self._thread.submit(self._drain)

    def close(self) -> None:
        """Writes what waits; blocks."""
        self.retry()
        self._thread.shutdown()
        self._closed = True
        for file in self._files.values():
            file.close()
        if self._files:
            self._lock.release()

    def _drain(self) -> None:
        while self._waiting:
            kind, record = self._waiting[0]
            try:
                self._files[kind].emit(record)
            except OSError as fault:
                self._failed(kind, fault)
                return
            self._waiting.popleft()
        if self.fault is not None:
            log.warning("the audit log is written again")
            self.fault = None

    def _failed(self, kind: Kind, fault: OSError) -> None:
        why = fault.strerror or type(fault).__name__
        if self.fault is None:
            log.error("the audit log cannot be written: %s; its lines wait", why)
        self.fault = f"the audit log cannot be written: {why}"
        self._files[kind].reopen()


class _File(RotatingFileHandler):
    """``emit`` raises what goes wrong."""

    def __init__(self, path: Path, config: AuditConfig) -> None:
        super().__init__(path, maxBytes=config.max_bytes, backupCount=config.files - 1, encoding="utf-8")
        self.close()  # it could be opened; the first line does it again

    def _open(self) -> TextIOWrapper:
        """Readable by its owner only. Half a line, of a write that failed or a process that died, is ended first."""
        descriptor = os.open(self.baseFilename, os.O_APPEND | os.O_CREAT | os.O_RDWR, 0o600)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")
        return open(descriptor, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise  # it is called where the fault is handled

    def reopen(self) -> None:
        """The next line gets a new stream. What this one holds may be written as it closes: a line twice, never none."""
        with suppress(OSError):
            self.close()


class Trail:
    """What is told of one request: one line, when the last of its parts has ended. An answer that goes on after its connection
    is such a part."""

    def __init__(self, audit: Audit, request_id: str, **told: Any) -> None:
        self._audit, self._parts = audit, 0
        self._kind: Kind | None = "audit"
        self._line: dict[str, Any] = {"at": _now(), "request_id": request_id, **told}
        self._read: dict[str, None] = {}
        self._cited: dict[str, None] = {}

    def __enter__(self) -> Self:
        self._parts += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._parts -= 1
        if not self._parts and self._kind:
            documents = {"read": list(self._read)[:_MOST], "cited": list(self._cited)[:_MOST]}
            line = {**self._line, **{name: ids for name, ids in documents.items() if ids}}
            self._audit.write(self._kind, line)

    def note(self, **told: Any) -> None:
        self._line.update({name: value for name, value in told.items() if value not in (None, "", [], (), {})})

    def said(self, **texts: Any) -> None:
        """What people and documents say: only where that is switched on."""
        if self._audit.texts:
            self.note(**texts)

    def refused(self) -> None:
        self._kind = "refused"

    def drop(self) -> None:
        """What asks for no key is not told."""
        self._kind = None

    def read(self, doc_ids: Iterable[str]) -> None:
        self._read.update(dict.fromkeys(doc_ids))

    def answered(self, response: AskResponse) -> None:
        self.note(answer=response.id, ended=response.terminated_by, index_version=response.index_version)
        self.said(said=response.answer.text if response.answer else None)
        self.shown(response)

    def shown(self, response: AskResponse) -> None:
        """An answer, perhaps one of several: what it rests on."""
        self.read(evidence.doc_id for evidence in response.evidence or ())
        self._cited.update(dict.fromkeys(citation.doc_id for citation in response.citations))

    def heard(self, event: Event) -> None:
        match event:
            case EvidenceEvent():
                self.read(event.doc_ids)
            case CompletedEvent():
                self.answered(event.response)
            case ErrorEvent():
                self.note(error=event.error.code)

    def passed_on(self, frames: str) -> None:
        """Events as they were kept."""
        for event in of_documents(frames):
            self.heard(event)


def _own(folder: Path) -> tuple[FileLock, str]:
    """A name that no other living process writes under: of this machine, and the first number that is free."""
    host = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())[:60]
    for number in range(_PROCESSES):
        lock = FileLock(folder / f".{host}-{number}.lock", timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            continue
        return lock, f"{host}-{number}"
    raise OSError(f"{_PROCESSES} processes write there already")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def key_changed(audit: Audit, what: str, by: str, key: dict[str, Any]) -> None:
    """``by``: the account on this machine; no key changes keys."""
    audit.write("audit", {"at": _now(), "change": what, "by": by, **key})
