"""Fits logistics on measured features and judges them: every figure is of questions that the judged fit has not seen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.calibration import Figure
from assay.logistic import Logistic

Numbers = NDArray[np.float64]
FOLDS, REPEATS, RESAMPLES = 10, 5, 400
# Of inverse penalties; the data are some hundred cases, so that all are strong.
PENALTIES = (0.03, 0.1, 0.3, 1.0)
BINS = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """One labelled case: what was measured, whether it holds, and how much it counts. ``group``: its question, none of
    whose cases may be on both sides of a split."""

    measured: Mapping[str, float]
    holds: bool
    group: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Judged:
    """``out_of_fold``: of each sample, the mean probability by fits that had not seen its question."""

    model: Logistic
    out_of_fold: Numbers


def auc(p: Numbers, holds: NDArray[np.bool_], weights: Numbers) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(holds, p, sample_weight=weights))


def ece(p: Numbers, holds: NDArray[np.bool_], weights: Numbers) -> float:
    """Expected calibration error: the gap between what is said and what holds, over bins of equal weight."""
    order = np.argsort(p, kind="stable")
    edges = np.searchsorted(np.cumsum(weights[order]), np.linspace(0, weights.sum(), BINS + 1)[1:-1])
    gaps = [abs(float(np.dot(weights[b], p[b] - holds[b]))) for b in np.split(order, edges) if len(b)]
    return sum(gaps) / float(weights.sum())


def balanced(_: Numbers, holds: NDArray[np.bool_], weights: Numbers) -> float:
    """The P from which on to say yes, for the best mean share of what is told right of each kind: where a case is as likely
    among those that hold as among the others, which a calibrated P says by the share of those that hold.

    The best bound of some hundred cases would hang on a few of them: it went from .46 to .61 as some were added."""
    return float(np.average(holds, weights=weights))


def arrays(samples: Sequence[Sample]) -> tuple[NDArray[np.bool_], Numbers, NDArray[np.int64]]:
    """What holds, the weights, and each sample's group as a number."""
    groups = np.unique([s.group for s in samples], return_inverse=True)[1]
    return np.array([s.holds for s in samples]), np.array([s.weight for s in samples]), groups.astype(np.int64)


def fit(samples: Sequence[Sample], names: Sequence[str], repeats: int = REPEATS, seed: int = 7) -> Judged:
    """A regularised logistic over ``names``; its penalty is chosen inside each fold, so that the judgement includes it."""
    holds, weights, groups = arrays(samples)
    means = {
        name: float(np.mean([v for s in samples if (v := s.measured.get(name)) is not None] or [0])) for name in names
    }
    x = np.array([[s.measured.get(name, means[name]) for name in names] for s in samples])
    total = np.zeros(len(samples))
    for repeat in range(repeats):
        fold = _folds(groups, seed + repeat)
        for k in range(FOLDS):
            away = fold == k
            penalty = _penalty(x[~away], holds[~away], weights[~away], groups[~away], seed)
            total[away] += _logistic(x[~away], holds[~away], weights[~away], penalty).says(x[away])
    final = _logistic(x, holds, weights, _penalty(x, holds, weights, groups, seed))
    return Judged(_readable(final, names, means), total / max(1, repeats))


def figure(
    name: str, measure: Callable[[Numbers, NDArray[np.bool_], Numbers], float], p: Numbers, samples: Sequence[Sample]
) -> Figure:
    """With the interval over resampled questions."""
    holds, weights, groups = arrays(samples)
    whole = measure is not auc  # which needs cases of both kinds
    rows = [np.flatnonzero(groups == g) for g in range(int(groups.max()) + 1)]

    def resampled(chosen: NDArray[np.int64]) -> float:
        at = np.concatenate([rows[g] for g in chosen])
        return measure(p[at], holds[at], weights[at]) if whole or len(set(holds[at])) == 2 else np.nan

    low, high = interval(len(rows), resampled)
    return Figure(name=name, value=measure(p, holds, weights), low=low, high=high, questions=len(rows))


def interval(count: int, measure: Callable[[NDArray[np.int64]], float], seed: int = 7) -> tuple[float, float]:
    """2.5 % and 97.5 % of ``measure`` over resampled questions, each given as its number below ``count``."""
    rng = np.random.default_rng(seed)
    found = np.array([measure(rng.integers(0, count, count)) for _ in range(RESAMPLES)])
    low, high = np.nanquantile(found, (0.025, 0.975))
    return float(low), float(high)


def _folds(groups: NDArray[np.int64], seed: int, folds: int = FOLDS) -> NDArray[np.int64]:
    count = int(groups.max()) + 1
    of_group = np.random.default_rng(seed).permutation(count) % folds
    return np.asarray(of_group[groups])


def _penalty(x: Numbers, holds: NDArray[np.bool_], weights: Numbers, groups: NDArray[np.int64], seed: int) -> float:
    """The one whose fits say least wrong of questions that they have not seen (log loss)."""
    from sklearn.metrics import log_loss

    numbered = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    fold = _folds(numbered, seed, 5)
    losses = []
    for penalty in PENALTIES:
        p = np.zeros(len(holds))
        for k in range(5):
            away = fold == k
            p[away] = _logistic(x[~away], holds[~away], weights[~away], penalty).says(x[away])
        losses.append(log_loss(holds, p, sample_weight=weights))
    return PENALTIES[int(np.argmin(losses))]


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A logistic over raw features: ``shift`` and a weight for each."""

    shift: float
    weights: Numbers

    def says(self, x: Numbers) -> Numbers:
        return np.asarray(1 / (1 + np.exp(-np.clip(self.shift + x @ self.weights, -500, 500))))


def _logistic(x: Numbers, holds: NDArray[np.bool_], weights: Numbers, penalty: float) -> _Fitted:
    """Fitted on standardised features, so that the penalty is the same for all."""
    from sklearn.linear_model import LogisticRegression

    mean, spread = x.mean(0), x.std(0)
    spread[spread < 1e-9] = 1.0
    model = LogisticRegression(C=penalty, max_iter=500).fit((x - mean) / spread, holds, weights)
    raw = model.coef_[0] / spread
    return _Fitted(float(model.intercept_[0] - raw @ mean), raw)


def _readable(fitted: _Fitted, names: Sequence[str], means: Mapping[str, float]) -> Logistic:
    at_mean = fitted.shift + float(fitted.weights @ np.array([means[name] for name in names]))
    return Logistic(
        intercept=round(at_mean, 4),
        weights={name: round(float(w), 4) for name, w in zip(names, fitted.weights, strict=True)},
        means={name: round(means[name], 4) for name in names},
    )
