"""Reads a Serve YAML of ``configs/`` the way the commands need it: its config tree, checked, and where it listens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from assay.config import AppConfig
from assay.errors import SetupError


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """``raw`` is the YAML as it stands; ``app`` the ``args`` of its application ``assay``, validated."""

    path: Path
    raw: dict[str, Any]
    app: AppConfig
    host: str
    port: int


def load(path: Path) -> ServeConfig:
    """Raises ``SetupError`` with one line that names the file and the field."""
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as e:
        raise SetupError(f"cannot read the config {path}: {e.strerror}") from e
    except yaml.YAMLError as e:
        raise SetupError(f"the config {path} is not YAML: {' '.join(str(e).split())}") from e
    applications = raw.get("applications") if isinstance(raw, dict) else None
    ours = [item for item in applications or [] if isinstance(item, dict) and item.get("name") == "assay"]
    if not ours:
        raise SetupError(f"the config {path} has no application named 'assay'")
    try:
        app = AppConfig.model_validate(ours[0].get("args") or {})
    except ValidationError as e:
        first = e.errors()[0]
        raise SetupError(f"{path}: args.{'.'.join(map(str, first['loc']))}: {first['msg']}") from e
    http = raw.get("http_options") or {}
    return ServeConfig(path, raw, app, str(http.get("host", "0.0.0.0")), int(http.get("port", 8000)))  # noqa: S104
