"""Configurations against each other on the same queries: means with intervals, paired differences, wins and losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.eval.metrics import Values

RESAMPLES = 10_000
LEVEL = 0.95
_SEED = 20
_EVEN = 1e-9  # values nearer than this are a tie
_CELLS = 4_000_000  # drawn at a time: 64 MB

_Matrix = NDArray[np.float64]
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over queries and the bounds of its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration less the baseline, per query: the mean difference, and on how many queries it is better,
    equal and worse. ``differences``: query -> difference, the greatest loss first."""

    difference: Estimate
    wins: int
    ties: int
    losses: int
    differences: dict[str, float]

    @property
    def certain(self) -> bool:
        """Whether the interval leaves out 0."""
        return not self.difference.low <= 0 <= self.difference.high


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a comparison found. All by configuration, then by metric; ``against`` the baseline, which is not in it."""

    baseline: str
    values: Mapping[str, Values]
    estimates: Mapping[str, Mapping[str, Estimate]]
    against: Mapping[str, Mapping[str, Comparison]]


def compared(values: Mapping[str, Values], baseline: str, *, partial: bool = False) -> Ranking:
    """Paired: every configuration has the same metrics of the same queries, or ``ValueError``.

    ``partial``: one may lack values. A mean is then over the queries that a configuration has, a difference over those that
    both have; what is left without any is not there."""
    if not partial:
        _check_alike(values, baseline)
    columns = {(name, m): list(of.values()) for name, held in values.items() for m, of in held.items() if of}
    shared: dict[tuple[str, str], list[str]] = {}
    for name, held in values.items():
        for metric, of in held.items():
            both = [query for query in values[baseline].get(metric, {}) if query in of]
            if name != baseline and both:
                shared[name, metric] = both
    apart = {
        (name, m): np.subtract([values[name][m][q] for q in both], [values[baseline][m][q] for q in both])
        for (name, m), both in shared.items()
    }
    means, differences = _by_length(columns), _by_length(apart)
    return Ranking(
        baseline,
        values,
        {name: {m: means[name, m] for m in held if (name, m) in means} for name, held in values.items()},
        {
            name: {
                m: _comparison(shared[name, m], apart[name, m], differences[name, m])
                for m in held
                if (name, m) in apart
            }
            for name, held in values.items()
            if name != baseline
        },
    )


def _check_alike(values: Mapping[str, Values], baseline: str) -> None:
    wanted = {metric: set(of) for metric, of in values[baseline].items()}
    for name, held in values.items():
        if {metric: set(of) for metric, of in held.items()} != wanted:
            raise ValueError(
                f"'{name}' was not measured as '{baseline}' was: a paired comparison needs the same queries"
            )


def _by_length(columns: Mapping[_Key, Sequence[float] | _Matrix]) -> dict[_Key, Estimate]:
    """Columns of one length share their draws."""
    found: dict[_Key, Estimate] = {}
    for length in {len(column) for column in columns.values()}:
        keys = [key for key, column in columns.items() if len(column) == length]
        found |= zip(keys, estimates([columns[key] for key in keys]), strict=True)
    return found


def estimates(columns: Sequence[Sequence[float] | _Matrix], resamples: int = RESAMPLES) -> list[Estimate]:
    """The percentile bootstrap over queries: of each column of values, one per query. All columns share the draws, so that
    they are paired, and the seed is fixed: the same values give the same intervals. Raises ``ValueError``."""
    if not columns:
        return []
    x = np.array(columns, float).T
    if not len(x) or not np.isfinite(x).all():
        raise ValueError("an estimate needs at least one value, and no NaN")
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(_resampled(x, resamples), [tail, 1 - tail], axis=0)
    return [Estimate(*map(float, bounds)) for bounds in zip(x.mean(0), low, high, strict=True)]


def _resampled(x: _Matrix, resamples: int) -> _Matrix:
    """Means of the columns over queries that are drawn again and again: shape (resamples, columns)."""
    draw, count = np.random.default_rng(_SEED), len(x)
    step = max(1, _CELLS // count)
    means = []
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = draw.integers(count, size=(size, count)) + np.arange(size)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        means.append(times @ x / count)
    return np.concatenate(means)


def _comparison(queries: Sequence[str], apart: _Matrix, difference: Estimate) -> Comparison:
    wins, losses = int((apart > _EVEN).sum()), int((apart < -_EVEN).sum())
    by_query = sorted(zip(queries, apart.tolist(), strict=True), key=lambda item: item[1])
    return Comparison(difference, wins, len(queries) - wins - losses, losses, dict(by_query))
