from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import fuse as fusing
from assay.fuse import Fused, Fusion, RankedList, best_ranks

X, A, Y, B, C = 1, 2, 3, 4, 5
Pairs = list[tuple[int, float]]


def listed(leg: str, hits: Pairs, weight: float = 1.0, others: dict[int, float] | None = None) -> RankedList:
    more = others or {}
    ids, scores = np.array([c for c, _ in hits], np.int64), np.array([s for _, s in hits], np.float32)
    return RankedList(leg, ids, scores, weight, (np.array(list(more), np.int64), np.array(list(more.values()))))


def ranked(leg: str, *chunks: int, weight: float = 1.0) -> RankedList:
    return listed(leg, [(chunk, 10.0 - i) for i, chunk in enumerate(chunks)], weight)


def pairs(fused: Fused) -> Pairs:
    return list(zip(fused.ids.tolist(), fused.scores.tolist(), strict=True))


def rrf(lists: list[RankedList], k: int = 60) -> Pairs:
    return pairs(fusing.rrf(lists, k))


def minmax(lists: list[RankedList]) -> Pairs:
    return pairs(fusing.minmax(lists))


def weighted(lists: list[RankedList]) -> Pairs:
    return pairs(fusing.weighted(lists))


def fuse(method: Fusion, lists: list[RankedList]) -> Pairs:
    return pairs(fusing.fuse(method, lists))


def boosted(fused: Pairs, gains: dict[int, float]) -> Pairs:
    ids, scores = np.array([c for c, _ in fused], np.int64), np.array([s for _, s in fused])
    return pairs(fusing.boosted(Fused(ids, scores), gains))


METHODS = (rrf, minmax, weighted)


def test_a_chunk_of_both_lists_wins_and_stands_once() -> None:
    fused = rrf([ranked("dense", X, A, Y), ranked("sparse", B, C, Y)])
    assert fused[0][0] == Y
    assert fused[0][1] == pytest.approx(2 / 63)
    assert sorted(chunk for chunk, _ in fused) == [X, A, Y, B, C]


def test_ranks_count_from_one() -> None:
    assert rrf([ranked("dense", X)], k=60) == [(X, pytest.approx(1 / 61))]


def test_ties_go_by_rank_and_then_by_id() -> None:
    lists = [ranked("dense", B, X), ranked("sparse", A, Y)]
    assert [chunk for chunk, _ in rrf(lists)] == [A, B, X, Y]
    assert rrf(lists) == rrf(lists[::-1])


def test_minmax_weighs_the_legs() -> None:
    dense = listed("dense", [(X, 0.9), (A, 0.5)], weight=0.6)
    sparse = listed("sparse", [(A, 12.0), (B, 3.0)], weight=0.4)
    assert minmax([dense, sparse]) == [(X, pytest.approx(0.6)), (A, pytest.approx(0.4)), (B, pytest.approx(0.0))]


@pytest.mark.parametrize("method", [minmax, weighted])
def test_a_leg_without_weight_has_no_say(method: object) -> None:
    dense, sparse = [(X, 0.9), (A, 0.5), (Y, 0.1)], [(Y, 12.0), (A, 3.0), (X, 1.0)]
    assert callable(method)
    assert [c for c, _ in method([listed("dense", dense, 1.0), listed("sparse", sparse, 0.0)])] == [X, A, Y]
    assert [c for c, _ in method([listed("dense", dense, 0.0), listed("sparse", sparse, 1.0)])] == [Y, A, X]


def test_scores_of_chunks_below_the_cut_count() -> None:
    dense = listed("dense", [(X, 0.9), (A, 0.1)], others={B: 0.85})
    sparse = listed("sparse", [(B, 5.0), (X, 1.0), (A, 0.5)])
    assert minmax([dense, sparse])[0][0] == B
    assert weighted([dense, sparse])[0][0] == B


def test_an_empty_list_has_no_say() -> None:
    only = [ranked("dense", X, A, Y, weight=0.6)]
    for method in METHODS:
        assert [c for c, _ in method([*only, listed("sparse", [], 0.4)])] == [X, A, Y]
        assert method([]) == []


def test_a_single_hit_scores_one() -> None:
    assert minmax([ranked("dense", X)]) == [(X, 1.0)]
    assert weighted([ranked("dense", X)]) == [(X, 1.0)]


def test_a_bad_variant_does_not_push_out_the_question() -> None:
    question = [listed("dense", [(X, 0.8), (A, 0.5), (Y, 0.1)]), listed("sparse", [(X, 9.0), (A, 4.0)])]
    bad = [listed("dense", [(B, 0.9), (C, 0.2)], 0.25), listed("sparse", [(B, 20.0), (C, 1.0)], 0.25)]
    for method in (rrf, minmax):
        assert method([*question, *bad])[0][0] == X


def test_best_ranks() -> None:
    lists = [ranked("dense", X, A), ranked("dense", A, X), ranked("sparse", Y, X)]
    asked = np.array([Y, X, B, A])
    assert best_ranks(lists, asked) == [{"sparse": 1}, {"dense": 1, "sparse": 2}, {}, {"dense": 1}]


def test_gains_lift_chunks_and_bring_others_in() -> None:
    fused = [(X, 0.5), (A, 0.4), (Y, 0.0)]
    assert boosted(fused, {}) == [(X, 1.0), (A, 0.8), (Y, 0.0)]
    assert boosted(fused, {A: 0.3, B: 0.9}) == [(A, pytest.approx(1.1)), (X, 1.0), (B, 0.9), (Y, 0.0)]
    assert boosted([], {B: 0.5}) == [(B, 0.5)]
    assert boosted([(X, 0.0)], {A: 0.0}) == [(X, 0.0), (A, 0.0)], "equal ones: what was there before what came in"


# ---- against a brute-force oracle -----------------------------------------------------------------------------------

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
