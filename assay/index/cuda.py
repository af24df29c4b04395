"""The dense leg on a GPU: FAISS compares all allowed rows there; what it names is compared once more by the stored vectors.

FAISS's classic GPU indexes ignore selectors without a word (faiss#3114), so there is none: the vectors lie on the card as
they are stored, and a filter chooses the rows that are compared. Everything else is the leg in memory's own.
"""

import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.errors import SetupError
from assay.index import kernels
from assay.index.lists import FEW, Ids, Mask, Scores

if TYPE_CHECKING:
    from assay.index.dense import Dense

_REFINED = 2  # candidates for each result: the query is rounded to float16, which moves a cosine by .0005 at the most
_SCRATCH = 64 << 20  # bytes that FAISS keeps on the card; by default 1.5 GiB, which the engines may have left to nobody
_MOST = 2048  # that FAISS's selection on a GPU can return


class Faiss(Protocol):
    """What is used of ``faiss-gpu``; ``knn_gpu`` takes tensors once ``faiss.contrib.torch_utils`` is imported."""

    METRIC_INNER_PRODUCT: int

    def get_num_gpus(self) -> int: ...
    def StandardGpuResources(self) -> Any: ...  # noqa: N802
    def knn_gpu(self, res: Any, xq: Any, xb: Any, k: int, *, metric: int) -> tuple[Any, Any]: ...


class Card:
    """The GPU that this process may use (Ray shows it the one of its allocation, which the embedder shares)."""

    def __init__(self, faiss: Faiss | None = None, device: str = "cuda") -> None:
        """Raises ``SetupError`` where FAISS cannot use a GPU, or finds none."""
        import torch

        self._faiss = faiss or _installed()
        if not all(hasattr(self._faiss, name) for name in ("StandardGpuResources", "knn_gpu", "get_num_gpus")):
            raise _refused("this FAISS was built without GPU functions: install requirements/gpu.txt")
        if not self._faiss.get_num_gpus():
            raise _refused("FAISS finds no GPU: give the Retriever num_gpus in its ray_actor_options")
        try:
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as e:
            raise _refused(f"torch cannot use it ({str(e).partition('. ')[0]}): install requirements/gpu.txt") from e
        self._torch, self._device = torch, device
        self._resources = self._faiss.StandardGpuResources()
        self._resources.setTempMemory(_SCRATCH)
        self._lock = threading.Lock()  # FAISS's resources of a GPU are for one thread at a time

    def hold(self, vectors: NDArray[np.float16]) -> Any:
        """The vectors on the card. Raises ``SetupError`` where they do not fit."""
        try:
            return self._torch.from_numpy(vectors).to(self._device)
        except RuntimeError as e:  # torch's OutOfMemoryError is one
            size = f"{vectors.nbytes / 2**30:.1f} GiB of vectors"
            raise SetupError(f"{size} do not fit on the GPU: choose retriever.device cpu", "retriever.device") from e

    def nearest(self, vectors: Any, query: Scores, k: int, rows: Ids | None) -> Ids:
        """The best k of the held vectors, or of some rows of them, by inner product with a query of float16."""
        torch = self._torch
        with self._lock:
            given = None if rows is None else torch.from_numpy(rows).to(self._device)
            among = vectors if given is None else vectors.index_select(0, given)
            asked = torch.from_numpy(query.astype(np.float16)).to(self._device)[None]
            metric = self._faiss.METRIC_INNER_PRODUCT
            _, found = self._faiss.knn_gpu(self._resources, asked, among, k, metric=metric)
            kept = found[0][found[0] >= 0]
            best: Ids = (kept if given is None else given[kept]).cpu().numpy()
            return best


class OnCard:
    """``dense.Dense`` over one in memory."""

    def __init__(self, host: "Dense", rows: int, card: Card) -> None:
        self._host, self._card = host, card
        self._held = card.hold(np.ascontiguousarray(host.vectors(np.arange(rows))))

    def search(self, query: Scores, k: int, allowed: Mask | None, count: int) -> tuple[Ids, Scores]:
        """A few rows are sooner compared here than there."""
        if count <= FEW or k > _MOST // _REFINED:
            return self._host.search(query, k, allowed, count)
        rows = None if allowed is None else np.flatnonzero(allowed)
        found = self._card.nearest(self._held, query, min(count, _REFINED * k), rows)
        return kernels.best_of(found, self._host.cosines(query, found), k)

    def cosines(self, query: Scores, positions: Ids) -> Scores:
        return self._host.cosines(query, positions)

    def vectors(self, positions: Ids) -> NDArray[np.float16]:
        return self._host.vectors(positions)

    def is_exact(self, count: int) -> bool:
        return True

    def warm(self) -> None:
        self._host.warm()
        query = np.zeros(self._held.shape[1], np.float32)
        self._card.nearest(self._held, query, 1, None)


def _refused(why: str) -> SetupError:
    said = f"retriever.device is cuda, but {why}, or choose retriever.device cpu"
    return SetupError(said, "retriever.device", ("cpu",))


def _installed() -> Any:
    """FAISS with functions that take tensors. The import order is FAISS's own advice: torch first."""
    import faiss

    if hasattr(faiss, "StandardGpuResources"):
        import faiss.contrib.torch_utils
    return faiss
