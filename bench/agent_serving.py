"""What a question costs around its models: through Serve, many at once, up to its first evidence, and under a deadline."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import yaml

from assay import loop
from assay.config import AppConfig, RetrieverConfig
from assay.events import EvidenceEvent, ToolCallResult
from assay.expand import LLMExpander
from assay.generate import ExtractGenerator
from assay.index.embed import SentenceEmbedder
from assay.rerank import LLMReranker
from assay.retrieve import LocalRetriever
from assay.run import Stages
from assay.schemas import AskRequest
from assay.serve_config import load
from assay.tokens import EstimatedTokenizer
from assay.types import Plan, PlanRequest, SearchQuery, SearchResult
from bench.agent_parts import Parts
from bench.asked import config
from bench.fake_models import DELAY, FakeEngine, tiny_embedder
from bench.look import looked_at
from bench.report import Row, at_least, at_most
from deployments.local import LocalGraph, descendants

CLIENTS = 64
CALLS = 3  # of the engine, one after the other, in a question of one round: the plan, the reranking, the sentences
ENGINE_S = 1.0
IDEAL = CLIENTS / (CALLS * ENGINE_S)  # questions a second
DEADLINE_S, LATEST_S = 5.0, 5.5
PORT = 8768


@dataclass(frozen=True, slots=True)
class Asked:
    """One question over HTTP: seconds, and the response's body, or what was said instead."""

    seconds: float
    status: int
    body: dict[str, Any]

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.body["answer"] is not None


def one(parts: Parts) -> list[Row]:
    """One question after the other: all hops, all checks and HTTP, while the models answer at once."""
    rounds = 40 if parts.quick else 200
    with fake_graph(parts, 0.0) as started:
        questions = parts.questions("hotpotqa_100")
        body = {"mode": "agentic", "budget": {"rounds": 1}}
        asyncio.run(asked(started.url, questions[:20], body, 1))  # warm
        before = cpu(started)
        answers = asyncio.run(asked(started.url, _repeated(questions, rounds), body, 1))
        after = cpu(started)
    _check(answers)
    spent = {name: 1000 * (after[name] - before.get(name, 0.0)) / rounds for name in after}
    taken = [1000 * a.seconds for a in answers]
    with bare_graph(parts, 0.0) as started:
        asyncio.run(asked(started.url, questions[:20], {}, 1))  # warm
        others = asyncio.run(asked(started.url, _repeated(questions, rounds), {}, 1))
    _check(others)
    bare = [1000 * a.seconds for a in others]
    own = {name: statistics.median(a.body["timings_ms"].get(name, 0.0) for a in answers) for name in _STAGES}
    return [
        at_most(
            "one | a question through Serve and HTTP, one round, models that answer at once: p50",
            _p(taken, 50),
            "ms",
            60,
        ),
        Row("one | the same: p95", _p(taken, 95), "ms"),
        Row("one | the same calls of Serve alone: p50", _p(bare, 50), "ms"),
        Row("one | the same: p50, times that of Serve alone", _p(taken, 50) / _p(bare, 50), "times"),
        *(Row(f"one |   {name}, median", ms, "ms") for name, ms in own.items()),
        Row("one | processor time of a question, all processes", sum(spent.values()), "ms"),
        *(Row(f"one |   {name}", ms, "ms") for name, ms in sorted(spent.items(), key=lambda x: -x[1]) if ms >= 1),
    ]


_STAGES = ("first_hop", "plan", "retrieve", "rerank", "grade", "generate", "keep", "driver", "hops", "total")


