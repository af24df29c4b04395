"""The collection of the measurements: its yardstick is right, and an interrupted growth ends as one that was not."""

from pathlib import Path

import numpy as np
import pytest

from bench import corpus


def unit(rows: int, seed: int) -> corpus.Vectors:
    vectors = np.random.default_rng(seed).normal(size=(rows, 384)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_exact_is_what_sorting_everything_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_PIECE", 7)
    vectors, queries = unit(50, 1).astype(np.float16), unit(5, 2)
    vectors[20] = vectors[30]  # a tie
    allowed = np.arange(50) % 3 > 0
    scores = queries @ vectors.astype(np.float32).T
    for mask in (None, allowed):
        kept = np.ones(50, bool) if mask is None else mask
        wanted = [[row for _, row in sorted((-s[row], row) for row in np.flatnonzero(kept))][:6] for s in scores]
        assert corpus.exact(vectors, queries, 6, mask).tolist() == wanted
    few = np.arange(50) < 4
    assert corpus.exact(vectors, queries, 6, few)[:, 4:].tolist() == [[-1, -1]] * 5


def test_what_an_interrupted_growth_left_half_done_is_cut_off(tmp_path: Path) -> None:
    files = corpus._Files(tmp_path / "grown", "key")
    files.append(["one", "zwei ü", ""], unit(3, 1))
    texts, _, vectors = files.paths
    for path in (texts, vectors):  # killed before `ends` was written
        with path.open("ab") as file:
            file.write(b"torn")
    files.append(["four"], unit(1, 2))
    kept, mapped = files.read(4)
    assert kept[:] == ["one", "zwei ü", "", "four"]
    assert kept[-1] == "four"
    np.testing.assert_array_equal(mapped, np.concatenate([unit(3, 1), unit(1, 2)]).astype(np.float16))


def test_grown_rows_are_mixed_from_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_BLOCK", 20)
    real = [f"First of {i}. Second of {i}. Third of {i}." for i in range(40)]
    units = [text.replace(". ", ".|").split("|") for text in real]
    vectors = unit(40, 3)
    near = corpus.exact(vectors.astype(np.float16), vectors, corpus._NEAR + 1)
    one, again = (corpus._grown(real, units, vectors, near, np.random.default_rng([7, 0])) for _ in range(2))
    assert one[0] == again[0]
    np.testing.assert_array_equal(one[1], again[1])
    np.testing.assert_allclose(np.linalg.norm(one[1], axis=1), 1, rtol=1e-5)
    assert all(" of " in text for text in one[0])


def test_tags_are_even() -> None:
    counts = np.bincount(corpus._tags(100_000), minlength=100)
    assert len(counts) == 100
    assert 800 < counts.min() <= counts.max() < 1200
