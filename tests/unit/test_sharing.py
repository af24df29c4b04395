"""Work that whoever waits for it takes part in."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from assay.sharing import Shared


def test_who_waits_does_what_nobody_has_begun() -> None:
    """The pool's only thread is held up: without help nothing would end."""
    free, held = threading.Event(), threading.Event()

    def hold() -> str:
        held.set()
        assert free.wait(60)
        return "held"

    with ThreadPoolExecutor(1) as pool:
        shared = Shared[str](pool)
        first = shared.begun(hold)
        assert held.wait(60)
        done_by = list[str]()

        def noting(name: str) -> str:
            done_by.append(threading.current_thread().name)
            return name

        second, third = (shared.begun(lambda name=name: noting(name)) for name in ("second", "third"))  # type: ignore[misc]
        assert third() == "third"
        assert done_by == [threading.current_thread().name] * 2, "in their order, and in this thread"
        free.set()
        assert (first(), second()) == ("held", "second")


def test_a_fault_is_its_own_and_no_other_ones() -> None:
    with ThreadPoolExecutor(1) as pool:
        shared = Shared[float](pool)
        faulty, sound = shared.begun(lambda: 1 / 0), shared.begun(lambda: 1.0)
        assert sound() == 1.0
        with pytest.raises(ZeroDivisionError):
            faulty()


def test_what_many_threads_ask_for_is_each_ones_own() -> None:
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(8) as askers:
        shared = Shared[int](pool)

        def ask(number: int) -> list[int]:
            waiting = [shared.begun(lambda n=n: n * n) for n in range(number, number + 20)]  # type: ignore[misc]
            return [result() for result in reversed(waiting)]

        for number, found in enumerate(askers.map(ask, range(50))):
            assert found == [n * n for n in reversed(range(number, number + 20))]
