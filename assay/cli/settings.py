"""Which index a command is about, and how its legs are built: of a Serve config, of the command line, or the defaults."""

from pathlib import Path
from typing import Annotated, Any

import typer

from assay import serve_config
from assay.client import API_KEY
from assay.config import IndexConfig, Legs

ApiKey = Annotated[str | None, typer.Option("--api-key", help="Where there are keys, one of them.", envvar=API_KEY)]


def index_settings(config: Path | None, **given: Any) -> tuple[IndexConfig, Legs | None]:
    """Settings of the config's ``index``; those that are given otherwise (and are not None) win.

    The legs are None where no config says how they should be: an index that is there keeps its own.
    Raises ``SetupError``: the config cannot be read.
    """
    index = serve_config.load(config).app.index if config else IndexConfig()
    chosen = index.model_copy(update={name: value for name, value in given.items() if value is not None})
    return chosen, index.legs if config else None
