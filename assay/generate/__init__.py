"""The generator: cited sentences from the evidence, as drafts that the loop verifies before anybody sees them.

``extract`` quotes, which makes a small model useful; ``prose``, ``list`` and ``table`` let a capable model write, under a
grammar that admits no citation but the slots in its prompt; ``plain`` answers what needs no documents.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from assay.generate.extract import ExtractGenerator
from assay.generate.write import WritingGenerator
from assay.types import GenerateEvent, GenerateRequest

__all__ = ["ExtractGenerator", "StyledGenerator", "WritingGenerator"]


class StyledGenerator:
    """``ports.Generator``: the style that the request asks for."""

    def __init__(self, extract: ExtractGenerator, writing: WritingGenerator) -> None:
        self._extract, self._writing = extract, writing

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        generator = self._extract if request.style == "extract" else self._writing
        async with aclosing(generator.generate(request)) as events:
            async for event in events:
                yield event
