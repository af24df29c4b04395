"""``ingest``: files and folders into an index. The report goes to stdout, progress to stderr where that is a terminal."""

import errno
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.cli.buckets import inferred
from assay.cli.extracting import Extracting
from assay.cli.meter import Meter
from assay.cli.settings import ApiKey, index_settings
from assay.config import AppConfig, IndexConfig, Legs
from assay.errors import AssayError, SetupError, in_words
from assay.index.buckets import BucketSchema, dump_schema, load_schema
from assay.index.ingest import Ingestion, Reads, Report, Source, find_sources
from assay.index.metadata import Given, MetadataTable, Pattern
from assay.index.parse.parser import Limits, Parser

EXIT_FAILED_FILES, EXIT_SETUP, EXIT_INTERRUPTED = 1, 2, 130
_SURVEYED = 200  # files that a schema is inferred from
_LISTED = 20  # rows of the table; the JSON report has them all


def ingest(
    paths: Annotated[list[Path], typer.Argument(help="Files, or folders that are read to their depth.")],
    index: Annotated[
        str | None, typer.Option(help="Folder or URI of the index; by default the config's.", envvar="ASSAY_INDEX")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A Serve config, whose index this is: its place, its embedder, how its legs are built."),
    ] = None,
    bucket: Annotated[str, typer.Option(help="The part of the index that these documents belong to.")] = "default",
    base: Annotated[
        Path | None,
        typer.Option(
            help="Documents are named by their path from here. By default from the folder that holds the given path, "
            "so that 'docs' and '../docs' both give 'docs/...', wherever you are."
        ),
    ] = None,
    embedder: Annotated[
        str | None, typer.Option(help="A model folder or id, by default the config's; an index has one.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", "--json", help="Write what became of every file here, as JSON.")
    ] = None,
    password: Annotated[
        list[str] | None, typer.Option(help="Tried on encrypted files, in order; may be repeated. Not kept or logged.")
    ] = None,
    passwords: Annotated[
        Path | None, typer.Option(help="A file of passwords, one a line, tried after those: others can see a command.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Read the files on a Ray cluster: its address, 'auto' for the one that runs, or 'local' to start one. "
            "They must lie at the same paths on all its machines."
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="The bucket's schema, as YAML; by default the one that it has.")
    ] = None,
    infer_schema: Annotated[
        bool, typer.Option("--infer-schema", help="Infer the schema from the files, and ask before using it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Use the inferred schema without asking.")] = False,
    metadata: Annotated[
        Path | None, typer.Option(help="A CSV with a row of metadata per file; its column 'path' says which.")
    ] = None,
    path_pattern: Annotated[
        list[str] | None, typer.Option(help="Metadata from paths, such as {type}/{name}.pdf; may be repeated.")
    ] = None,
    extract_url: Annotated[
        str | None,
        typer.Option(
            help="An OpenAI-compatible endpoint, with '/v1', that reads the schema's 'extract' fields out of documents. By "
            "default the config's extraction.engine."
        ),
    ] = None,
    extract_model: Annotated[str | None, typer.Option(help="The endpoint's name for its model.")] = None,
    extract_key_env: Annotated[
        str | None, typer.Option(help="The environment variable that holds the endpoint's key.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Send the files to the graph that listens here, which reads them into its own index."),
    ] = None,
    api_key: ApiKey = None,
    rebuild: Annotated[bool, typer.Option(help="Build the legs anew from the store, as after damage.")] = False,
) -> None:
    """Read files into an index, and publish it: Markdown, text, HTML, PDF, Word, PowerPoint, Excel, CSV, JSON, mail, EPUB
    and notebooks.

    Files that have not changed are left alone, changed ones replace their old text. It may be interrupted at any time:
    what is stored stays, what is served stays as it was, and the same command goes on.

    Exit status: 0 all is in, 1 some files failed, 2 nothing could be done, 130 interrupted.
    """
    notes = Console(stderr=True)
    place = "what is sent"
    try:
        _check_report(report)
        from assay.index.files import Layout
        from assay.index.mirror import compact

        described = _Described(schema, infer_schema, yes, metadata, tuple(path_pattern or ()))
        if url is not None:
            of_this_machine = {
                "config": config,
                "embedder": embedder,
                "schema": schema,
                "infer-schema": infer_schema,
                "password": password,
                "passwords": passwords,
                "ray": ray,
                "extract-url": extract_url,
                "extract-model": extract_model,
                "extract-key-env": extract_key_env,
                "rebuild": rebuild,
            }
            if wrong := [name for name, given in of_this_machine.items() if given]:
                raise SetupError(
                    f"--{wrong[0]} is of an index on this machine; with --url the graph reads into its own"
                )
            done, interrupted = _sent(url, api_key, paths, base and base.resolve(), bucket, described, notes)
        else:
            keys = _keys(password or [], passwords)
            settings, legs = index_settings(config, uri=index, embedder=embedder)
            place = f"the index {settings.uri}"
            extracting = Extracting(config, extract_url, extract_model, extract_key_env)
            how = _How(settings, legs, bucket, rebuild, keys, ray, extracting)
            done, interrupted = _run(paths, base and base.resolve(), how, described, notes)
        _show(done, Console())
        if report is not None:
            place = f"the report '{report}'"
            report.write_text(json.dumps(done.summary(), indent=1, ensure_ascii=False) + "\n", "utf-8")
        if not interrupted and url is None:
            place = f"the index {settings.uri}"
            compact(Layout(settings.uri), legs)  # after the report: what is in it can be searched already
    except AssayError as fault:
        _complain(notes, in_words(fault))
        raise typer.Exit(EXIT_SETUP) from None
    except OSError as fault:
        _complain(notes, unwritten(fault, place))
        raise typer.Exit(EXIT_SETUP) from None
    if interrupted:
        _complain(
            notes, "Interrupted: what the table shows is kept. The same command goes on from there, and publishes."
        )
        raise typer.Exit(EXIT_INTERRUPTED)
    if done.count("failed"):
        raise typer.Exit(EXIT_FAILED_FILES)


