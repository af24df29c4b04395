"""Questions in files to answers in files: what a row asks, what becomes of it, and the journal that a run goes on from.

The third way in: rows go through Ray Data to the running graph's handle (``deployments.batch``), at a bounded number at a time.
"""

import csv
import hashlib
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from assay.errors import AssayError, InvalidRequest, SetupError, kind_of
from assay.groups import NAME, listed
from assay.index.files import write_atomic
from assay.schemas import AskRequest, AskResponse

FORMATS = (".jsonl", ".ndjson", ".csv", ".parquet")
# What a row may ask for beside its question: the fields of ``AskRequest``. All its other columns are handed through, but for
# those whose groups it is asked for.
ASKED = tuple(name for name in AskRequest.model_fields if name != "stream")
GROUPS = "groups"
NUMBER = "row"  # of a line of what is written
PLACE = "assay:row"  # the same in what is asked, where a file may have a column "row" of its own


def answers(dataset: Any, *, concurrency: int = 4, app: str = "assay", timeout_s: float = 300.0) -> Any:
    """A Ray dataset with a column ``question`` to one with its answers, in a driver that is connected to the graph's Ray.

    Columns with the names of ``AskRequest``'s fields are taken as those, the others are handed through in ``extra``. Each row's
    ``outcome`` has ``status``, ``answer``, ``citations``, ... of ``AskResponse``, or an ``error`` with its code and message.
    ``concurrency`` is how many questions are in the graph at once.
    """
    ask_row = import_module("deployments.batch").AskRow  # by name: the core imports nothing of the shell
    return dataset.map(
        ask_row,
        fn_constructor_kwargs={"app": app, "timeout_s": timeout_s},
        concurrency=concurrency,
        num_cpus=0,  # it waits; the work is in the graph
    )


def request_of(row: Mapping[str, Any]) -> AskRequest:
    """Raises ``InvalidRequest`` that names the column. Text in a column of another kind is read as JSON, as CSV needs it."""
    asked = {name: row[name] for name in ASKED if row.get(name) is not None and row[name] != ""}
    if "question" not in asked:
        raise InvalidRequest("the row has no question", "question")
    for name, value in asked.items():
        if isinstance(value, str) and name not in ("question", "mode", "style"):
            try:
                asked[name] = json.loads(value)
            except ValueError:
                raise InvalidRequest(f"the column '{name}' holds neither a value nor JSON", name) from None
    try:
        return AskRequest.model_validate(asked).seen_by(_groups(row.get(GROUPS)))
    except ValidationError as e:
        first = e.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{place}: {first['msg'].removeprefix('Value error, ')}", place) from None


def _groups(said: object) -> tuple[str, ...]:
    """Of whom a row is asked for: names in a list, or in a text with commas. Raises ``InvalidRequest``."""
    names = listed(said) if isinstance(said, str) else [] if said is None else said
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and re.fullmatch(NAME, name) for name in names):
        raise InvalidRequest("the column 'groups' holds no names of groups", GROUPS)
    return tuple(sorted(set(names)))


def answered(row: Mapping[str, Any], response: AskResponse, seconds: float) -> dict[str, Any]:
    """What becomes of a row that was answered."""
    plain = response.model_dump(mode="json", by_alias=True)
    answer, answer_id = plain.pop("answer"), plain.pop("id")
    return {
        **_kept(row),
        **plain,
        "answer_id": answer_id,
        "answer": answer["text"] if answer else None,
        "seconds": round(seconds, 3),
        "error": None,
    }


def failed(row: Mapping[str, Any], fault: AssayError, seconds: float) -> dict[str, Any]:
    """What becomes of a row that was not: the error's stable code and its message."""
    error = {"code": fault.code, "message": fault.message, "field": fault.field}
    return {**_kept(row), "status": "failed", "answer": None, "seconds": round(seconds, 3), "error": error}


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    extra = {name: value for name, value in row.items() if name not in (*ASKED, GROUPS, PLACE, "id")}
    return {NUMBER: row.get(PLACE), "id": row.get("id"), "question": row.get("question"), "extra": extra}


def can_retry(code: str) -> bool:
    """Whether the same row may be answered at another time: the graph, not the row, was at fault."""
    return kind_of(code).retryable


