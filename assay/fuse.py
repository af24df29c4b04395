"""Rank fusion: the lists of several legs and queries to one, by one canonical chunk id. Ranks count from 1, ties are stable."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Literal

Fusion = Literal["rrf", "minmax", "zscore"]
Fused = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class RankedList:
    """One leg's answer to one query: (chunk id, score), the best first, each id once.

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
    return _weighted(lists, _to_unit, missing=0.0)


def zscore(lists: Sequence[RankedList]) -> Fused:
    """The weighted mean of standard scores (mean 0, deviation 1 in each list), then scaled to [0, 1].

    A chunk without a score in a list counts as average there. Unlike ``minmax`` it does not hang on the depth of the
    lists, nor on one outlier: with the same weights it is the better of the two on short and on long queries.
    """
    return _ordered(_to_unit(dict(_weighted(lists, _standardised, missing=0.0))), lists)


def fuse(method: Fusion, lists: Sequence[RankedList], rrf_k: int = 60) -> Fused:
    if method == "rrf":
        return rrf(lists, rrf_k)
    return minmax(lists) if method == "minmax" else zscore(lists)


def best_ranks(lists: Sequence[RankedList]) -> dict[int, dict[str, int]]:
    """Chunk -> leg -> its rank in the list of that leg where it stands highest."""
    ranks: dict[int, dict[str, int]] = {}
    for ranked in lists:
        for rank, (chunk, _) in enumerate(ranked.hits, start=1):
            held = ranks.setdefault(chunk, {})
            held[ranked.leg] = min(rank, held.get(ranked.leg, rank))
    return ranks


def _weighted(
    lists: Sequence[RankedList], scale: Callable[[dict[int, float]], dict[int, float]], missing: float
) -> Fused:
    whole = sum(ranked.weight for ranked in lists if ranked.hits)
    total = {chunk: 0.0 for ranked in lists for chunk, _ in ranked.hits}
    for ranked in lists:
        if ranked.hits:
            scaled = scale(ranked.scores)
            for chunk in total:
                total[chunk] += ranked.weight * scaled.get(chunk, missing) / (whole or 1.0)
    return _ordered(total, lists)


def _to_unit(scores: dict[int, float]) -> dict[int, float]:
    """Equal scores are all 1: a list of one chunk says that it matched."""
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    return {chunk: (score - low) / (high - low) if high > low else 1.0 for chunk, score in scores.items()}


def _standardised(scores: dict[int, float]) -> dict[int, float]:
    mean, deviation = fmean(scores.values()), pstdev(scores.values())
    return {chunk: (score - mean) / deviation if deviation > 0 else 0.0 for chunk, score in scores.items()}


def _ordered(total: Mapping[int, float], lists: Sequence[RankedList]) -> Fused:
    """By score; equal ones by their best rank anywhere, then by id, so that the order never hangs on the input's."""
    ranks = {chunk: min(by_leg.values()) for chunk, by_leg in best_ranks(lists).items()}
    return sorted(total.items(), key=lambda item: (-item[1], ranks.get(item[0], 0), item[0]))
