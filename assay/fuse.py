"""Rank fusion: the lists of several legs and queries to one, by one canonical chunk id. Ranks count from 1, ties are stable.

Compiled: two hundred candidates are fused in every search, and a loop over them would take longer than a leg, as would some
forty operations on so short arrays. The loops keep the interpreter's lock, since to get it back takes longer than they do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from assay.index.kernels import best_of, place
from assay.schemas import Fusion as Fusion

Ids = NDArray[np.int64]
_Values = NDArray[np.float64]

_NOTHING: tuple[Ids, _Values] = np.zeros(0, np.int64), np.zeros(0)


class Fused(NamedTuple):
    """Chunk ids, each once, the best first, and their scores; shape (n,) both."""

    ids: Ids
    scores: _Values


@dataclass(frozen=True, slots=True)
class RankedList:
    """One leg's answer to one query: chunk ids, the best first, each once, and their scores. Scores and weight are finite.

    ``known``: ids that may be in other lists only, and this leg's scores of them; ``others``: gives its scores of further ones,
    ascending (NaN where it has none). Score fusion is better with them (a chunk just below the cut is not worthless); rank
    fusion never invents a rank for them.
    """

    leg: str
    ids: Ids
    scores: NDArray[Any]
    weight: float = 1.0
    others: Callable[[Ids], NDArray[Any]] | None = None
    known: tuple[Ids, NDArray[Any]] | None = None


def rrf(lists: Sequence[RankedList], k: int = 60) -> Fused:
    """Reciprocal rank fusion: the sum of weight / (k + rank) over the lists that have the chunk."""
    return _fused(_RRF, lists, k)


def minmax(lists: Sequence[RankedList]) -> Fused:
    """The weighted mean of the scores, each list's scaled to [0, 1]; a chunk without a score in a list has 0 there."""
    return _fused(_MINMAX, lists)


def weighted(lists: Sequence[RankedList]) -> Fused:
    """The weighted mean of standard scores (mean 0, deviation 1 in each list), then scaled to [0, 1].

    A chunk without a score in a list counts as average there. Unlike ``minmax`` it does not hang on the depth of the
    lists, nor on one outlier. The weights are what makes it the best of the three: see ``assay.weigh``.
    """
    return _fused(_WEIGHTED, lists)


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
        for held, rank in zip(ranks, _ranks_of(ids, ranked.ids).tolist(), strict=True):
            if rank:
                held[ranked.leg] = min(rank, held.get(ranked.leg, rank))
    return ranks


def warm() -> None:
    """The first search must not wait for the compiler."""
    some = RankedList("dense", np.zeros(1, np.int64), np.zeros(1))
    best_ranks([some], weighted([some]).ids)


_RRF, _MINMAX, _WEIGHTED = range(3)


def _fused(method: int, lists: Sequence[RankedList], k: int = 0) -> Fused:
    heard = [ranked for ranked in lists if len(ranked.ids)]
    if not heard:
        return Fused(*_NOTHING)
    own = _flat([(ranked.ids, ranked.scores) for ranked in heard])
    ids, ranks, scores = _joined(np.sort(own[0]), *own, *_flat([ranked.known or _NOTHING for ranked in heard]))
    for ranked, known in zip(heard, scores if method != _RRF else (), strict=False):
        if ranked.others is not None and len(rest := np.flatnonzero(np.isnan(known))):
            known[rest] = ranked.others(ids[rest])
    return Fused(*_summed(method, ids, ranks, scores, np.array([ranked.weight for ranked in heard], np.float64), k))


def _flat(parts: Sequence[tuple[Ids, NDArray[Any]]]) -> tuple[Ids, _Values, Ids]:
    """One after the other, and where each begins, the last one's end included."""
    ids, scores = zip(*parts, strict=True)
    starts = np.array([0, *accumulate(map(len, ids))], np.int64)
    return np.concatenate(ids, dtype=np.int64), np.concatenate(scores, dtype=np.float64), starts


@njit(cache=True)
def _joined(every, ids, scores, starts, more_ids, more_scores, more_starts):  # type: ignore[no-untyped-def]
    """``every``: all of the ids, ascending. Returns each once; and of each list their ranks (0: not in it) and scores (NaN:
    none), shape (lists, n) both."""
    n = 0
    for i in range(len(every)):
        if i == 0 or every[i] != every[n - 1]:
            every[n] = every[i]
            n += 1
    lists = len(starts) - 1
    ranks, known = np.zeros((lists, n), np.int64), np.full((lists, n), np.nan)
    for of in range(lists):
        for i in range(more_starts[of], more_starts[of + 1]):
            at = place(every, 0, n, more_ids[i])
            if at < n and every[at] == more_ids[i]:
                known[of, at] = more_scores[i]
        for i in range(starts[of], starts[of + 1]):
            at = place(every, 0, n, ids[i])
            ranks[of, at], known[of, at] = i - starts[of] + 1, scores[i]
    return every[:n], ranks, known


@njit(cache=True)
def _summed(method, ids, ranks, scores, weights, k):  # type: ignore[no-untyped-def]
    """Of each id the sum over the lists, by rank or of the scaled scores, by weight, 0 where a list has none of it: the ids,
    best first, and their sums. Equal ones are ordered by their best rank anywhere, then by id, never by the order of the
    input."""
    n, whole = len(ids), 0.0
    total, best = np.zeros(n), np.full(n, n + 1)
    for of in range(len(weights)):
        whole += weights[of]
    for of in range(len(weights)):
        if method != _RRF:
            _scale(method, scores[of])
        weight = weights[of] / whole if whole > 0 else 0.0
        for i in range(n):
            rank = ranks[of, i]
            if rank:
                best[i] = min(best[i], rank)
            if method == _RRF:
                total[i] += weights[of] / (k + rank) if rank else 0.0
            elif np.isfinite(scores[of, i]):
                total[i] += weight * scores[of, i]
    if method == _WEIGHTED:
        _scale(_MINMAX, total)
    for i in range(n):
        best[i] = best[i] * n + i  # the ids ascend
    order, total = best_of(best, total, n)
    return ids[order % n], total


@njit(cache=True)
def _scale(method, scores):  # type: ignore[no-untyped-def]
    """In place, those that are finite: to [0, 1], or to standard scores. Equal scores are all 1 (a list of one chunk says that
    it matched), or 0."""
    low, high, mean, squares, n = np.inf, -np.inf, 0.0, 0.0, 0
    for score in scores:
        if np.isfinite(score):
            low, high, mean, n = min(low, score), max(high, score), mean + score, n + 1
    mean /= max(1, n)
    for score in scores:
        if np.isfinite(score):
            squares += (score - mean) ** 2
    deviation = sqrt(squares / max(1, n))
    for i in range(len(scores)):
        if method == _MINMAX:
            scores[i] = (scores[i] - low) / (high - low) if high > low else scores[i] - scores[i] + 1
        else:
            scores[i] = (scores[i] - mean) / deviation if deviation > 1e-12 else scores[i] - scores[i]


@njit(cache=True)
def _ranks_of(wanted, ids):  # type: ignore[no-untyped-def]
    """0 for those that the list does not have."""
    ranks = np.zeros(len(wanted), np.int64)
    for i in range(len(wanted)):
        for at in range(len(ids)):
            if ids[at] == wanted[i]:
                ranks[i] = at + 1
    return ranks
