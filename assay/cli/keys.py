"""``keys``: API keys are made, listed and revoked. A running service takes up the change with the next request."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from assay.config import IngressConfig
from assay.errors import NotFound, SetupError
from assay.keys import SCOPES, KeyFile

EXIT_USAGE = 2
DEFAULT = Path(IngressConfig().keys)


def keys(
    action: Annotated[Literal["create", "list", "revoke"], typer.Argument(help="What to do.")] = "list",
    key: Annotated[str | None, typer.Argument(help="revoke: the key's id.")] = None,
    tenant: Annotated[str, typer.Option(help="create: who owns what its holder leaves behind.")] = "default",
    bucket: Annotated[list[str] | None, typer.Option(help="create: a bucket that it may see; repeatable.")] = None,
    all_buckets: Annotated[bool, typer.Option("--all-buckets", help="create: it may see all buckets.")] = False,
    scope: Annotated[list[str] | None, typer.Option(help="create: search, ask, ingest or admin; repeatable.")] = None,
    rate: Annotated[int, typer.Option(help="create: requests a minute, for each replica.")] = 600,
    concurrency: Annotated[int, typer.Option(help="create: requests in progress, for each replica.")] = 16,
    file: Annotated[Path, typer.Option(help="The file of the keys.", envvar="ASSAY_KEYS")] = DEFAULT,
) -> None:
    """Make, list or revoke API keys. A new key is shown once, on stdout; the file keeps its hash.

    Exit status: 0 done, 2 usage.
    """
    try:
        if action == "create":
            _create(KeyFile(file), tenant, bucket, all_buckets, scope or ["search", "ask"], rate, concurrency)
        elif action == "revoke":
            if key is None:
                raise SetupError("name the id of the key to revoke: `keys list` shows them")
            typer.echo(f"revoked {KeyFile(file).revoke(key).id}")
        else:
            _list(KeyFile(file))
    except (SetupError, NotFound) as fault:
        typer.echo(str(fault), err=True)
        raise typer.Exit(EXIT_USAGE) from None


def _create(
    file: KeyFile, tenant: str, buckets: list[str] | None, every: bool, scopes: list[str], rate: int, concurrency: int
) -> None:
    if bool(buckets) == every:
        raise SetupError("name the buckets that the key may see with --bucket, or all of them with --all-buckets")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise SetupError(f"there is no scope '{unknown[0][:80]}'; there are {', '.join(SCOPES)}")
    made, text = file.create(tenant, buckets or None, [s for s in SCOPES if s in scopes], rate, concurrency)
    typer.echo(f"made key {made.id} of {tenant}; this is the only time that it is shown:", err=True)
    typer.echo(text)


def _list(file: KeyFile) -> None:
    for key in file.read():
        buckets = "all buckets" if key.buckets is None else ",".join(key.buckets)
        state = f"revoked {key.revoked_at}" if key.revoked_at else "in force"
        limits = f"{key.rate}/min, {key.concurrency} at once"
        typer.echo(
            f"{key.id}  {key.tenant:<16} {','.join(key.scopes):<24} {buckets}  {limits}  {key.created_at}  {state}"
        )
