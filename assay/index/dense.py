"""The dense leg of one segment: one port, and a ladder of kinds behind it that a segment's size or the config chooses from.

``flat`` compares all float16 vectors and ``ivf`` those that codes of the nearest lists name (``assay.index.lists``); ``sq8``
and ``hnsw`` ask FAISS for candidates by its 8-bit codes and compare those exactly (``assay.index.quantised``). On a GPU all
rows are compared (``assay.index.cuda``). Filters mean the same in all of them: only allowed positions, as many as there are
up to k, each with the cosine of its stored vector, and few allowed rows compared one by one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from assay.index import lists, quantised
from assay.index.cuda import Card, OnCard
from assay.index.files import Buffer
from assay.index.lists import Ids as Ids
from assay.index.lists import Lists
from assay.index.lists import Mask as Mask
from assay.index.lists import Scores as Scores
from assay.index.quantised import Codes, Graph

Kind = Literal["flat", "ivf", "sq8", "hnsw"]
KINDS: tuple[Kind, ...] = get_args(Kind)

IVF_ROWS = 20_000  # up to here all rows are compared in a millisecond
_INDEXED = 1_000  # fewer rows are too few for lists or codes of their own


class Dense(Protocol):
    """A loaded leg; what it finds are positions in its segment. Several threads may ask at once."""

    def search(self, query: Scores, k: int, allowed: Mask | None, count: int) -> tuple[Ids, Scores]:
        """The best k positions for one unit vector of shape (d,), best first, and their cosines.

        Only positions with ``allowed`` (None: all), which are ``count``; fewer than k only where there are fewer.
        """
        ...

    def cosines(self, query: Scores, positions: Ids) -> Scores:
        """Cosine of one unit vector with the chunks at some positions."""
        ...

    def vectors(self, positions: Ids) -> NDArray[np.float16]:
        """Shape (n, d)."""
        ...

    def is_exact(self, count: int) -> bool:
        """Whether a search among this many allowed rows compares them all."""
        ...

    def warm(self) -> None:
        """The first search must not wait for the compiler."""
        ...


def kind_for(rows: int, wanted: str) -> Kind:
    """``auto`` by size; too few rows for an index of their own are flat, whatever is wanted."""
    if wanted == "auto":
        return "ivf" if rows > IVF_ROWS else "flat"
    return next(kind for kind in KINDS if kind == wanted) if rows > _INDEXED else "flat"


def build(vectors: NDArray[np.float16], folder: Path, kind: Kind) -> None:
    """Write the leg. ``vectors``: shape (n, d), unit; row i is position i."""
    if kind in ("sq8", "hnsw"):
        quantised.build(vectors, folder, graph=kind == "hnsw")
    else:
        lists.build(vectors, folder, clustered=kind == "ivf")


def files_of(kind: Kind) -> tuple[str, ...]:
    return quantised.FILES if kind in ("sq8", "hnsw") else lists.FILES


def load(kind: Kind, files: Mapping[str, Buffer], rows: int, card: Card | None = None) -> Dense:
    """Raises ``IndexFault`` where the files are no such leg of that many rows, ``SetupError`` where the card has no room."""
    leg: type[Lists | Codes | Graph] = Codes if kind == "sq8" else Graph if kind == "hnsw" else Lists
    host = leg(files, rows)
    return OnCard(host, rows, card) if card and rows else host
