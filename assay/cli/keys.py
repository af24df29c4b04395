"""``keys``: API keys are made, listed and revoked. A running service takes up the change with the next request."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from assay.audit import Audit, key_changed
from assay.config import AuditConfig, IngressConfig
from assay.errors import NotFound, SetupError
from assay.groups import Groups, listed
from assay.keys import SCOPES, Key, KeyFile

EXIT_UNTOLD, EXIT_USAGE = 1, 2
DEFAULT = Path(IngressConfig().keys)


def keys(
    action: Annotated[Literal["create", "list", "revoke"], typer.Argument(help="What to do.")] = "list",
    key: Annotated[str | None, typer.Argument(help="revoke: the key's id.")] = None,
    tenant: Annotated[str, typer.Option(help="create: who owns what its holder leaves behind.")] = "default",
    bucket: Annotated[list[str] | None, typer.Option(help="create: a bucket that it may see; repeatable.")] = None,
    all_buckets: Annotated[bool, typer.Option("--all-buckets", help="create: it may see all buckets.")] = False,
    groups: Annotated[str, typer.Option(help="create: groups that it holds, as a,b: docs/security.md.")] = "",
    all_groups: Annotated[bool, typer.Option("--all-groups", help="create: it holds all groups.")] = False,
    scope: Annotated[list[str] | None, typer.Option(help="create: search, ask, ingest or admin; repeatable.")] = None,
    rate: Annotated[int, typer.Option(help="create: requests a minute, for each replica.")] = 600,
    concurrency: Annotated[int, typer.Option(help="create: requests in progress, for each replica.")] = 16,
    file: Annotated[Path, typer.Option(help="The file of the keys.", envvar="ASSAY_KEYS")] = DEFAULT,
    audit: Annotated[
        Path | None,
        typer.Option(help="Folder of the audit log; default: `audit` beside the file.", envvar="ASSAY_AUDIT"),
    ] = None,
) -> None:
    """Make, list or revoke API keys. A new key is shown once, on stdout; the file keeps its hash. The audit log has the change.

    Exit status: 0 done, 1 done and not in the audit log, 2 usage.
    """
    try:
        if action == "create":
            if groups and all_groups:
                raise SetupError("name the groups that the key holds with --groups, or all of them with --all-groups")
            held = None if all_groups else tuple(listed(groups))
            scopes = scope or ["search", "ask"]
            with _told(audit or file.parent / "audit", "created") as told:
                told.append(_create(KeyFile(file), tenant, bucket, all_buckets, held, scopes, rate, concurrency))
        elif action == "revoke":
            if key is None:
                raise SetupError("name the id of the key to revoke: `keys list` shows them")
            with _told(audit or file.parent / "audit", "revoked") as told:
                told.append(KeyFile(file).revoke(key))
                typer.echo(f"revoked {key}")
        else:
            _list(KeyFile(file))
    except (SetupError, NotFound) as fault:
        typer.echo(str(fault), err=True)
        raise typer.Exit(EXIT_USAGE) from None


@contextmanager
def _told(folder: Path, what: str) -> Iterator[list[Key]]:
    """The keys that are changed inside are told. Raises ``SetupError``, before anything is changed: they could not be."""
    audit, keys = Audit(AuditConfig(folder=str(folder))), list[Key]()
    try:
        yield keys
        for key in keys:
            key_changed(audit, f"key {what}", f"uid {os.getuid()}", key.model_dump(exclude={"sha256"}))
    finally:
        audit.close()
    if audit.fault:
        typer.echo(f"the key is {what}, but {audit.fault}", err=True)
        raise typer.Exit(EXIT_UNTOLD)


def _create(
    file: KeyFile,
    tenant: str,
    buckets: list[str] | None,
    every: bool,
    groups: Groups,
    scopes: list[str],
    rate: int,
    concurrency: int,
) -> Key:
    if bool(buckets) == every:
        raise SetupError("name the buckets that the key may see with --bucket, or all of them with --all-buckets")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise SetupError(f"there is no scope '{unknown[0][:80]}'; there are {', '.join(SCOPES)}")
    made, text = file.create(tenant, buckets or None, [s for s in SCOPES if s in scopes], rate, concurrency, groups)
    typer.echo(f"made key {made.id} of {tenant}; this is the only time that it is shown:", err=True)
    typer.echo(text)
    return made


def _list(file: KeyFile) -> None:
    for key in file.read():
        buckets = "all buckets" if key.buckets is None else ",".join(key.buckets)
        groups = "all groups" if key.groups is None else f"groups {','.join(key.groups)}" if key.groups else "no groups"
        state = f"revoked {key.revoked_at}" if key.revoked_at else "in force"
        limits = f"{key.rate}/min, {key.concurrency} at once"
        typer.echo(
            f"{key.id}  {key.tenant:<16} {','.join(key.scopes):<24} {buckets}  {groups}  {limits}  {key.created_at}  {state}"
        )
