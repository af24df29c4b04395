"""An index in an object store: S3, GCS, Azure and what speaks their protocols, by ``obstore``.

Its files are worked on in a local mirror with the same code as a local index. What a snapshot needs lies in the store under its
checksum, so nothing there is ever written over but ``CURRENT``, and that only by whoever saw the one before it::

    blobs/CHECKSUM         every file of a snapshot
    snapshots/ID.json      its manifest
    states/ID.json         the state of the document store at that snapshot, for the next writer
    CURRENT                the id and the sha256 of the snapshot in force
    writer.lock            the writer's lease, renewed while it lives
"""

import os
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from assay.errors import IndexBusy, IndexFault, SetupError
from assay.index.checksums import OTHER_BYTES, Expected, known_by

SCHEMES = ("s3", "gs", "az", "abfs", "abfss")

_LEASE_S = 60.0
_GRACE_S = 3600.0  # a retriever may still be fetching what the last snapshots named
_TRANSFERS = 8
_LOCK = "writer.lock"

# By path in the index.
Files = Mapping[str, Expected]


class Remote:
    """The object store's side of one mirror. Credentials and endpoint come from the cloud's usual environment variables
    (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ...); an endpoint in plain HTTP is used where it is named as one."""

    def __init__(self, uri: str) -> None:
        """Raises ``SetupError`` where the URI or the environment does not name a store."""
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        self.uri = uri
        plain = any(os.environ.get(name, "").startswith("http://") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
        try:
            self._store: Any = from_url(
                uri,
                client_options={"connect_timeout": "5s", "timeout": "120s", "allow_http": plain},
                retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
            )
        except (BaseError, ValueError) as e:
            raise SetupError(f"the index {uri} cannot be opened: {_first_line(e)}", field="index.uri") from e
        self._current: dict[str, Any] | None = None  # ETag of the CURRENT that was read or written last
        self._line: str | None = None

    def current(self) -> str | None:
        """The line of ``CURRENT``; None where nothing was published yet."""
        from obstore.exceptions import NotModifiedError

        known = {"if_none_match": self._current["e_tag"]} if self._current and self._current.get("e_tag") else None
        with _reaching():
            try:
                found = self._store.get("CURRENT", options=known)
                self._current, self._line = _version(found.meta), bytes(found.bytes()).decode()
            except NotModifiedError:
                pass
            except FileNotFoundError:
                self._current = self._line = None
        return self._line

    def read(self, name: str) -> bytes:
        """A small object. Raises ``IndexFault``: not there, or not reachable."""
        with _reaching():
            return bytes(self._store.get(name).bytes())

    def fetch(self, files: Files, root: Path) -> None:
        """Bring files into a mirror, each whole and verified or not at all."""
        with ThreadPoolExecutor(_TRANSFERS) as pool, _reaching():
            list(pool.map(lambda name: self._fetch(files[name], root / name), files))

    def publish(self, id: str, line: str, manifest: bytes, state: bytes, files: Files, root: Path) -> None:
        """Upload what is missing, then put ``CURRENT`` in place of the one last seen.

        Raises ``IndexFault`` where somebody else has published since: nothing is lost, and nothing of theirs written over.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _reaching():
            there = {Path(m["path"]).name for batch in self._store.list(prefix="blobs") for m in batch}
            missing = {blob: name for name, file in files.items() if (blob := known_by(file)[0]) not in there}

            with ThreadPoolExecutor(_TRANSFERS) as pool:
                list(pool.map(lambda blob: self._store.put(f"blobs/{blob}", root / missing[blob]), missing))
            self._store.put(f"snapshots/{id}.json", manifest)
            self._store.put(f"states/{id}.json", state)
            try:
                mode = self._current or "create"
                self._current, self._line = _version(self._store.put("CURRENT", line.encode(), mode=mode)), line
            except (AlreadyExistsError, PreconditionError) as e:
                raise IndexFault("another process has published to this index meanwhile; run it again") from e

    def sweep(self, kept_snapshots: set[str], kept_blobs: set[str], now: datetime | None = None) -> None:
        """Delete what no kept snapshot needs, and is older than any fetch in progress."""
        bound = (now or datetime.now(UTC)) - timedelta(seconds=_GRACE_S)
        with _reaching():
            old = [m["path"] for batch in self._store.list() for m in batch if m["last_modified"] < bound]
            gone = [p for p in old if p.startswith("blobs/") and p.removeprefix("blobs/") not in kept_blobs]
            gone += [p for p in old if p.startswith(("snapshots/", "states/")) and Path(p).stem not in kept_snapshots]
            if gone:
                self._store.delete(gone)

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Be the one writer. A second one is refused at once; after a killed one the lease runs out within a minute.

        It spares writers work in vain. What keeps two from mixing is that ``CURRENT`` is put in place of a known one only.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        owner = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(4)}".encode()
        try:
            with _reaching():
                try:
                    held = _version(self._store.put(_LOCK, owner, mode="create"))
                except AlreadyExistsError:
                    held = _version(self._store.put(_LOCK, owner, mode=self._expired()))
        except PreconditionError:
            raise _busy() from None
        stop = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(owner, held, stop), daemon=True)
        renewal.start()
        try:
            yield
        finally:
            stop.set()
            renewal.join()

    def _expired(self) -> dict[str, Any]:
        """The version of a lease that nobody renews. Raises ``IndexFault`` where somebody does."""
        meta = self._store.head(_LOCK)
        if (datetime.now(UTC) - meta["last_modified"]).total_seconds() < _LEASE_S:
            raise _busy()
        return _version(meta)

    def _renew(self, owner: bytes, held: dict[str, Any], stop: threading.Event) -> None:
        from obstore.exceptions import BaseError, PreconditionError

        while not stop.wait(_LEASE_S / 4):
            try:
                held = _version(self._store.put(_LOCK, owner, mode=held))
            except PreconditionError:
                return  # taken over: this writer was thought dead, and will find CURRENT changed
            except (BaseError, OSError):
                continue  # the store may come back before the lease runs out
        try:
            if bytes(self._store.get(_LOCK).bytes()) == owner:
                self._store.delete(_LOCK)
        except (BaseError, OSError):
            return  # it runs out by itself

    def _fetch(self, expected: Expected, path: Path) -> None:
        known, hashing = known_by(expected)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        digest = hashing()
        try:
            with temporary.open("xb") as file:
                for piece in self._store.get(f"blobs/{known}").stream(min_chunk_size=4 << 20):
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            if digest.hexdigest() != known:
                raise IndexFault(f"the object of {path.name} {OTHER_BYTES}")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _version(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What a conditional write compares: S3 and Azure have an ETag, GCS a generation too."""
    return {key: meta[key] for key in ("e_tag", "version") if meta.get(key) is not None}


def _busy() -> IndexBusy:
    return IndexBusy(
        f"another process is writing to this index; wait for it to end (after a killed one, {_LEASE_S:.0f} s)"
    )


def _first_line(e: BaseException) -> str:
    return str(e).partition("\n")[0][:200]


@contextmanager
def _reaching() -> Iterator[None]:
    """What the object store raises, as ``IndexFault`` without addresses or keys. Conditions that failed pass as they are."""
    from obstore import exceptions as x

    try:
        yield
    except (x.AlreadyExistsError, x.PreconditionError, x.NotModifiedError):
        raise
    except FileNotFoundError as e:
        raise IndexFault("the object store has no such bucket, or lacks a file of the index") from e
    except (x.PermissionDeniedError, x.UnauthenticatedError) as e:
        raise IndexFault("the object store refuses the credentials; set them in the environment") from e
    except x.BaseError as e:
        raise IndexFault("the object store of the index cannot be reached") from e
