"""The real wiring and the real deployments under local testing mode: one process, no cluster, a scripted engine."""

import asyncio
import re
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from ray import serve

from assay.config import (
    AnswersConfig,
    AppConfig,
    EngineConfig,
    ExpanderConfig,
    GeneratorConfig,
    IndexConfig,
    Placement,
    RerankerConfig,
)
from assay.errors import NotFound, StageUnavailable, UnknownBucket
from assay.events import CompletedEvent
from assay.llm.tools import checked
from assay.models import embedder_path
from assay.schemas import AskRequest, AskResponse, SearchRequest, Usage
from assay.types import Completion, CompletionRequest, Delta, ScoreRequest, Scores
from deployments.remote import RemoteDriver, Reply, reply
from graph import wire
from tests.fakes import ScriptedLLM
from tests.wiring.index.builders import DirectParser, write

PAGES = {
    "moon.md": "# Moon\n\nThe gravity of the Moon causes the ocean tides on Earth. The Moon has no air of its own.",
    "mars.md": "# Mars\n\nMars has two small moons that are called Phobos and Deimos. Its soil is red from iron.",
}
QUESTION = "What causes the ocean tides on Earth?"
HELD = "What does Mars have at its slow poles?"
LOOKED_FOR = "Phobos and Deimos"


class Hold:
    """Keeps the engine at the plan of the question ``HELD`` until it may go on."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.holding = 0

    async def __call__(self, request: CompletionRequest) -> None:
        if HELD not in request.messages[-1].content:
            return
        self.holding += 1
        self.reached.set()
        try:
            while not self.go.is_set():
                await asyncio.sleep(0.01)
        finally:
            self.holding -= 1


HOLD = Hold()


def talk(request: CompletionRequest) -> Completion:
    """Searches once, and answers with what that brought: the slot is where the passage stands in the conversation."""
    if request.messages[-1].role != "tool":
        use = checked(request.tools, "call_1", "search_hybrid", f'{{"query": "{LOOKED_FOR}", "top_k": 1}}')
        return Completion("", "stop", Usage(llm_calls=1), "", (use,))
    passages = "\n".join(message.content for message in request.messages)
    (slot,) = set(re.findall(rf"\[(E\d+)\][^\[]*{LOOKED_FOR}", passages))
    return Completion(f"Mars has two small moons that are called {LOOKED_FOR} [{slot}].", "stop", Usage(llm_calls=1))


class _ScriptedEngine:
    """The engine's deployment, but for the engine. It plans nothing new for a question it does not know."""

    def __init__(self, down: bool) -> None:
        self._down = down
        self._llm = ScriptedLLM(*['{"variants": ["why do ocean tides rise"]}'] * 20)

    async def complete(self, request: CompletionRequest) -> Reply[Completion]:
        self._check()
        if request.tools:
            return Reply(talk(request), 0.0)
        await HOLD(request)
        return await reply(self._llm.complete(request))

    async def score(self, request: ScoreRequest) -> Reply[Scores]:
        self._check()
        return await reply(self._llm.score(request))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        self._check()
        async for delta in self._llm.stream(request):
            yield delta

    async def ready(self) -> Reply[str]:
        return Reply("ready", 0.0)

    def _check(self) -> None:
        if self._down:
            raise StageUnavailable("small is not available: scripted")


ScriptedEngine = serve.deployment(_ScriptedEngine)


def indexed(folder: Path) -> Path:
    """An index of ``PAGES`` below the folder."""
    from assay.index.embed import SentenceEmbedder
    from assay.index.files import Layout
    from assay.index.ingest import Ingestion, find_sources

    encoder = SentenceEmbedder(str(embedder_path()))
    sources = find_sources([write(folder / "docs", PAGES)], folder / "docs")
    Ingestion(Layout(str(folder / "index")), "docs", sources, encoder, encoder.embed_now, DirectParser()).run()
    return folder / "index"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("wiring"))


def run(index: Path, tokenizer: str, down: bool, placement: Placement) -> RemoteDriver:
    args = AppConfig(
        engines={"small": EngineConfig(tool_parser="hermes", max_model_len=8192)},  # the tools' schemas take 2,500
        index=IndexConfig(uri=str(index)),
        expander=ExpanderConfig(skip_simple=False, placement=placement),
        reranker=RerankerConfig(placement=placement),
        generator=GeneratorConfig(placement=placement),
        answers=AnswersConfig(path=str(index.parent / f"answers-{down}-{placement}.db")),
    )
    app = wire(args, {"small": ScriptedEngine.bind(down)}, {"small": tokenizer}, str(embedder_path()))
    handle = serve.run(app, name=f"assay-{down}-{placement}", _local_testing_mode=True)
    return RemoteDriver("ingress", handle)


@pytest.fixture(scope="module", params=["deployment", "driver"])
def placement(request: pytest.FixtureRequest) -> Placement:
    placement: Placement = request.param
    return placement


@pytest.fixture(scope="module", params=[False, True], ids=["engine up", "engine down"])
def driver(request: pytest.FixtureRequest, index: Path, placement: Placement) -> tuple[RemoteDriver, bool]:
    return run(index, str(embedder_path()), request.param, placement), request.param


def ask(driver: RemoteDriver, **fields: object) -> AskResponse:
    response: AskResponse = driver._handle.ask.remote(
        AskRequest.model_validate({"question": QUESTION, **fields})
    ).result()
    return response


