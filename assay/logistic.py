"""A probability from measured features: the only kind of model that is fitted here, small enough to be read."""

import math
from collections.abc import Mapping

from pydantic import model_validator

from assay.frozen import Frozen


class Logistic(Frozen):
    """1 / (1 + exp(-x)) of ``intercept`` plus each feature's distance to its mean times its weight.

    A feature that was not measured (a stage was degraded, another model) counts as its mean."""

    intercept: float
    weights: Mapping[str, float]
    means: Mapping[str, float]

    @model_validator(mode="after")
    def _same_features(self) -> "Logistic":
        if set(self.weights) != set(self.means):
            raise ValueError(f"weights and means name different features: {sorted(self.weights)}, {sorted(self.means)}")
        return self

    def probability(self, measured: Mapping[str, float]) -> float:
        x = self.intercept
        for name, weight in self.weights.items():
            x += weight * (measured.get(name, self.means[name]) - self.means[name])
        return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
