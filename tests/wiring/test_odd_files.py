"""Odd files, one by one: each is told by name, and the rest of the ingest goes on."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from numpy.typing import NDArray
from typer.testing import CliRunner

from assay.cli.ingest import _plain, _show
from assay.cli.ingest import ingest as command
from assay.errors import SetupError
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Report, Row, find_sources
from assay.index.parse.parser import Parser
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, found, ingest, retriever, search, write


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))


@pytest.mark.parametrize(
    ("name", "make", "outcome"),
    [
        ("dangling.md", lambda p: p.symlink_to("nowhere.md"), ("failed", "unreadable")),
        ("loop.md", lambda p: p.symlink_to("loop.md"), ("failed", "unreadable")),
        ("pipe.md", os.mkfifo, ("skipped", "unsupported")),
        ("s.md", bind, ("skipped", "unsupported")),
        ("\udcff.md", lambda p: p.write_text("A zebra."), ("failed", "unreadable")),
    ],
    ids=["dangling", "loop", "pipe", "socket", "name"],
)
def test_one_odd_file_is_told_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Path], object], outcome: tuple[str, str]
) -> None:
    folder = write(tmp_path / "a", {"ok.md": "Fine zebra."})
    monkeypatch.chdir(folder)  # a socket's path is short
    make(Path(name))
    report = ingest(folder, tmp_path / "index")
    told = {row.uri: (row.outcome, row.reason) for row in report.rows}
    assert told.pop("ok.md") == ("ingested", "")
    assert list(told.values()) == [outcome]
    assert all(row.uri.isprintable() for row in report.rows)
    assert found(search(retriever(tmp_path / "index"), "zebra")) == ["ok.md"]


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "a", {"ok.md": "Fine.", "shut/x.md": "X"})
    scan = os.scandir

    def guarded(path: str) -> object:
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", guarded)  # the tests may run as root, who may read all
    sources = find_sources([folder])
    assert [(s.uri, s.fault and s.fault.reason) for s in sources] == [("a/ok.md", None), ("a/shut", "unreadable")]


def test_a_text_that_breaks_the_tokenizer_fails_alone(tmp_path: Path) -> None:
    class Brittle(WordEncoder):
        def token_starts(self, text: str) -> NDArray[np.int64]:
            if "poison" in text:
                raise TypeError("TextEncodeInput must be Union[...]")
            return super().token_starts(text)

    folder = write(tmp_path / "a", {"bad.md": "A poison.", "ok.md": "Fine zebra."})
    report = ingest(folder, tmp_path / "index", encoder=Brittle())
    assert [(r.uri, r.outcome, r.reason) for r in report.rows] == [
        ("bad.md", "failed", "malformed"),
        ("ok.md", "ingested", ""),
    ]


def test_a_file_that_was_emptied_is_not_found_any_more(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", {"x.md": "One zebra.", "y.md": "Another."}), tmp_path / "index"
    ingest(folder, index)
    write(folder, {"x.md": ""})
    row = next(r for r in ingest(folder, index).rows if r.uri == "x.md")
    assert (row.outcome, row.chunks, row.reason) == ("replaced", 0, "empty")
    assert "x.md" not in found(search(retriever(index), "zebra"))
    assert ingest(folder, index).count("unchanged") == 2
    assert "x.md" not in found(search(retriever(index), "zebra"))
    write(folder, {"x.md": "One zebra."})
    assert ingest(folder, index).count("replaced") == 1
    assert found(search(retriever(index), "zebra"))[0] == "x.md"


def test_the_only_document_can_be_emptied(tmp_path: Path) -> None:
    folder, index = write(tmp_path / "a", {"x.md": "One zebra."}), tmp_path / "index"
    ingest(folder, index)
    write(folder, {"x.md": " \n"})
    ingest(folder, index)
    assert found(search(retriever(index), "zebra")) == []


def test_names_do_not_depend_on_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"docs/adr/1.md": "One", "README.md": "Two", "other/x": ""})
    wanted = ["README.md", "docs/adr/1.md"]
    monkeypatch.chdir(tmp_path)
    assert [s.uri for s in find_sources([Path("README.md"), Path("docs")])] == wanted
    monkeypatch.chdir(tmp_path / "other")
    assert [s.uri for s in find_sources([Path("../README.md"), tmp_path / "docs"])] == wanted
    assert [s.uri for s in find_sources([Path("../docs"), Path("../docs/adr/1.md")])] == ["docs/adr/1.md"]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a/docs/x.md": "One", "b/docs/x.md": "Two"})
    both = [tmp_path / "a/docs", tmp_path / "b/docs"]
    with pytest.raises(SetupError, match=r"'docs/x\.md'"):
        find_sources(both)
    assert len(find_sources(both, tmp_path)) == 2


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {"x.md": "One"})
    sources, encoder = find_sources([folder], folder), WordEncoder()
    (folder / "x.md").unlink()
    os.mkfifo(folder / "x.md")
    run = Ingestion(Layout(str(tmp_path / "i")), "docs", sources, encoder, encoder.embed_now, DirectParser())
    assert [(r.outcome, r.reason) for r in run.run().rows] == [("skipped", "unsupported")]


def test_a_report_without_a_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    write(tmp_path, {"x.md": "One"})
    app = typer.Typer()
    app.command()(command)
    words = [str(tmp_path / "x.md"), "--index", str(tmp_path / "i"), "--json", str(tmp_path / "no/r.json")]
    assert CliRunner().invoke(app, words).exit_code == 2
    assert not (tmp_path / "i").exists()


def test_names_with_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    _show(Report("b", [Row(r"a\[1].xyz", "skipped", 0, "unsupported", "[/b]")]), Console(width=100))
    assert r"a\[1].xyz" in (out := capsys.readouterr().out)
    assert "[/b]" in out
    assert _plain("a\x1b[31m") == "a\ufffd[31m"


ORPHAN = """
from assay.index.parse.parser import Parser
p = Parser()
print(p._running().pid, flush=True)
p.parse(b"".join(b"> " * (i % 50) + b"x" + b"\\n" for i in range(20_000_000)), "x.md")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
def test_a_busy_child_ends_with_its_parent(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        time.sleep(0.5)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while child.exists() and child.joinpath("stat").read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child.exists() or child.joinpath("stat").read_text().split()[2] == "Z"


def test_the_child_reads_mdx(tmp_path: Path) -> None:
    with Parser() as parser:
        parsed = parser.parse(b"import A from 'a'\n\nText", "x.mdx")
    assert [parsed.text[b.start : b.end] for b in parsed.blocks] == ["Text"]
