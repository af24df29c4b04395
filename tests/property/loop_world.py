"""All stages of a question at once, on a clock that only a test moves: each call waits until the test says how it ends."""

import asyncio
import json
import math
import selectors
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from assay.config import AppConfig, EngineConfig
from assay.ending import top_passage
from assay.errors import AssayError, StageUnavailable
from assay.llm.tools import checked
from assay.schemas import Degraded, Facet, FacetValue, Predicate, Usage
from assay.types import (
    BucketInfo,
    Completion,
    DocumentInfo,
    DocumentText,
    Draft,
    Explain,
    FieldInfo,
    GenerateEvent,
    Grade,
    Hit,
    Plan,
    Ranked,
    Reranked,
    SearchQuery,
    SearchResult,
    Support,
    ToolUse,
)
from tests.fakes import chunk

TEXTS = (
    "The Moon causes the ocean tides on Earth every day of the year.",
    "Mars has two small moons. They are called Phobos and Deimos.",
    "The Sun is a star of plasma. Its light takes eight minutes to reach the Earth.",
    "Venus has no moon and turns backwards. A day there is longer than its year.",
)
# Four documents of two passages each; whatever one of them says, another one says too.
POOL = tuple(
    replace(chunk(n, text, f"Page {n}", bucket="docs" if n % 2 else "other"), doc_id=f"doc_{n % 4}")
    for n, text in enumerate((*TEXTS, *TEXTS[2:], *TEXTS[:2]), 1)
)
QUERIES = ("tides", "the Tides?", "moons of Mars", "MARS moons", "light of the Sun", "storms", "rings", "ice rings")
QUESTION = "What causes the ocean tides on Earth?"
SAID = ("", "Whales dance [E1].", "The evidence does not answer this.")
MARKS = ("[E1]", "[E2]", "[E1, E3]", "[E1-E4]", "[E2][E1]", "[3]", "【E2】", "[E9]")
CONFIG = AppConfig(engines={"small": EngineConfig(tool_parser="hermes")})
TOKENS = 50  # of each call of a model

Draw = Callable[[st.SearchStrategy[Any]], Any]


class _Still(selectors.SelectSelector):
    """Never waits: time stands still until the test moves it."""

    def select(self, timeout: float | None = None) -> Any:
        return super().select(0)


class StillLoop(asyncio.SelectorEventLoop):
    now = 0.0

    def __init__(self) -> None:
        super().__init__(_Still())

    def time(self) -> float:
        return self.now


@dataclass(eq=False, slots=True)
class Call:
    """A stage that was asked and has not answered yet, or how it ended. ``at``: when it was asked, by when ``used`` tokens had
    been told of."""

    kind: str
    request: Any
    future: "asyncio.Future[Any]"
    at: float
    used: int
    fault: AssayError | None = None
    cancelled: bool = False