def test_a_question_goes_through_every_stage(driver: tuple[RemoteDriver, bool]) -> None:
    graph, down = driver
    response = ask(graph, mode="agentic", include=["trace", "tool_calls", "evidence"])
    assert response.status == "answered"
    assert response.citations and response.citations[0].uri == "moon.md"
    assert (response.citations[0].heading, response.citations[0].page) == (["Moon"], None)
    text = PAGES["moon.md"]
    for citation in response.citations:
        assert text[slice(*citation.span)] == citation.quote or citation.uri != "moon.md"
    stages = {d.stage for d in response.degraded}
    assert stages == ({"expander", "reranker", "generator"} if down else {"reranker"})
    assert any(d.reason.startswith("not calibrated") for d in response.degraded), "the scripted engine is no SmolLM2"
    assert {"plan", "retrieve", "rerank", "grade", "generate", "driver", "hops", "total"} <= set(response.timings_ms)


def test_an_answer_is_read_again_with_all_that_led_to_it(driver: tuple[RemoteDriver, bool]) -> None:
    graph, _ = driver
    response = ask(graph)
    assert response.trace is None
    record = graph._handle.recall.remote(response.id).result()
    assert record.request.question == QUESTION and record.response.answer == response.answer
    assert record.response.state.mode == "pipeline" and record.response.state.plan.query == QUESTION
    assert {call.index_version for call in record.response.tool_calls} == {response.index_version}
    with pytest.raises(NotFound):
        graph._handle.recall.remote("ans_nothing").result()


def test_a_search_is_reranked_or_says_why_not(driver: tuple[RemoteDriver, bool]) -> None:
    graph, down = driver
    asked = SearchRequest(question=QUESTION, rerank=True, fusion="rrf", top_k=1)
    found = graph._handle.search.remote(asked).result()
    assert [hit.uri for hit in found.hits] == ["moon.md"]
    assert [(d.stage, d.fallback) for d in found.degraded] == ([("reranker", "fused order")] if down else [])
    assert found.usage.llm_calls == (0 if down else 1)


def test_a_stream_ends_once_and_has_one_id(driver: tuple[RemoteDriver, bool]) -> None:
    graph, _ = driver
    events = list(graph._handle.options(stream=True).stream.remote(AskRequest(question=QUESTION)))
    assert isinstance(events[-1], CompletedEvent)
    assert sum(event.type in ("completed", "error") for event in events) == 1
    assert len({event.request_id for event in events}) == 1


def test_a_bad_request_by_handle_raises_its_own_error(driver: tuple[RemoteDriver, bool]) -> None:
    graph, _ = driver
    with pytest.raises(UnknownBucket) as caught:
        ask(graph, buckets=["contrcats"])
    assert caught.value.allowed == ("docs",)


def test_a_model_calls_tools_through_the_graph_and_answers(driver: tuple[RemoteDriver, bool]) -> None:
    """Its calls, their results and its answer go through handles; without it the generator answers, and that is said."""
    graph, down = driver
    response = ask(graph, mode="tools", include=["tool_calls", "evidence"], buckets=["docs"])
    assert (response.status, response.terminated_by) == ("answered", "answered")
    assert response.tool_calls is not None and response.answer is not None
    assert {call.index_version for call in response.tool_calls} == {response.index_version}
    made = [(call.tool, call.outcome, call.arguments.get("query")) for call in response.tool_calls]
    assert made[0] == ("search_hybrid", "ok", None) and response.tool_calls[0].arguments["queries"] == [QUESTION]
    for citation in response.citations:
        start, end = citation.span
        assert PAGES[citation.uri][start:end] == citation.quote
    assert ("agent" in {d.stage for d in response.degraded}) == down
    if down:
        assert len(made) == 1 and {c.uri for c in response.citations} == {"moon.md"}
    else:
        assert made[1:] == [("search_hybrid", "ok", LOOKED_FOR)] and response.usage.llm_calls == 2
        assert [c.uri for c in response.citations] == ["mars.md"] and LOOKED_FOR in response.answer.text


@pytest.mark.parametrize("driver", [False], indirect=True, ids=["engine up"])
def test_a_question_whose_stage_is_slow_holds_up_no_other(driver: tuple[RemoteDriver, bool]) -> None:
    """What is held is the plan, wherever the expander is; were the others to wait for it, it would have been given up."""
    graph, _ = driver
    HOLD.reached.clear()
    HOLD.go.clear()
    try:
        slow = graph._handle.ask.remote(AskRequest(question=HELD, mode="agentic"))
        assert HOLD.reached.wait(60)
        others = [graph._handle.ask.remote(AskRequest(question=QUESTION, mode=m)) for m in ("pipeline", "agentic")]
        assert [other.result(timeout_s=60).status for other in others] == ["answered"] * 2
        found = graph._handle.search.remote(SearchRequest(question=QUESTION, top_k=1)).result(timeout_s=60)
        assert [hit.uri for hit in found.hits] == ["moon.md"]
        assert HOLD.holding == 1, "it still waits"
    finally:
        HOLD.go.set()
    last = slow.result(timeout_s=60)
    assert last.usage.llm_calls and "expander" not in {d.stage for d in last.degraded}, "it got its plan after all"
