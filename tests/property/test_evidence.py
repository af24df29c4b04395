"""What comes into the evidence: by order, a document's share and near-duplicates, held against the plain rule."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from assay.evidence import EvidenceSet, in_order
from assay.types import Hit
from tests.fakes import chunk

WORDS = [f"w{n}" for n in range(8)]
passages = st.lists(st.lists(st.sampled_from(WORDS), max_size=8), max_size=9)


def alike(a: Any, b: Any) -> bool:
    """Of all words of the two, at least four fifths are in both."""
    one, two = set(a.text.split()), set(b.text.split())
    return 5 * len(one & two) >= 4 * len(one | two)


@given(passages, st.integers(0, 6), st.integers(1, 3), st.integers(1, 3))
def test_what_is_over_a_documents_share_or_said_already_comes_last(
    texts: list[list[str]], keep: int, per_document: int, documents: int
) -> None:
    chunks = [chunk(n, " ".join(words), f"Page {n % documents}") for n, words in enumerate(texts, 1)]
    found = EvidenceSet(per_document)
    first = found.add(in_order(Hit(c, 1.0) for c in chunks), keep, 1)
    fair: list[Any] = []
    over: list[Any] = []
    for at, c in enumerate(chunks):
        if len(fair) == keep:
            break
        full = sum(before.doc_id == c.doc_id for before in chunks[:at]) >= per_document
        (over if full or any(alike(c, other) for other in fair) else fair).append(c)
    assert [e.hit.chunk for e in first] == [*fair, *over][:keep]
    assert found.add(in_order(e.hit for e in first), keep, 2) == () and found.all == first
    assert sorted(found.best(keep), key=lambda e: e.slot) == sorted(first, key=lambda e: e.slot)
