"""The embedded model on plain torch operations gives what its own library gives (docs/adr/0005)."""

import asyncio

import numpy as np
import pytest

from assay.index.embed import SentenceEmbedder
from assay.models import embedder_path

pytestmark = pytest.mark.integration

TEXTS = [
    "The tenant pays the rent on the first day of each month.",
    "C",
    "東京は日本の首都です",
    "قلعة قديمة على النهر",
    "",
    "§ 4.2 of the B-120 manual, rev. 3: " + "the pump moves cold water. " * 80,  # longer than the model reads
]


def test_its_vectors_are_the_librarys() -> None:
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(embedder_path()), device="cpu")
    theirs = library.encode(TEXTS, normalize_embeddings=True)
    ours = asyncio.run(SentenceEmbedder(str(embedder_path())).embed(TEXTS))
    assert np.allclose(ours, theirs, atol=1e-5)
