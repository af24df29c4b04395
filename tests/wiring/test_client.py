"""The client and the ``ask`` command against the real door, over a loopback socket."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typer.testing import CliRunner

from assay import events as ev
from assay import schemas as s
from assay.cli.ask import ask
from assay.cli.replay import replay
from assay.cli.search import search
from assay.client import AsyncClient, Client, EventDecoder, NotAssay, Unreachable
from assay.config import ConversationsConfig, IngressConfig
from assay.errors import AssayError, Overloaded, StageTimeout, StageUnavailable, UnknownBucket
from assay.keys import KeyFile
from deployments.api import make_api
from tests.wiring.scripted_driver import ANSWER, CITATION, ScriptedDriver, response, whole

MEMORY = ConversationsConfig(store="memory")
CONFIG = IngressConfig(conversations=MEMORY, heartbeat_s=0.1)
QUESTION = s.AskRequest(question="When may it end?")
CLOSED = "http://127.0.0.1:1"
FILTER = s.And(and_=[s.Predicate(field="type", op="=", value="Supply")])


@contextmanager
def listening(app: object) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))  # type: ignore[arg-type]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
def url(driver: ScriptedDriver) -> Iterator[str]:
    with listening(make_api(driver, CONFIG)) as url:
        yield url


def test_blocking_client(url: str, driver: ScriptedDriver) -> None:
    with Client(url) as client:
        answer = client.ask(QUESTION.model_copy(update={"filters": FILTER}))
        events = list(client.stream(QUESTION))
        found = client.search(s.SearchRequest(question="termination"))
        ready = client.ready()
    assert answer.citations == [CITATION]
    assert [type(event) for event in events] == [type(step) for step in whole()]
    assert isinstance(events[-1], ev.CompletedEvent)
    assert events[-1].response.answer == answer.answer
    assert (found.hits[0].text, ready.status) == (CITATION.quote, "ready")
    assert (driver.asked[0].filters, driver.asked[1].stream) == (FILTER, True)


@pytest.mark.anyio
async def test_async_client(driver: ScriptedDriver) -> None:
    app = make_api(driver, CONFIG)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), AsyncClient("http://localhost", transport=transport) as client:
        answer = await client.ask(QUESTION)
        events = [event async for event in client.stream(QUESTION)]
        found = await client.search(s.SearchRequest(question="termination"))
        driver.ready_now = lambda: s.Readiness(status="unavailable", reasons=["starting"])
        ready = await client.ready()
    assert isinstance(events[-1], ev.CompletedEvent)
    assert (answer.citations, events[-1].response.citations) == ([CITATION], [CITATION])
    assert (found.index_version, ready.reasons) == ("v1", ["starting"])


def test_faults_are_the_servers_own(url: str, driver: ScriptedDriver) -> None:
    driver.script = [UnknownBucket("There is no bucket 'x'.", "buckets[0]", ("contracts",))]
    with Client(url) as client:
        for call in (lambda: client.ask(QUESTION), lambda: list(client.stream(QUESTION))):
            with pytest.raises(UnknownBucket) as caught:
                call()
            assert (caught.value.field, caught.value.allowed) == ("buckets[0]", ("contracts",))
            assert caught.value.__notes__[0].startswith("request_id req_")
        driver.script = [ev.StatusEvent(state="planning"), StageTimeout("generator: timeout")]
        events = client.stream(QUESTION)
        assert next(events).type == "status"
        with pytest.raises(StageTimeout):
            next(events)


def test_closing_the_stream_cancels_the_question(url: str, driver: ScriptedDriver) -> None:
    driver.script = [ev.StatusEvent(state="planning"), 60.0]
    with Client(url) as client, closing(client.stream(QUESTION)) as events:
        assert next(events).type == "status"
    until(lambda: driver.closed == 1)


@pytest.mark.anyio
async def test_closing_the_async_stream_cancels_the_question(url: str, driver: ScriptedDriver) -> None:
    driver.script = [ev.StatusEvent(state="planning"), 60.0]
    async with AsyncClient(url) as client, aclosing(client.stream(QUESTION)) as events:
        assert (await anext(events)).type == "status"
    await asyncio.to_thread(until, lambda: driver.closed == 1)


def breaks(app: ASGIApp, after: int, times: int) -> ASGIApp:
    """The app, behind a connection that breaks so often: each time after so many pieces of an answer."""
    left = times

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        pieces = 0

        async def send_some(message: Message) -> None:
            nonlocal pieces, left
            if message["type"] == "http.response.body":
                pieces += 1
                if pieces > after and left > 0:
                    left -= 1
                    raise OSError("broken")
            await send(message)

        await app(scope, receive, send if scope["type"] != "http" else send_some)

    return broken


@pytest.mark.anyio
@pytest.mark.parametrize("resumable", [True, False])
async def test_a_stream_that_breaks_is_taken_up_again(
    driver: ScriptedDriver, resumable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in ("blocking", "aio"):
        monkeypatch.setattr(f"assay.client.{client}.RETRY_S", 0.01)
    question = QUESTION.model_copy(update={"resumable": resumable})
    driver.script = [part for step in whole() for part in (step, 0.02)]
    app = breaks(make_api(driver, CONFIG), after=2, times=3)
    with listening(app) as url, Client(url) as blocking:
        if not resumable:
            with pytest.raises(StageUnavailable, match="broke"):
                await asyncio.to_thread(lambda: list(blocking.stream(question)))
            return
        events = await asyncio.to_thread(lambda: list(blocking.stream(question)))
        assert [type(event) for event in events] == [type(step) for step in whole()]
    with listening(breaks(make_api(driver, CONFIG), after=2, times=3)) as url:
        async with AsyncClient(url) as client_:
            events = [event async for event in client_.stream(question)]
    assert [type(event) for event in events] == [type(step) for step in whole()]
    assert len(driver.asked) == 2


def test_a_stream_that_cannot_be_taken_up_just_now_is_in_a_moment(
    driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.client.blocking.RETRY_S", 0.05)
    driver.script = [part for step in whole() for part in (step, 0.02)]
    question = QUESTION.model_copy(update={"resumable": True})
    with listening(breaks(make_api(driver, CONFIG), after=2, times=1)) as url, Client(url) as client:
        events = client.stream(question)
        seen = [next(events)]
        driver.describe_fault = Overloaded("The retriever has too much to do.")
        timer = threading.Timer(0.3, lambda: setattr(driver, "describe_fault", None))
        timer.start()
        seen += events
        timer.join()
    assert [type(event) for event in seen] == [type(step) for step in whole()]


@pytest.mark.anyio
async def test_nothing_listens() -> None:
    with Client(CLOSED) as client, pytest.raises(Unreachable, match="make serve"):
        client.ready()
    async with AsyncClient(CLOSED) as client_:
        with pytest.raises(Unreachable, match="make serve"):
            await client_.ask(QUESTION)
        with pytest.raises(Unreachable, match="make serve"):
            await anext(client_.stream(QUESTION))


@pytest.mark.anyio
async def test_slow_cut_off_or_strange_servers() -> None:
    async def strange(scope: Scope, receive: Receive, send: Send) -> None:
        streams = scope["path"] == "/v1/answers"
        kind = b"text/event-stream" if streams else b"text/html"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        body = b'id: 1\nevent: status\ndata: {"type":"status","state":"planning"}\n\n' if streams else b"<html>"
        await send({"type": "http.response.body", "body": body})

    async with AsyncClient("http://localhost", transport=httpx.ASGITransport(strange)) as client:
        with pytest.raises(StageUnavailable, match="ended before"):
            assert [event async for event in client.stream(QUESTION)]
        for call in (client.ready(), client.search(s.SearchRequest(question="x")), client.ask(QUESTION)):
            with pytest.raises(NotAssay, match="another service"):
                await call


def test_decoder_takes_bytes_however_they_are_cut() -> None:
    events: list[ev.Event] = [ev.AnswerEvent(delta=ANSWER), ev.CompletedEvent(response=response())]
    wire = "".join(
        f"id: {n}\r\nevent: {e.type}\r\ndata: {e.model_dump_json()}\r\n\r\n: ping\n\n" for n, e in enumerate(events)
    )
    for size in (1, 2, 7, 10_000):
        decoder, data = EventDecoder(), wire.encode()
        assert [e for at in range(0, len(data), size) for e in decoder.feed(data[at : at + size])] == events
    with pytest.raises(NotAssay):
        list(EventDecoder().feed(b'data: {"type":"news"}\n'))
    with pytest.raises(Overloaded):
        list(EventDecoder().feed(b'data: {"type":"error","error":{"code":"overloaded","message":"full"}}\n'))
    with pytest.raises(AssayError, match="odd"):
        list(EventDecoder().feed(b'data: {"type":"error","error":{"code":"parse_fault","message":"odd"}}\n'))


# ---- the command ----------------------------------------------------------------------------------------------------

COMMAND, SEARCH, REPLAY = typer.Typer(), typer.Typer(), typer.Typer()
COMMAND.command()(ask)
SEARCH.command()(search)
REPLAY.command()(replay)


def run(*arguments: str, command: typer.Typer = COMMAND) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_search_asks_a_graph_where_a_url_is_given(url: str, driver: ScriptedDriver) -> None:
    words = ("notice", "--url", url, "--rerank", "--fusion", "rrf", "--top-k", "3", "--legs", "sparse")
    code, out, err = run(*words, command=SEARCH)
    assert (code, err) == (0, "reranker: timeout; instead: fused order\n")
    assert "1. contracts/supply-7.pdf, 12 Term > 12.2 Termination, page 5, characters 1042-1106" in out
    request = driver.searched[0]
    assert (request.rerank, request.fusion, request.top_k, request.legs) == (True, "rrf", 3, ["sparse"])
    code, out, _ = run(*words, "--json", command=SEARCH)
    assert s.SearchResponse.model_validate(json.loads(out)).hits[0].text == CITATION.quote


def test_search_without_a_graph_refuses_to_rerank(url: str) -> None:
    code, out, err = run("notice", "--rerank", command=SEARCH)
    assert (code, out) == (2, "")
    assert "running graph" in err and "--url" in err
    code, _, err = run("notice", "--fusion", "sum", command=SEARCH)
    assert (code, "weighted" in err) == (2, True)
    code, out, err = run("notice", "--url", CLOSED, command=SEARCH)
    assert (code, out, err) == (1, "", f"Nothing answers at {CLOSED}: start it with `make serve`.\n")


def test_ask_shows_the_way_and_the_answer(url: str, driver: ScriptedDriver) -> None:
    code, out, err = run("When may it end?", "--url", url, "--bucket", "contracts", "--mode", "agentic")
    assert code == 0
    assert out.startswith("Either party may terminate")
    assert "[1] contracts/supply-7.pdf, 12 Term > 12.2 Termination, page 5, characters 1042-1106" in out
    assert CITATION.quote in out
    lines = err.strip().splitlines()
    assert [line.split()[0] for line in lines if line] == ["plan", "search", "evidence", "grade", "degraded", "ended"]
    assert "termination | notice: 17 hits in 44 ms" in err
    assert "timeout after 8.0 s; instead: fused order" in err
    assert "\x1b" not in out + err
    assert (driver.asked[0].buckets, driver.asked[0].mode) == (["contracts"], "agentic")


def test_each_result_is_told_beside_what_was_asked(url: str, driver: ScriptedDriver) -> None:
    """Also where calls run side by side, and none of them is a search with queries."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search_hybrid", {"queries": ["notice", "termination"]}),
        ("search_text", {"query": "30 days"}),
        ("search_hybrid", {"queries": ["supply"]}),
        ("get_document_metadata", {"doc_id": "doc_7"}),
    ]
    begun = [ev.ToolCallStart(tool=tool, arguments=arguments) for tool, arguments in calls]
    ended = [
        ev.ToolCallResult(tool=tool, hits=hits, duration_ms=5, outcome="ok")
        for hits, (tool, _) in enumerate(calls, start=1)
    ]
    driver.script = [*begun, *ended, *whole()[-3:]]
    _, _, err = run("When may it end?", "--url", url)
    assert err.strip().splitlines()[:4] == [
        "search     notice | termination: 1 hits in 5 ms",
        "tool       search_text 30 days: 2 hits in 5 ms",
        "search     supply: 3 hits in 5 ms",
        "tool       get_document_metadata doc_7: 4 hits in 5 ms",
    ]