@dataclass(eq=False)
class World:
    """The ports of all stages."""

    loop: StillLoop
    pending: list[Call] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    used: int = 0

    async def ask(self, kind: str, request: Any) -> Any:
        call = Call(kind, request, self.loop.create_future(), self.loop.now, self.used)
        self.pending.append(call)
        self.calls.append(call)
        try:
            return await call.future
        except asyncio.CancelledError:
            call.cancelled = True
            raise
        finally:
            self.pending.remove(call)

    async def plan(self, request: Any) -> Any:
        return await self.ask("plan", request)

    async def search(self, query: Any) -> Any:
        return await self.ask("search", query)

    async def describe(self, scope: Any) -> Any:
        return await self.ask("describe", scope)

    async def document_lookup(self, query: Any) -> Any:
        return await self.ask("document", query)

    async def get_document_metadata(self, query: Any) -> Any:
        return await self.ask("metadata", query)

    async def rerank(self, request: Any) -> Any:
        return await self.ask("rerank", request)

    async def grade(self, request: Any) -> Any:
        return await self.ask("grade", request)

    async def support(self, request: Any) -> Any:
        return await self.ask("support", request)

    async def complete(self, request: Any) -> Any:
        return await self.ask("agent", request)

    def stream(self, request: Any) -> AsyncGenerator[Any]:
        raise AssertionError("the agent asks for whole turns")

    async def score(self, request: Any) -> Any:
        raise AssertionError("the loop scores nothing itself")

    async def put(self, record: Any, owner: str) -> Any:
        return await self.ask("put", record)

    async def get(self, answer_id: str, owner: str) -> Any:
        raise AssertionError("nothing is resumed here")

    async def generate(self, request: Any) -> AsyncGenerator[GenerateEvent]:
        while (events := await self.ask("generate", request)) is not None:
            for event in events:
                yield event

    # ---- how a call ends --------------------------------------------------------------------------------------------

    def of(self, *kinds: str) -> list[Call]:
        return [call for call in self.calls if call.kind in kinds]

    def end(self, call: Call, draw: Draw) -> None:
        """With something that the stage might answer."""
        said = getattr(self, f"_{call.kind}")(call.request, draw)
        if isinstance(said, AssayError):
            self.fail(call, said)
            return
        said_usage = [e.usage for e in said] if isinstance(said, list) else [getattr(said, "usage", None)]
        self.used += sum(usage.prompt_tokens for usage in said_usage if usage is not None)
        call.future.set_result(said)

    def fail(self, call: Call, fault: AssayError) -> None:
        call.fault = fault
        call.future.set_exception(fault)

    def _again(self, draw: Draw) -> str:
        """A query that was searched before, in other words' order, case, spaces and stop words, or a new one."""
        searched = [text for call in self.of("search") for text in call.request.queries]
        text: str = draw(st.sampled_from([*QUERIES, *searched, *searched]))
        words = draw(st.sampled_from([text.split(), [*reversed(text.split())]]))
        words = draw(st.sampled_from([words, [w.upper() for w in words], [w.lower() for w in words], ["the", *words]]))
        return str(draw(st.sampled_from([" ", "  "]))).join(words)

    def _plan(self, request: Any, draw: Draw) -> Plan:
        further = draw(st.lists(st.sampled_from(QUERIES), max_size=3))
        cut = draw(st.integers(0, 3))
        return Plan(
            query=draw(st.sampled_from([request.question, "tides of the ocean"])),
            variants=tuple(further[:cut]),
            sub_questions=tuple(further[cut:]),
            usage=_usage(),
            fault=draw(st.sampled_from([None, None, "no plan"])),
            search=draw(st.sampled_from([*[True] * 7, False])),
            reason="small talk",
            intent=draw(st.sampled_from([None, "answer", "list", "compare"])),
            buckets=tuple(draw(st.lists(st.sampled_from(["docs", "other", "strange"]), max_size=2, unique=True))),
            filters=draw(st.sampled_from([None, Predicate(field="page", op=">", value=3)])),
            strategy=draw(st.sampled_from(["hybrid", "keyword", "semantic"])),
        )

    def _search(self, query: SearchQuery, draw: Draw) -> SearchResult:
        size = draw(st.sampled_from([3, 2, 1, 3, 2, 4, 1, 0]))
        chunks = draw(st.lists(st.sampled_from(POOL), min_size=size, max_size=size, unique_by=lambda c: c.id))
        hits = tuple(Hit(c, 1.0 / rank, {"dense": rank}, 0.5) for rank, c in enumerate(chunks, 1))
        left = 6 if hits else draw(st.sampled_from([0, 0, 6]))
        blocking = None if left else draw(st.sampled_from([None, Predicate(field="page", op=">", value=3)]))
        facets = {name: Facet(values=[FacetValue(value=v, count=9) for v in "ab"], missing=0) for name in query.facets}
        torn = Degraded(stage="sparse", reason="torn", fallback="the dense leg alone")
        explain = Explain(left, 6, {}, blocking, None if blocking is None else 6)
        return SearchResult(hits, "v1", explain, draw(st.sampled_from([(), (torn,)])), facets)

    def _describe(self, scope: Any, draw: Draw) -> tuple[BucketInfo, ...]:
        kind = FieldInfo("type", "text", False, "", 100)
        return (BucketInfo("docs", draw(st.sampled_from([3, 300])), 300, "", (kind,)), BucketInfo("other", 3, 3))

    def _document(self, query: Any, draw: Draw) -> DocumentText | AssayError:
        text = next((chunk.text for chunk in POOL if chunk.doc_id == query.doc_id), "")
        if not text or draw(st.sampled_from([False, False, True])):
            return StageUnavailable("no document here")
        title = f"Page of {query.doc_id}"
        info = DocumentInfo(query.doc_id, "docs", title, "page.md", "md", len(text), 1, "2025-01-01T00:00:00Z", {})
        return DocumentText(info, text, (0, len(text)), len(text), draw(st.booleans()))

    def _metadata(self, query: Any, draw: Draw) -> DocumentInfo | AssayError:
        day = draw(st.sampled_from([None, "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"]))
        held: dict[str, Any] = {"date": day} if day else {}
        return DocumentInfo(query.doc_id, "docs", "Page", "page.md", "md", 9, 1, "2025-01-01T00:00:00Z", held)

    def _rerank(self, request: Any, draw: Draw) -> Reranked:
        hits = draw(st.permutations(request.hits))
        ranked = tuple(Ranked(hit, float(-n), None) for n, hit in enumerate(hits))
        return Reranked(ranked, _usage(), faults=draw(st.integers(0, 1)))

    def _grade(self, request: Any, draw: Draw) -> Grade:
        shares = [*[(0.3, 0.6, 0.1), (0.1, 0.8, 0.1)] * 3, (0.9, 0.05, 0.05), (0.2, 0.2, 0.6)]
        enough, more, clarify = draw(st.sampled_from(shares))
        follow_up = (draw(st.sampled_from([*[True] * 7, False])) and self._again(draw)) or None
        about = draw(st.sampled_from([0.9, 0.9, 0.1]))
        beside = tuple(self._again(draw) for _ in range(draw(st.sampled_from([0, 1, 2]))))
        return Grade(enough, more, clarify, about, features={}, follow_up=follow_up, beside=beside, usage=_usage())

    def _support(self, request: Any, draw: Draw) -> Support:
        return Support(tuple(draw(st.sampled_from([0.9, 0.1, math.nan])) for _ in request.claims), _usage())

    def _generate(self, request: Any, draw: Draw) -> list[GenerateEvent] | None:
        """Some of an answer, or its end."""
        sound = [GenerateEvent(draft=top_passage(e)) for e in request.evidence]
        slots = tuple(draw(st.permutations([e.slot for e in request.evidence])))
        near = [GenerateEvent(draft=Draft(f"Indeed {d.text}", slots)) for e in sound if (d := e.draft)]
        unsound = GenerateEvent(draft=Draft("Whales dance around volcanoes at night.", slots))
        events = [*sound, *near, unsound, GenerateEvent(usage=_usage()), GenerateEvent(reasoning="hm")]
        chosen = st.lists(st.sampled_from(events), max_size=2) | st.just([*sound, *near])
        return None if draw(st.sampled_from([True, False, False])) else list(draw(chosen))

    def _agent(self, request: Any, draw: Draw) -> Completion:
        names = ["search_hybrid"] * 4 + ["search_text", "list_buckets", "document_lookup", "no_tool"]
        uses: list[ToolUse] = []
        for n in range(draw(st.sampled_from([1, 1, 2, 3, 0]))):
            name = draw(st.sampled_from(names))
            bucket = draw(st.sampled_from([{}, {}, {"bucket": "docs"}, {"bucket": "other"}]))
            query = {"query": self._again(draw), **bucket}
            document = {"doc_id": draw(st.sampled_from(["doc_x", *(chunk.doc_id for chunk in POOL)]))}
            fitting = {"document_lookup": document, "list_buckets": {}}.get(name, query)
            written = draw(st.sampled_from([fitting] * 5 + [{"x": 1}]))
            uses.append(checked(request.tools, f"call_{n}", name, json.dumps(written)))
        reason = draw(st.sampled_from(["stop", "length"]))
        cited = st.lists(
            st.tuples(st.sampled_from([c.text for c in POOL]), st.sampled_from(MARKS)), min_size=1, max_size=3
        )
        answer = " ".join(f"{text[:-1]} {mark}." for text, mark in draw(cited))
        said = draw(st.sampled_from([*SAID, *[answer] * 3]))
        return Completion(said, reason, _usage(), tool_uses=tuple(uses))

    def _put(self, record: Any, draw: Draw) -> None:
        return None


def _usage() -> Usage:
    return Usage(llm_calls=1, prompt_tokens=TOKENS)
