"""Reads a Serve YAML of ``configs/`` the way the commands need it: its config tree, checked, and where it listens."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from assay.access import is_loopback
from assay.config import AppConfig
from assay.errors import SetupError
from assay.keys import keyring_of


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
    deployments = [d for d in ours[0].get("deployments") or [] if isinstance(d, dict)]
    _check_gpu(path, app, deployments)
    _check_placement(path, app, deployments)
    http = raw.get("http_options") or {}
    return ServeConfig(path, raw, app, str(http.get("host", "0.0.0.0")), int(http.get("port", 8000)))  # noqa: S104


def _check_placement(path: Path, app: AppConfig, deployments: list[dict[str, Any]]) -> None:
    """Serve would say only that there is no such deployment."""
    for stage in ("expander", "reranker", "generator"):
        name = stage.capitalize()
        if getattr(app, stage).placement == "driver" and any(d.get("name") == name for d in deployments):
            raise SetupError(
                f"{path}: args.{stage}.placement is driver, so that there is no deployment {name}: take it out of "
                f"'deployments', or set the placement to deployment",
                f"{stage}.placement",
                ("deployment",),
            )


def _check_gpu(path: Path, app: AppConfig, deployments: list[dict[str, Any]]) -> None:
    """Ray hides the GPUs from a replica that asks for none; its vectors and its embedder would find none there."""
    options = {d.get("name"): d.get("ray_actor_options") or {} for d in deployments}
    for field, device, users in _devices(app):
        for user in users:
            if device == "cuda" and not options.get(user, {}).get("num_gpus"):
                raise SetupError(
                    f"{path}: args.{field} is cuda, but the deployment {user} has no num_gpus in its ray_actor_options",
                    field,
                )


def _devices(app: AppConfig) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Each field, what it says, and the deployments that use it."""
    yield "index.embed_device", app.index.embed_device, ("Retriever", "Ingester")
    yield "retriever.device", app.retriever.device, ("Retriever",)


def check_keys(config: ServeConfig) -> None:
    """Raises ``SetupError``: others than this machine could connect, and there is no API key."""
    ingress = config.app.ingress
    if not is_loopback(config.host):
        ingress = ingress.model_copy(update={"keys_required": True})
    keyring_of(ingress)
