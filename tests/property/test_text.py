import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.text import index_terms, query_key, query_terms, sentences, terms


@settings(max_examples=15, deadline=None)
@given(st.text(alphabet="aB1 .!?\n\t#-*|>`~:。()[]\"'\u00a0\r", max_size=80))
def test_spans_are_disjoint_trimmed_and_lose_no_word(text: str) -> None:
    found = sentences(text)
    assert all(a[1] <= b[0] for a, b in pairwise(found))
    assert all(text[a:b] == text[a:b].strip() != "" for a, b in found)


@settings(max_examples=15, deadline=None)
@given(st.text(max_size=60))
def test_analysis_takes_any_text(text: str) -> None:
    assert all(terms(text))
    assert all(index_terms(text))
    assert set(query_terms(text, set(terms(text)))) <= set(terms(text))
    assert query_key(text) == query_key(f"  {text} ")


@pytest.mark.parametrize(
    "text",
    [
        "x\n" + " " * 200_000 + "y",
        "--" + " " * 200_000 + "y",
        "x" + "." * 200_000 + "y",
        "a. " * 60_000,
        "x." + ")" * 200_000 + "y",
        "|--" * 60_000 + "x",
        "so i went and. " * 12_000,
    ],
    ids=lambda text: text[:5],
)
def test_sentences_take_linear_time(text: str) -> None:
    begun = time.process_time()
    sentences(text)
    assert time.process_time() - begun < 2, "quadratic time took minutes here"
