"""Metrics against their definitions, and what sets a configuration apart."""

from math import log2

import numpy as np
import pytest

from assay.errors import InvalidRequest
from assay.eval.compare import compared, estimates
from assay.eval.metrics import checked, measured

JUDGED = {"q": {"a": 3, "b": 1, "c": 0, "gone": 2}, "r": {"x": 1}}


def test_metrics_by_their_definition() -> None:
    found = measured(("nDCG@10", "R@2", "RR@10", "P@2"), JUDGED, {"q": ["c", "a", "b"], "r": ["y", "z"]})
    ideal = 3 + 2 / log2(3) + 1 / log2(4)
    assert found["nDCG@10"]["q"] == pytest.approx((3 / log2(3) + 1 / log2(4)) / ideal)
    assert found["R@2"]["q"] == pytest.approx(1 / 3)
    assert found["RR@10"]["q"] == pytest.approx(1 / 2)
    assert found["P@2"]["q"] == pytest.approx(1 / 2)
    assert {metric: of["r"] for metric, of in found.items()} == dict.fromkeys(found, 0.0)


def test_the_order_of_the_run_counts_and_not_the_names() -> None:
    """trec_eval breaks ties by name; nothing of that may reach a run."""
    for order in (["b", "a", "x"], ["a", "b", "x"]):
        assert measured(("RR",), {"q": {order[0]: 1}}, {"q": order})["RR"]["q"] == 1


def test_a_query_that_found_nothing_counts_as_0() -> None:
    assert measured(("nDCG@10",), JUDGED, {"q": [], "r": ["x"]})["nDCG@10"] == {"q": 0.0, "r": 1.0}


@pytest.mark.parametrize("name", ["nDCG@", "precision", "P@-1", "", "__import__('os')", "nDCG@10 + 1"])
def test_unknown_metrics_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is no metric"):
        checked([name])


def test_the_same_values_give_the_same_interval_beside_whatever_else() -> None:
    values = list(np.random.default_rng(2).random(50))
    alone, beside = estimates([values])[0], estimates([[0.0] * 50, values])[1]
    assert (alone.low, alone.high) == pytest.approx((beside.low, beside.high), abs=1e-12)
    (even,) = estimates([[0.25] * 5])
    assert (even.mean, even.low, even.high) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize("column", [[], [0.1, float("nan")]])
def test_no_interval_of_nothing(column: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one value, and no NaN"):
        estimates([column])


def test_wins_ties_losses_and_pairs() -> None:
    hard = {f"q{i}": i / 10 for i in range(10)}
    better = {q: v + 0.01 * (1 + i % 3) for i, (q, v) in enumerate(hard.items())} | {"q0": 0.0, "q1": 0.05}
    found = compared({"base": {"m": hard}, "new": {"m": better}}, "base")
    against = found.against["new"]["m"]
    assert (against.wins, against.ties, against.losses) == (8, 1, 1)
    assert next(iter(against.differences)) == "q1"
    assert against.difference.mean == pytest.approx(np.mean([better[q] - hard[q] for q in hard]))
    # Paired: each interval alone is far wider than that of the difference.
    alone = found.estimates["new"]["m"]
    assert against.difference.high - against.difference.low < 0.2 * (alone.high - alone.low)
    assert not against.certain
    assert (
        compared({"base": {"m": hard}, "new": {"m": {q: v + 0.1 for q, v in hard.items()}}}, "base")
        .against["new"]["m"]
        .certain
    )


def test_other_queries_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="the same queries"):
        compared({"base": {"m": {"q": 1.0}}, "new": {"m": {"r": 1.0}}}, "base")
