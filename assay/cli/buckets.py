"""``buckets``: what an index holds, and the schemas of its buckets. Notes and faults go to stderr."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from assay.config import IndexConfig
from assay.errors import AssayError, SetupError, UnknownBucket, in_words

if TYPE_CHECKING:
    from assay.index.buckets import BucketSchema
    from assay.index.ingest import Source
    from assay.index.metadata import Given
    from assay.index.parse.parser import Parser

EXIT_FAULT, EXIT_USAGE = 1, 2
_NAMED = 5  # documents that stand in the way of a schema


def buckets(
    action: Annotated[Literal["list", "show", "infer", "set"], typer.Argument(help="What to do.")] = "list",
    names: Annotated[
        list[str] | None, typer.Argument(help="show, set: the bucket. infer: files and folders to read.")
    ] = None,
    index: Annotated[str, typer.Option(help="Folder of the index.", envvar="ASSAY_INDEX")] = IndexConfig().uri,
    schema: Annotated[Path | None, typer.Option(help="set: the schema, as YAML.")] = None,
    metadata: Annotated[Path | None, typer.Option(help="infer: a CSV with a row per file.")] = None,
    path_pattern: Annotated[list[str] | None, typer.Option(help="infer: such as {type}/{name}.pdf")] = None,
    sample: Annotated[int, typer.Option(min=1, help="infer: read at most so many files.")] = 200,
    write: Annotated[Path | None, typer.Option(help="infer: keep the schema in this file.")] = None,
) -> None:
    """List the buckets, show one with its values, infer a schema from files, or give a bucket a schema.

    Exit status: 0 done, 1 fault, 2 usage.
    """
    notes = Console(stderr=True)
    try:
        if action == "list":
            _list(index)
        elif action == "show":
            _show(index, _one(names, "the bucket"))
        elif action == "set":
            _set(index, _one(names, "the bucket"), schema)
        else:
            _infer([Path(name) for name in names or []], metadata, path_pattern or [], sample, write, notes)
    except AssayError as fault:
        notes.print(in_words(fault), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_USAGE if isinstance(fault, SetupError | UnknownBucket) else EXIT_FAULT) from None


def _one(names: list[str] | None, what: str) -> str:
    if names is None or len(names) != 1:
        raise SetupError(f"name {what}, and nothing else")
    return names[0]


def _list(index: str) -> None:
    from assay.index.catalog import open_catalog
    from assay.index.files import Layout

    for info in open_catalog(Layout(index, reading=True)).buckets.values():
        about = f"  {info.description}" if info.description else ""
        typer.echo(f"{info.name:<24}{info.documents:>8} documents {info.chunks:>9} passages{about}")


def _show(index: str, bucket: str) -> None:
    """The schema in force as YAML, with the values of its fields as comments."""
    from assay.index.buckets import dump_schema
    from assay.index.catalog import open_catalog
    from assay.index.files import Layout
    from assay.index.snapshot import read_current
    from assay.index.store import extracted_counts

    layout = Layout(index, reading=True)
    catalog = open_catalog(layout)
    rows = catalog.rows(catalog.allowed([bucket], None, None, None))
    schema = catalog.schema(bucket)
    facets = catalog.facets(list(schema.fields), rows, [bucket], None)
    held = {field.name: field.documents for field in catalog.buckets[bucket].fields}
    read = extracted_counts(layout, read_current(layout).documents_version, bucket, schema)
    notes = {}
    for name, facet in facets.items():
        values = [f"{v.value}{'' if v.to is None else f' to {v.to}'} ({v.count})" for v in facet.values[:8]]
        more = len(facet.values) - len(values) + facet.more
        said = ", ".join([*values, *([f"and {more} more"] if more > 0 else [])])
        notes[name] = f"in {held[name]} of {catalog.buckets[bucket].documents} documents"
        notes[name] += f", extracted in {read[name]}" if read.get(name) else ""
        notes[name] += f"{': ' if said else ''}{said}"
    typer.echo(_plain(dump_schema(schema, notes)), nl=False)


def _set(index: str, bucket: str, file: Path | None) -> None:
    from assay.index.buckets import BUCKET, load_schema, typed
    from assay.index.files import Layout
    from assay.index.mirror import publish, writing
    from assay.index.store import Store, read_state

    if file is None:
        raise SetupError("give the schema with --schema FILE", "schema")
    if not BUCKET.fullmatch(bucket):
        raise SetupError(f"a bucket's name has letters, digits and . _ - only; '{bucket[:80]}' does not", "bucket")
    schema, layout = load_schema(file), Layout(index)
    with writing(layout):
        state = read_state(layout)
        if state is None:
            raise SetupError(
                f"there is no index at {index} yet; make it with: python -m assay ingest ... --schema {file}"
            )
        store = Store(layout, state.embedder, state.checksum, state.dim)
        documents = store.documents(bucket).values()
        lacking = [
            (held.uri, missing) for held in documents if (missing := typed(schema, held.metadata(schema)).missing)
        ]
        if lacking:
            shown = "; ".join(f"{uri}: {', '.join(missing)}" for uri, missing in lacking[:_NAMED])
            raise SetupError(f"{len(lacking)} documents lack what the schema requires: {shown}", "schema")
        problems = sum(len(typed(schema, held.metadata(schema)).problems) for held in documents)
        store.declare(bucket, schema)
        version = publish(layout, store).id
    unfit = f"; {problems} values do not fit it and are left out" if problems else ""
    typer.echo(f"bucket {bucket}: the schema is in force for {len(documents)} documents{unfit}; index {version}")


def _infer(
    paths: list[Path], metadata: Path | None, patterns: list[str], sample: int, write: Path | None, notes: Console
) -> None:
    from assay.index.buckets import dump_schema
    from assay.index.ingest import find_sources
    from assay.index.metadata import Given, MetadataTable, Pattern
    from assay.index.parse.parser import Parser

    if not paths:
        raise SetupError("name the files and folders to infer a schema from")
    if write is not None and not write.absolute().parent.is_dir():
        raise SetupError(f"'{write}' cannot be written: its folder is missing", "write")
    table = MetadataTable(metadata) if metadata else None
    sources = find_sources(paths)
    given = Given([source.path for source in sources], table, [Pattern(p) for p in patterns])
    with Parser() as parser:
        schema, said = inferred(sources, given, parser, sample, notes)
    text = dump_schema(schema, said)
    typer.echo(_plain(text), nl=False)
    if write is not None:
        write.write_text(text, "utf-8")


def inferred(
    sources: Sequence["Source"], given: "Given", parser: "Parser", sample: int, notes: Console
) -> "tuple[BucketSchema, dict[str, str]]":
    """The schema that the metadata of up to ``sample`` files fits, with comments by field; unreadable files are told."""
    from assay.index.buckets import infer
    from assay.index.metadata import survey

    files = [(s.uri, s.path) for s in sources if s.fault is None and s.path not in given.sidecars]
    found, faults = survey(files[:sample], given, parser)
    for fault in faults[:_NAMED]:
        notes.print(f"not read: {_plain(fault)}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if len(files) > sample:
        notes.print(f"inferred from {sample} of {len(files)} files", style="yellow", markup=False, highlight=False)
    return infer(found)


def _plain(text: str) -> str:
    """Metadata comes from documents: no escape sequence of theirs may reach the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