def unwritten(fault: OSError, place: str) -> str:
    """What to do where ``place`` could not be written. Lance has the system's number in its text only."""
    found = re.search(r"os error (\d+)", str(fault))
    if (fault.errno or (int(found[1]) if found else 0)) in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {place} is full: free some space; the same command goes on"
    return f"{place} cannot be written: {fault.strerror or fault}"


def _check_report(report: Path | None) -> None:
    """Before the work, not after it."""
    if report is not None and (report.is_dir() or not report.absolute().parent.is_dir()):
        raise SetupError(f"the report '{report}' cannot be written: its folder is missing, or it is a folder itself")


def _keys(given: list[str], file: Path | None) -> tuple[str, ...]:
    """Raises ``SetupError`` where the file cannot be read."""
    try:
        lines = file.read_text("utf-8").splitlines() if file else []
    except (OSError, UnicodeDecodeError) as e:
        said = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise SetupError(f"the passwords '{file}' cannot be read: {said}", "passwords") from None
    return tuple(dict.fromkeys(key for key in (*given, *lines) if key))


@dataclass(frozen=True, slots=True)
class _How:
    index: IndexConfig
    legs: Legs | None
    bucket: str
    rebuild: bool
    passwords: tuple[str, ...]
    ray: str | None
    extracting: Extracting

    @contextmanager
    def reads(self) -> Iterator[Reads | None]:
        """On the cluster, where one is named. The shell is named by a text: the core imports nothing of it."""
        if self.ray is None:
            yield None
            return
        bulk = import_module("deployments.bulk")
        cache, device = Path(AppConfig().cache), self.index.embed_device
        job = bulk.Job(self.bucket, self.index.embedder, cache, Limits(), self.passwords, device)
        with bulk.reads(self.ray, job) as found:
            yield found


@dataclass(frozen=True, slots=True)
class _Described:
    """What the command line says about metadata."""

    schema: Path | None
    infer: bool
    yes: bool
    table: Path | None
    patterns: tuple[str, ...]

    def given(self, sources: Sequence[Source]) -> Given:
        if self.schema is not None and self.infer:
            raise SetupError("give --schema or --infer-schema, not both")
        table = MetadataTable(self.table) if self.table else None
        return Given([source.path for source in sources], table, [Pattern(p) for p in self.patterns])

    def wanted(self, sources: Sequence[Source], given: Given, parser: Parser, notes: Console) -> BucketSchema | None:
        """None for the schema that the bucket has. Raises ``SetupError`` where the inferred one is not confirmed."""
        if not self.infer:
            return load_schema(self.schema) if self.schema else None
        schema, said = inferred(sources, given, parser, _SURVEYED, notes)
        notes.print(_plain(dump_schema(schema, said), "\n"), markup=False, highlight=False, soft_wrap=True)
        if not self.yes and not (sys.stdin.isatty() and typer.confirm("Use this schema?", err=True)):
            raise SetupError(
                "the inferred schema was not confirmed: use --yes, or write it down and give it with --schema"
            )
        return schema


