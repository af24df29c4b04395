from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import fuse as fusing
from assay.fuse import RankedList
from assay.schemas import Fusion
from tests.unit.test_fuse import Pairs, boosted, listed, pairs


def fuse(method: Fusion, lists: list[RankedList]) -> Pairs:
    return pairs(fusing.fuse(method, lists))


# Of each leg: the scores in its list, its weight, and what it can say of chunks that only other lists have (None: nothing).
Lists = list[tuple[dict[int, float], float, dict[int, float] | None]]

SCORES = st.dictionaries(st.integers(1, 9), st.floats(-5, 50, width=16), max_size=7)
LISTS = st.lists(st.tuples(SCORES, st.sampled_from([0.25, 0.5, 1.0]), st.none() | SCORES), max_size=4)


def as_lists(given_lists: Lists) -> list[RankedList]:
    """Of what they can say of others every third is known already."""
    return [
        listed(
            f"leg{i}",
            sorted(scores.items(), key=lambda x: (-x[1], x[0])),
            weight,
            others,
            None if others is None else {c: s for c, s in others.items() if c % 3 == 0},
        )
        for i, (scores, weight, others) in enumerate(given_lists)
    ]


def heard(given_lists: Lists) -> list[tuple[dict[int, float], dict[int, float], float]]:
    """Of each list that is not empty its scores, all scores that its leg gives of chunks of any list, and its weight."""
    lists = [of for of in given_lists if of[0]]
    chunks = {c for scores, _, _ in lists for c in scores}
    return [
        (scores, {c: s for c, s in {**(others or {}), **scores}.items() if c in chunks}, weight)
        for scores, weight, others in lists
    ]


def oracle(method: str, given_lists: Lists) -> dict[int, float]:
    """Chunk by chunk, straight from the definitions."""
    lists = heard(given_lists)
    total: dict[int, float] = {}
    for chunk in {c for scores, _, _ in lists for c in scores}:
        for scores, known, weight in lists:
            values = list(known.values())
            low, high, deviation = min(values), max(values), float(np.std(values))
            if chunk not in (scores if method == "rrf" else known):
                part = 0.0
            elif method == "rrf":
                order = sorted(scores, key=lambda c: (-scores[c], c))
                part = weight / (61 + order.index(chunk))
            elif method == "minmax":
                part = weight * ((known[chunk] - low) / (high - low) if high > low else 1.0)
            else:
                part = weight * (known[chunk] - float(np.mean(values))) / deviation if deviation > 1e-12 else 0.0
            total[chunk] = total.get(chunk, 0.0) + part
    whole = 1.0 if method == "rrf" else sum(weight for _, _, weight in lists)
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
    ranks = [[c for c, _ in pairs(fusing.rrf([of]))] for of in as_lists(lists) if len(of.ids)]
    best = {c: min(of.index(c) for of in ranks if c in of) for c, _ in fused}
    assert fused == sorted(fused, key=lambda of: (-of[1], best[of[0]], of[0])), (
        "in order, equal ones by their best rank"
    )
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
    scores, weight, others = lists[0]
    first = [None if of is None else {c: unit * s + zero for c, s in of.items()} for of in (scores, others)]
    moved = [(first[0] or {}, weight, first[1]), *lists[1:]]
    before, after = dict(fuse(method, as_lists(lists))), dict(fuse(method, as_lists(moved)))
    close = {c: pytest.approx(score, abs=1e-5) for c, score in before.items()}
    spread = max(oracle(method, lists).values(), default=0) - min(oracle(method, lists).values(), default=0)
    flat = bool(scores) and _flat(heard(lists)[0][1])
    assert after == close or (method == "weighted" and spread < 1e-6) or flat


def _flat(scores: dict[int, float]) -> bool:
    """So near each other that a shift rounds their differences away."""
    return max(scores.values()) - min(scores.values()) < 1e-6


FUSED = st.dictionaries(st.integers(1, 9), st.sampled_from([0.0, 0.25, 0.5]) | st.floats(-5, 50, width=16), max_size=7)
GAINS = st.dictionaries(st.integers(1, 12), st.sampled_from([0.0, 0.25, 0.5]) | st.floats(0, 2, width=16), max_size=7)


@settings(max_examples=200, deadline=None)
@given(FUSED, GAINS)
def test_gains_are_added_to_shares_of_the_best(scores: dict[int, float], gains: dict[int, float]) -> None:
    fused = sorted(scores.items(), key=lambda of: (-of[1], of[0]))
    most = max([s for s in scores.values() if s > 0], default=1.0)
    expected = {c: scores.get(c, 0.0) / most + gains.get(c, 0.0) for c in {*scores, *gains}}
    found = boosted(fused, gains)
    assert dict(found) == expected
    assert len(found) == len(expected), "each chunk once"
    before = [c for c, _ in fused]
    for (one, first), (other, second) in pairwise(found):
        assert first >= second, "in order"
        if first == second and other in before:
            assert before.index(one) < before.index(other), "equal ones: as they stood, before what came in"
        elif first == second:
            assert one in before or one < other, "and what came in by id"
