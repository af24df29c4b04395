"""What the parts of ``bench.agent`` share: the sets, their indexes, the models."""

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from assay.calibrate.cached import CachedLLM
from assay.config import IndexConfig, RerankerConfig
from assay.index.embed import SentenceEmbedder
from assay.tokens import ModelTokenizer
from bench import asked
from bench.asked import Asked


@dataclass(slots=True)
class Parts:
    """``known``: the real engine, asked each thing once; it starts with the first that is not known. ``reranker``: as
    the model's calibration has it. ``limit``: questions of a set, for the parts with the model."""

    data: Path
    cache: Path
    quick: bool
    limit: int | None
    notes: Console
    encoder: SentenceEmbedder
    known: CachedLLM
    tokenizer: ModelTokenizer
    reranker: RerankerConfig
    _sets: dict[str, Asked] = field(default_factory=dict)

    def set(self, name: str) -> Asked:
        if name not in self._sets:
            self._sets[name] = asked.SETS[name](self.data)
        return self._sets[name]

    def questions(self, name: str) -> list[str]:
        return [row["question"] for row in self.set(name).rows]

    def index(self, name: str, encoder: SentenceEmbedder | None = None) -> Path:
        return asked.indexed(self.set(name), self.cache / "indexes", encoder or self.encoder, self.notes)

    def index_of(self, name: str) -> IndexConfig:
        return IndexConfig(uri=str(self.index(name)))
