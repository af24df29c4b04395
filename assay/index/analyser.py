"""Analysis of many texts in processes of their own: ``python -m assay.index.analyser``, texts on stdin, terms on stdout.

Not by multiprocessing: its children run the parent's main module again, or inherit the locks of its threads.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.text import Analyser


class Terms(NamedTuple):
    """Texts as term ids, one after the other, how many each has, and the terms by id."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int32]
    names: list[str]

    @property
    def mean(self) -> float:
        """Terms of a text; at least 1, so that it can divide."""
        return max(1.0, float(self.lengths.mean())) if len(self.lengths) else 1.0


def terms_of(texts: Sequence[str]) -> Terms:
    analyser = Analyser()
    rows = [analyser.ids(text) for text in texts]
    flat = np.fromiter((i for row in rows for i in row), np.int32)
    return Terms(flat, np.array([len(row) for row in rows], np.int32), list(analyser.vocabulary))


def in_processes(pieces: Iterable[Sequence[str]], processes: int) -> Iterator[Terms]:
    """``terms_of`` each piece, in order."""
    with ExitStack() as stack:
        children: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for _ in range(processes):
            child = _child()
            stack.callback(_end, child)
            children.put(child)

        def analysed(piece: Sequence[str]) -> Terms:
            child = children.get()
            try:
                return Terms(*_asked(child, piece))
            except (OSError, EOFError, pickle.UnpicklingError):
                return terms_of(piece)  # the child has died; the work has not become impossible
            finally:
                children.put(child)

        pool = stack.enter_context(ThreadPoolExecutor(processes))
        running: list[Future[Terms]] = []
        for piece in pieces:
            running.append(pool.submit(analysed, piece))
            if len(running) > 2 * processes:
                yield running.pop(0).result()
        for future in running:
            yield future.result()


def _child() -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "assay.index.analyser"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
    )


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        with suppress(OSError):  # what was not sent yet cannot be any more
            if pipe:
                pipe.close()
    child.wait()


def _asked(child: "subprocess.Popen[bytes]", piece: Sequence[str]) -> Any:
    assert child.stdin and child.stdout
    pickle.dump(list(piece), child.stdin, protocol=5)
    child.stdin.flush()
    return pickle.load(child.stdout)  # noqa: S301 - from our own child


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
    while True:
        try:
            texts = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
        except EOFError:
            return
        pickle.dump(tuple(terms_of(texts)), replies, protocol=5)
        replies.flush()


if __name__ == "__main__":
    main()
