"""What counts as served by all: the oldest of what they tell, while they tell it."""

import pytest

from assay.index.replicas import SILENT_S, Replicas, number_of
from tests.fakes import Clock


@pytest.fixture
def replicas(clock: Clock) -> Replicas:
    """Of an ingester that has been up for a while."""
    made = Replicas(clock)
    clock.now += SILENT_S
    return made


def test_the_oldest_counts_and_not_the_one_that_was_asked(replicas: Replicas) -> None:
    replicas.told("a", "v43-x")
    replicas.told("b", "v9-y")
    assert replicas.oldest("v43-x") == "v9-y", "by number, not by letters"
    replicas.told("b", "v43-x")
    assert replicas.oldest("v43-x") == "v43-x"
    assert replicas.oldest("v42-w") == "v42-w"


def test_where_none_is_told_the_one_that_was_asked_counts(replicas: Replicas) -> None:
    assert replicas.oldest("v1-a") == "v1-a"
    assert replicas.oldest(None) is None


def test_a_replica_without_an_index_has_none(replicas: Replicas) -> None:
    replicas.told("a", None)
    assert replicas.oldest("v43-x") is None


def test_a_silent_replica_is_waited_for_until_it_must_be_gone(replicas: Replicas, clock: Clock) -> None:
    replicas.told("gone", "v42-w")
    clock.now += SILENT_S
    replicas.told("there", "v43-x")
    assert replicas.oldest("v43-x") == "v42-w"
    clock.now += 0.1
    assert replicas.oldest("v43-x") == "v43-x"


def test_an_ingester_that_has_just_begun_has_not_heard_from_all(clock: Clock) -> None:
    replicas = Replicas(clock)
    replicas.told("a", "v43-x")
    clock.now += SILENT_S - 0.1
    replicas.told("a", "v43-x")
    assert replicas.oldest("v43-x") is None
    clock.now += 0.1
    assert replicas.oldest("v43-x") == "v43-x"


def test_versions_have_an_order() -> None:
    assert number_of("v100-0a1b") > number_of("v99-ffff")