# ---- files ----------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL, CSV or Parquet file. Raises ``SetupError`` that names the file, the line, and what is wrong."""
    if path.suffix.lower() not in FORMATS:
        raise SetupError(f"'{path.name}' is of no format that can be read", "IN", FORMATS)
    try:
        rows = list(_READERS[path.suffix.lower()](path))
    except OSError as e:
        raise SetupError(f"'{path}' cannot be read: {e.strerror or e}", "IN") from e
    except ValueError as e:
        raise SetupError(f"'{path.name}' cannot be read: {e}", "IN") from e
    if not rows:
        raise SetupError(f"'{path.name}' has no rows", "IN")
    if not any("question" in row for row in rows):
        raise SetupError(f"'{path.name}' has no column 'question'; it has {sorted(rows[0])}", "IN")
    return rows


def _read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as e:
                    raise ValueError(f"line {number} is no JSON ({e})") from None
                if not isinstance(row, dict):
                    raise ValueError(f"line {number} is no object")
                yield row


def _read_csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(10_000_000)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        try:
            for row in reader:
                if None in row:
                    raise ValueError(f"line {reader.line_num} has more cells than the header")
                yield row
        except csv.Error as e:
            raise ValueError(f"line {reader.line_num}: {e}") from e


def _read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


_READERS = {".jsonl": _read_jsonl, ".ndjson": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """JSONL or Parquet by the name; the file is there whole or not at all. Parquet holds nested values as JSON text."""
    if path.suffix.lower() == ".parquet":
        _write_parquet(path, rows)
        return
    write_atomic(path, b"".join(map(_line, rows)))


def _line(row: Mapping[str, Any]) -> bytes:
    """A line of JSON. What JSON lacks, and a file's own columns may hold, becomes text: instants, decimals, bytes."""
    text = json.dumps(row, ensure_ascii=False, default=_as_text)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can only spell
        return json.dumps(row, default=_as_text).encode() + b"\n"


def _as_text(value: object) -> str:
    if isinstance(value, date | time):
        return value.isoformat()
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: _column([row.get(name) for row in rows]) for name in names})
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    write_atomic(path, buffer.getvalue().to_pybytes())


def _column(values: Sequence[Any]) -> list[Any]:
    """As they are where all are of one kind that a column can have, else as JSON text; a text among others stays itself."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or (len(kinds) == 1 and kinds <= {bool, date, datetime, Decimal, bytes}):
        return list(values)
    return [value if value is None else _cell(value) for value in values]


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=_as_text)
    return text.encode("utf-8", "backslashreplace").decode()


class Journal:
    """What has become of rows so far, one JSON line each, on disk before the next is counted. A torn last line is as if its row
    had not been asked."""

    def __init__(self, out: Path, rows: Sequence[Mapping[str, Any]], asked: Mapping[str, Any]) -> None:
        """``asked``: what the run asks for beside the rows. Raises ``SetupError`` where the journal is of other rows."""
        self.path = out.with_name(f"{out.name}.partial")
        digest = hashlib.sha256(json.dumps([rows, asked], sort_keys=True, default=str).encode()).hexdigest()
        self.done: dict[int, dict[str, Any]] = {}
        lines = self._whole_lines()
        if lines and lines[0] != {"input": digest}:
            raise SetupError(
                f"{self.path} is of other questions, or of other options; delete it, or use --fresh", "OUT"
            )
        for line in lines[1:]:
            self.done[line[NUMBER]] = line
        self._file = self.path.open("ab")
        if not lines:
            self._append({"input": digest})

    def add(self, outcome: Mapping[str, Any]) -> None:
        self._append(outcome)
        self.done[outcome[NUMBER]] = dict(outcome)

    def forget(self, numbers: Sequence[int]) -> None:
        """These rows are asked again; a later line stands for an earlier one."""
        for number in numbers:
            del self.done[number]

    def delete(self) -> None:
        """What it holds stands elsewhere."""
        self.path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _whole_lines(self) -> list[dict[str, Any]]:
        """Cuts off a torn line, so that the next one is whole."""
        lines: list[dict[str, Any]] = []
        size = 0
        with suppress(FileNotFoundError):
            for line in self.path.read_bytes().splitlines(keepends=True):
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    lines.pop()
                    break
                size += len(line)
            os.truncate(self.path, size)
        return lines

    def _append(self, line: Mapping[str, Any]) -> None:
        self._file.write(_line(line))
        self._file.flush()
        os.fsync(self._file.fileno())
