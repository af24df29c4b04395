"""Preparing a model: whole or absent, once, by one process at a time. The conversion is a stand-in that writes two files."""

import errno
import threading
from pathlib import Path

import pytest

from assay import models
from assay.errors import SetupError


def write(source: Path, folder: Path, progress: models.Progress) -> None:
    progress("converting")
    (folder / "model.safetensors").write_bytes(source.read_bytes() * 2)
    (folder / "config.json").write_text("{}")


def write_nothing(source: Path, folder: Path, progress: models.Progress) -> None:
    raise AssertionError("it is prepared already")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.suffix != ".lock"]


def test_it_is_whole_and_done_once(source: Path, cache: Path) -> None:
    said: list[str] = []
    folder = models.prepare(source, cache, said.append, write)
    assert folders(cache) == [folder]
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json", "manifest.json"}
    assert said == ["converting", f"ready: {folder}"]
    assert models.prepare(source, cache, said.append, write_nothing, verify=True) == folder
    assert len(said) == 2


def test_it_appears_under_its_name_only_when_it_is_whole(source: Path, cache: Path) -> None:
    seen: list[list[str]] = []

    def look(source: Path, folder: Path, progress: models.Progress) -> None:
        write(source, folder, progress)
        seen.append([path.name for path in folders(cache) if not path.name.startswith(".")])

    models.prepare(source, cache, lambda _: None, look)
    assert seen == [[]]


def test_another_source_has_another_folder(source: Path, cache: Path) -> None:
    first = models.prepare(source, cache, lambda _: None, write)
    source.write_bytes(b"other weights")
    assert models.prepare(source, cache, lambda _: None, write) != first


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), SetupError("not ChatML"), OSError(errno.EIO, "I/O error")])
def test_an_interrupted_preparation_leaves_nothing(source: Path, cache: Path, fault: BaseException) -> None:
    def stop(source: Path, folder: Path, progress: models.Progress) -> None:
        write(source, folder, progress)
        raise fault

    with pytest.raises(type(fault)):
        models.prepare(source, cache, lambda _: None, stop)
    assert folders(cache) == []
    assert models.prepare(source, cache, lambda _: None, write).is_dir()


def test_what_a_killed_preparation_left_is_removed(source: Path, cache: Path) -> None:
    folder = models.prepare(source, cache, lambda _: None, write)
    (folder / "manifest.json").unlink()
    leftover = cache / f".{folder.name}.killed"
    leftover.mkdir()
    models.prepare(source, cache, lambda _: None, write)
    assert folders(cache) == [folder]


@pytest.mark.parametrize(
    ("data", "verify", "word"),
    [(b"weights", False, "model.safetensors is missing or cut off"), (b"x" * 14, True, "model.safetensors has other")],
)
def test_a_damaged_file_is_named_and_made_again(
    source: Path, cache: Path, data: bytes, verify: bool, word: str
) -> None:
    folder, said = models.prepare(source, cache, lambda _: None, write), list[str]()
    (folder / "model.safetensors").write_bytes(data)
    models.prepare(source, cache, said.append, write, verify=verify)
    assert word in said[0]
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 2


def test_a_second_preparation_waits_for_the_first(source: Path, cache: Path) -> None:
    begun, waiting = threading.Event(), threading.Event()

    def slow(source: Path, folder: Path, progress: models.Progress) -> None:
        begun.set()
        assert waiting.wait(10)
        write(source, folder, progress)

    def heard(line: str) -> None:
        assert "another process" in line
        waiting.set()

    first = threading.Thread(target=models.prepare, args=(source, cache, lambda _: None, slow))
    first.start()
    assert begun.wait(10)
    folder = models.prepare(source, cache, heard, write_nothing)
    first.join()
    assert folders(cache) == [folder]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "is full; free 1.2 GB or name another cache folder"),
        (errno.EDQUOT, "is full"),
        (errno.EROFS, "cannot write to"),
    ],
)
def test_a_full_disk_is_one_line(source: Path, cache: Path, number: int, words: str) -> None:
    def full(source: Path, folder: Path, progress: models.Progress) -> None:
        write(source, folder, progress)
        raise OSError(number, "no")

    with pytest.raises(SetupError, match=words) as caught:
        models.prepare(source, cache, lambda _: None, full)
    assert str(cache) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert folders(cache) == []


def test_names_that_are_no_models() -> None:
    with pytest.raises(SetupError, match="no embedded model is called 'embedded:x'"):
        models.resolve_model("embedded:x", Path())
    with pytest.raises(SetupError, match=r"the model folder '\./missing' does not exist"):
        models.resolve_model("./missing", Path())
    assert models.resolve_model("Qwen/Qwen3-4B", Path()) == "Qwen/Qwen3-4B"
