"""``compact``: what many small ingestions left, merged. Searches go on meanwhile, and find the same."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from assay.cli.settings import index_settings
from assay.errors import AssayError, in_words

EXIT_FAULT = 1


def compact(
    index: Annotated[
        str | None, typer.Option(help="Folder or URI of the index; by default the config's.", envvar="ASSAY_INDEX")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A Serve config: where it wants other legs than the index has, all are built anew."),
    ] = None,
) -> None:
    """Check every byte of an index, and merge small segments, deleted rows and small files. ``ingest`` ends with this too.

    Exit status: 0 all is well, 1 fault.
    """
    from assay.index import mirror
    from assay.index.files import Layout

    notes = Console(stderr=True)
    try:
        settings, legs = index_settings(config, uri=index)
        manifest = mirror.compact(Layout(settings.uri), legs)
    except AssayError as fault:
        notes.print(in_words(fault), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAULT) from None
    if manifest is None:
        typer.echo("nothing has been published yet")
    else:
        typer.echo(f"{manifest.chunks} passages in {len(manifest.segments)} segments, index {manifest.id}")
