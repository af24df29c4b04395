"""The passages of one segment as they are shown: text, title, place. What the store has too, ten times faster to get at.

An Arrow file in parts of equal length, in memory once it is loaded; a passage is a few look-ups.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from assay.errors import IndexFault
from assay.index.dense import Ids
from assay.index.files import Buffer
from assay.types import Chunk

FILE = "passages.arrow"
COLUMNS = ("id", "doc_id", "bucket", "title", "uri", "text", "start", "end", "ordinal", "heading", "page", "hidden")
_PART = 32_768


class Writer:
    """Writes batches of any length, in the store's order. Raises ``OSError`` where the disk is full."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._schema = pa.schema([schema.field(name) for name in COLUMNS])
        self._sink = pa.OSFile(str(folder / FILE), "wb")
        self._file = pa.ipc.new_file(self._sink, self._schema)
        self._waiting: list[pa.RecordBatch] = []

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *fault: object) -> None:
        try:
            if fault[0] is None:
                self._flush(1)
                self._file.close()
        finally:
            self._sink.close()

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows.select(COLUMNS))
        self._flush(_PART)

    def _flush(self, least: int) -> None:
        while sum(map(len, self._waiting)) >= least:
            table = pa.Table.from_batches(self._waiting, self._schema)
            part, rest = table.slice(0, _PART), table.slice(_PART)
            self._file.write_batch(part.combine_chunks().to_batches()[0])
            self._waiting = rest.to_batches()


class Passages:
    """Loaded; positions are those of the segment."""

    def __init__(self, data: Buffer, ids: Ids) -> None:
        """``ids``: of the positions. Raises ``IndexFault`` where the file is not of these."""
        try:
            file = pa.ipc.open_file(pa.py_buffer(data))
            batches = [file.get_batch(i) for i in range(file.num_record_batches)]
            held = np.concatenate([np.zeros(0, np.int64), *(batch["id"].to_numpy() for batch in batches)])
            self._parts = [[_values(batch[name]) for name in COLUMNS] for batch in batches]
        except (pa.ArrowException, KeyError, TypeError, ValueError) as e:
            raise IndexFault(f"{FILE} cannot be read") from e
        self._slots = np.argsort(held, kind="stable")
        if len(held) != len(ids) or (held[self._slots] != ids).any():
            raise IndexFault(f"{FILE} is of other passages")

    def at(self, positions: Ids) -> Iterator[Chunk]:
        for slot in self._slots[positions].tolist():
            row = slot % _PART
            yield Chunk(*[value(row) for value in self._parts[slot // _PART]])  # whose fields are in the columns' order


def _values(column: pa.Array) -> Callable[[int], Any]:
    """Row -> what a column has there, straight from its memory: Arrow makes an object for each, and that takes longer than all
    else here. Raises ``TypeError`` or ``ValueError`` where the column has no such memory."""
    if pa.types.is_list(column.type) and not column.null_count:
        begins, value = memoryview(column.offsets.to_numpy()), _values(column.values)
        return lambda row: tuple([value(i) for i in range(begins[row], begins[row + 1])])
    if column.null_count:
        return lambda row: column[row].as_py()
    if pa.types.is_string(column.type):
        _, offsets, text = column.buffers()
        ends, signs = memoryview(offsets).cast("i")[column.offset :], memoryview(text or b"")
        return lambda row: str(signs[ends[row] : ends[row + 1]], "utf-8")
    return memoryview(column.to_numpy(zero_copy_only=False)).__getitem__
