"""One batch for all who wait: requests that arrive while the workers are busy are worked on together."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class Batcher:
    """``run`` turns texts into vectors, on the threads of ``pool``, in batches of whole requests of about ``most`` texts.

    Nobody waits for a batch to fill: a request that finds an idle worker starts at once. A batch that fails is run again
    request by request, so that one's fault is not its neighbours'.
    """

    def __init__(self, run: Callable[[Sequence[str]], Vectors], pool: Executor, workers: int, most: int) -> None:
        self._run, self._pool, self._workers, self._most = run, pool, workers, most
        self._waiting: deque[tuple[Sequence[str], Future[Vectors]]] = deque()
        self._busy = 0
        self._lock = threading.Lock()

    async def __call__(self, texts: Sequence[str]) -> Vectors:
        """One vector for each text, in their order. Raises what ``run`` raises for these texts."""
        future: Future[Vectors] = Future()
        with self._lock:
            self._waiting.append((texts, future))
            start = self._busy < self._workers
            self._busy += start
        if start:
            self._pool.submit(self._work)
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        while batch := self._next():
            self._answer(batch)

    def _next(self) -> list[tuple[Sequence[str], Future[Vectors]]]:
        """The requests that have waited longest; none, and the worker is idle."""
        batch: list[tuple[Sequence[str], Future[Vectors]]] = []
        size = 0
        with self._lock:
            while self._waiting and (not batch or size + len(self._waiting[0][0]) <= self._most):
                texts, future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():  # whoever gave up is left out
                    batch.append((texts, future))
                    size += len(texts)
            if not batch:
                self._busy -= 1
        return batch

    def _answer(self, batch: Sequence[tuple[Sequence[str], Future[Vectors]]]) -> None:
        try:
            vectors = self._run([text for texts, _ in batch for text in texts])
        except Exception as e:  # noqa: BLE001  # whoever asked hears it
            if len(batch) == 1:
                batch[0][1].set_exception(e)
            else:
                for request in batch:
                    self._answer([request])
            return
        ends = np.cumsum([len(texts) for texts, _ in batch])
        for (texts, future), end in zip(batch, ends, strict=True):
            future.set_result(vectors[end - len(texts) : end])
