"""What ``make demo`` says when the machine is not ready, and that stopping it leaves nothing."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from assay.__main__ import COMMANDS, main
from deployments import launch, local

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("make", "goal", "other"),
    [("1", "demo", r"make demo PORT=\d+"), ("1", "serve", r"make serve PORT=\d+"), ("", "demo", r"--port \d+")],
)
def test_a_taken_port_names_who_has_it(make: str, goal: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what to call instead, as it was called."""
    monkeypatch.setenv("MAKELEVEL", make) if make else monkeypatch.delenv("MAKELEVEL", raising=False)
    taken_by = rf"port \d+ is taken by process \d+ \(\S+\): stop that, or choose another: {other}$"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(launch.Refused, match=taken_by):
            launch.check_port("127.0.0.1", taken.getsockname()[1], goal)


def test_a_free_port_is_fine() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch.check_port("127.0.0.1", port, "serve")


def test_a_full_disk_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(launch.Refused, match=rf"0\.0 GB free in {tmp_path}, 2 GB are needed"):
        launch.check_disk(tmp_path / "not" / "there" / "yet")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(launch.PACKAGES, "no_such_module", "no-such-package")
    with pytest.raises(launch.Refused, match="not installed: no-such-package; run `make install`"):
        launch.check_packages()


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    with pytest.raises(launch.Refused, match=r"Python 3\.11 is needed, this is 3\.12\.1"):
        launch.check_python()


def test_launch_itself_needs_only_the_standard_library() -> None:
    """Or it could not say which package is missing."""
    command = [sys.executable, "-S", "-c", "import deployments.launch"]  # -S: no site-packages
    subprocess.run(command, cwd=ROOT, check=True)


def test_a_bad_config_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "deployments.launch", str(tmp_path / "missing.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "missing.yaml" in done.stderr


def test_an_orphan_is_found_and_killed() -> None:
    """A grandchild whose parent has gone, as a worker of Ray or the engine's process may be."""
    code = (
        "import subprocess, sys; from deployments.local import adopt_orphans, descendants, kill; import os, time\n"
        "adopt_orphans()\n"
        "subprocess.run(['sh', '-c', 'setsid sleep 300 & echo $!'], check=True)\n"
        "time.sleep(0.2); kill(descendants(os.getpid()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not psutil.pid_exists(int(done.stdout))


def test_folders_of_dead_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Path("/tmp") / f"a{time.monotonic_ns() % 10**3}"  # the longest base that is taken has 9 characters
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(base))
    (base / "assay-999999999-x").mkdir(parents=True)
    (base / "assay-1-x").mkdir()
    try:
        mine = local._run_folder()
        assert mine.parent == base
        assert sorted(p.name for p in base.iterdir()) == sorted(["assay-1-x", mine.name])
    finally:
        shutil.rmtree(base)


# ---- make ask -------------------------------------------------------------------------------------------------------


QUESTIONS = [
    'What does "ray" do?',
    "`touch pwned` $(touch pwned) $HOME $$ 'x' \\ # ; & | > y",
    "$(shell touch pwned) ${PATH}",
    "--help",
    "Wo steht das? 何ですか",
]


@pytest.fixture
def make_ask(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``make ask`` with an environment whose Python prints its arguments, one a line."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    (tmp_path / ".installed").touch()

    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--no-print-directory", "-C", str(ROOT), "ask", f"VENV={tmp_path}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environ})

    return run


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_asked_as_it_was_typed(
    make_ask: Callable[..., subprocess.CompletedProcess[str]], question: str
) -> None:
    """Nothing in it is read by make or by the shell."""
    for done in (make_ask(f"Q={question}"), make_ask(Q=question)):
        assert done.stdout.splitlines()[-2:] == ["--", question], done.stderr
        assert done.stderr == ""
    assert not (ROOT / "pwned").exists()


def test_no_question_is_one_line_that_says_how(make_ask: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = make_ask(Q="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Say what to ask: make ask Q=")


# ---- python -m assay ------------------------------------------------------------------------------------------------


def test_help_imports_nothing_slow() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "assay", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in COMMANDS)
    assert not any(name in done.stderr for name in ("typer", "pydantic", "numpy", "torch"))


@pytest.mark.parametrize(("words", "code"), [([], 2), (["--help"], 0), (["--version"], 0), (["nonsense"], 2)])
def test_exit_codes(words: list[str], code: int) -> None:
    assert main(words) == code


def test_a_missing_package_of_a_command_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "filelock", None)
    monkeypatch.delitem(sys.modules, "assay.models", raising=False)
    monkeypatch.delattr("assay.models", raising=False)  # where another test has imported it
    monkeypatch.delitem(sys.modules, "assay.cli.prepare", raising=False)
    assert main(["prepare"]) == 1
    assert capsys.readouterr().err == "assay: the package 'filelock' is not installed: run `make install`\n"


def test_ctrl_c_stops_a_step_and_what_it_started(tmp_path: Path) -> None:
    """SIGTERM, which only the launcher gets: its child must not stay."""
    code = (
        "import sys; from deployments import launch, local\n"
        "launch.signal.signal(launch.signal.SIGTERM, launch._interrupt)\n"
        "try: launch._run([sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(300)'])\n"
        "except KeyboardInterrupt: sys.exit(143)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 143
    assert not psutil.pid_exists(child)
