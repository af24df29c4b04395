from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import ParseFault
from assay.index.chunk import chunk
from assay.index.parse import md
from tests.unit.index.test_chunk import starts

MARKDOWN = st.lists(
    st.sampled_from(
        [
            "# H",
            "## G `c`",
            "word " * 30,
            "- item",
            "  - nested",
            "| a | b |",
            "|---|---|",
            "```",
            "",
            "> q",
            "---",
            "一二三。四五",
            "a. B c! D",
            "\r",
            "\x0c",
            "🤝",
        ]
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(MARKDOWN, st.sampled_from(["\n", "\r\n", "\n\n"]), st.integers(5, 60))
def test_spans_hold(lines: list[str], end: str, budget: int) -> None:
    text = end.join(lines)
    try:
        parsed = md.parse(text, "stem")
    except ParseFault:
        return
    tokens = starts(text)
    found = chunk(parsed, tokens, budget)
    assert found
    assert all(a.end <= b.start for a, b in pairwise(found))
    for p in found:
        assert text[p.start : p.end] == text[p.start : p.end].strip() != ""
        assert np.sum((tokens >= p.start) & (tokens < p.end)) <= budget
    covered = {i for p in found for i in range(p.start, p.end)}
    content = {i for b in parsed.blocks if b.kind != "heading" for i in range(b.start, b.end) if text[i].isalnum()}
    assert content <= covered
