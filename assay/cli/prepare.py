"""``prepare``: makes the embedded models that a config names ready for use, once."""

import time
from pathlib import Path
from typing import Annotated

import typer

from assay import models, serve_config

DEFAULT_CONFIG = Path("configs/local.yaml")


def prepare(
    config: Annotated[Path, typer.Option(help="The Serve config whose models are wanted.")] = DEFAULT_CONFIG,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte, not only sizes.")] = False,
) -> None:
    """Unpack the embedded models into the cache folder of the config. Done once; a second run only checks."""
    started = time.monotonic()
    app = serve_config.load(config).app
    if any(engine.model == models.LLM_REF for engine in app.engines.values()):
        folder = models.prepare_llm(Path(app.cache).expanduser(), _progress(started), verify=verify)
        typer.echo(f"language model: {folder}")
    if app.index.embedder == models.EMBEDDER_REF:
        typer.echo(f"embedder: {models.embedder_path()}")


def _progress(started: float) -> models.Progress:
    return lambda line: typer.echo(f"[{time.monotonic() - started:5.1f} s] {line}", err=True)
