"""What the parts of ``bench.llm`` share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from assay.calibrate.cached import CachedLLM
from assay.calibration import Figure
from assay.config import EngineConfig
from assay.index.embed import SentenceEmbedder
from assay.ports import LLM
from assay.tokens import ModelTokenizer
from assay.types import Chunk, Hit
from bench.report import Row

# As shipped, but for what mode `tools` needs: calls are read, and the schemas of the tools find room.
ENGINE = EngineConfig(tool_parser="hermes", max_model_len=8192)
CONTEXT = EngineConfig().max_model_len  # as shipped: what the other stages keep to


@dataclass(frozen=True, slots=True)
class Parts:
    """``engine`` starts it with the first call; ``known`` is the same, asked each thing once."""

    data: Path
    cache: Path
    quick: bool
    engine: Callable[[], Awaitable[LLM]]
    close: Callable[[], Awaitable[None]]
    known: CachedLLM
    tokenizer: ModelTokenizer
    encoder: SentenceEmbedder
    model: str


def row_of(figure: Figure, at_least: float | None = None, at_most: float | None = None) -> Row:
    """With its interval in the name: a goal holds, or not, by the value alone."""
    name = f"{figure.name} [{figure.low:.3f} to {figure.high:.3f}]"
    unit = f"over {figure.questions}"
    if at_least is not None:
        return Row(name, figure.value, unit, f">= {at_least:g}", figure.value >= at_least)
    if at_most is not None:
        return Row(name, figure.value, unit, f"<= {at_most:g}", figure.value <= at_most)
    return Row(name, figure.value, unit)


def hit(number: int, title: str, text: str, score: float = 1.0, similarity: float | None = None) -> Hit:
    chunk = Chunk(number, f"d{number}", "docs", title, "", text, 0, len(text), 0, (title,) if title else ())
    return Hit(chunk, score, {}, similarity)
