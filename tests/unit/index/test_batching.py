"""Requests that arrive while the workers are busy go together, and each gets its own answer."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.index.batching import Batcher

pytestmark = pytest.mark.anyio


class Model:
    """A text's vector is its length. ``gate`` holds the first batch back; a text "bad" fails its batch."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()

    def run(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.batches.append(list(texts))
        self.gate.wait(5)
        if "bad" in texts:
            raise ValueError("bad")
        return np.array([[len(text)] for text in texts], np.float32).reshape(-1, 1)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def started(model: Model, batcher: Batcher) -> "asyncio.Task[NDArray[np.float32]]":
    first = asyncio.ensure_future(batcher(["first"]))
    while not model.batches:
        await asyncio.sleep(0.001)
    return first


async def test_those_who_wait_go_together(pool: ThreadPoolExecutor) -> None:
    model = Model()
    batcher = Batcher(model.run, pool, 1, most=4)
    first = await started(model, batcher)
    others = [asyncio.ensure_future(batcher(["x" * i, "y" * 10])) for i in range(1, 4)]
    await asyncio.sleep(0)
    model.gate.set()
    assert [vectors[:, 0].tolist() for vectors in await asyncio.gather(first, *others)] == [
        [5],
        [1, 10],
        [2, 10],
        [3, 10],
    ]
    assert [len(batch) for batch in model.batches] == [1, 4, 2], "whole requests, about four texts"


async def test_one_who_is_bad_fails_alone(pool: ThreadPoolExecutor) -> None:
    model = Model()
    batcher = Batcher(model.run, pool, 1, most=8)
    first = await started(model, batcher)
    others = [asyncio.ensure_future(batcher([text])) for text in ("good", "bad", "")]
    await asyncio.sleep(0)
    model.gate.set()
    await first
    good, bad, empty = await asyncio.gather(*others, return_exceptions=True)
    assert isinstance(bad, ValueError)
    assert not isinstance(good, BaseException) and not isinstance(empty, BaseException)
    assert (good[0, 0], empty[0, 0]) == (4, 0)


async def test_one_who_gave_up_is_left_out(pool: ThreadPoolExecutor) -> None:
    model = Model()
    batcher = Batcher(model.run, pool, 1, most=8)
    first = await started(model, batcher)
    gone, waits = asyncio.ensure_future(batcher(["gone"])), asyncio.ensure_future(batcher(["waits"]))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    model.gate.set()
    await asyncio.gather(first, waits)
    assert model.batches == [["first"], ["waits"]]


async def test_a_request_larger_than_a_batch_and_an_empty_one(pool: ThreadPoolExecutor) -> None:
    model = Model()
    model.gate.set()
    batcher = Batcher(model.run, pool, 1, most=2)
    assert (await batcher(["a"] * 5)).shape == (5, 1)
    assert (await batcher([])).shape == (0, 1)


async def test_the_worker_starts_again_after_being_idle(pool: ThreadPoolExecutor) -> None:
    model = Model()
    model.gate.set()
    batcher = Batcher(model.run, pool, 1, most=2)
    for _ in range(3):
        await asyncio.sleep(0.01)
        assert (await batcher(["abc"]))[0, 0] == 3


def test_it_serves_one_event_loop_after_another(pool: ThreadPoolExecutor) -> None:
    model = Model()
    model.gate.set()
    batcher = Batcher(model.run, pool, 1, most=2)
    for _ in range(2):
        assert asyncio.run(batcher(["abc"])).shape == (1, 1)
