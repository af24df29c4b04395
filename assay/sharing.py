"""Work that the threads of a pool and those who wait for it do together."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Whoever waits for a result meanwhile does what nobody has begun, in its order. To wait only would leave a core idle, and
    what a pool's thread finished would wait for the interpreter."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._waiting: deque[tuple[Future[T], Callable[[], T]]] = deque()

    def begun(self, work: Callable[[], T]) -> Callable[[], T]:
        """What waits for the result of ``work``, and raises what that raised."""
        future = Future[T]()
        self._waiting.append((future, work))
        self._pool.submit(self._do_next)
        return lambda: self._result(future)

    def _result(self, future: Future[T]) -> T:
        while self._waiting and not future.done():
            self._do_next()
        return future.result()

    def _do_next(self) -> None:
        try:
            future, work = self._waiting.popleft()
        except IndexError:  # somebody was faster
            return
        try:
            future.set_result(work())
        except BaseException as fault:
            future.set_exception(fault)  # of whoever waits for it
            if not isinstance(fault, Exception):
                raise
