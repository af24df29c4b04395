"""``requirements/install.sh``: what is in the way is one line that says what to do; what was cut off is made again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "requirements" / "install.sh"


def install(venv: Path, lock: Path, python: str = sys.executable, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", str(SCRIPT), str(venv), str(lock)],
        env={**os.environ, "PYTHON": python, "PIP_NO_INDEX": "1", **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def command(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    file = tmp_path / "lock.txt"
    file.write_text("no-such-package==1.0\n")
    return file


def test_another_python_is_refused_by_its_version(tmp_path: Path, lock: Path) -> None:
    done = install(tmp_path / "venv", lock, str(command(tmp_path / "bin", "python", "echo 3.9")))
    assert done.returncode == 1 and not (tmp_path / "venv").exists()
    assert "Python 3.11 is needed" in done.stderr and "is 3.9" in done.stderr and "make PYTHON=" in done.stderr


def test_no_python_at_all(tmp_path: Path, lock: Path) -> None:
    done = install(tmp_path / "venv", lock, str(tmp_path / "none"))
    assert done.returncode == 1 and "is none" in done.stderr


def test_a_full_disk_names_the_place(tmp_path: Path, lock: Path) -> None:
    command(tmp_path / "bin", "df", "echo header; echo 'disk 1000 900 2097152 90% /'")
    done = install(tmp_path / "venv", lock, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 1 and not (tmp_path / "venv").exists()
    assert f"2 GB free in {tmp_path}, 6 GB are needed" in done.stderr and "make VENV=" in done.stderr


def test_a_python_without_venv(tmp_path: Path, lock: Path) -> None:
    python = command(tmp_path / "bin", "python", '[ "$1" = -c ] && echo 3.11')
    done = install(tmp_path / "venv", lock, str(python))
    assert done.returncode == 1 and "python3.11-venv" in done.stderr and not (tmp_path / "venv" / ".made").exists()


def test_what_was_cut_off_is_made_again_and_the_reason_is_told(tmp_path: Path, lock: Path) -> None:
    """An environment without its mark, and then a package whose files were written in part."""
    venv = tmp_path / "venv"
    (venv / "half").mkdir(parents=True)
    done = install(venv, lock)
    assert done.returncode == 1 and "goes on where it stopped" in done.stderr and "no-such-package" in done.stderr
    assert not (venv / "half").exists() and (venv / ".made").exists() and not (venv / ".installed").exists()
    (packages,) = venv.glob("lib/python*/site-packages")
    for name, whole in (("cut", False), ("whole", True)):
        folder = packages / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("")
        if whole:
            (folder / "INSTALLER").write_text("pip")
    install(venv, lock)
    assert not (packages / "cut-1.dist-info").exists() and (packages / "whole-1.dist-info").exists()
    assert list(venv.glob(".part-*")) == []
