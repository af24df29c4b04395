"""An engine that is asked each thing once: scores are kept in a file, so that a fit can be repeated without the engine."""

import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.ports import LLM
from assay.schemas import Usage
from assay.types import Completion, CompletionRequest, Delta, ItemScore, ScoreRequest, Scores


class CachedLLM:
    """``ports.LLM``. ``start`` gives the engine, and is called with the first thing that is not known yet.

    The file is of one model and one way of asking it, one JSON object a line, appended as answers come; what has a fault is not
    kept. A request is known as a whole, by all of its texts, which are whole prompts: what it costs hangs on what was asked
    together, so that ``usage`` of what is known is what it was when this very request was asked."""

    def __init__(self, start: Callable[[], Awaitable[LLM]], file: Path) -> None:
        self._start, self._file = start, file
        self._llm: LLM | None = None
        self._known: dict[str, dict[str, Any]] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text() if file.exists() else ""
        for line in text.splitlines():
            try:
                kept = json.loads(line)
                self._known[kept["k"]] = kept
            except (ValueError, KeyError, TypeError):  # half a line: the process was killed as it wrote it
                continue
        self._lead = "" if not text or text.endswith("\n") else "\n"

    async def engine(self) -> LLM:
        if self._llm is None:
            self._llm = await self._start()
        return self._llm

    async def score(self, request: ScoreRequest) -> Scores:
        key = _key("score", json.dumps([(item.context, item.continuation) for item in request.items]))
        if key not in self._known:
            scores = await (await self.engine()).score(request)
            if any(score.fault is not None for score in scores.items):
                return scores
            each = [score.each for score in scores.items]
            self._keep({"k": key, "items": each, "usage": scores.usage.model_dump()})
        kept = self._known[key]
        return Scores(tuple(map(_score, kept["items"])), Usage(**kept["usage"]))

    async def complete(self, request: CompletionRequest) -> Completion:
        asked = replace(request, request_id="", cache_salt=None)
        key = _key("complete", repr(asked))
        if key not in self._known:
            done = await (await self.engine()).complete(request)
            usage = done.usage.model_dump()
            self._keep({"k": key, "text": done.text, "finish": done.finish_reason, "usage": usage})
        kept = self._known[key]
        return Completion(kept["text"], kept["finish"], Usage(**kept["usage"]))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        async for delta in (await self.engine()).stream(request):
            yield delta

    def _keep(self, kept: dict[str, Any]) -> None:
        self._known[kept["k"]] = kept
        with self._file.open("a") as file:
            file.write(self._lead + json.dumps(kept) + "\n")
        self._lead = ""


def _score(each: Sequence[float]) -> ItemScore:
    return ItemScore(sum(each), len(each), each=tuple(each))


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