def load_at_once(parts: Parts) -> list[Row]:
    """So many clients, each with its next question as soon as it has an answer, and somebody who looks at ``/healthz``: with
    HAProxy before the graph, as a local one is started, with Serve's own proxy instead, and Serve alone behind HAProxy."""
    said = f"load | {CLIENTS} questions at once, {ENGINE_S:g} s a call of the engine, {CALLS} calls a question: "
    body = {"mode": "agentic", "budget": {"rounds": 1}}
    rows = []
    for proxy, environ in (("", {}), ("with Serve's own proxy: ", {"RAY_SERVE_ENABLE_HA_PROXY": "0"})):
        with fake_graph(parts, ENGINE_S, environ) as started:
            answers, health, share = _rush(parts, started.url, body)
        if not all(a.body["usage"]["completion_tokens"] for a in answers):  # the plan alone is written
            raise RuntimeError("a question was not planned, so that it had less calls than the ideal is made of")
        taken = [a.seconds for a in answers]
        p50, p99 = _p(taken, 50), _p(taken, 99)
        rows += [
            at_least(f"{said}{proxy}throughput, share of {IDEAL:.1f} a second", share, "share", 0.85),
            Row(f"{said}{proxy}p50", p50, "s"),
            at_most(f"{said}{proxy}p99 over p50", p99 / p50, "ratio", 1.5),
            at_most(f"{said}{proxy}/healthz, slowest of {len(health)}", 1000 * max(health), "ms", 100),
            Row(f"{said}{proxy}/healthz, median", 1000 * _p(health, 50), "ms"),
        ]
    with bare_graph(parts, ENGINE_S) as started:
        _, health, share = _rush(parts, started.url, {})
    slowest = f"{said}the same calls of Serve alone: /healthz, slowest of {len(health)}"
    return [
        *rows,
        Row(f"{said}the same calls of Serve alone: throughput", share, "share"),
        Row(slowest, 1000 * max(health), "ms"),
    ]


def _rush(parts: Parts, url: str, body: dict[str, Any]) -> tuple[list[Asked], list[float], float]:
    """The answers, the seconds of each look at ``/healthz``, and the throughput's share of the ideal."""
    questions = parts.questions("hotpotqa_100")
    asyncio.run(asked(url, questions[:CLIENTS], body, CLIENTS))  # warm
    with looked_at(f"{url}/healthz") as health:
        start = time.perf_counter()
        answers = asyncio.run(asked(url, _repeated(questions, CLIENTS * (2 if parts.quick else 6)), body, CLIENTS))
        wall = time.perf_counter() - start
    _check(answers)
    return answers, health, len(answers) / wall / IDEAL


def first_evidence(parts: Parts) -> list[Row]:
    """In process, real retrieval: how soon what was found is told while the planner takes its second. No question is asked
    twice, so that each is embedded.

    After the plan no event names what a search has found before it is reranked, which takes a second more. So the hop beside
    the plan is held against both: the event that names passages, and the one before it, which says how many were found."""
    count = 5 if parts.quick else 20
    warm, *questions = parts.questions("hotpotqa_100")[: 1 + 2 * count]
    beside = [asyncio.run(_first(parts, question, warm, waits=False))[0] for question in questions[::2]]
    after = [asyncio.run(_first(parts, question, warm, waits=True)) for question in questions[1::2]]
    a, counted, named = (statistics.median(each) for each in (beside, *zip(*after, strict=True)))
    said = f"first evidence | planner of {ENGINE_S:g} s, median of {count}: "
    return [
        Row(f"{said}passages named by the first hop beside it", a, "s"),
        Row(f"{said}named after it, which takes search and reranking", named, "s"),
        Row(f"{said}counted after it, which takes the search", counted, "s"),
        at_least(f"{said}sooner than they are named after it, by", 1 - a / named, "share", 0.30),
        at_least(f"{said}sooner than they are counted after it, by", 1 - a / counted, "share", 0.30),
    ]


def deadline(parts: Parts) -> list[Row]:
    """All questions at once, with an engine that needs longer than there is."""
    with fake_graph(parts, 2.0) as started:
        questions = _repeated(parts.questions("hotpotqa_100"), 50)
        answers = asyncio.run(
            asked(started.url, questions, {"mode": "agentic", "budget": {"deadline_s": DEADLINE_S}}, 50)
        )
    return of_deadline("deadline | engine of 2 s a call, 50 at once", answers)


