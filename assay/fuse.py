"""Rank fusion: the lists of several legs and queries to one, by one canonical chunk id. Ranks count from 1, ties are stable.

Arrays throughout: two hundred candidates are fused in every search, and a loop over them would take longer than a leg.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.schemas import Fusion as Fusion

Ids = NDArray[np.int64]
_Values = NDArray[np.float64]


class Fused(NamedTuple):
    """Chunk ids, each once, the best first, and their scores; shape (n,) both."""

    ids: Ids
    scores: _Values


@dataclass(frozen=True, slots=True)
class RankedList:
    """One leg's answer to one query: chunk ids, the best first, each once, and their scores. Scores and weight are finite.

    ``others``: gives this leg's scores of ids, ascending, that other lists found (NaN where it has none). Score fusion is
    better with them (a chunk just below the cut is not worthless); rank fusion never invents a rank for them.
    """

    leg: str
    ids: Ids
    scores: NDArray[Any]
    weight: float = 1.0
    others: Callable[[Ids], NDArray[Any]] | None = None


def rrf(lists: Sequence[RankedList], k: int = 60) -> Fused:
    """Reciprocal rank fusion: the sum of weight / (k + rank) over the lists that have the chunk."""
    ids, places = _union(lists)
    total = np.zeros(len(ids))
    for ranked, at in zip(lists, places, strict=True):
        total[at] += ranked.weight / (k + 1 + np.arange(len(at)))
    return _ordered(ids, total, places)


def minmax(lists: Sequence[RankedList]) -> Fused:
    """The weighted mean of the scores, each list's scaled to [0, 1]; a chunk without a score in a list has 0 there."""
    ids, places = _union(lists)
    return _ordered(ids, _mean(ids, places, lists, _to_unit), places)


def weighted(lists: Sequence[RankedList]) -> Fused:
    """The weighted mean of standard scores (mean 0, deviation 1 in each list), then scaled to [0, 1].

    A chunk without a score in a list counts as average there. Unlike ``minmax`` it does not hang on the depth of the
    lists, nor on one outlier. The weights are what makes it the best of the three: see ``assay.weigh``.
    """
    ids, places = _union(lists)
    return _ordered(ids, _to_unit(_mean(ids, places, lists, _standardised)), places)


def fuse(method: Fusion, lists: Sequence[RankedList], rrf_k: int = 60) -> Fused:
    if method == "rrf":
        return rrf(lists, rrf_k)
    return minmax(lists) if method == "minmax" else weighted(lists)


def boosted(fused: Fused, gains: Mapping[int, float]) -> Fused:
    """Every score as a share of the best one, plus what its chunk gains; chunks that only gain come in among the rest."""
    whole = float(fused.scores[0]) if len(fused.scores) and fused.scores[0] > 0 else 1.0
    total = dict(zip(fused.ids.tolist(), (fused.scores / whole).tolist(), strict=True))
    place = {chunk: rank for rank, chunk in enumerate(total)}
    for chunk, gain in gains.items():
        total[chunk] = total.get(chunk, 0.0) + gain
    order = sorted(total, key=lambda chunk: (-total[chunk], place.get(chunk, len(place)), chunk))
    return Fused(np.array(order, np.int64), np.array([total[chunk] for chunk in order]))


def best_ranks(lists: Sequence[RankedList], ids: Ids) -> list[dict[str, int]]:
    """Of each id: leg -> its rank in the list of that leg where it stands highest."""
    ranks: list[dict[str, int]] = [{} for _ in ids]
    for ranked in lists:
        found, places = np.nonzero(ids[:, None] == ranked.ids)
        for at, place in zip(found.tolist(), places.tolist(), strict=True):
            ranks[at][ranked.leg] = min(place + 1, ranks[at].get(ranked.leg, place + 1))
    return ranks


def _union(lists: Sequence[RankedList]) -> tuple[Ids, list[Ids]]:
    """All ids, ascending, and where those of each list are among them. Not by ``np.unique``, which takes longer."""
    ids = np.sort(np.concatenate([_NONE, *(ranked.ids for ranked in lists)]))
    ids = ids[np.append(ids[1:] != ids[:-1], True)[: len(ids)]]
    return ids, [ids.searchsorted(ranked.ids) for ranked in lists]


_NONE: Ids = np.zeros(0, np.int64)


def _mean(ids: Ids, places: Sequence[Ids], lists: Sequence[RankedList], scale: Callable[[_Values], _Values]) -> _Values:
    """Of the scaled scores, by weight; 0 where a list has no score of a chunk."""
    heard = [(ranked, at) for ranked, at in zip(lists, places, strict=True) if len(at)]
    whole = sum(ranked.weight for ranked, _ in heard) or 1.0
    total = np.zeros(len(ids))
    for ranked, at in heard:
        scores = np.full(len(ids), np.nan)
        scores[at] = ranked.scores
        if ranked.others is not None:
            rest = np.isnan(scores)
            scores[rest] = ranked.others(ids[rest])
        known = np.isfinite(scores)
        total[known] += ranked.weight / whole * scale(scores[known])
    return total


def _to_unit(scores: _Values) -> _Values:
    """Equal scores are all 1: a list of one chunk says that it matched."""
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.ones_like(scores)


def _standardised(scores: _Values) -> _Values:
    apart = scores - scores.sum() / len(scores)
    deviation = sqrt(apart @ apart / len(scores))
    return apart / deviation if deviation > 1e-12 else np.zeros_like(scores)


def _ordered(ids: Ids, total: _Values, places: Sequence[Ids]) -> Fused:
    """By score; equal ones by their best rank anywhere, then by id, so that the order never hangs on the input's."""
    best = np.full(len(ids), len(ids))
    for at in places:
        best[at] = np.minimum(best[at], np.arange(len(at)))
    order = np.lexsort((best, -total))  # stable, and the ids ascend
    return Fused(ids[order], total[order])
