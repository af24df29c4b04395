"""API keys: made, listed and revoked in one file, of which every replica sees changes at once.

A key is ``assay_ID_SECRET``. The file holds the SHA-256 of the secret, which is 256 random bits and needs no slow hash.
"""

import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, get_args

from filelock import FileLock
from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from assay import groups
from assay.access import Grant, Scope
from assay.config import IngressConfig
from assay.errors import NotFound, SetupError
from assay.groups import Groups
from assay.schemas import Name, Shape

PREFIX = "assay"
SCOPES: tuple[Scope, ...] = get_args(Scope)

Group = Annotated[str, StringConstraints(pattern=f"^{groups.NAME}$")]
Tenant = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Key(Shape):
    """``buckets``: those that it may see, ``groups``: those that it holds; null for all. Of ``rate`` (requests a minute) and
    ``concurrency`` each replica counts its own."""

    id: str
    tenant: Tenant
    buckets: list[Name] | None = Field(default=None, min_length=1)
    groups: list[Group] | None = Field(default=[], max_length=groups.MOST)
    scopes: list[Scope] = Field(min_length=1)
    rate: int = Field(default=600, ge=1, le=1_000_000)
    concurrency: int = Field(default=16, ge=1, le=10_000)
    sha256: str
    created_at: str
    revoked_at: str | None = None

    @property
    def grant(self) -> Grant:
        buckets = None if self.buckets is None else tuple(sorted(set(self.buckets)))
        held = None if self.groups is None else tuple(sorted(set(self.groups)))
        return Grant(self.tenant, buckets, frozenset(self.scopes), self.id, self.rate, self.concurrency, held)


_KEYS = TypeAdapter(list[Key])
_NOBODY = hashlib.sha256(b"").hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


class KeyFile:
    def __init__(self, path: Path) -> None:
        self._path = path.expanduser()

    def read(self) -> list[Key]:
        """Raises ``SetupError``: the file is there and cannot be read."""
        try:
            return _KEYS.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValidationError) as fault:
            raise SetupError(f"the file of API keys cannot be read: {type(fault).__name__}") from fault

    def create(
        self,
        tenant: str,
        buckets: list[str] | None,
        scopes: list[Scope],
        rate: int,
        concurrency: int,
        groups: Groups = (),
    ) -> tuple[Key, str]:
        """The new key, and the text to send, which nothing keeps. Raises ``SetupError`` for a value that is not allowed."""
        secret = secrets.token_urlsafe(32)
        try:
            made = Key(
                id=secrets.token_hex(6),
                tenant=tenant,
                buckets=buckets,
                groups=None if groups is None else list(groups),
                scopes=scopes,
                rate=rate,
                concurrency=concurrency,
                sha256=_hash(secret),
                created_at=_now(),
            )
        except ValidationError as fault:
            first = fault.errors()[0]
            raise SetupError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        self._change(lambda keys: [*keys, made])
        return made, f"{PREFIX}_{made.id}_{secret}"

    def revoke(self, id_: str) -> Key:
        """Raises ``NotFound``. A key that is revoked already stays as it is."""
        found: list[Key] = []

        def revoked(key: Key) -> Key:
            if key.id != id_:
                return key
            found.append(key if key.revoked_at else key.model_copy(update={"revoked_at": _now()}))
            return found[-1]

        self._change(lambda keys: [revoked(key) for key in keys])
        if not found:
            raise NotFound(f"there is no key '{id_[:80]}'")
        return found[0]

    def _change(self, change: Callable[[list[Key]], list[Key]]) -> None:
        """Written whole beside it, then renamed; readable by its owner only."""
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(str(self._path) + ".lock", timeout=10):
            keys = change(self.read())
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:  # mode 600
                json.dump([key.model_dump(mode="json") for key in keys], file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, self._path)

    def stamp(self) -> tuple[int, int, int] | None:
        """Changes whenever the file does; None where there is none."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise SetupError(f"the file of API keys cannot be read: {type(fault).__name__}") from fault
        return found.st_mtime_ns, found.st_ino, found.st_size


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Keyring:
    """The keys in force. Once there was one, a request without a key is never taken again, even if the file goes away."""

    def __init__(self, file: KeyFile, required: bool = False) -> None:
        self._file, self._required = file, required
        self._stamp: object = ()
        self._keys: dict[str, Key] = {}

    @property
    def open(self) -> bool:
        """Whether there are no keys, and none are required."""
        self._reload()
        return not self._required

    def grant(self, text: str) -> Grant | None:
        """What the holder of this key may do; None for a text that is no key, or a revoked one. An unknown id takes as long
        as a wrong secret."""
        self._reload()
        prefix, _, rest = text.partition("_")
        id_, _, secret = rest.partition("_")
        key = self._keys.get(id_)
        same = hmac.compare_digest(_hash(secret), key.sha256 if key else _NOBODY)
        return key.grant if same and key and prefix == PREFIX and not key.revoked_at else None

    def _reload(self) -> None:
        if (stamp := self._file.stamp()) == self._stamp:
            return
        self._keys = {key.id: key for key in self._file.read()}
        self._stamp = stamp
        self._required = self._required or bool(self._keys)


def keyring_of(config: IngressConfig) -> Keyring:
    """Raises ``SetupError``: keys are required and there is none, or their file cannot be read."""
    file = KeyFile(Path(config.keys))
    if not any(key.revoked_at is None for key in file.read()) and config.keys_required:
        raise SetupError(
            "API keys are required and there is none: make one with `python -m assay keys create --all-buckets`"
        )
    return Keyring(file, config.keys_required)
