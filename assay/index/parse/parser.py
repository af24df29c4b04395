"""The parent's side of the parsing child: limits of size, time and memory, and a new child where one has died."""

import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import assay
from assay.errors import ParseFault
from assay.index.parse.parsed import FORMATS, Parsed, from_fields


@dataclass(frozen=True, slots=True)
class Limits:
    file_bytes: int = 100_000_000
    seconds: float = 60.0
    memory_bytes: int = 2_000_000_000


class Parser:
    """One child, reused from file to file. Use it as a context manager; not for several threads at once.

    ``passwords`` are tried in order on what is encrypted. They go to the child through its pipe, and nowhere else."""

    def __init__(self, limits: Limits | None = None, passwords: Sequence[str] = ()) -> None:
        self._limits = limits or Limits()
        self._passwords = tuple(passwords)
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def read(self, path: Path) -> bytes:
        """The file's bytes. Raises ``ParseFault``: ``unsupported``, ``unreadable`` or ``too_large``. Never waits for a pipe."""
        if path.suffix.lower() not in FORMATS:
            raise ParseFault(f"files of the kind '{path.suffix or path.name}' are not read", "unsupported")
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ParseFault("it is no regular file", "unsupported")
                data = file.read(self._limits.file_bytes + 1)
        except OSError as e:
            raise ParseFault(f"the file cannot be read ({e.strerror})", "unreadable") from None
        if len(data) > self._limits.file_bytes:
            size = max(status.st_size, len(data))
            raise ParseFault(f"the file has {size} bytes, more than {self._limits.file_bytes}", "too_large")
        return data

    def parse(self, data: bytes, name: str) -> Parsed:
        """Raises ``ParseFault``, also with the reasons ``timeout`` and ``memory``."""
        path = Path(name)
        head = {"format": FORMATS[path.suffix.lower()], "stem": path.stem, "bytes": len(data)}
        line = json.dumps({**head, "passwords": self._passwords}).encode()
        reply = json.loads(self._exchange(line + b"\n" + data))
        if "reason" in reply:
            raise ParseFault(reply["message"], reply["reason"])
        return from_fields(reply["parsed"])

    def _exchange(self, request: bytes) -> bytes:
        child = self._running()
        deadline = time.monotonic() + self._limits.seconds
        try:
            return _talk(child, request, deadline)
        except TimeoutError:
            self._stop()
            raise ParseFault(f"parsing took longer than {self._limits.seconds:g} s", "timeout") from None
        except (BrokenPipeError, EOFError, ValueError):
            raise _death(self._stop(grace=1.0)) from None
        except BaseException:
            self._stop()  # an interrupted exchange leaves the pipe in the middle of a reply
            raise

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            root = str(Path(assay.__file__).parents[1])
            # No secrets of the parent, and a session of its own: Ctrl-C is for the parent, which then ends the child.
            kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")}
            kept["OPENBLAS_NUM_THREADS"] = "1"  # openpyxl imports numpy, whose threads each claim memory of the limit
            self._child = subprocess.Popen(
                [sys.executable, "-m", "assay.index.parse.child", str(self._limits.memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**kept, "PYTHONPATH": root},
                start_new_session=True,
                bufsize=0,
            )
            assert self._child.stdin is not None
            assert self._child.stdout is not None
            os.set_blocking(self._child.stdin.fileno(), False)
            os.set_blocking(self._child.stdout.fileno(), False)
        return self._child

    def _stop(self, grace: float = 0.0) -> int:
        """How the child ended, as ``Popen.returncode``. ``grace``: seconds for one that is ending by itself."""
        child, self._child = self._child, None
        if child is None:
            return 0
        try:
            child.wait(grace)
        except subprocess.TimeoutExpired:
            child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        return child.wait()


def _death(status: int) -> ParseFault:
    """Of a child that ended without a reply. Libraries in C end themselves where memory is refused."""
    if -status in (signal.SIGABRT, signal.SIGKILL, signal.SIGTRAP, signal.SIGILL):
        return ParseFault("the parser died of this file, out of memory", "memory")
    return ParseFault("the parser died of this file: broken beyond reading", "malformed")


def _talk(child: subprocess.Popen[bytes], request: bytes, deadline: float) -> bytes:
    """Send a request and read its reply, both at once: a child that does not read must not stop the parent."""
    assert child.stdin is not None
    assert child.stdout is not None
    unsent, reply, total = memoryview(request), bytearray(), -1
    while total < 0 or len(reply) < total:
        wait = deadline - time.monotonic()
        if wait <= 0:
            raise TimeoutError
        readable, writable, _ = select.select([child.stdout], [child.stdin] if unsent else [], [], wait)
        if writable:
            unsent = unsent[os.write(child.stdin.fileno(), unsent[: 1 << 20]) :]
        if readable:
            received = os.read(child.stdout.fileno(), 1 << 20)
            if not received:
                raise EOFError
            reply += received
            if total < 0 and b"\n" in reply:
                head, _, rest = bytes(reply).partition(b"\n")
                total, reply = int(head), bytearray(rest)
    return bytes(reply)
