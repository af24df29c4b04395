"""Texts to unit vectors, with the model's own tokenizer for the chunker's budget and a checksum for the store."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.errors import SetupError
from assay.index.batching import Batcher
from assay.index.bert import Bert, is_plain_bert
from assay.index.remembered import Remembered

Vectors = NDArray[np.float32]

_BATCH = 8  # passages of like length; larger batches only add padding on a CPU
_BATCH_GPU = 128


class Encoder(Protocol):
    """An embedder that the index can name, and whose tokens it can count. ``ports.Embedder`` is its ``embed``."""

    @property
    def name(self) -> str: ...

    @property
    def checksum(self) -> str:
        """Of the weights and the tokenizer: two encoders with one checksum give the same vectors."""
        ...

    @property
    def dim(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...

    def token_starts(self, text: str) -> NDArray[np.int64]:
        """The character where each token of the text begins, ascending; special tokens are not counted."""
        ...

    async def embed(self, texts: Sequence[str]) -> Vectors: ...


class SentenceEmbedder:
    """A sentence-transformers model: a folder, or a Hugging Face id that is already in the local cache.

    Loads on construction (about 2 s for MiniLM). Raises ``SetupError`` where the model cannot be loaded.
    """

    def __init__(self, model: str, device: Literal["cpu", "cuda"] = "cpu") -> None:
        self._folder = _folder(model)
        self.name = _readable_name(model, self._folder)
        self._workers = 1 if device == "cuda" else len(os.sched_getaffinity(0))
        self._batch = _BATCH_GPU if device == "cuda" else _BATCH
        # Whole batches run side by side, each on one thread: splitting single operations over two cores costs more
        # than it gains at this size (8 passages/s against 15 on one busy core).
        self._pool = ThreadPoolExecutor(self._workers, "embed", initializer=_one_thread)
        self._tokenizer = _tokenizer(self._folder)
        self.max_tokens = _max_tokens(self._folder)
        self._model: Bert | _Library
        try:
            self._model = Bert(self._folder, device) if is_plain_bert(self._folder) else _Library(self._folder, device)
        except (OSError, ValueError, RuntimeError, KeyError, ImportError) as e:
            raise SetupError(f"the embedder '{self.name}' cannot be loaded: {e}", field="index.embedder") from e
        self.dim = self._model.dim
        self._known = Remembered(Batcher(self._encode, self._pool, self._workers, self._batch))

    @cached_property
    def checksum(self) -> str:
        digest = hashlib.sha256()
        for path in sorted(self._folder.rglob("*")):
            if path.suffix in (".safetensors", ".bin") or path.name in (
                "tokenizer.json",
                "config.json",
                "modules.json",
            ):
                digest.update(path.relative_to(self._folder).as_posix().encode() + b"\0")
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def token_starts(self, text: str) -> NDArray[np.int64]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array([start for start, _ in encoded.offsets], dtype=np.int64)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, shape (len(texts), dim), in float32. A text beyond the model's length is cut at its end.

        For questions: what callers ask while all workers are busy is encoded together, and what was asked lately not again.
        """
        return await self._known(texts)

    def embed_now(self, texts: Sequence[str]) -> Vectors:
        """``embed`` for callers outside an event loop with many texts at once: all workers share them."""
        return self._encode(texts, self._pool.map)

    def _encode(self, texts: Sequence[str], map_: Callable[..., Iterable[Vectors]] = map) -> Vectors:
        """In batches of like length."""
        out = np.empty((len(texts), self.dim), np.float32)
        rows = self._token_ids(texts)
        order = sorted(range(len(texts)), key=lambda i: -len(rows[i]))
        batches = [order[i : i + self._batch] for i in range(0, len(order), self._batch)]
        encoded = map_(self._model.encode, [[rows[i] for i in batch] for batch in batches])
        for batch, vectors in zip(batches, encoded, strict=True):
            out[batch] = vectors
        return out

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        ids = [e.ids for e in self._tokenizer.encode_batch([t or " " for t in texts])]
        return [row if len(row) <= self.max_tokens else [*row[: self.max_tokens - 1], row[-1]] for row in ids]


class _Library:
    """Any other model, through sentence-transformers; it gets token ids back as what they are, so that one path serves."""

    def __init__(self, folder: Path, device: str) -> None:
        from sentence_transformers import SentenceTransformer

        self._model: Any = SentenceTransformer(str(folder), device=device, local_files_only=True)
        self.dim = int(self._model.get_embedding_dimension())
        self._lock = threading.Lock()
        self._device = device

    def encode(self, ids: Sequence[Sequence[int]]) -> Vectors:
        import torch

        longest = max(map(len, ids))
        pad = self._model.tokenizer.pad_token_id or 0
        tokens = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in ids], device=self._device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids], device=self._device)
        with torch.inference_mode(), self._lock:
            out = self._model({"input_ids": tokens, "attention_mask": mask})["sentence_embedding"]
            vectors: Vectors = torch.nn.functional.normalize(out, dim=1).float().cpu().numpy()
        return vectors


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _folder(model: str) -> Path:
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError) as e:
        raise SetupError(
            f"the embedder '{model}' is neither a folder nor in the local Hugging Face cache; download it first",
            field="index.embedder",
        ) from e


def _readable_name(model: str, folder: Path) -> str:
    if model != str(folder) and not model.startswith(("/", ".", "~")):
        return model
    generic = folder.name in ("model", "snapshots", "")
    return folder.parent.name if generic else folder.name


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise SetupError(f"the embedder in {folder.name} has no tokenizer.json", field="index.embedder")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _max_tokens(folder: Path) -> int:
    import json

    try:
        return int(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])
    except (OSError, ValueError, KeyError, TypeError):
        return 512
