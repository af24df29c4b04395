"""The dense leg of one segment: exact inner product over unit vectors, by FAISS."""

from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from assay.errors import IndexFault

Mask = NDArray[np.bool_]
Ids = NDArray[np.int64]
Scores = NDArray[np.float32]

FILES = ("dense.faiss",)

# Below this share of allowed rows the products with just those rows are computed: fewer than FAISS would visit, and
# right for every kind of index (a filtered graph or inverted file misses matches of a narrow filter).
_FEW = 0.1


def build(vectors: NDArray[np.float32], folder: Path) -> None:
    """Write the leg. ``vectors``: shape (n, d), unit. Raises ``OSError`` where it cannot be written."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors, dtype=np.float32))
    try:
        # Not by FAISS's own writer, which only prints that a full disk cut the file off as it was closed.
        with (folder / FILES[0]).open("wb") as file:
            faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
    except (RuntimeError, OSError) as e:
        raise OSError(f"{FILES[0]} cannot be written; is the disk full?") from e


class Dense:
    """A loaded leg; what it finds are positions in its segment."""

    def __init__(self, folder: Path) -> None:
        try:
            self._index = faiss.read_index(str(folder / FILES[0]))
        except RuntimeError as e:
            raise IndexFault(f"{FILES[0]} cannot be read") from e

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, query: NDArray[np.float32], k: int, allowed: Mask | None) -> tuple[Ids, Scores]:
        """The best k positions for one unit vector of shape (d,), best first, and their cosines.

        Only positions with ``allowed``; fewer than k where there are fewer.
        """
        if allowed is not None and allowed.sum() <= max(k, _FEW * len(allowed)):
            return self._exact(query, k, np.flatnonzero(allowed))
        selector = None if allowed is None else _selector(allowed)
        parameters = None if selector is None else faiss.SearchParameters(sel=selector)
        scores, positions = self._index.search(query[None, :], min(k, len(self)), params=parameters)
        found = positions[0] >= 0  # FAISS fills up with -1, which Python would take for the last row
        return positions[0][found].astype(np.int64), scores[0][found]

    def cosines(self, query: NDArray[np.float32], positions: Ids) -> Scores:
        """Cosine of one unit vector with the chunks at some positions."""
        if not len(positions):
            return np.zeros(0, np.float32)
        return np.asarray(self._index.reconstruct_batch(positions) @ query, dtype=np.float32)

    def is_exact(self, allowed: Mask | None) -> bool:
        return True  # a flat index compares all; other kinds are exact only below the share above

    def _exact(self, query: NDArray[np.float32], k: int, positions: Ids) -> tuple[Ids, Scores]:
        scores = self.cosines(query, positions)
        best = np.lexsort((positions, -scores))[:k]
        return positions[best], scores[best]


def _selector(allowed: Mask) -> "faiss.IDSelectorBitmap":
    return faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
