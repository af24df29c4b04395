"""``ingest``: files and folders into an index. The report goes to stdout, progress to stderr where that is a terminal."""

import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from assay.config import AppConfig, IndexConfig
from assay.errors import AssayError, SetupError
from assay.index.ingest import Ingestion, Report, find_sources
from assay.index.ingest import Progress as Step

EXIT_FAILED_FILES, EXIT_SETUP, EXIT_INTERRUPTED = 1, 2, 130
_LISTED = 20  # rows of the table; the JSON report has them all


def ingest(
    paths: Annotated[list[Path], typer.Argument(help="Files, or folders that are read to their depth.")],
    index: Annotated[str, typer.Option(help="Folder of the index.", envvar="ASSAY_INDEX")] = IndexConfig().uri,
    bucket: Annotated[str, typer.Option(help="The part of the index that these documents belong to.")] = "default",
    base: Annotated[
        Path | None,
        typer.Option(
            help="Documents are named by their path from here. By default from the folder that holds the given path, "
            "so that 'docs' and '../docs' both give 'docs/...', wherever you are."
        ),
    ] = None,
    embedder: Annotated[str, typer.Option(help="A model folder or id; an index has one.")] = IndexConfig().embedder,
    report: Annotated[
        Path | None, typer.Option("--json", help="Write what became of every file here, as JSON.")
    ] = None,
    rebuild: Annotated[bool, typer.Option(help="Build the legs anew from the store, as after damage.")] = False,
) -> None:
    """Read Markdown, text, HTML and PDF files into an index, and publish it.

    Files that have not changed are left alone, changed ones replace their old text. It may be interrupted at any time:
    what is stored stays, what is served stays as it was, and the same command goes on.

    Exit status: 0 all is in, 1 some files failed, 2 nothing could be done, 130 interrupted.
    """
    notes = Console(stderr=True)
    try:
        _check_report(report)
        from assay.index.files import Layout
        from assay.index.mirror import compact

        done, interrupted = _run(paths, index, bucket, base and base.resolve(), embedder, rebuild, notes)
        _show(done, Console())
        if report is not None:
            report.write_text(json.dumps(asdict(done), indent=1, ensure_ascii=False) + "\n", "utf-8")
        if not interrupted:
            compact(Layout(index))  # after the report: what is in it can be searched already
    except AssayError as fault:
        _complain(notes, str(fault))
        raise typer.Exit(EXIT_SETUP) from None
    except OSError as fault:
        _complain(notes, f"a file of the index, or the report, cannot be written: {fault.strerror or fault}")
        raise typer.Exit(EXIT_SETUP) from None
    if interrupted:
        _complain(
            notes, "Interrupted: what the table shows is kept. The same command goes on from there, and publishes."
        )
        raise typer.Exit(EXIT_INTERRUPTED)
    if done.count("failed"):
        raise typer.Exit(EXIT_FAILED_FILES)


def _check_report(report: Path | None) -> None:
    """Before the work, not after it."""
    if report is not None and (report.is_dir() or not report.absolute().parent.is_dir()):
        raise SetupError(f"the report '{report}' cannot be written: its folder is missing, or it is a folder itself")


def _run(
    paths: list[Path], index: str, bucket: str, base: Path | None, embedder: str, rebuild: bool, notes: Console
) -> tuple[Report, bool]:
    """The report, and whether the user broke it off. What can be wrong is found out before the model is loaded."""
    from assay.index.embed import SentenceEmbedder
    from assay.index.files import Layout
    from assay.index.parser import Parser
    from assay.models import resolve_model

    sources = find_sources(paths, base)
    layout = Layout(index)
    encoder = SentenceEmbedder(resolve_model(embedder, Path(AppConfig().cache)))
    with Parser() as parser, _Meter(notes) as meter:
        run = Ingestion(layout, bucket, sources, encoder, encoder.embed_now, parser, meter.show)
        try:
            return run.run(rebuild=rebuild), False
        except KeyboardInterrupt:
            return run.report, True


class _Meter:
    """A bar over the bytes, with the rate and the time left; nothing at all where stderr is no terminal."""

    def __init__(self, notes: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[files]}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=notes,
            transient=True,
            disable=not notes.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, files="reading", rate="")
        self._begun = time.monotonic()

    def __enter__(self) -> "_Meter":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, step: Step) -> None:
        rate = step.chunks / max(1e-6, time.monotonic() - self._begun)
        self._progress.update(
            self._task,
            completed=step.bytes,
            total=step.total_bytes,
            files=f"{step.files} of {step.total_files} files",
            rate=f"{rate:.1f} passages/s" if step.chunks else "",
        )


def _show(done: Report, out: Console) -> None:
    counts = Counter(row.outcome for row in done.rows)
    chunks = sum(row.chunks for row in done.rows)
    named = [f"{counts[o]} {o}" for o in ("ingested", "replaced", "unchanged", "skipped", "failed") if counts[o]]
    version = f", index {done.index_version}" if done.index_version else ", not published"
    told = [row for row in done.rows if row.reason]
    if told:
        table = Table("file", "outcome", "reason", title_justify="left", box=None, pad_edge=False)
        for row in sorted(told, key=lambda r: (r.outcome, r.uri))[:_LISTED]:
            table.add_row(Text(_plain(row.uri)), row.outcome, Text(_plain(f"{row.reason}: {row.message}")))
        out.print(table, markup=False, highlight=False)
        if len(told) > _LISTED:
            out.print(f"... and {len(told) - _LISTED} more (--json has them all)", markup=False, highlight=False)
    out.print(
        f"bucket {done.bucket}: {', '.join(named) or 'no files'}; {chunks} new passages{version}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _plain(text: str) -> str:
    """File names are not ours: no escape sequence of theirs reaches the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _complain(notes: Console, text: str) -> None:
    notes.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
