"""The dense leg on a GPU, over a fake of the three functions of FAISS that it uses, and over FAISS's own with a kernel in
memory: filters mean there what they mean here."""

import ctypes
import json
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from assay.config import IndexConfig, RetrieverConfig
from assay.errors import SetupError
from assay.index import cuda, dense
from assay.index.cuda import Card
from assay.index.files import Layout
from assay.index.reader import Reader
from assay.index.snapshot import read_current
from assay.retrieve import LocalRetriever
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import ingest, write
from tests.wiring.index.test_legs import best, read, unit

ROOT = Path(__file__).parents[3]
ROWS, DIM = 6_000, 32


class FakeFaiss:
    """What FAISS does on a card, on tensors in memory: as it is documented, one thread at a time."""

    METRIC_INNER_PRODUCT = 0

    def __init__(self, gpus: int = 1) -> None:
        self.gpus, self.compared, self._busy = gpus, [-1], threading.Lock()

    def get_num_gpus(self) -> int:
        return self.gpus

    def StandardGpuResources(self) -> Any:
        return SimpleNamespace(setTempMemory=lambda size: None)

    def knn_gpu(self, res: Any, xq: Any, xb: Any, k: int, *, metric: int) -> tuple[Any, Any]:
        assert self._busy.acquire(blocking=False), "two threads use the resources of one card"
        assert (metric, k <= 2048, xq.dtype, xb.dtype) == (0, True, torch.float16, torch.float16)
        self.compared.append(len(xb))
        scores = xq.float() @ xb.float().T
        found = scores.topk(min(k, len(xb)))
        missing = k - len(found.indices[0])
        self._busy.release()
        return (
            torch.nn.functional.pad(found.values, (0, missing), value=-torch.inf),
            torch.nn.functional.pad(found.indices, (0, missing), value=-1),
        )


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float16]:
    return unit(np.random.default_rng(0).normal(size=(ROWS, DIM))).astype(np.float16)


@pytest.fixture(scope="module", params=dense.KINDS)
def leg(
    request: pytest.FixtureRequest, vectors: NDArray[np.float16], tmp_path_factory: pytest.TempPathFactory
) -> tuple[FakeFaiss, dense.Dense]:
    folder, faiss = tmp_path_factory.mktemp(request.param), FakeFaiss()
    dense.build(vectors, folder, request.param)
    return faiss, dense.load(request.param, read(folder), ROWS, Card(faiss, "cpu"))


@pytest.mark.parametrize("count", [0, 1, 100, 2_500, 2_501, 4_000, ROWS, None])
def test_exactly_the_best_of_what_is_allowed(
    leg: tuple[FakeFaiss, dense.Dense], vectors: NDArray[np.float16], count: int | None
) -> None:
    faiss, on_card = leg
    rng = np.random.default_rng(1)
    for query in unit(rng.normal(size=(5, DIM))):
        allowed = np.zeros(ROWS, bool)
        allowed[rng.permutation(ROWS)[:count]] = True
        scores = vectors.astype(np.float32) @ query
        many = ROWS if count is None else count
        positions, cosines = on_card.search(query, 100, None if count is None else allowed, many)
        assert positions.tolist() == best(on_card.cosines(query, np.arange(ROWS)), 100, allowed)
        assert np.allclose(cosines, scores[positions], atol=1e-6)
        assert on_card.is_exact(many)
        if many > 2_500:
            assert faiss.compared[-1] == many, "no row that a filter forbids is compared, and no other is left out"
        else:
            assert faiss.compared[-1] != many, "few rows are compared here"


def test_more_than_the_card_can_select_is_found_here(leg: tuple[FakeFaiss, dense.Dense]) -> None:
    query = unit(np.random.default_rng(2).normal(size=DIM))
    assert len(leg[1].search(query, 3_000, None, ROWS)[0]) == 3_000