def test_a_key_goes_along(driver: ScriptedDriver, tmp_path: Path) -> None:
    _, key = KeyFile(tmp_path / "keys.json").create("a", None, ["search", "ask"], 600, 16)
    with listening(make_api(driver, CONFIG.model_copy(update={"keys": str(tmp_path / "keys.json")}))) as url:
        with Client(url) as client, pytest.raises(AssayError, match="API key"):
            client.ask(QUESTION)
        with Client(url, api_key=key) as client:
            assert client.ask(QUESTION).citations == [CITATION]
        assert run("When?", "--url", url)[0] == 1
        assert run("When?", "--url", url, "--api-key", key)[0] == 0


def test_ask_json(url: str) -> None:
    code, out, err = run("When?", "--url", url, "--json")
    assert (code, err) == (0, "")
    assert s.AskResponse.model_validate(json.loads(out)).citations == [CITATION]


def test_ask_clarifies_with_3(url: str, driver: ScriptedDriver) -> None:
    clarification = s.Clarification(
        type="no_results", message="No passage is so new.", choices=[s.Choice(label="any date", count=60)]
    )
    last = response("clarify").model_copy(update={"answer": None, "citations": [], "clarification": clarification})
    driver.script = [ev.ClarifyEvent(clarification=clarification), ev.CompletedEvent(response=last)]
    code, out, _ = run("When?", "--url", url)
    assert (code, out) == (3, "No passage is so new.\n  - any date (60)\n")
    driver.script = [ev.CompletedEvent(response=response("no_evidence"))]
    code, out, _ = run("When?", "--url", url)
    assert (code, out.startswith("Either party")) == (3, True)


