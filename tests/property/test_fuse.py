from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import fuse as fusing
from assay.fuse import RankedList
from assay.schemas import Fusion
from tests.unit.test_fuse import Pairs, listed, pairs


def fuse(method: Fusion, lists: list[RankedList]) -> Pairs:
    return pairs(fusing.fuse(method, lists))


Lists = list[tuple[dict[int, float], float]]


LISTS = st.lists(
    st.tuples(
        st.dictionaries(st.integers(1, 9), st.floats(-5, 50, width=16), max_size=7), st.sampled_from([0.25, 0.5, 1.0])
    ),
    max_size=4,
)


def as_lists(given_lists: Lists) -> list[RankedList]:
    return [
        listed(f"leg{i}", sorted(scores.items(), key=lambda x: (-x[1], x[0])), weight)
        for i, (scores, weight) in enumerate(given_lists)
    ]


def oracle(method: str, given_lists: Lists) -> dict[int, float]:
    """Chunk by chunk, straight from the definitions."""
    lists = [(scores, weight) for scores, weight in given_lists if scores]
    total: dict[int, float] = {}
    for chunk in {c for scores, _ in lists for c in scores}:
        for scores, weight in lists:
            values = list(scores.values())
            low, high, deviation = min(values), max(values), float(np.std(values))
            if chunk not in scores:
                part = 0.0
            elif method == "rrf":
                order = sorted(scores, key=lambda c: (-scores[c], c))
                part = weight / (61 + order.index(chunk))
            elif method == "minmax":
                part = weight * ((scores[chunk] - low) / (high - low) if high > low else 1.0)
            else:
                part = weight * (scores[chunk] - float(np.mean(values))) / deviation if deviation > 1e-12 else 0.0
            total[chunk] = total.get(chunk, 0.0) + part
    whole = 1.0 if method == "rrf" else sum(weight for _, weight in lists)
    total = {chunk: score / whole for chunk, score in total.items()}
    if method != "weighted" or not total:
        return total
    low, high = min(total.values()), max(total.values())
    return {c: (score - low) / (high - low) if high - low > 1e-12 else 1.0 for c, score in total.items()}


@settings(max_examples=150, deadline=None)
@given(LISTS, st.sampled_from(["rrf", "minmax", "weighted"]))
def test_every_method_is_what_it_says(lists: Lists, method: Fusion) -> None:
    fused, expected = fuse(method, as_lists(lists)), oracle(method, lists)
    assert len({chunk for chunk, _ in fused}) == len(fused), "each chunk once"
    assert all(a[1] >= b[1] for a, b in pairwise(fused)), "in order"
    assert all(np.isfinite(score) for _, score in fused)
    assert fused == fuse(method, as_lists(lists)), "the same lists, the same order"
    assert {chunk for chunk, _ in fused} == set(expected)
    spread = max(expected.values(), default=0) - min(expected.values(), default=0)
    if method != "weighted" or spread > 1e-6:  # of sums that differ by rounding alone, either may be called the best
        assert dict(fused) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(LISTS.filter(bool), st.sampled_from(["minmax", "weighted"]), st.floats(0.5, 4), st.floats(-10, 10))
def test_score_fusion_minds_neither_unit_nor_zero_of_a_leg(
    lists: Lists, method: Fusion, unit: float, zero: float
) -> None:
    """Cosines and BM25 scores have nothing in common; another scale of one leg must not move the order of clear winners."""
    moved = [({c: unit * s + zero for c, s in lists[0][0].items()}, lists[0][1]), *lists[1:]]
    before, after = dict(fuse(method, as_lists(lists))), dict(fuse(method, as_lists(moved)))
    close = {c: pytest.approx(score, abs=1e-5) for c, score in before.items()}
    spread = max(oracle(method, lists).values(), default=0) - min(oracle(method, lists).values(), default=0)
    assert after == close or (method == "weighted" and spread < 1e-6) or _flat(lists[0][0])


def _flat(scores: dict[int, float]) -> bool:
    """So near each other that a shift rounds their differences away."""
    return bool(scores) and max(scores.values()) - min(scores.values()) < 1e-6
