"""``delete``: documents out of an index. Searches that begin after it has ended, and a reload, find nothing of them."""

from typing import Annotated

import typer
from rich.console import Console

from assay.cli.settings import ApiKey
from assay.client import Client
from assay.config import IndexConfig
from assay.errors import AssayError, in_words

EXIT_FAULT = 1


def delete(
    documents: Annotated[list[str], typer.Argument(help="URIs as search shows them, or ids: doc_...")],
    index: Annotated[str, typer.Option(help="Folder or URI of the index.", envvar="ASSAY_INDEX")] = IndexConfig().uri,
    bucket: Annotated[str, typer.Option(help="The bucket that they belong to.")] = "default",
    url: Annotated[str | None, typer.Option(help="Let the graph that listens here do it, one after the other.")] = None,
    api_key: ApiKey = None,
) -> None:
    """Delete documents from an index, and publish it without them: all that are named, or none (with --url, each).

    Exit status: 0 they are gone, 1 one is not there, or a fault.
    """
    from assay.documents.names import ID, doc_id_of
    from assay.index.files import Layout
    from assay.index.mirror import compact
    from assay.index.remove import remove

    notes = Console(stderr=True)
    try:
        if url is not None:
            with Client(url, api_key=api_key) as client:
                for name in documents:
                    client.delete_document(name if ID.fullmatch(name) else doc_id_of(bucket, name))
                    typer.echo(f"bucket {bucket}: {name} deleted")
            return
        layout = Layout(index)
        version = remove(layout, bucket, documents).id
        typer.echo(f"bucket {bucket}: {len(set(documents))} deleted, index {version}")
        compact(layout)
    except AssayError as fault:
        notes.print(in_words(fault), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAULT) from None