def test_ask_faults(url: str, driver: ScriptedDriver) -> None:
    driver.script = [ev.StatusEvent(state="planning"), UnknownBucket("There is no bucket 'x'.")]
    code, out, err = run("When?", "--url", url)
    assert (code, out, err.splitlines()[0]) == (1, "", "There is no bucket 'x'.")
    assert err.splitlines()[1].startswith("request_id req_")
    code, out, err = run("When?", "--url", CLOSED)
    assert (code, out, err) == (1, "", f"Nothing answers at {CLOSED}: start it with `make serve`.\n")
    code, _, err = run("  ", "--url", url)
    assert (code, err) == (2, "question: must not be blank\n")
    code, _, err = run("When?", "--mode", "fast")
    assert (code, "agentic" in err) == (2, True)


def test_replay_says_what_differs(url: str, driver: ScriptedDriver) -> None:
    driver.ready_now = lambda: s.Readiness(status="ready", index_version="v1")
    code, out, err = run("ans_1", "--url", url, command=REPLAY)
    assert (code, err, out.splitlines()[-1]) == (0, "", "nothing differs")
    assert driver.asked[0].question == "When?" and "state" in driver.asked[0].include
    other = response().model_copy(update={"answer": s.Answer(text="In spring.", style="extract"), "citations": []})
    driver.script = [ev.CompletedEvent(response=other)]
    code, out, _ = run("ans_1", "--url", url, command=REPLAY)
    assert code == 4 and "+ In spring." in out and "- [1] doc_7" in out and "rounds" not in out
    code, out, _ = run("ans_1", "--url", url, "--json", command=REPLAY)
    assert code == 4 and [d["what"] for d in json.loads(out)["differences"]] == ["citations", "answer"]


