from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_links import mentioned

WORDS = st.lists(st.sampled_from(["alpha", "beta", "gamma"]), min_size=1, max_size=3).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(WORDS, unique=True, max_size=6), st.lists(st.sampled_from(["alpha", "beta", "gamma", "no"]), max_size=12)
)
def test_against_looking_at_every_place(titles: list[str], words: list[str]) -> None:
    expected, place = [], 0
    while place < len(words):
        here = [t for t in titles if words[place : place + len(t.split())] == t.split()]
        longest = max(here, key=lambda t: len(t.split()), default=None)
        expected += [titles.index(longest)] if longest else []
        place += len(longest.split()) if longest else 1
    assert mentioned(titles, " ".join(words)) == list(dict.fromkeys(expected))
