"""The bootstrap against what is known of it."""

from math import sqrt

import numpy as np
import pytest

from assay.eval.compare import estimates


def test_the_interval_is_that_of_the_mean() -> None:
    """For many values of a known spread the bootstrap comes near the normal interval."""
    values = np.random.default_rng(0).normal(0.5, 0.2, 400)
    (found,) = estimates([values])
    wide = 1.96 * values.std() / sqrt(len(values))
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - wide, abs=0.1 * wide)
    assert found.high == pytest.approx(values.mean() + wide, abs=0.1 * wide)


def test_intervals_hold_what_they_promise() -> None:
    """Of many samples from one distribution, about 95 % have its mean in their interval."""
    draw = np.random.default_rng(1)
    found = estimates(list(draw.beta(2, 5, (300, 80))), resamples=1000)
    assert 0.91 <= np.mean([e.low <= 2 / 7 <= e.high for e in found]) <= 0.98
