import re

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from assay import schemas as s

FILTER = TypeAdapter[s.Filter](s.Filter)


QUESTION_PATTERN = s.AskRequest.model_json_schema()["properties"]["question"]["pattern"]


@given(st.text(min_size=1, max_size=50))
def test_the_documented_pattern_says_the_same(question: str) -> None:
    try:
        s.AskRequest(question=question)
    except ValidationError:
        assert not re.search(QUESTION_PATTERN, question)
    else:
        assert re.search(QUESTION_PATTERN, question)


FILTERS: st.SearchStrategy[s.Filter] = st.recursive(
    st.builds(
        s.Predicate,
        field=st.text(min_size=1, max_size=5),
        op=st.sampled_from(["=", "in", "<"]),
        value=st.one_of(st.text(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.lists(st.text(), max_size=3)),
    ),
    lambda inner: st.one_of(
        st.builds(s.And, and_=st.lists(inner, min_size=1, max_size=3)),
        st.builds(s.Or, or_=st.lists(inner, min_size=1, max_size=3)),
        st.builds(s.Not, not_=inner),
    ),
    max_leaves=5,
)


@given(FILTERS)
def test_filters_survive_the_wire(filters: s.Filter) -> None:
    assert FILTER.validate_json(FILTER.dump_json(filters, by_alias=True), strict=True, by_name=False) == filters
