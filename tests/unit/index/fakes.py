"""An encoder without a model: every word is a direction, so that cosines follow shared words."""

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay.text import content_terms


class WordEncoder:
    """``assay.index.embed.Encoder``. A token is a word or a sign. ``fault`` is raised by the next calls."""

    max_tokens = 256

    def __init__(self, name: str = "words", dim: int = 1024) -> None:
        self.name, self.dim, self.checksum = name, dim, f"{zlib.crc32(name.encode()):08x}" * 8
        self.fault: BaseException | None = None
        self.calls: list[int] = []

    def token_starts(self, text: str) -> NDArray[np.int64]:
        return np.array([m.start() for m in re.finditer(r"\w+|[^\w\s]", text)], dtype=np.int64)

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.embed_now(texts)

    def embed_now(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(len(texts))
        if self.fault is not None:
            raise self.fault
        out = np.full((len(texts), self.dim), 1e-3, np.float32)
        for row, text in enumerate(texts):
            for term in content_terms(text):
                out[row, zlib.crc32(term.encode()) % self.dim] += 1
        return out / np.linalg.norm(out, axis=1, keepdims=True)
