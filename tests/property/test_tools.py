from hypothesis import given, settings
from hypothesis import strategies as st

from assay.bound import both
from assay.schemas import And, Filter, Predicate
from tests.unit.test_tools import OWN

FILTERS = st.sampled_from([None, OWN, Predicate(field="title", op="=", value="Moon"), And(and_=[OWN, OWN])])


@settings(max_examples=60, deadline=None)
@given(own=FILTERS, further=FILTERS)
def test_both_holds_both(own: Filter | None, further: Filter | None) -> None:
    held = both(own, further)
    parts = held.and_ if isinstance(held, And) else [held]
    assert own is None or own == held or own in parts
    assert further is None or further == held or further in parts