def test_threads_take_turns(leg: tuple[FakeFaiss, dense.Dense]) -> None:
    faults: list[BaseException] = []

    def ask(seed: int) -> None:
        try:
            for query in unit(np.random.default_rng(seed).normal(size=(30, DIM))):
                leg[1].search(query, 10, None, ROWS)
        except BaseException as e:  # noqa: BLE001  # told by the main thread
            faults.append(e)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def as_the_wheel_for_gpus_has_it() -> None:
    """All that FAISS does in Python for tensors on a card, over a kernel in memory. It replaces functions of the process."""

    def kernel(resources: Any, asked: SimpleNamespace) -> None:
        def held(pointer: Any, kind: str, *shape: int) -> NDArray[Any]:
            size = int(np.prod(shape)) * np.dtype(kind).itemsize
            return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(int(pointer))).view(kind).reshape(shape)

        assert asked.vectorType == asked.queryType == "half" and asked.vectorsRowMajor and asked.queriesRowMajor
        assert asked.outIndicesType == "i64" and asked.metric == faiss.METRIC_INNER_PRODUCT and asked.k <= 2_048
        among = held(asked.vectors, "f2", asked.numVectors, asked.dims).astype(np.float32)
        scores = among @ held(asked.queries, "f2", asked.dims).astype(np.float32)
        order = np.argsort(-scores, kind="stable")[: asked.k]
        held(asked.outDistances, "f4", asked.k)[:] = np.pad(scores[order], (0, asked.k - len(order)))
        held(asked.outIndices, "i8", asked.k)[:] = np.pad(order, (0, asked.k - len(order)), constant_values=-1)

    import faiss

    faiss.get_num_gpus = lambda: 1
    faiss.StandardGpuResources = lambda: SimpleNamespace(setTempMemory=lambda size: None)
    faiss.GpuDistanceParams = SimpleNamespace
    faiss.DistanceDataType_F32, faiss.DistanceDataType_F16, faiss.IndicesDataType_I64 = "float", "half", "i64"
    faiss.bfKnn = kernel
    card = Card(device="cpu")
    sys.modules["faiss.contrib.torch_utils"].using_stream = lambda resources: nullcontext()  # type: ignore[attr-defined]
    held = unit(np.random.default_rng(0).normal(size=(ROWS, DIM))).astype(np.float16)
    rng = np.random.default_rng(1)
    for kind in dense.KINDS:
        with TemporaryDirectory() as folder:
            dense.build(held, Path(folder), kind)
            leg = dense.load(kind, read(Path(folder)), ROWS, card)
        leg.warm()
        for count in (None, 10, 2_501, 4_000):
            allowed = np.ones(ROWS, bool)
            allowed[rng.permutation(ROWS)[count or ROWS :]] = False
            for query in unit(rng.normal(size=(5, DIM))):
                exact = best(leg.cosines(query, np.arange(ROWS)), 100, allowed)
                mask = None if count is None else allowed
                assert leg.search(query, 100, mask, count or ROWS)[0].tolist() == exact, (kind, count)
            # More than a card can select: by the leg in memory, which is FAISS's in its replaced form.
            many = leg.search(query, 1_500, mask, count or ROWS)[0]
            assert len(many) == min(1_500, count or ROWS) and allowed[many].all(), (kind, count)


def test_the_wheel_for_gpus_is_called_as_it_is() -> None:
    code = "from tests.wiring.index.test_cuda import as_the_wheel_for_gpus_has_it as all_; all_(); print('done')"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr


def test_a_machine_without_a_gpu_is_told_what_to_do(tmp_path: Path) -> None:
    """With the FAISS that is installed, with one that finds no GPU, and through the config."""
    ingest(write(tmp_path / "a", {"a.md": "A lion."}), tmp_path / "index")
    with pytest.raises(SetupError, match="finds no GPU: give the Retriever num_gpus"):
        Card(FakeFaiss(gpus=0), "cpu")
    with pytest.raises(SetupError, match="torch cannot use it"):
        Card(FakeFaiss(), "cuda:99")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(SetupError, match=r"built without GPU functions|finds no GPU") as e:
        LocalRetriever(IndexConfig(uri=str(tmp_path / "index")), RetrieverConfig(device="cuda"), WordEncoder())
    assert (e.value.field, e.value.allowed) == ("retriever.device", ("cpu",))


def test_vectors_that_do_not_fit_are_told_and_no_leg_is_called_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(write(tmp_path / "a", {"a.md": "A lion."}), tmp_path / "index")
    layout, card = Layout(str(tmp_path / "index")), Card(FakeFaiss(), "cpu")

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "to", full)
    with pytest.raises(SetupError, match="do not fit on the GPU"):
        Reader(layout, read_current(layout), card=card)


def test_a_snapshot_on_the_card_finds_what_one_in_memory_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "FEW", 0)
    texts = {f"{i:02}.md": f"# Doc {i}\n\nThe marker number {i} is word{i}.\n" for i in range(30)}
    ingest(write(tmp_path / "a", texts), tmp_path / "index")
    ingest(write(tmp_path / "a", {"new.md": "A zebra marker."}), tmp_path / "index", rebuild_rows=0)
    layout, faiss = Layout(str(tmp_path / "index")), FakeFaiss()
    here = Reader(layout, read_current(layout))
    there = Reader(layout, read_current(layout), card=Card(faiss, "cpu"))
    query = WordEncoder().embed_now(["word3 marker"])[0]
    for mask in (None, np.arange(31) % 3 == 0):
        (rows, cosines), (_, expected) = there.search_dense(query, 10, mask), here.search_dense(query, 10, mask)
        assert cosines.tolist() == expected.tolist(), "of rows that are alike, either"
        assert len(set(rows.tolist())) == 10
        assert mask is None or mask[rows].all()
    assert len(faiss.compared) > 2
    again = Reader(layout, read_current(layout), there, Card(faiss, "cpu"))
    assert again.segments[0].segment is there.segments[0].segment, "what is on the card stays there"


def test_the_measurement_says_in_one_line_that_there_is_no_gpu(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    command = [sys.executable, "-m", "bench.gpu", "--json", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert kept["rows"] == []
    assert kept["beside"] == done.stdout.strip()
