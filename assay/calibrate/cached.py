"""An engine that is asked each thing once: scores are kept in a file, so that a fit can be repeated without the engine."""

import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.ports import LLM
from assay.schemas import Usage
from assay.types import Completion, CompletionRequest, Delta, ItemScore, ScoreItem, ScoreRequest, Scores


class CachedLLM:
    """``ports.LLM``. ``start`` gives the engine, and is called with the first thing that is not known yet.

    The file is of one model, one JSON object a line, appended as answers come; faults are not kept. ``usage`` of what is known
    is what it was when it was asked."""

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
        keys = [_item_key(item) for item in request.items]
        new = {k: item for k, item in zip(keys, request.items, strict=True) if k not in self._known}
        faults: dict[str, ItemScore] = {}
        if new:
            engine = await self.engine()
            scores = await engine.score(ScoreRequest(tuple(new.values()), request.request_id, request.cache_salt))
            per_item = scores.usage.prompt_tokens / len(new)
            for key, score in zip(new, scores.items, strict=True):
                if score.fault is None:
                    self._keep({"k": key, "each": score.each, "t": round(per_item)})
                else:
                    faults[key] = score
        items = tuple(faults.get(k) or _score(self._known[k]["each"]) for k in keys)
        tokens = sum(self._known[k].get("t", 0) for k in keys if k in self._known)
        return Scores(items, Usage(llm_calls=len(keys), prompt_tokens=tokens))

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


def _item_key(item: ScoreItem) -> str:
    return _key("score", item.context, item.continuation)


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
