import numpy as np
import pytest

from assay.weigh import Curves, Scores, dense_share, letters_per_token

USUAL = (0.65, 0.4, 0.9)
MEAN, DEVIATION = 0.05, 0.112  # of the cosines of all passages


def scores(*values: float) -> Scores:
    return np.array(values, np.float32)


def share(best: float = 0.6, sparse: Scores | None = None, agreed: float = 0.5, letters: float = 4.0) -> float:
    found = np.linspace(10, 5, 10, dtype=np.float32) if sparse is None else sparse
    return dense_share(Curves(MEAN, DEVIATION, best, 1000, found, [agreed], lambda: letters), *USUAL)


def test_typical_curves_have_the_usual_share() -> None:
    best = MEAN + 1.5 * DEVIATION * (2 * np.log(1000)) ** 0.5
    assert share(best) == pytest.approx(0.65, abs=1e-4)


def test_the_leg_that_stands_out_has_more_say() -> None:
    assert share(0.9) > share(0.6) > share(0.3)
    flat, steep = np.linspace(10, 9, 10, dtype=np.float32), np.linspace(10, 1, 10, dtype=np.float32)
    assert share(sparse=flat) > share() > share(sparse=steep)
    assert share(sparse=scores(10, 9)) == share(sparse=scores(10, *[0] * 9)), "fewer than ten leave nothing tenth"


def test_a_script_that_is_spelled_out_has_what_the_legs_agree_on() -> None:
    assert share(letters=1.0, agreed=0.04) == 0
    assert 0 < share(letters=1.0, agreed=0.15) < share()
    assert share(letters=1.0, agreed=0.6) == share()
    assert share(letters=2.5, agreed=-0.5) == share(), "a model that reads the words is believed against BM25"


def test_nothing_to_measure_leaves_the_usual_share() -> None:
    assert share(sparse=scores()) == 0.65
    assert dense_share(Curves(0.3, 0.0, 0.3, 1, scores(1.0), [0.3], lambda: 4.0), *USUAL) == 0.65


def test_letters_per_token() -> None:
    assert letters_per_token("termination notice", 3) == pytest.approx(17 / 3)
    assert letters_per_token("كتاب", 4) == 1
    assert letters_per_token("東京は", 3) == 0
    assert letters_per_token("", 0) == 0
