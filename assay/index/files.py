"""Where the parts of an index lie, and the only code of it that touches files: atomic writes, checksums, the lock."""

import hashlib
import io
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from blake3 import blake3
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from assay.errors import IndexBusy, IndexFault, SetupError
from assay.index.checksums import OTHER_BYTES, Expected, known_by
from assay.index.remote import SCHEMES, Remote

Item = TypeVar("Item")
Result = TypeVar("Result")
Buffer = NDArray[np.uint8]

_STEP = 1 << 22  # bytes read at a time
_HEADER = 1024  # more than an array's header has

MIRRORS = Path("~/.cache/assay/indexes")

# What mends anything that is derived from the store.
REPAIR = "run: python -m assay ingest"
# What mends the store itself.
RESTORE = "put back a copy of the index, or move its folder away and ingest anew"


class Layout:
    """The folders and files of one index.

    ::

        chunks.lance documents.lance   the store, the source of truth
        state.json                     the store versions that belong together; replaced after every batch
        segments/ID/                   one segment's leg artifacts, immutable
        snapshots/ID.json              what a retriever serves, immutable
        CURRENT                        the id and the sha256 of the snapshot in force; replaced on publishing
    """

    def __init__(self, uri: str, *, reading: bool = False, mirrors: Path | None = None) -> None:
        """Of an index in an object store these are the folders of its mirror, one for writing and one for ``reading``.

        Raises ``SetupError`` where the URI is of no kind that can hold an index.
        """
        scheme, named, rest = uri.partition("://")
        if named and scheme not in ("file", *SCHEMES):
            known = tuple(f"{name}://" for name in ("file", *SCHEMES))
            raise SetupError(f"the index cannot be at '{uri}'; name a folder or a URI", "index.uri", known)
        if named and not (rest.partition("/")[0] if scheme in SCHEMES else rest):
            what, form = ("bucket", "BUCKET/PATH") if scheme in SCHEMES else ("folder", "/FOLDER")
            raise SetupError(f"the index '{uri}' names no {what}; write {scheme}://{form}", "index.uri")
        self.remote = Remote(uri.rstrip("/")) if named and scheme in SCHEMES else None
        if self.remote:
            name = hashlib.sha256(uri.rstrip("/").encode()).hexdigest()[:16]
            self.root = (mirrors or MIRRORS.expanduser()) / name / ("reader" if reading else "writer")
        else:
            self.root = Path(rest if named else uri).expanduser()
        self.chunks = str(self.root / "chunks.lance")
        self.documents = str(self.root / "documents.lance")
        self.state = self.root / "state.json"
        self.segments = self.root / "segments"
        self.snapshots = self.root / "snapshots"
        self.current = self.root / "CURRENT"

    @contextmanager
    def writer(self) -> Iterator[None]:
        """Hold the index for writing. A second writer is refused at once; the lock dies with its process."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.root / "writer.lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise IndexBusy(f"another process is writing to the index {self.root}; wait for it to end") from None
        except OSError as e:
            raise SetupError(f"cannot write to the index {self.root}: {e.strerror}", field="index.uri") from e
        try:
            yield
        finally:
            lock.release()


def write_atomic(path: Path, data: bytes) -> None:
    """The file is the old one or the new one, whole, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with temporary.open("xb") as file:  # not mkstemp: a server may run as another user than the one that ingests
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def folder_atomic(final: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``final`` when the block ends well, with every byte on disk, or vanishes."""
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        yield temporary
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(temporary)
        temporary.chmod(0o755)
        temporary.rename(final)
        sync_folder(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """A rename is only durable once its folder is."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(root: Path, since_s: float) -> None:
    """Put on disk what was written under a folder since a time: Lance renames, but leaves that to the system."""
    for folder, _, names in os.walk(root):
        fresh = [path for name in names if (path := Path(folder) / name).stat().st_mtime >= since_s]
        for path in fresh:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if fresh:
            sync_folder(Path(folder))


def describe(folder: Path) -> dict[str, dict[str, Any]]:
    """Length and checksum of every file of a folder: what a manifest keeps of it."""
    return {p.name: {"bytes": p.stat().st_size, "blake3": checksum(p)} for p in sorted(folder.iterdir())}


def fault_of(path: Path, expected: Expected) -> str | None:
    """Why the file is not the one that was written, or None. Reads every byte."""
    try:
        size = path.stat().st_size
        if size != expected["bytes"]:
            return f"has {size} bytes, {expected['bytes']} were written"
        known, hashing = known_by(expected)
        return None if checksum(path, hashing) == known else OTHER_BYTES
    except FileNotFoundError:
        return "is missing"
    except OSError as e:
        return f"cannot be read ({e.strerror})"


def in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """``work`` of each, two at a time: hashing and reading leave the interpreter's lock alone."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, items))


def read_checked(path: Path, expected: Expected) -> Buffer:
    """The bytes of a file, hashed as they are read: what was checked is what is served, whatever becomes of the file.

    A mapped file would be neither, and one that is cut off kills the process that has it mapped. Raises ``IndexFault``.
    """
    size, (known, hashing) = int(expected["bytes"]), known_by(expected)
    with _telling(path), path.open("rb", buffering=0) as file:
        _check_length(path, file.fileno(), size)
        data, digest, at = np.empty(size, np.uint8), hashing(), 0
        view = memoryview(data)  # type: ignore[arg-type]  # arrays are buffers
        while at < size and (got := file.readinto(view[at : at + _STEP])):
            digest.update(view[at : at + got])
            at += got
    if digest.hexdigest() != known:
        raise IndexFault(f"{path.name} {OTHER_BYTES}")
    return data


class KeptFile:
    """A file that is read piece by piece, too large for what is ever asked of it. Whoever reads checks each piece: only the
    length of the file is looked at here. It is held open, so that it can be read after a sweep has deleted it."""

    def __init__(self, path: Path, expected: Expected) -> None:
        """Raises ``IndexFault`` where it has another length than was written."""
        self._path = path
        with _telling(path):
            self._handle = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._handle)
            _check_length(path, self._handle, int(expected["bytes"]))

    def announce(self, pieces: Iterable[tuple[int, int]]) -> None:
        """What is read next, as (begin, length): from a disk it comes together, not one after the other."""
        for begin, length in pieces:
            os.posix_fadvise(self._handle, begin, length, os.POSIX_FADV_WILLNEED)

    def read(self, begin: int, length: int) -> bytes:
        """Shorter where the file has become so. Raises ``IndexFault`` where it cannot be read."""
        try:
            return os.pread(self._handle, length, begin)
        except OSError as e:
            raise IndexFault(f"{self._path.name} cannot be read ({e.strerror})") from e


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """What the system says of a file, as ``IndexFault``."""
    try:
        yield
    except FileNotFoundError:
        raise IndexFault(f"{path.name} is missing") from None
    except OSError as e:
        raise IndexFault(f"{path.name} cannot be read ({e.strerror})") from e


def _check_length(path: Path, handle: int, size: int) -> None:
    if (held := os.fstat(handle).st_size) != size:
        raise IndexFault(f"{path.name} has {held} bytes, {size} were written")


def array_of(data: Buffer, dtype: type[np.generic]) -> NDArray[Any]:
    """The array of a ``.npy`` file's bytes, which it shares. Raises ``ValueError`` where it is of another type."""
    file = io.BytesIO(data[:_HEADER].tobytes())
    np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
    shape, fortran, found = np.lib.format.read_array_header_1_0(file)  # type: ignore[no-untyped-call]
    if fortran or found != np.dtype(dtype):
        raise ValueError(f"the array has type {found}")
    return data[file.tell() :].view(dtype).reshape(shape)


def checksum(path: Path, hashing: Callable[[], Any] = blake3) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashing).hexdigest()


def remove_others(folder: Path, keep: set[str], older_than_s: float, now_s: float) -> None:
    """Delete entries of a folder that nothing names any more; young ones stay, a reader may be opening them."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.name not in keep and now_s - path.stat().st_mtime > older_than_s:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def remove_stale(paths: Iterable[Path], keep: Collection[Path], older_than_s: float) -> None:
    """Delete files that nothing names any more and that were written long enough ago."""
    for path in paths:
        if path not in keep:
            try:
                if time.time() - path.stat().st_mtime > older_than_s:
                    path.unlink()
            except FileNotFoundError:
                continue  # another replica was faster


@contextmanager
def interrupt_after() -> Iterator[None]:
    """A Ctrl-C meanwhile is heard when the block has ended. In threads, which are never interrupted, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt
