import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.schemas import And, Filter
from tests.wiring.loop.test_scope import OWN, PLANNED, bench

NAMES = st.lists(st.sampled_from(["docs", "other", "secrets"]), max_size=3, unique=True)


FILTERS = st.sampled_from([None, PLANNED, And(and_=[PLANNED, OWN])])


@settings(max_examples=40, deadline=None)
@given(asked=NAMES, planned=NAMES, own=st.sampled_from([None, OWN]), filters=FILTERS, parts=st.booleans())
def test_no_plan_widens_a_request(
    asked: list[str], planned: list[str], own: Filter | None, filters: Filter | None, parts: bool
) -> None:
    sub_questions = ("What is the Moon?", "What is the Sun?") if parts else ()
    made = bench(buckets=tuple(planned), filters=filters, sub_questions=sub_questions, search=False)
    request: dict[str, Any] = {"buckets": asked, "filters": own.model_dump() if own else None}
    asyncio.run(made.ask(**request))
    assert made.retriever.history
    for query in made.retriever.history:
        assert not asked or (query.buckets and set(query.buckets) <= set(asked))
        held = query.filters.and_ if isinstance(query.filters, And) else [query.filters]
        assert own is None or own in held
