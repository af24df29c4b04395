"""Scripted stand-ins for the ports: what they are told to say, in order, and a record of what they were asked."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import NotFound
from assay.schemas import Usage
from assay.text import content_terms, terms
from assay.types import (
    BucketInfo,
    Chunk,
    Completion,
    CompletionRequest,
    Delta,
    DocumentInfo,
    DocumentQuery,
    DocumentText,
    Explain,
    Hit,
    ItemScore,
    Scope,
    ScoreItem,
    ScoreRequest,
    Scores,
    SearchQuery,
    SearchResult,
)

Script = str | Completion | BaseException | Callable[[Any], Any]


def overlap_score(item: ScoreItem) -> ItemScore:
    """A likelihood that behaves like one: more of the continuation's words in the context make it more likely."""
    words, known = terms(item.continuation), set(terms(item.context))
    if not words:
        return ItemScore(math.nan, 0, "empty continuation")
    each = tuple(-1.0 if word in known else -4.0 for word in words)
    return ItemScore(sum(each), len(each), each=each)


class ScriptedLLM:
    """``ports.LLM``. ``enqueue`` what ``complete`` and ``stream`` say next; ``history`` is what they were asked."""

    def __init__(self, *script: Script, delay_s: float = 0.0) -> None:
        self._script: deque[Script] = deque(script)
        self._delay_s = delay_s
        self.history: list[CompletionRequest | ScoreRequest] = []
        self.score_fault: BaseException | None = None
        self.running = 0

    def enqueue(self, *script: Script) -> None:
        self._script.extend(script)

    def _next(self, request: CompletionRequest) -> Completion:
        self.history.append(request)
        if not self._script:
            raise AssertionError(f"nothing is scripted for: {request.messages[-1].content[:200]}")
        said = self._script.popleft()
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, Completion):
            return said
        text = said if isinstance(said, str) else str(said(request))
        words = text.split()
        if len(words) > request.max_tokens:
            return Completion(" ".join(words[: request.max_tokens]), "length", self._usage(request, request.max_tokens))
        return Completion(text, "stop", self._usage(request, len(words)))

    async def complete(self, request: CompletionRequest) -> Completion:
        await asyncio.sleep(self._delay_s)
        return self._next(request)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        self.running += 1
        try:
            said = self._next(request)
            for start in range(0, len(said.reasoning), 4):
                await asyncio.sleep(self._delay_s)
                yield Delta(reasoning=said.reasoning[start : start + 4])
            for start in range(0, len(said.text), 4):
                await asyncio.sleep(self._delay_s)
                yield Delta(said.text[start : start + 4])
            yield Delta(tool_uses=said.tool_uses, finish_reason=said.finish_reason, usage=said.usage)
        finally:
            self.running -= 1

    async def score(self, request: ScoreRequest) -> Scores:
        await asyncio.sleep(self._delay_s)
        self.history.append(request)
        if self.score_fault is not None:
            raise self.score_fault
        prompt = sum(len(terms(i.context + i.continuation)) for i in request.items)
        return Scores(tuple(map(overlap_score, request.items)), Usage(llm_calls=1, prompt_tokens=prompt))

    def _usage(self, request: CompletionRequest, tokens: int) -> Usage:
        prompt = sum(len(m.content.split()) for m in request.messages)
        return Usage(llm_calls=1, prompt_tokens=prompt, completion_tokens=tokens)


class WordTokenizer:
    """``ports.Tokenizer``: a token is a word."""

    def count(self, text: str) -> int:
        return len(text.split())

    def truncate(self, text: str, tokens: int) -> str:
        return text if self.count(text) <= tokens else " ".join(text.split()[:tokens])


class BagEmbedder:
    """``ports.Embedder``: unit vectors of hashed words; texts that share words are similar."""

    dim = 64

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in enumerate(texts):
            for term in terms(text):
                vectors[row, sum(term.encode()) % self.dim] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def chunk(number: int, text: str, title: str = "", bucket: str = "docs", page: int | None = None) -> Chunk:
    title = title or f"Document {number}"
    return Chunk(
        id=number,
        doc_id=f"doc_{title.lower().replace(' ', '_')}",
        bucket=bucket,
        title=title,
        uri=f"{title.lower().replace(' ', '-')}.md",
        text=text,
        start=100 * number,
        end=100 * number + len(text),
        ordinal=0,
        heading=(title,),
        page=page,
    )


class ListRetriever:
    """``ports.Retriever`` over a list: hits are the chunks that share content words with any query, most first."""

    def __init__(self, *chunks: Chunk) -> None:
        self.chunks = chunks
        self.history: list[SearchQuery] = []
        self.faults: deque[BaseException | None] = deque()
        self.explain: Explain | None = None
        self.buckets: tuple[BucketInfo, ...] = ()

    async def search(self, query: SearchQuery) -> SearchResult:
        self.history.append(query)
        if self.faults and (fault := self.faults.popleft()) is not None:
            raise fault
        found = [(self._score(query, c), c) for c in self.chunks]
        ordered = sorted((pair for pair in found if pair[0] > 0), key=lambda pair: -pair[0])[: query.top_k]
        hits = tuple(Hit(c, score, {"sparse": rank}, min(1.0, score)) for rank, (score, c) in enumerate(ordered, 1))
        explain = self.explain or Explain(len(self.chunks), len(self.chunks))
        return SearchResult(hits, "v1-test", explain)

    async def describe(self, scope: Scope) -> tuple[BucketInfo, ...]:
        return tuple(b for b in self.buckets if not scope.buckets or b.name in scope.buckets)

    async def document_lookup(self, query: DocumentQuery) -> DocumentText:
        text = "\n".join(c.text for c in self.chunks if c.doc_id == query.doc_id)
        hidden = any(c.hidden for c in self.chunks if c.doc_id == query.doc_id)
        return DocumentText(await self.get_document_metadata(query), text, (0, len(text)), len(text), hidden)

    async def get_document_metadata(self, query: DocumentQuery) -> DocumentInfo:
        held = [c for c in self.chunks if c.doc_id == query.doc_id]
        if not held:
            raise NotFound("there is no such document", "doc_id")
        size = sum(len(c.text) for c in held)
        return DocumentInfo(
            query.doc_id, held[0].bucket, held[0].title, held[0].uri, "md", size, len(held), "2025-01-01T00:00:00Z"
        )

    def _score(self, query: SearchQuery, c: Chunk) -> float:
        words = {term for q in query.queries for term in content_terms(q)}
        return len(words & set(terms(f"{c.title} {c.text}"))) / max(1, len(words))


class Clock:
    """Stands still until a test moves it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now
