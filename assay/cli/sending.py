"""``ingest --url``: files to a running graph, which reads them into its own index; the report is the same."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.cli.meter import Meter
from assay.client import Client
from assay.documents.shapes import Job, JobCompletedEvent, JobEvent, JobFileEvent, JobProgressEvent
from assay.errors import ParseFault
from assay.index.ingest import Progress, Report, Row, Source
from assay.index.metadata import Given
from assay.index.parse.parsed import FORMATS

_FILES, _BYTES = 100, 50_000_000  # of one upload: what is sent is open, and what fails is sent again


@dataclass(slots=True)
class Sending:
    """``report`` can be read at any time. ``job``: what goes on at the server when this ends early."""

    client: Client
    report: Report
    meter: Meter
    sources: Sequence[Source]
    job: str = ""

    def run(self, given: Given) -> None:
        said: dict[str, Mapping[str, Any]] = {}
        wanted = [source for source in self.sources if self._is_wanted(source, given, said)]
        for batch in _batches(wanted):
            files = [(source.uri, source.path) for source in batch]
            metadata = {source.uri: said[source.uri] for source in batch if said[source.uri]}
            job = self.client.upload(self.report.bucket, files, metadata)
            self.job = job.id
            before = _so_far(self.report, self.sources)
            for event in self.client.job_events(job.id):
                self._heard(event, before)
            self.job = ""
        self.report.unused_rows = list(given.unused_rows)

    def _is_wanted(self, source: Source, given: Given, said: dict[str, Mapping[str, Any]]) -> bool:
        """What need not be sent has its row at once."""
        if owner := given.sidecars.get(source.path):
            return self._told(source, "sidecar", f"it is the metadata of {owner.name}")
        if source.fault is None and source.path.suffix.lower() not in FORMATS:
            return self._told(source, "unsupported", f"files of the kind '{source.path.suffix}' are not read")
        try:
            if source.fault is not None:
                raise source.fault
            said[source.uri] = given.of(source.uri, source.path)
        except ParseFault as fault:
            self.report.rows.append(Row(source.uri, "failed", reason=fault.reason, message=fault.message))
            return False
        return True

    def _told(self, source: Source, reason: str, message: str) -> bool:
        self.report.rows.append(Row(source.uri, "skipped", reason=reason, message=message))
        return False

    def _heard(self, event: JobEvent, before: Progress) -> None:
        match event:
            case JobFileEvent(file=file) if file.outcome is not None:
                self.report.rows.append(Row(file.name, file.outcome, file.chunks, file.reason, file.message))
                self.report.bytes += file.bytes if file.outcome in ("ingested", "replaced") else 0
            case JobProgressEvent(progress=now):
                self.meter.show(
                    Progress(
                        before.files + now.files,
                        before.total_files,
                        before.bytes + now.bytes,
                        before.total_bytes,
                        before.chunks + now.chunks,
                    )
                )
            case JobCompletedEvent(job=job):
                self._ended(job)
            case _:
                pass

    def _ended(self, job: Job) -> None:
        self.report.index_version = job.index_version or ""
        for name, count in job.undeclared.items():
            self.report.undeclared[name] = self.report.undeclared.get(name, 0) + count
        self.report.not_asked = job.not_asked


def _batches(sources: Sequence[Source]) -> Iterator[list[Source]]:
    batch: list[Source] = []
    for source in sources:
        if batch and (len(batch) == _FILES or sum(s.size for s in batch) + source.size > _BYTES):
            yield batch
            batch = []
        batch.append(source)
    if batch:
        yield batch


def _so_far(report: Report, sources: Sequence[Source]) -> Progress:
    told = {row.uri for row in report.rows}
    return Progress(
        len(told),
        len(sources),
        sum(source.size for source in sources if source.uri in told),
        sum(source.size for source in sources),
        sum(row.chunks for row in report.rows),
    )
