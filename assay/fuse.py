"""Rank fusion: the lists of several legs and queries to one, by one canonical chunk id. Ranks count from 1, ties are stable."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Fusion = Literal["rrf", "minmax", "weighted"]
Fused = list[tuple[int, float]]
_Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankedList:
    """One leg's answer to one query: (chunk id, score), the best first, each id once. Scores and weight are finite.

    ``others``: this leg's scores of chunks that only other lists found, where they are known. Score fusion is better
    with them (a chunk just below the cut is not worthless); rank fusion never invents a rank for them.
    """

    leg: str
    hits: Sequence[tuple[int, float]]
    weight: float = 1.0
    others: Mapping[int, float] = field(default_factory=dict)

    @property
    def scores(self) -> dict[int, float]:
        return {**self.others, **dict(self.hits)}


def rrf(lists: Sequence[RankedList], k: int = 60) -> Fused:
    """Reciprocal rank fusion: the sum of weight / (k + rank) over the lists that have the chunk."""
    total: dict[int, float] = {}
    for ranked in lists:
        for rank, (chunk, _) in enumerate(ranked.hits, start=1):
            total[chunk] = total.get(chunk, 0.0) + ranked.weight / (k + rank)
    return _ordered(total, lists)


def minmax(lists: Sequence[RankedList]) -> Fused:
    """The weighted mean of the scores, each list's scaled to [0, 1]; a chunk without a score in a list has 0 there."""
    return _ordered(_mean(lists, _to_unit), lists)


def weighted(lists: Sequence[RankedList]) -> Fused:
    """The weighted mean of standard scores (mean 0, deviation 1 in each list), then scaled to [0, 1].

    A chunk without a score in a list counts as average there. Unlike ``minmax`` it does not hang on the depth of the
    lists, nor on one outlier. The weights are what makes it the best of the three: see ``assay.weigh``.
    """
    total = _mean(lists, _standardised)
    scaled = _to_unit(np.array(list(total.values())))
    return _ordered(dict(zip(total, scaled.tolist(), strict=True)), lists)


def fuse(method: Fusion, lists: Sequence[RankedList], rrf_k: int = 60) -> Fused:
    if method == "rrf":
        return rrf(lists, rrf_k)
    return minmax(lists) if method == "minmax" else weighted(lists)


def boosted(fused: Fused, gains: Mapping[int, float]) -> Fused:
    """Every score as a share of the best one, plus what its chunk gains; chunks that only gain come in among the rest."""
    whole = fused[0][1] if fused and fused[0][1] > 0 else 1.0
    total = {chunk: score / whole for chunk, score in fused}
    place = {chunk: rank for rank, (chunk, _) in enumerate(fused)}
    for chunk, gain in gains.items():
        total[chunk] = total.get(chunk, 0.0) + gain
    return sorted(total.items(), key=lambda item: (-item[1], place.get(item[0], len(place)), item[0]))


def best_ranks(lists: Sequence[RankedList]) -> dict[int, dict[str, int]]:
    """Chunk -> leg -> its rank in the list of that leg where it stands highest."""
    ranks: dict[int, dict[str, int]] = {}
    for ranked in lists:
        for rank, (chunk, _) in enumerate(ranked.hits, start=1):
            held = ranks.setdefault(chunk, {})
            held[ranked.leg] = min(rank, held.get(ranked.leg, rank))
    return ranks


def _mean(lists: Sequence[RankedList], scale: Callable[[_Values], _Values]) -> dict[int, float]:
    """Of the scaled scores, by weight, over the chunks of all lists; 0 where a list has no score of one."""
    heard = [ranked for ranked in lists if ranked.hits]
    whole = sum(ranked.weight for ranked in heard) or 1.0
    total = {chunk: 0.0 for ranked in heard for chunk, _ in ranked.hits}
    for ranked in heard:
        scores = ranked.scores
        for chunk, score in zip(scores, scale(np.fromiter(scores.values(), float)).tolist(), strict=True):
            if chunk in total:
                total[chunk] += ranked.weight / whole * score
    return total


def _to_unit(scores: _Values) -> _Values:
    """Equal scores are all 1: a list of one chunk says that it matched."""
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.ones_like(scores)


def _standardised(scores: _Values) -> _Values:
    deviation = scores.std()
    return (scores - scores.mean()) / deviation if deviation > 1e-12 else np.zeros_like(scores)


def _ordered(total: Mapping[int, float], lists: Sequence[RankedList]) -> Fused:
    """By score; equal ones by their best rank anywhere, then by id, so that the order never hangs on the input's."""
    ranks: dict[int, int] = {}
    for ranked in lists:
        for rank, (chunk, _) in enumerate(ranked.hits):
            if rank < ranks.get(chunk, rank + 1):
                ranks[chunk] = rank
    return sorted(total.items(), key=lambda item: (-item[1], ranks.get(item[0], 0), item[0]))