def _run(paths: list[Path], base: Path | None, how: _How, described: _Described, notes: Console) -> tuple[Report, bool]:
    """The report, and whether the user broke it off. What can be wrong is found out before the model is loaded."""
    from assay.index.embed import SentenceEmbedder
    from assay.index.files import Layout
    from assay.models import resolve_model

    sources = find_sources(paths, base)
    given = described.given(sources)
    layout = Layout(how.index.uri)
    device = how.index.embed_device if how.ray is None else "cpu"  # a cluster embeds; here its model is only named
    encoder = SentenceEmbedder(resolve_model(how.index.embedder, Path(AppConfig().cache)), device)
    with Parser(passwords=how.passwords) as parser:
        schema = described.wanted(sources, given, parser, notes)
        with how.extracting.extract() as extract, how.reads() as reads, Meter(notes) as meter:
            run = Ingestion(
                layout,
                how.bucket,
                sources,
                encoder,
                encoder.embed_now,
                parser,
                meter.show,
                reads,
                schema,
                given,
                extract,
            )
            try:
                return run.run(how.legs, rebuild=how.rebuild), False
            except KeyboardInterrupt:
                return run.report, True


def _sent(
    url: str,
    api_key: str | None,
    paths: list[Path],
    base: Path | None,
    bucket: str,
    described: _Described,
    notes: Console,
) -> tuple[Report, bool]:
    """As ``_run``, by the graph. What a fault leaves of the report is shown before it."""
    from assay.cli.sending import Sending
    from assay.client import Client

    sources = find_sources(paths, base)
    given, begun = described.given(sources), time.monotonic()
    with Client(url, api_key=api_key) as client, Meter(notes) as meter:
        sending = Sending(client, Report(bucket), meter, sources)
        try:
            sending.run(given)
            return sending.report, False
        except KeyboardInterrupt:
            if sending.job:
                _complain(notes, f"The graph goes on with what it has: {sending.job}.")
            return sending.report, True
        except AssayError:
            _show(sending.report, Console())
            raise
        finally:
            sending.report.seconds = round(time.monotonic() - begun, 3)


def _show(done: Report, out: Console) -> None:
    counts = Counter(row.outcome for row in done.rows)
    chunks = sum(row.chunks for row in done.rows)
    named = [
        f"{counts[o]} {o}" for o in ("ingested", "replaced", "described", "unchanged", "skipped", "failed") if counts[o]
    ]
    version = f", index {done.index_version}" if done.index_version else ", not published"
    told = [row for row in done.rows if row.reason]
    if told:
        table = Table("file", "outcome", "reason", title_justify="left", box=None, pad_edge=False)
        for row in sorted(told, key=lambda r: (r.outcome, r.uri))[:_LISTED]:
            table.add_row(Text(_plain(row.uri)), row.outcome, Text(_plain(f"{row.reason}: {row.message}")))
        out.print(table, markup=False, highlight=False)
        if len(told) > _LISTED:
            out.print(f"... and {len(told) - _LISTED} more (--report has them all)", markup=False, highlight=False)
    if done.undeclared:
        names = ", ".join(f"{name} ({count})" for name, count in list(done.undeclared.items())[:_LISTED])
        out.print(f"metadata that the schema does not name: {_plain(names)}", markup=False, highlight=False)
    if done.unused_rows:
        names = ", ".join(done.unused_rows[:_LISTED])
        out.print(f"rows of the table that are of no file: {_plain(names)}", markup=False, highlight=False)
    if done.not_asked:
        said = "fields that a model should extract, and none is named (--extract-url, or extraction.engine of --config)"
        out.print(f"{said}: {', '.join(done.not_asked)}", markup=False, highlight=False, soft_wrap=True)
    size = f"{done.bytes / 1e6:.1f} MB in {done.seconds:.1f} s" if done.bytes else ""
    speed = f", {chunks / done.seconds:.1f} passages/s" if chunks and done.seconds else ""
    did = "; ".join(filter(None, (", ".join(named) or "no files", f"{chunks} new passages{version}", size + speed)))
    out.print(f"bucket {done.bucket}: {did}", markup=False, highlight=False, soft_wrap=True)


def _plain(text: str, kept: str = "") -> str:
    """File names are not ours: no escape sequence of theirs reaches the terminal."""
    return "".join(c if c.isprintable() or c in kept else "\N{REPLACEMENT CHARACTER}" for c in text)


def _complain(notes: Console, text: str) -> None:
    notes.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
