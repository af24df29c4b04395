"""``compact``: what many small ingestions left, merged. Searches go on meanwhile, and find the same."""

from typing import Annotated

import typer
from rich.console import Console

from assay.config import IndexConfig
from assay.errors import AssayError, SetupError

EXIT_FAULT = 1


def compact(
    index: Annotated[str, typer.Option(help="Folder or URI of the index.", envvar="ASSAY_INDEX")] = IndexConfig().uri,
    dense: Annotated[
        str | None, typer.Option(help="flat, ivf, or auto (by size): how vectors are searched. Kept with the index.")
    ] = None,
    k1: Annotated[float | None, typer.Option(min=0, max=10, help="Of BM25. Kept with the index; 1.5 at first.")] = None,
    b: Annotated[float | None, typer.Option(min=0, max=1, help="Of BM25. Kept with the index; 0.75 at first.")] = None,
) -> None:
    """Check every byte of an index, and merge small segments, deleted rows and small files. ``ingest`` ends with this too.

    With other settings than the index has, all its legs are built anew.

    Exit status: 0 all is well, 1 fault.
    """
    from assay.index import mirror
    from assay.index.files import Layout

    notes = Console(stderr=True)
    try:
        if dense not in (None, "auto", "flat", "ivf"):
            raise SetupError(f"--dense is auto, flat or ivf, not '{dense}'", "dense", ("auto", "flat", "ivf"))
        given = {"dense": dense, "k1": k1, "b": b}
        manifest = mirror.compact(Layout(index), {name: value for name, value in given.items() if value is not None})
    except AssayError as fault:
        notes.print(str(fault), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAULT) from None
    if manifest is None:
        typer.echo("nothing has been published yet")
    else:
        typer.echo(f"{manifest.chunks} passages in {len(manifest.segments)} segments, index {manifest.id}")
