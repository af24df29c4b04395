"""Who works on uploaded files: one job after the other, through the same ingestion as the command's."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from assay.config import DocumentsConfig, IndexConfig, Legs
from assay.documents.shapes import JobFile, JobFileEvent, JobProgress, JobProgressEvent, JobStatusEvent
from assay.documents.spool import Asked, Ended, Record, Said, Spool
from assay.errors import AssayError, IndexBusy, StageTimeout
from assay.index.buckets import FieldSchema
from assay.index.embed import Encoder
from assay.index.extract import Document, Extraction
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Progress, Row, Source
from assay.index.metadata import Given, MetadataRows
from assay.index.mirror import compact
from assay.index.parse.parser import Limits, Parser
from assay.index.remove import remove
from assay.index.replicas import number_of
from assay.schemas import ErrorBody

T = TypeVar("T")
log = logging.getLogger("ray.serve")

POLL_S = 0.25
BUSY_S = 2.0  # between two looks whether another process still writes to the index
SERVED_S = 10.0  # searches that take longer to take up a snapshot are not waited for
DELETE_S = 10.0  # how long a deletion waits for a job that is writing
QUIET_S = 30.0  # after the last deletion, before what they left is merged: that checks every byte of the index
_DELETIONS = 16  # at once; the ingester must still hear of the replicas that they wait for
_SAY_S = 0.5
_ALIVE_S = 5.0
_SWEEP_S = 3600.0
_DEATHS = 3  # of the process, without another file's outcome in between

# As ``assay.index.ingest.Extract``, for the loop that an engine's handle belongs to.
Extracts = Callable[[Sequence[tuple[Document, Mapping[str, FieldSchema]]]], Awaitable[Sequence[Extraction]]]


class BulkEncoder(Encoder, Protocol):
    def embed_now(self, texts: Sequence[str]) -> NDArray[np.float32]: ...


class Interrupted(AssayError):
    """The work on a job ended the process that did it, again and again."""

    code = "ingestion_interrupted"


class _Stopped(Exception):
    """The process is to end; the job goes on in the next one."""


class Uploads:
    """Jobs of a spool into an index, in the order in which they came; a deletion takes its turn between two of them, and what
    deletions left is merged when nothing else is to be done.

    ``encoder`` is made with the first job. ``served``: the oldest version of the index that a search may use now, None
    where one may have none.
    ``extract``: who reads fields out of a job's documents.
    """

    def __init__(
        self,
        config: DocumentsConfig,
        index: IndexConfig,
        encoder: Callable[[], BulkEncoder],
        served: Callable[[], Awaitable[str | None]],
        parser: Callable[[Limits], Parser] = Parser,
        extract: Callable[[], Extracts] | None = None,
    ) -> None:
        self._config, self._legs, self._layout = config, index.legs, Layout(index.uri)
        self._spool = Spool(Path(config.path), config.max_waiting)
        self._make, self._served, self._parser, self._extract = encoder, served, parser, extract
        self._encoder: BulkEncoder | None = None
        self._turn = asyncio.Lock()
        self._stop = threading.Event()
        self._deletions: set[asyncio.Task[None]] = set()
        self._deleted: float | None = None  # when the last deletion left tombstones that nothing has merged since

    async def run(self) -> None:
        """Until it is cancelled."""
        swept = -_SWEEP_S
        while True:
            if time.monotonic() - swept > _SWEEP_S:
                swept = time.monotonic()
                await asyncio.to_thread(self._spool.sweep, 86_400 * self._config.keep_days)
            waiting = await asyncio.to_thread(self._spool.waiting)
            if waiting:
                async with self._turn:
                    await self._work(waiting[0])
            elif self._deleted is not None and not self._deletions and time.monotonic() >= self._deleted + QUIET_S:
                self._deleted = None
                async with self._turn:
                    # The legs stay as they are: a deletion is no reason to build all of them anew.
                    await _in_thread(lambda: self._tidy(None))
            else:
                await asyncio.sleep(POLL_S)

    async def delete(self, bucket: str, doc_id: str) -> None:
        """Returns when no search finds it any more. Raises ``NotFound``, ``IndexBusy``; ``StageTimeout``: it is out of the
        index, and not all searches have taken that up yet. Once begun it is done, whoever still waits for it."""
        if len(self._deletions) >= _DELETIONS:
            raise IndexBusy(f"{_DELETIONS} documents are being deleted; try again in a moment.")
        work = asyncio.create_task(self._delete(bucket, doc_id))
        self._deletions.add(work)
        work.add_done_callback(self._deletions.discard)
        await asyncio.shield(work)

    async def _delete(self, bucket: str, doc_id: str) -> None:
        try:
            async with asyncio.timeout(DELETE_S):
                await self._turn.acquire()
        except TimeoutError:
            raise IndexBusy(
                "The index is being written: files are read into it, or it is merged. Try again in a moment."
            ) from None
        try:
            done = await _in_thread(lambda: remove(self._layout, bucket, [doc_id]))
            self._deleted = time.monotonic()
        finally:
            self._turn.release()
        if not await self._taken_up(done.id):
            raise StageTimeout(
                "The document is out of the index, but some searches may still find it: not every replica has the new one."
            )

    async def _work(self, id_: str) -> None:
        alive = asyncio.create_task(self._touching(id_))
        loop = asyncio.get_running_loop()
        try:
            ended = await _in_thread(lambda: self._run(id_, loop))
            if ended is None:
                return
            if ended.index_version is not None:
                ended = ended.model_copy(update={"searchable": await self._taken_up(ended.index_version)})
                if not ended.searchable:
                    log.warning("not every search uses index %s yet, which job %s made", ended.index_version, id_)
            await asyncio.to_thread(self._spool.end, id_, ended)
            self._deleted = None
            await _in_thread(lambda: self._tidy(self._legs))
        except asyncio.CancelledError:
            self._stop.set()
            raise
        finally:
            alive.cancel()

    async def _touching(self, id_: str) -> None:
        while True:
            await asyncio.sleep(_ALIVE_S)
            await asyncio.to_thread(self._spool.touch, id_)

    async def _taken_up(self, version: str) -> bool:
        """Waits until all searches use this version of the index, or a later one."""
        until = time.monotonic() + SERVED_S
        while time.monotonic() < until:
            with suppress(AssayError):  # a retriever that is just being replaced
                seen = await self._served()
                if seen is not None and number_of(seen) >= number_of(version):
                    return True
            await asyncio.sleep(0.05)
        return False

    # ---- in a thread --------------------------------------------------------------------------------------------

    def _run(self, id_: str, loop: asyncio.AbstractEventLoop) -> Ended | None:
        """How the job ended; None where it did not, because the process is to end, or ended before."""
        self._spool.mend(id_)
        records = self._spool.log(id_)
        if records and isinstance(records[-1].event, Ended):
            self._spool.discard(id_)
            return None
        if _deaths(records) >= _DEATHS:
            message = f"The work on these files ended the process that did it {_DEATHS} times."
            return Ended(error=ErrorBody(code=Interrupted.code, message=message))
        self._spool.say(id_, [JobStatusEvent(state="running")])
        try:
            return self._ingested(id_, records, loop)
        except _Stopped:
            return None
        except AssayError as fault:
            log.error("job %s: %s", id_, fault)
            return Ended(error=ErrorBody(code=fault.code, message=fault.message, field=fault.field))
        except Exception as fault:  # whatever it is, whoever waits for the job must be told
            log.exception("job %s failed", id_)
            return Ended(error=ErrorBody(code=AssayError.code, message=f"{type(fault).__name__}: {fault}"))

    def _ingested(self, id_: str, records: Sequence[Record], loop: asyncio.AbstractEventLoop) -> Ended:
        asked = self._spool.asked(id_)
        telling = _Telling(asked, records, lambda said: self._spool.say(id_, said), self._stop)
        encoder = self._encoder = self._encoder or self._make()
        sources = [
            Source(self._spool.file(id_, f.stored), f.name, f.bytes, name=f.name.rpartition("/")[2])
            for f in asked.files
            if f.name not in telling.told
        ]
        with self._parser(Limits(file_bytes=self._config.max_file_bytes)) as parser:
            run = Ingestion(
                self._layout,
                asked.bucket,
                sources,
                encoder,
                encoder.embed_now,
                parser,
                lambda progress: telling.show(run, progress),
                given=Given([], MetadataRows(asked.metadata)),
                extract=self._blocking(loop),
                groups=asked.groups,
                writer=asked.owner,
            )
            while True:
                try:
                    report = run.run(self._legs)
                    break
                except IndexBusy:  # the command writes to the same index; nothing was done
                    if self._stop.wait(BUSY_S):
                        raise _Stopped from None
        telling.show(run)
        return Ended(
            index_version=report.index_version,
            undeclared=report.undeclared,
            not_asked=report.not_asked,
            unused=sorted(set(asked.metadata) - {file.name for file in asked.files}),
        )

    def _blocking(
        self, loop: asyncio.AbstractEventLoop
    ) -> Callable[[Sequence[tuple[Document, Mapping[str, FieldSchema]]]], Sequence[Extraction]] | None:
        if self._extract is None:
            return None
        extract = self._extract()

        async def extracted(asked: Sequence[tuple[Document, Mapping[str, FieldSchema]]]) -> Sequence[Extraction]:
            return await extract(asked)

        return lambda asked: asyncio.run_coroutine_threadsafe(extracted(asked), loop).result()

    def _tidy(self, legs: Legs | None) -> None:
        """After the report, or the acknowledgement: what they tell of holds for searches already."""
        try:
            compact(self._layout, legs)
        except IndexBusy:  # a command writes
            self._deleted = time.monotonic()
        except (AssayError, OSError) as fault:
            log.warning("the index was not compacted: %s", fault)
        except Exception:  # the next jobs and deletions have nothing to do with it
            log.exception("the index was not compacted")


class _Telling:
    """A run's report into the job's log, as it grows. ``told``: files whose outcome is known from an earlier attempt: they are
    stored, and not looked at again."""

    def __init__(
        self, asked: Asked, records: Sequence[Record], say: Callable[[Sequence[Said]], None], stop: threading.Event
    ) -> None:
        self._say, self._stop, self._files = say, stop, {f.name: f for f in asked.files}
        self.told = {r.event.file.name: r.event.file for r in records if isinstance(r.event, JobFileEvent)}
        self._before = tuple(self.told.values())
        self._seen, self._said_at = 0, 0.0

    def show(self, run: Ingestion, progress: Progress | None = None) -> None:
        """Raises ``_Stopped`` where the process is to end; what is stored by then is told first."""
        rows = run.report.rows
        new = [self._file(row, run.id_of(row.uri)) for row in rows[self._seen :] if row.uri in self._files]
        self._seen = len(rows)
        said: list[Said] = [JobFileEvent(file=file) for file in new]
        now = time.monotonic()
        if progress is not None and (new or now - self._said_at > _SAY_S):
            said.append(JobProgressEvent(progress=self._whole(progress)))
            self._said_at = now
        self.told.update({file.name: file for file in new})
        if said:
            self._say(said)
        if progress is not None and self._stop.is_set():
            raise _Stopped

    def _file(self, row: Row, doc_id: str) -> JobFile:
        file = self._files[row.uri]
        return JobFile(
            name=file.name,
            bytes=file.bytes,
            doc_id=doc_id,
            outcome=row.outcome,
            chunks=row.chunks,
            reason=row.reason,
            message=row.message,
        )

    def _whole(self, progress: Progress) -> JobProgress:
        """With what earlier attempts did."""
        return JobProgress(
            files=progress.files + len(self._before),
            total_files=len(self._files),
            bytes=progress.bytes + sum(file.bytes for file in self._before),
            total_bytes=sum(file.bytes for file in self._files.values()),
            chunks=progress.chunks + sum(file.chunks for file in self._before),
        )


def _deaths(records: Sequence[Record]) -> int:
    """How many attempts began and got no further."""
    deaths = 0
    for record in records:
        if isinstance(record.event, JobFileEvent):
            deaths = 0
        elif isinstance(record.event, JobStatusEvent) and record.event.state == "running":
            deaths += 1
    return deaths


async def _in_thread(work: Callable[[], T]) -> T:
    """In a daemon thread: a process that is to end does not wait for it, and what it was at is whole or undone."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, fault: BaseException | None) -> None:
        if not done.done():
            done.set_exception(fault) if fault is not None else done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, fault = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - told to whoever awaits it
            fault = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=run, name="uploads", daemon=True).start()
    return await done