def deadline_real(parts: Parts) -> list[Row]:
    """One question after the other, with the laptop's model on all that this machine has."""
    questions = parts.questions("hotpotqa_100")[: 5 if parts.quick else parts.limit or 50]
    raw = config(parts.index("hotpotqa_100"))
    raw["applications"][0]["args"]["answers"] = {"path": str(parts.cache / "answers.db")}
    with graph(parts, raw) as started:
        body = {"mode": "agentic", "budget": {"deadline_s": DEADLINE_S}}
        asyncio.run(asked(started.url, questions[:2], {"mode": "agentic"}, 1))  # warm
        answers = asyncio.run(asked(started.url, questions, body, 1))
    return of_deadline("deadline, real model | one after the other", answers)


_MARKS = ("partial", "no_evidence", "clarify")  # whoever reads nothing but the status knows that there may be more


def of_deadline(name: str, answers: Sequence[Asked]) -> list[Row]:
    late = [a for a in answers if a.seconds > LATEST_S]
    whole = sum(a.whole for a in answers)
    cut = [a for a in answers if a.whole and (a.body["terminated_by"] == "deadline" or _gave_up(a))]
    told = [a for a in cut if a.body["status"] in _MARKS]
    return [
        at_least(f"{name} | answered, of {len(answers)}", whole, "questions", len(answers)),
        at_most(f"{name} | slowest, deadline {DEADLINE_S:g} s", max(a.seconds for a in answers), "s", LATEST_S),
        Row(f"{name} | later than {LATEST_S:g} s", len(late), "questions"),
        Row(f"{name} | cut short by it", len(cut), "questions"),
        at_most(f"{name} | cut short, and not marked", len(cut) - len(told), "questions", 0),
        Row(f"{name} | with a cited answer", sum(bool(a.whole and a.body["citations"]) for a in answers), "questions"),
    ]


def _gave_up(a: Asked) -> bool:
    """Whether a stage was not waited for that an answer is made of. Each one's own time is more than the deadline, so that it
    was the budget that was over. A plan that was not waited for leaves a whole answer to the question as it stands."""
    return any("timeout" in d["reason"] for d in a.body["degraded"] if d["stage"] not in ("answers", "expander"))


# ---- graphs and clients ---------------------------------------------------------------------------------------------


@contextmanager
def graph(parts: Parts, raw: dict[str, Any], environ: Mapping[str, str] | None = None) -> Iterator[LocalGraph]:
    """The graph of this config, ready."""
    path = parts.cache / "graph.yaml"
    path.write_text(yaml.safe_dump(raw))
    with LocalGraph(load(path), log=parts.cache / "graph.log", port=PORT, environ=environ) as started:
        started.wait_ready(300)
        yield started


@contextmanager
def fake_graph(parts: Parts, engine_s: float, environ: Mapping[str, str] | None = None) -> Iterator[LocalGraph]:
    """That of the laptop's graph over HotpotQA's passages, its models fake."""
    embedder = tiny_embedder(parts.cache / "tiny-embedder")
    raw = config(parts.index("hotpotqa_100", SentenceEmbedder(embedder)))
    application = raw["applications"][0]
    application["import_path"] = "bench.fake_models:build_app"
    args = application["args"]
    args["index"]["embedder"] = embedder
    args["expander"]["skip_simple"] = False
    args["ingress"] = {"max_ongoing": CLIENTS}
    args["answers"] = {"path": str(parts.cache / "answers.db")}
    with graph(parts, raw, {DELAY: str(engine_s), **(environ or {})}) as started:
        yield started


@contextmanager
def bare_graph(parts: Parts, engine_s: float) -> Iterator[LocalGraph]:
    """``bench.bare_serve``, set up as the fake graph is."""
    raw = config(parts.cache)
    application = raw["applications"][0]
    application["import_path"] = "bench.bare_serve:build_app"
    application["deployments"] = []
    with graph(parts, raw, {DELAY: str(engine_s)}) as started:
        yield started


