"""Rows in files of each format, and a journal that loses and repeats nothing."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay import batch
from assay.errors import SetupError
from tests.unit.test_batch import ROWS


def outcome(n: int) -> dict[str, Any]:
    return {"row": n, "answer": f"It is {n}.", "error": None}


@pytest.mark.parametrize("suffix", batch.FORMATS)
def test_the_formats_that_are_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    plain = [{"question": 'Why, "so"?\nAnd how?', "top_k": "3"}, {"question": "東京", "top_k": ""}]
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(plain), path)
    elif suffix == ".csv":
        path.write_text('\ufeffquestion,top_k\n"Why, ""so""?\nAnd how?",3\n東京,\n', encoding="utf-8")
    else:
        path.write_text("\n".join(json.dumps(row) for row in plain) + "\n\n")
    assert batch.read_rows(path) == plain


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "x", "no format"),
        ("a.jsonl", '{"question": "x"}\n{', "line 2"),
        ("a.jsonl", "[1]\n", "line 1"),
        ("a.jsonl", "", "no rows"),
        ("a.jsonl", '{"ask": "x"}', r"no column 'question'; it has \['ask'\]"),
        ("a.csv", "question\nx,y\n", "line 2"),
        ("a.parquet", "no parquet", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SetupError, match=said):
        batch.read_rows(tmp_path / name)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="No such file"):
        batch.read_rows(tmp_path / "none.jsonl")


@pytest.mark.parametrize("torn", [b"", b'{"row": 3, "ans', b'{"row": 3, "answer": "x", "error": null}'])
def test_a_run_goes_on_where_it_stopped(tmp_path: Path, torn: bytes) -> None:
    out = tmp_path / "out.jsonl"
    with batch.Journal(out, ROWS, {}) as journal:
        for n in (2, 1):
            journal.add(outcome(n))
    with journal.path.open("ab") as file:  # killed meanwhile
        file.write(torn)
    with batch.Journal(out, ROWS, {}) as again:
        assert set(again.done) == {1, 2}
        again.add(outcome(3))
    with batch.Journal(out, ROWS, {}) as last:
        assert last.done == {n: outcome(n) for n in (1, 2, 3)}
        last.delete()
    assert list(tmp_path.iterdir()) == []


def test_a_journal_of_other_rows_is_not_gone_on_from(tmp_path: Path) -> None:
    with batch.Journal(tmp_path / "out.jsonl", ROWS, {}):
        pass
    with pytest.raises(SetupError, match="other questions"):
        batch.Journal(tmp_path / "out.jsonl", ROWS[:-1], {})


def test_a_row_asked_again_counts_once(tmp_path: Path) -> None:
    with batch.Journal(tmp_path / "out.jsonl", ROWS, {}) as journal:
        journal.add({**outcome(1), "error": {"code": "overloaded"}})
        journal.forget([1])
        journal.add(outcome(1))
    with batch.Journal(tmp_path / "out.jsonl", ROWS, {}) as again:
        assert again.done == {1: outcome(1)}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_whatever_a_file_s_own_columns_hold_is_written(tmp_path: Path, suffix: str) -> None:
    """Of Parquet's kinds, of several kinds in one column, and text that is no Unicode."""
    extra = {"when": datetime(2026, 1, 2, tzinfo=UTC), "day": date(2026, 1, 2), "cost": Decimal("1.50"), "raw": b"\xff"}
    rows = [{"row": 1, "question": "x", "id": 1, "extra": extra}, {"row": 2, "question": "\ud83d", "id": "a", **extra}]
    with batch.Journal(tmp_path / "out.jsonl", rows, {}) as journal:
        for row in rows:
            journal.add(row)
    with batch.Journal(tmp_path / "out.jsonl", rows, {}) as again:
        assert [again.done[n]["id"] for n in (1, 2)] == [1, "a"] and again.done[2]["question"] == "\ud83d"
        assert again.done[1]["extra"] == {
            "when": "2026-01-02T00:00:00+00:00",
            "day": "2026-01-02",
            "cost": "1.50",
            "raw": "/w==",
        }
    batch.write_rows(tmp_path / f"all{suffix}", [again.done[1], rows[1]])
    back = batch.read_rows(tmp_path / f"all{suffix}")
    assert [str(row["id"]) for row in back] == ["1", "a"]


def test_a_column_without_a_name_is_one(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(",question\n0,Why?\n")
    assert batch.read_rows(tmp_path / "in.csv") == [{"": "0", "question": "Why?"}]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_what_is_written_can_be_read(tmp_path: Path, suffix: str) -> None:
    rows: list[dict[str, Any]] = [
        {"question": "東京?", "citations": [{"number": 1}], "error": None},
        {"question": "x", "error": {"code": "y"}},
    ]
    batch.write_rows(tmp_path / f"out{suffix}", rows)
    back = batch.read_rows(tmp_path / f"out{suffix}")
    cited = back[0]["citations"]
    assert (json.loads(cited) if suffix == ".parquet" else cited) == [{"number": 1}]
    assert [row["question"] for row in back] == ["東京?", "x"]
