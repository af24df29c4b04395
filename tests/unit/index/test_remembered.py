"""Vectors that are remembered: the same as without, asked for once, bounded, and nobody else's to change."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.errors import StageUnavailable
from assay.index.remembered import MOST_CHARS, Remembered

pytestmark = pytest.mark.anyio


class Embedder:
    """Two numbers of a text; what it was asked is kept."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked.append(list(texts))
        if "broken" in texts:
            raise StageUnavailable("no")
        rows = [[np.nan if text == "odd" else len(text), sum(map(ord, text))] for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), 2)


async def test_what_is_known_is_not_asked_again_and_all_come_in_their_order() -> None:
    plain, inner = Embedder(), Embedder()
    remembered = Remembered(inner)
    for texts in (["a", "bb"], ["ccc", "a", "ccc", "bb"], ["bb", "bb"], [], ["d", "d"]):
        assert np.array_equal(await remembered(texts), await plain(texts))
    assert inner.asked == [["a", "bb"], ["ccc"], [], ["d"]]


async def test_no_more_than_so_many_are_known_and_the_last_ones_asked_for_stay() -> None:
    inner = Embedder()
    remembered = Remembered(inner, most=2)
    for texts in (["a"], ["b"], ["a"], ["c"], ["a"], ["b"]):
        await remembered(texts)
    assert inner.asked == [["a"], ["b"], ["c"], ["b"]]
    assert (await remembered(["a", "b", "c", "d"])).shape == (4, 2)


async def test_what_was_no_vector_or_is_long_or_failed_is_asked_again() -> None:
    inner = Embedder()
    remembered = Remembered(inner)
    long = "x" * (MOST_CHARS + 1)
    for _ in range(2):
        assert np.isnan(await remembered(["odd"])).any()
        await remembered([long])
        with pytest.raises(StageUnavailable):
            await remembered(["e", "broken"])
    assert inner.asked == 2 * [["odd"], [long], ["e", "broken"]]


async def test_whoever_changes_a_vector_changes_his_own() -> None:
    remembered = Remembered(Embedder())
    for _ in range(2):
        (await remembered(["a", "b"]))[:] = 0
    assert (await remembered(["b"])).tolist() == [[1.0, 98.0]]
