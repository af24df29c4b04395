"""Vectors of the texts that were embedded last: a question is searched twice, and the sentences of a good passage are weighed
for many questions. Bounded; it lives as long as its embedder, so that no vector is another model's."""

import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

MOST = 8_192  # texts: 12 MB of vectors with 384 numbers each, beside the texts
MOST_CHARS = 1_000  # of a text: questions and sentences


class Remembered:
    """``embed``, asked only for the texts whose vectors are not known."""

    def __init__(self, embed: Callable[[Sequence[str]], Awaitable[Vectors]], most: int = MOST) -> None:
        self._embed, self._most = embed, most
        self._known: dict[str, Vectors] = {}  # the one that was asked for last comes last
        self._lock = threading.Lock()

    async def __call__(self, texts: Sequence[str]) -> Vectors:
        """One vector for each text, in their order. Raises what ``embed`` raises; then nothing is remembered."""
        found = self._held(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in found]
        if len(missing) == len(texts):
            vectors = await self._embed(texts)
            self._keep(zip(texts, vectors, strict=True))
            return vectors
        if missing:
            made = dict(zip(missing, await self._embed(missing), strict=True))
            self._keep(made.items())
            found |= made
        return np.stack([found[text] for text in texts])

    def _held(self, texts: Sequence[str]) -> dict[str, Vectors]:
        found: dict[str, Vectors] = {}
        with self._lock:
            for text in texts:
                vector = self._known.pop(text, None)
                if vector is not None:
                    found[text] = self._known[text] = vector
        return found

    def _keep(self, vectors: Iterable[tuple[str, Vectors]]) -> None:
        """Copies: a row would hold its whole batch, and may be changed by whoever got it."""
        with self._lock:
            for text, vector in vectors:
                if len(text) <= MOST_CHARS and np.isfinite(vector).all():
                    self._known[text] = vector.copy()
            while len(self._known) > self._most:
                del self._known[next(iter(self._known))]
