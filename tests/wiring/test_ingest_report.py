"""What an ingest tells: the report's sums and reasons, progress where nobody watches, and never a password."""

import errno
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from msoffcrypto.format.ooxml import OOXMLFile
from rich.console import Console

from assay.cli import meter
from assay.cli.ingest import _keys, unwritten
from assay.errors import SetupError
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Progress, find_sources
from assay.index.parse.parser import Parser
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import ingest, write
from tests.wiring.index.test_formats import workbook


def test_the_report_adds_up(tmp_path: Path) -> None:
    bad = "\n".join([*(json.dumps({"n": i}) for i in range(20)), "{"])
    folder = write(tmp_path / "a", {"a.md": "A zebra.", "b.jsonl": bad, "c.xyz": "x", "d.txt": "", "e.json": "{"})
    found = ingest(folder, tmp_path / "index").summary()
    assert found["files"] == 5
    assert found["outcomes"] == {"ingested": 2, "skipped": 2, "failed": 1}
    assert found["reasons"] == {"partial": 1, "unsupported": 1, "empty": 1, "malformed": 1}
    assert found["bytes"] == len("A zebra.") + len(bad)
    assert found["chunks"] == sum(row["chunks"] for row in found["rows"]) == 21
    assert found["seconds"] > 0
    partial = next(row for row in found["rows"] if row["reason"] == "partial")
    assert "the first is line 21" in partial["message"]
    assert json.loads(json.dumps(found)) == found


def test_passwords_open_files_and_are_nowhere_else(tmp_path: Path) -> None:
    locked = io.BytesIO()
    OOXMLFile(io.BytesIO(workbook())).encrypt("sesame", locked)
    folder = write(tmp_path / "a", {})
    folder.mkdir()
    (folder / "open.xlsx").write_bytes(locked.getvalue())
    encoder, index = WordEncoder(), tmp_path / "index"
    with Parser(passwords=("wrong", "sesame")) as parser:
        sources = find_sources([folder], folder)
        report = Ingestion(Layout(str(index)), "docs", sources, encoder, encoder.embed_now, parser).run()
        child = parser._child
        assert child is not None
        seen = [Path(f"/proc/{child.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    assert report.count("ingested") == 1
    kept = [path.read_bytes() for path in index.rglob("*") if path.is_file()]
    assert [b"sesame" in data for data in [*seen, *kept, json.dumps(report.summary()).encode()]].count(True) == 0


@pytest.mark.parametrize(
    "fault", [OSError(errno.ENOSPC, "No space left on device"), OSError("LanceError(IO): No space left (os error 28)")]
)
def test_a_full_disk_names_the_folder_and_what_to_do(fault: OSError) -> None:
    told = "the disk of the index .assay/index is full: free some space; the same command goes on"
    assert unwritten(fault, "the index .assay/index") == told


def test_another_fault_of_writing_names_the_folder() -> None:
    fault = OSError(errno.EFBIG, "File too large")
    assert unwritten(fault, "the report 'r.json'") == "the report 'r.json' cannot be written: File too large"


def test_keys_come_from_the_command_then_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("two\n\none\nthree with blanks \n")
    assert _keys(["one"], file) == ("one", "two", "three with blanks ")
    assert _keys([], None) == ()
    with pytest.raises(SetupError, match="No such file"):
        _keys([], tmp_path / "gone")


def test_progress_is_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in ten seconds, with the rate so far, and the time that the rest takes at it."""
    clock = iter([100.0, 104.0, 110.0, 119.0, 120.0])
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    out = io.StringIO()
    with meter.Meter(Console(file=out)) as shown:
        shown.show(Progress(1, 10, 10, 100, 3))
        shown.show(Progress(2, 10, 25, 100, 7))
        shown.show(Progress(3, 10, 30, 100, 8))
        shown.show(Progress(4, 10, 50, 100, 33))
    assert out.getvalue() == (
        "2 of 10 files, 0.7 passages/s, about 30 s left\n4 of 10 files, 1.6 passages/s, about 20 s left\n"
    )