def test_replay_of_an_answer_whose_index_is_gone(url: str, driver: ScriptedDriver) -> None:
    driver.ready_now = lambda: s.Readiness(status="ready", index_version="v2")
    code, out, err = run("ans_1", "--url", url, command=REPLAY)
    assert (code, out) == (3, "") and "index v1, which is gone: v2 is in force" in err and driver.asked == []
    assert run("ans_1", "--url", url, "--anyway", command=REPLAY)[0] == 0
    assert run("ans_9", "--url", url, command=REPLAY)[0] == 1
    assert run("ans_1", "--url", CLOSED, command=REPLAY)[0] == 1


def test_ask_lets_no_document_write_to_the_terminal(url: str, driver: ScriptedDriver) -> None:
    evil = CITATION.model_copy(update={"quote": "\x1b]0;owned\x07 [red]x[/red]", "uri": "a\x9b31m.pdf"})
    last = response().model_copy(update={"citations": [evil]})
    driver.script = [ev.AnswerEvent(delta="\x1b[2Jgone"), ev.CompletedEvent(response=last)]
    _, out, err = run("When?", "--url", url)
    assert not set("\x1b\x07\x9b") & set(out + err)
    assert "[red]x[/red]" in out


def test_ctrl_c_ends_quietly_with_130(url: str, driver: ScriptedDriver) -> None:
    driver.script = [ev.AnswerEvent(delta="It"), 60.0]
    program = "import typer; from assay.cli.ask import ask; typer.run(ask)"
    command = [sys.executable, "-c", program, "When?", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: driver.running == 1, 30)
        assert process.stdout is not None
        assert process.stdout.read(2) == "It"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert (process.returncode, err.strip()) == (130, "")
    until(lambda: driver.closed == 1)
