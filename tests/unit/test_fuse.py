from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.fuse import Fusion, RankedList, best_ranks, fuse, minmax, rrf, zscore

X, A, Y, B, C = 1, 2, 3, 4, 5


def ranked(leg: str, *chunks: int, weight: float = 1.0) -> RankedList:
    return RankedList(leg, [(chunk, 10.0 - i) for i, chunk in enumerate(chunks)], weight)


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
    dense = RankedList("dense", [(X, 0.9), (A, 0.5)], weight=0.6)
    sparse = RankedList("sparse", [(A, 12.0), (B, 3.0)], weight=0.4)
    assert minmax([dense, sparse]) == [(X, pytest.approx(0.6)), (A, pytest.approx(0.4)), (B, pytest.approx(0.0))]


def test_scores_of_chunks_below_the_cut_count() -> None:
    dense = RankedList("dense", [(X, 0.9), (A, 0.1)], others={B: 0.85})
    sparse = RankedList("sparse", [(B, 5.0), (X, 1.0), (A, 0.5)])
    assert minmax([dense, sparse])[0][0] == B
    assert zscore([dense, sparse])[0][0] == B


def test_an_empty_list_has_no_say() -> None:
    only = [ranked("dense", X, A, Y, weight=0.6)]
    for method in (rrf, minmax, zscore):
        assert [c for c, _ in method([*only, RankedList("sparse", [], 0.4)])] == [X, A, Y]
        assert method([]) == []


def test_a_single_hit_scores_one() -> None:
    assert minmax([ranked("dense", X)]) == [(X, 1.0)]
    assert zscore([ranked("dense", X)]) == [(X, 1.0)]


def test_a_bad_variant_does_not_push_out_the_question() -> None:
    question = [RankedList("dense", [(X, 0.8), (A, 0.5), (Y, 0.1)]), RankedList("sparse", [(X, 9.0), (A, 4.0)])]
    bad = [RankedList("dense", [(B, 0.9), (C, 0.2)], 0.25), RankedList("sparse", [(B, 20.0), (C, 1.0)], 0.25)]
    for method in (rrf, minmax):
        assert method([*question, *bad])[0][0] == X


def test_best_ranks() -> None:
    lists = [ranked("dense", X, A), ranked("dense", A, X), ranked("sparse", Y, X)]
    assert best_ranks(lists) == {X: {"dense": 1, "sparse": 2}, A: {"dense": 1}, Y: {"sparse": 1}}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(1, 9), st.floats(-5, 50), max_size=6), max_size=4),
    st.sampled_from(["rrf", "minmax", "zscore"]),
)
def test_each_chunk_once_in_order(lists: list[dict[int, float]], method: Fusion) -> None:
    ranked_lists = [RankedList("dense", sorted(scores.items(), key=lambda x: -x[1])) for scores in lists]
    fused = fuse(method, ranked_lists)
    assert {chunk for chunk, _ in fused} == {chunk for scores in lists for chunk in scores}
    assert len({chunk for chunk, _ in fused}) == len(fused)
    assert all(a[1] >= b[1] for a, b in pairwise(fused))