def cpu(started: LocalGraph) -> dict[str, float]:
    """Seconds of the processor that each process of a graph has had so far: unlike the clock's they hold beside others."""
    found: dict[str, float] = {}
    for process in descendants(started.pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            title = _title(process.cmdline())
            found[title] = found.get(title, 0.0) + times.user + times.system
    return found


def _title(command: Sequence[str]) -> str:
    """``ray::ServeReplica:assay:Driver.ask`` is ``Driver``; what is no actor goes by its program."""
    first, *_ = " ".join(command).split() or ["?"]
    if first.startswith("ray::"):
        return first.removeprefix("ray::").split(":")[-1].split(".")[0]
    script = next((part for part in command if part.endswith(".py")), first)
    return Path(script).stem


async def asked(url: str, questions: Sequence[str], body: dict[str, Any], clients: int) -> list[Asked]:
    """Every question once, by so many clients at a time."""
    waiting, found = list(questions), list[Asked]()

    async def client(http: httpx.AsyncClient) -> None:
        while waiting:
            question, start = waiting.pop(), time.perf_counter()
            reply = await http.post("/v1/answers", json={"question": question, **body})
            found.append(Asked(time.perf_counter() - start, reply.status_code, reply.json()))

    # One for all: each that is made reads certificates for a while, in which none of the others would go on.
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=clients)) as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))
    return found


def _check(answers: Sequence[Asked]) -> None:
    """A figure is of whole answers alone."""
    for a in answers:
        if not a.whole or a.body.get("degraded"):
            raise RuntimeError(f"a question failed: {a.status}, {str(a.body.get('degraded') or a.body)[:300]}")


def _repeated(questions: Sequence[str], count: int) -> list[str]:
    return [questions[number % len(questions)] for number in range(count)]


def _p(values: Sequence[float], percentile: float) -> float:
    return float(np.percentile(values, percentile))


# ---- in process -----------------------------------------------------------------------------------------------------


class _Planner:
    """Says when its plan is made."""

    def __init__(self, inner: LLMExpander, made: asyncio.Event) -> None:
        self._inner, self._made = inner, made

    async def plan(self, request: PlanRequest) -> Plan:
        try:
            return await self._inner.plan(request)
        finally:
            self._made.set()


class _After:
    """A retriever whose searches wait for the plan: what the first hop would be without its head start."""

    def __init__(self, inner: LocalRetriever, made: asyncio.Event) -> None:
        self._inner, self._made = inner, made
        self.describe = inner.describe

    async def search(self, query: SearchQuery) -> SearchResult:
        await self._made.wait()
        return await self._inner.search(query)


async def _first(parts: Parts, question: str, warm: str, waits: bool) -> tuple[float, float]:
    """Seconds to the first event that says that passages were found, and to the first that names any."""
    app, made = AppConfig(), asyncio.Event()
    engine: Any = FakeEngine(ENGINE_S)
    embedder = parts.encoder
    retriever = LocalRetriever(parts.index_of("hotpotqa_100"), RetrieverConfig(), embedder)
    await retriever.search(SearchQuery((warm,), link_hop=True))  # opens the index
    expander = _Planner(LLMExpander(engine, app.expander.model_copy(update={"skip_simple": False})), made)
    searching: Any = _After(retriever, made) if waits else retriever
    reranker = LLMReranker(engine, EstimatedTokenizer(), app.reranker)
    generator = ExtractGenerator(engine, embedder, EstimatedTokenizer(), app.generator)
    stages = Stages(expander, searching, reranker, generator)
    start, found_s = time.perf_counter(), 0.0
    events: AsyncIterator[Any] = loop.answer(AskRequest(question=question, mode="agentic"), stages, app, "bench")
    async for event in events:
        names = isinstance(event, EvidenceEvent) and (event.found or event.titles)
        if names or (isinstance(event, ToolCallResult) and event.hits):
            seconds = time.perf_counter() - start
            found_s = found_s or seconds
            if names:
                return found_s, seconds
    raise RuntimeError(f"no evidence was told of: {question}")
