"""The ports of the core: what the loop and the stages need, whoever provides it (a replica, a local object, a fake)."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay import schemas as s
from assay import types as t
from assay.documents import shapes as d
from assay.documents import types as q
from assay.events import Event

if TYPE_CHECKING:
    from assay.tools.base import ToolOutput


class LLM(Protocol):
    """A language model. Closing the iterator of ``stream``, or cancelling any call, aborts it inside the engine."""

    async def complete(self, request: t.CompletionRequest) -> t.Completion: ...

    def stream(self, request: t.CompletionRequest) -> AsyncGenerator[t.Delta]: ...

    async def score(self, request: t.ScoreRequest) -> t.Scores: ...


class Tokenizer(Protocol):
    """The model's own tokenizer, for budgets."""

    def count(self, text: str) -> int: ...

    def truncate(self, text: str, tokens: int) -> str: ...


class Embedder(Protocol):
    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, shape (len(texts), dim)."""
        ...


class Expander(Protocol):
    async def plan(self, request: t.PlanRequest) -> t.Plan: ...


class Retriever(Protocol):
    async def search(self, query: t.SearchQuery) -> t.SearchResult: ...

    async def describe(self, scope: t.Scope) -> tuple[t.BucketInfo, ...]:
        """The buckets of a scope that hold documents within it, with their fields and the few values that some of them have."""
        ...

    async def document_lookup(self, query: t.DocumentQuery) -> t.DocumentText: ...

    async def get_document_metadata(self, query: t.DocumentQuery) -> t.DocumentInfo: ...


class Library(Protocol):
    """What the index holds, for people. Each call says within which scope."""

    async def buckets(self, scope: t.Scope) -> d.BucketList: ...

    async def documents(self, query: q.DocumentsQuery) -> d.DocumentList: ...

    async def read(self, query: q.ReadQuery) -> d.DocumentView: ...


class Reranker(Protocol):
    async def rerank(self, request: t.RerankRequest) -> t.Reranked: ...

    async def grade(self, request: t.GradeRequest) -> t.Grade: ...

    async def support(self, request: t.SupportRequest) -> t.Support: ...


class Generator(Protocol):
    def generate(self, request: t.GenerateRequest) -> AsyncGenerator[t.GenerateEvent]: ...


class AnswerStore(Protocol):
    """Answers by their id, as long as they are kept, each for its owner alone. Both raise ``StageUnavailable``."""

    async def put(self, record: s.AnswerRecord, owner: str) -> None: ...

    async def get(self, answer_id: str, owner: str) -> s.AnswerRecord | None: ...


class Driver(Protocol):
    """The whole graph behind one object, as the doors see it."""

    def stream(self, request: s.AskRequest, request_id: str) -> AsyncGenerator[Event]:
        """Events of one question; the last is ``CompletedEvent`` or ``ErrorEvent``. Closing it cancels the question."""
        ...

    async def ask(self, request: s.AskRequest, request_id: str) -> s.AskResponse: ...

    async def search(self, request: s.SearchRequest, request_id: str) -> s.SearchResponse: ...

    async def describe(self, scope: t.Scope, request_id: str) -> tuple[t.BucketInfo, ...]:
        """As ``Retriever.describe``."""
        ...

    async def recall(self, answer_id: str, owner: str = "") -> s.AnswerRecord:
        """A kept answer of this owner. Raises ``NotFound``."""
        ...

    async def tools(self, scope: t.Scope, request_id: str) -> tuple[t.ToolSpec, ...]:
        """The tools of the registry, for the buckets of the scope."""
        ...

    async def use_tool(self, name: str, arguments: Mapping[str, Any], scope: t.Scope, request_id: str) -> "ToolOutput":
        """Within the scope. Raises what ``assay.tools.Registry.call`` raises."""
        ...

    async def buckets(self, scope: t.Scope, request_id: str) -> d.BucketList: ...

    async def documents(self, query: q.DocumentsQuery, request_id: str) -> d.DocumentList: ...

    async def read_document(self, query: q.ReadQuery, request_id: str) -> d.DocumentView:
        """Raises ``NotFound``."""
        ...

    async def delete_document(self, query: q.ReadQuery, request_id: str) -> None:
        """Returns when searches do not find it any more. Raises ``NotFound``, ``IndexBusy``, ``StageTimeout``."""
        ...

    async def readiness(self) -> s.Readiness: ...
