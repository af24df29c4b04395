from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import IndexFault
from assay.index.passages import FILE, Writer
from assay.types import Chunk
from tests.unit.index.test_passages import fields, opened

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
NUMBER = st.integers(0, 2**31 - 1)
CHUNK = st.builds(
    Chunk,
    st.integers(1, 2**63 - 1),
    *[TEXT] * 5,
    *[NUMBER] * 3,
    st.lists(TEXT, max_size=3).map(tuple),
    st.none() | NUMBER,
    st.booleans(),
)
CHUNKS = st.lists(CHUNK, min_size=1, max_size=12, unique_by=lambda chunk: chunk.id)


@settings(max_examples=50, deadline=None)
@given(CHUNKS, st.data())
def test_any_passage_is_shown_as_it_was_written_and_any_damage_is_a_fault(
    chunks: list[Chunk], data: st.DataObject
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        with Writer(folder) as writer:
            writer.write(map(fields, chunks))
        chunks.sort(key=lambda chunk: chunk.id)
        passages, every = opened(folder, [chunk.id for chunk in chunks]), np.arange(len(chunks))
        assert list(passages.at(every)) == chunks
        held = bytearray((folder / FILE).read_bytes())
        held[data.draw(st.integers(0, len(held) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        (folder / FILE).write_bytes(held)
        with pytest.raises(IndexFault, match="other bytes"):
            list(passages.at(every))
