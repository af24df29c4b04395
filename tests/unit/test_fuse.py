from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from assay import fuse as fusing
from assay.fuse import Fused, RankedList, best_ranks

X, A, Y, B, C = 1, 2, 3, 4, 5
Pairs = list[tuple[int, float]]


def listed(
    leg: str,
    hits: Pairs,
    weight: float = 1.0,
    others: dict[int, float] | None = None,
    known: dict[int, float] | None = None,
) -> RankedList:
    ids, scores = np.array([c for c, _ in hits], np.int64), np.array([s for _, s in hits], np.float32)
    more = None if others is None else lambda ids: np.array([others.get(int(i), np.nan) for i in ids])
    held = None if known is None else (np.array([*known], np.int64), np.array([*known.values()], np.float32))
    return RankedList(leg, ids, scores, weight, more, held)


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


def test_what_a_leg_has_said_already_it_is_not_asked_again() -> None:
    """In any order, of chunks that no list has, too; of its own list's the list's own score counts."""
    asked: list[int] = []

    def others(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        asked.extend(ids.tolist())
        return np.full(len(ids), 0.25, np.float32)

    dense, sparse = listed("dense", [(X, 0.9), (A, 0.1)]), listed("sparse", [(B, 5.0), (Y, 2.0), (X, 1.0)])
    held = np.array([C, X, B]), np.array([0.7, 0.0, 0.85], np.float32)
    found = weighted([replace(dense, others=others, known=held), sparse])
    assert asked == [Y]
    assert found == weighted([listed("dense", [(X, 0.9), (A, 0.1)], others={B: float(held[1][2]), Y: 0.25}), sparse])


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
