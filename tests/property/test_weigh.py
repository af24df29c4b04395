from hypothesis import given, settings
from hypothesis import strategies as st

from assay.weigh import Curves, dense_share
from tests.unit.test_weigh import USUAL, scores


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20),
    st.floats(-1, 1),
    st.integers(1, 10**7),
    st.lists(st.floats(0.015625, 100, width=32), max_size=20),
    st.floats(0, 20),
)
def test_a_share_is_a_share(
    background: list[float], best: float, allowed: int, found: list[float], letters: float
) -> None:
    sparse = scores(*sorted(found, reverse=True))
    cosines = scores(*background)
    curves = Curves(
        float(cosines.mean()), float(cosines.std()), best, allowed, sparse, cosines[:5].tolist(), lambda: letters
    )
    assert 0 <= dense_share(curves, *USUAL) <= 1
