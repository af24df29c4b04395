"""What is written is what is shown, or a fault."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from assay.errors import IndexFault
from assay.index.files import KeptFile
from assay.index.passages import FILE, PLACES, Passages, Writer
from assay.types import Chunk

ROWS = [
    Chunk(7, "d1", "b", "Title", "a.md", "seven", 0, 5, 0, ("H", "h"), 3, True),
    Chunk(3, "d2", "b", "", "ü.md", "three \x00 \U0001f91d", 2**40, 2**40 + 9, 1),
    Chunk(9, "d3", "b", "T", "c.md", "", 0, 0, 2, (), None, False),
]
IDS = np.array([3, 7, 9])


def fields(chunk: Chunk) -> tuple[object, ...]:
    values = (chunk.id, chunk.doc_id, chunk.bucket, chunk.title, chunk.uri, chunk.text, chunk.start, chunk.end)
    return *values, chunk.ordinal, chunk.heading, chunk.page, chunk.hidden


def opened(folder: Path, ids: Sequence[int] = (3, 7, 9), places: bytes | None = None) -> Passages:
    path = folder / FILE
    data = np.frombuffer(places or (folder / PLACES).read_bytes(), np.uint8)
    return Passages(KeptFile(path, {"bytes": path.stat().st_size}), data, np.array(ids))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Writer(tmp_path) as writer:
        writer.write(map(fields, ROWS[:2]))
        writer.write([])
        writer.write(map(fields, ROWS[2:]))
    return tmp_path


def test_they_are_shown_as_they_were_written_in_any_order(folder: Path) -> None:
    by_id = sorted(ROWS, key=lambda row: row.id)
    passages = opened(folder)
    assert list(passages.at(np.array([2, 0, 1, 0]))) == [by_id[2], by_id[0], by_id[1], by_id[0]]
    assert list(passages.at(np.zeros(0, np.int64))) == []


def test_none_at_all(tmp_path: Path) -> None:
    with Writer(tmp_path):
        pass
    assert list(opened(tmp_path, ()).at(np.zeros(0, np.int64))) == []


def test_a_writer_that_fails_leaves_no_places(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Writer(tmp_path):
        raise KeyError
    assert not (tmp_path / PLACES).exists()


@pytest.mark.parametrize("ids", [(3, 7), (3, 7, 9, 11)])
def test_places_of_other_passages(folder: Path, ids: tuple[int, ...]) -> None:
    with pytest.raises(IndexFault, match="of other passages"):
        opened(folder, ids)


def test_places_of_another_type(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", np.zeros((3, 3), np.float64))
    with pytest.raises(IndexFault, match="cannot be read"):
        opened(folder, places=(tmp_path / "other.npy").read_bytes())


def test_a_passage_of_another_id(folder: Path) -> None:
    with pytest.raises(IndexFault, match="of other passages"):
        list(opened(folder, (3, 8, 9)).at(np.array([1])))


@pytest.mark.parametrize("text", [None, 5, b"bytes"])
def test_a_field_of_another_type_is_no_text(tmp_path: Path, text: object) -> None:
    """However it came there: never an empty text."""
    with Writer(tmp_path) as writer:
        writer.write([(*fields(ROWS[0])[:5], text, *fields(ROWS[0])[6:])])
    with pytest.raises(IndexFault, match="cannot be read"):
        list(opened(tmp_path, (7,)).at(np.array([0])))


def test_a_mark_is_the_beginning_of_the_sha256(folder: Path) -> None:
    begin, length, mark = np.load(folder / PLACES)[1].tolist()
    record = (folder / FILE).read_bytes()[begin : begin + length]
    assert msgspec.msgpack.decode(record)[0] == 7
    assert np.int64(mark).tobytes() == hashlib.sha256(record).digest()[:8]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(IndexFault, match=r"gone\.bin is missing"):
        KeptFile(tmp_path / "gone.bin", {"bytes": 1})
    folder = tmp_path / "folder.bin"
    folder.mkdir()
    with pytest.raises(IndexFault, match=r"folder\.bin cannot be read \(Is a directory\)"):
        KeptFile(folder, {"bytes": folder.stat().st_size}).read(0, 1)
