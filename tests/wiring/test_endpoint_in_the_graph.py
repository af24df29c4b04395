"""An engine of kind ``openai`` as the replica that it is in a graph: its faults reach the stages as they are, and who leaves is
heard at the endpoint. By real handles, over Ray's objects and over gRPC; and in the whole graph, in one process.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve

from assay.config import AppConfig
from assay.errors import AssayError, BadModelOutput, Overloaded, SetupError, StageTimeout, StageUnavailable
from assay.llm.endpoint import EndpointConfig
from assay.llm.http import gathered
from assay.models import embedder_path
from assay.schemas import AskRequest, AskResponse, Usage
from assay.types import CompletionRequest, Delta, Message, ScoreItem, ScoreRequest
from deployments.engine import build_engine
from deployments.remote import RemoteLLM
from graph import wire
from tests import contract_llm
from tests.fakes import ScriptedLLM
from tests.openai_server import OpenAIServer, Refusal
from tests.unit.test_plan import said
from tests.wiring.test_endpoint import KEY, until_idle
from tests.wiring.test_graph import QUESTION, indexed

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

VARIANT = "why do ocean tides rise"
ANSWER = "The gravity of the Moon causes the ocean tides on Earth"
HELLO = CompletionRequest((Message("user", "Say hello."),), max_tokens=64)
ENDLESS = CompletionRequest((Message("user", "Never stop."),), max_tokens=64)


class _Model(ScriptedLLM):
    """Plans and writes as any can; asked never to stop, it does not."""

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        while request == ENDLESS:
            yield Delta("and ")
            await asyncio.sleep(0.01)
        plan = json.loads(said(variants=[VARIANT], entities=[], topics=[], format="prose"))
        parts = {part: plan[part] for part in json.loads(request.json_schema or "{}").get("properties", ())}
        yield Delta(json.dumps(parts) if request.json_schema else f"{ANSWER} [E1].")
        yield Delta(finish_reason="stop", usage=Usage(llm_calls=1, prompt_tokens=7, completion_tokens=5))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[OpenAIServer]:
    """On a loop of its own."""
    started: Future[tuple[OpenAIServer, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        async with OpenAIServer(_Model()) as server:
            over = asyncio.Event()
            started.set_result((server, asyncio.get_running_loop(), over))
            await over.wait()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run())
        server, loop, over = started.result(60)
        yield server
        loop.call_soon_threadsafe(over.set)


@pytest.fixture
def server(endpoint: OpenAIServer) -> OpenAIServer:
    endpoint.faults.clear()
    endpoint.requests.clear()
    return endpoint


def config(server: OpenAIServer) -> dict[str, Any]:
    limits = {"retries": 0, "first_token_timeout_s": 2, "total_timeout_s": 60}
    return {"kind": "openai", "preset": "vllm", "model": "m", "base_url": server.url, "key_env": "MY_KEY", **limits}


# ---- by its handle --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def handle(endpoint: OpenAIServer) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_KEY", KEY)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            app = build_engine("small", EndpointConfig.model_validate(config(endpoint)), "")
            yield serve.run(app, name="endpoint", route_prefix=None)
        finally:
            serve.shutdown()
            ray.shutdown()


@pytest.fixture(params=[True, False], ids=["objects", "gRPC"])
def engine(request: pytest.FixtureRequest, handle: Any) -> RemoteLLM:
    return RemoteLLM("small", handle.options(_by_reference=request.param))


async def test_it_answers_by_its_handle(engine: RemoteLLM, server: OpenAIServer) -> None:
    assert await engine.ready() == "ready" and server.requests == [], "to look costs nothing"
    completion = await engine.complete(HELLO)
    assert (completion.text, completion.finish_reason) == (f"{ANSWER} [E1].", "stop")
    assert completion.usage == Usage(llm_calls=1, prompt_tokens=7, completion_tokens=5)
    deltas = [delta async for delta in engine.stream(HELLO)]
    assert len(deltas) > 1 and gathered(deltas) == completion
    assert {headers["authorization"] for _, headers, _ in server.requests} == {f"Bearer {KEY}"}
    for name in contract_llm.checks(frozenset({"score"})):
        if "score" in name:
            await contract_llm.check(name, engine)


FAULTS: list[tuple[Any, type[AssayError], str]] = [
    (Refusal(400, "too long: 2048 tokens"), BadModelOutput, "2048"),
    (Refusal(401, f"Incorrect key {KEY}"), SetupError, "MY_KEY"),
    (Refusal(429, "slow down"), Overloaded, "slow down"),
    (Refusal(500, f"bad {KEY}"), StageUnavailable, r"bad \*\*\*"),
    ("cut", StageUnavailable, "cut the connection"),
    ("hang", StageTimeout, "gave no first token within 2 s"),
]


@pytest.mark.parametrize(("fault", "kind", "words"), FAULTS)
async def test_an_endpoints_fault_is_the_same_beyond_the_handle(
    engine: RemoteLLM, server: OpenAIServer, fault: Any, kind: type[AssayError], words: str
) -> None:
    server.faults += [fault] * 2
    with pytest.raises(kind, match=words) as of_call:
        await engine.complete(HELLO)
    with pytest.raises(kind, match=words) as of_stream:
        await anext(engine.stream(HELLO))
    for caught in (of_call, of_stream):
        assert type(caught.value) is kind and KEY not in str(caught.value) + repr(caught.value.__cause__)
    assert caught.value.field == ("key_env" if kind is SetupError else None)
    assert len(server.requests) == 2, "nobody asks again what a living replica has said"


async def test_a_fault_of_its_scores_is_the_same_beyond_the_handle(engine: RemoteLLM, server: OpenAIServer) -> None:
    server.faults += [Refusal(429, "slow down")] * 2
    with pytest.raises(Overloaded, match="slow down"):
        await engine.score(ScoreRequest((ScoreItem("The Moon causes", " the tides."),)))


async def test_who_leaves_is_heard_at_the_endpoint(engine: RemoteLLM, server: OpenAIServer) -> None:
    call = asyncio.create_task(engine.complete(ENDLESS))
    async with asyncio.timeout(60):
        while not server.open:
            await asyncio.sleep(0.005)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_idle(server, 60)
    stream = engine.stream(ENDLESS)
    await anext(stream)
    assert server.open == 1
    await stream.aclose()
    await until_idle(server, 60)


# ---- in the graph ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("endpoint"))


@pytest.fixture(scope="module", params=["deployment", "driver"])
def graph(request: pytest.FixtureRequest, index: Path, endpoint: OpenAIServer) -> Any:
    stage = {"placement": request.param}
    args = AppConfig.model_validate(
        {
            "engines": {"small": config(endpoint)},
            "index": {"uri": str(index)},
            "expander": {"skip_simple": False, **stage},
            "reranker": {"method": "likelihood", **stage},
            "generator": {"style": "prose", **stage},
            "answers": {"path": str(index.parent / f"{request.param}.db")},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_KEY", KEY)
        engines = {"small": build_engine("small", args.engines["small"], "")}
        app = wire(args, engines, {"small": str(embedder_path())}, str(embedder_path()))
        return serve.run(app, name=f"endpoint-{request.param}", _local_testing_mode=True)


def ask(graph: Any) -> tuple[AskResponse, dict[str, tuple[str, str]]]:
    """The answer, and each stage's reason and fallback, but for those of its calibration."""
    asked = AskRequest(question=QUESTION, mode="agentic", include=["tool_calls"])
    response: AskResponse = graph.ask.remote(asked).result(timeout_s=120)
    told = [d for d in response.degraded if not d.reason.startswith("not calibrated")]
    return response, {d.stage: (d.reason, d.fallback) for d in told}


def test_a_question_is_answered_by_the_endpoint(graph: Any, server: OpenAIServer) -> None:
    response, degraded = ask(graph)
    assert response.answer is not None and response.answer.text.startswith(ANSWER) and response.citations
    queries = [query for call in response.tool_calls or () for query in call.arguments["queries"]]
    assert VARIANT in queries, "the endpoint's plan"
    assert {path for path, _, _ in server.requests} == {"/v1/chat/completions", "/tokenize", "/v1/completions"}
    assert degraded == {}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Refusal(401), "refused the key in MY_KEY (HTTP 401)."),
        (Refusal(429, "slow down"), "is overloaded (HTTP 429): slow down"),
    ],
)
def test_an_endpoints_fault_is_met_by_each_stages_fallback(
    graph: Any, server: OpenAIServer, fault: Refusal, reason: str
) -> None:
    server.faults += [fault] * 1000
    response, degraded = ask(graph)
    assert response.status == "answered" and response.citations, "from what was found, quoted"
    fallbacks = {
        "expander": "the original query alone",
        "reranker": "fused order, top 5",
        "generator": "the top passage, quoted",
    }
    assert degraded == {stage: (f"{server.url} {reason}", fallback) for stage, fallback in fallbacks.items()}
