"""The embedder that is shipped, asked by many at once: its model is called for several of them together."""

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from assay.index.bert import Bert
from assay.index.embed import SentenceEmbedder, Vectors
from assay.models import embedder_path

pytestmark = pytest.mark.anyio


class Held(Bert):
    """The model's weights; what reaches it waits for ``gate``."""

    def __init__(self, model: Bert) -> None:
        self.__dict__.update(model.__dict__)
        self.batches: list[int] = []
        self.gate = threading.Event()

    def encode(self, ids: Sequence[Sequence[int]]) -> Vectors:
        self.batches.append(len(ids))
        assert self.gate.wait(30)
        return super().encode(ids)


async def test_calls_at_once_reach_the_model_in_fewer_batches_and_each_has_its_own_answer() -> None:
    embedder = SentenceEmbedder(str(embedder_path()))
    texts = [f"what does pump number {i} move" for i in range(embedder._workers + 12)]
    alone = embedder.embed_now(texts)
    assert isinstance(embedder._model, Bert)
    model = embedder._model = Held(embedder._model)
    calls = []
    for number, text in enumerate(texts, start=1):
        calls.append(asyncio.ensure_future(embedder.embed([text])))
        while len(model.batches) < min(number, embedder._workers):
            await asyncio.sleep(0.001)
    model.gate.set()
    found = await asyncio.gather(*calls)
    assert model.batches[: embedder._workers] == [1] * embedder._workers, "nobody waits where a worker is idle"
    assert sum(model.batches) == len(calls)
    assert len(model.batches) <= embedder._workers + 2 < len(calls)
    assert np.allclose(np.concatenate(found), alone, atol=1e-5)
