"""The canary: a document holds a marker, and no route, tool or error shows it, or that it is there, to a key that may not see
it.

It lies in another bucket; or in a bucket of its group alone; or beside what the key does see. A real index and the real loop
over it; the model alone is scripted. The other key asks the same, and does see the marker.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.answers import SqliteAnswers
from assay.config import AuditConfig, ConversationsConfig, DocumentsConfig, IngressConfig, ToolsConfig
from assay.converse import Agent
from assay.groups import Groups
from assay.index.buckets import BucketSchema
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from assay.index.metadata import Given
from assay.keys import KeyFile
from assay.llm.tools import checked
from assay.schemas import Usage
from assay.tools import Registry
from assay.types import Completion, CompletionRequest
from deployments.api import make_api
from deployments.resumable import STREAM_HEADER
from tests.fakes import ScriptedLLM, WordTokenizer
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, retriever, write
from tests.wiring.local_driver import LocalDriver
from tests.wiring.test_client import listening
from tests.wiring.test_mcp import connected

pytestmark = pytest.mark.anyio

MARKER, FIELD, BUCKET, GROUP = "quetzalcoatl", "canaryfield", "hiddenbucket", "vaultgroup"
OURS = {
    "ours.md": "# Pump manual\n\nThe pump holds five bar. For the pressure plan see Secret Pressure Plan and the pump log.",
    "log.md": "# Pump log\n\nThe pump was serviced in May. Its pressure was five bar that day.",
}
THEIRS = {
    "secret.md": f"# Secret Pressure Plan\n\nThe pump's pressure plan says {MARKER}, five bar.",
    f"{MARKER}.md": f"# Pump pressure {MARKER}\n\nThe pump pressure is what {MARKER} says, five bar.",
}
QUESTION = "What does the pressure plan of the pump say?"
PLAN = json.dumps({"variants": ["pump pressure plan", "five bar"]})
SCHEMA = BucketSchema.model_validate({"fields": {FIELD: {"type": "text"}}})


@dataclass(frozen=True)
class Case:
    """Where the document lies, what our key and theirs may see, and the words that must not appear."""

    name: str
    bucket: str
    front: str
    ours: tuple[list[str] | None, Groups]
    theirs: tuple[list[str] | None, Groups]
    never: tuple[str, ...]


CASES = (
    Case("bucket", BUCKET, "", (["ours"], ()), ([BUCKET], ()), (MARKER, BUCKET, FIELD)),
    Case("group", BUCKET, f"allowed_groups: {GROUP}\n", (None, ()), (None, (GROUP,)), (MARKER, BUCKET, FIELD, GROUP)),
    Case("beside", "ours", f"allowed_groups: {GROUP}\n", (["ours"], ("a",)), (["ours"], (GROUP,)), (MARKER, GROUP)),
)


def ingest(folder: Path, index: Path, bucket: str, schema: BucketSchema | None = None) -> None:
    encoder, sources = WordEncoder(), find_sources([folder], folder)
    given = Given([source.path for source in sources])
    parser = DirectParser()
    Ingestion(Layout(str(index)), bucket, sources, encoder, encoder.embed_now, parser, schema=schema, given=given).run()


@dataclass
class Seen:
    """What belongs to them, by which we ask."""

    doc_ids: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    conversations: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    bucket: str = ""


class ThinkingAloud(ScriptedLLM):
    """Calls tools once, then answers. It thinks all that it was shown, tools too, so that a stream tells it."""

    def _next(self, request: CompletionRequest) -> Completion:
        shown, usage = repr((request.messages, request.tools)), Usage(llm_calls=1)
        if request.tool_choice == "none" or any(message.tool_uses for message in request.messages):
            return Completion("The pump holds five bar [E1].", "stop", usage, shown)
        calls: list[tuple[str, dict[str, Any]]] = [("list_buckets", {})]
        calls += [(name, {"query": "Secret Pressure Plan"}) for name in ("search_text", "search_hybrid")]
        uses = [checked(request.tools, name, name, json.dumps(arguments)) for name, arguments in calls]
        return Completion("", "stop", usage, shown, tuple(uses))


@dataclass(frozen=True)
class Served:
    case: Case
    url: str
    ours: str
    theirs: str
    audit: Path
    seen: Seen


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    case: Case = request.param
    folder = tmp_path_factory.mktemp("canary")
    theirs = {name: f"---\n{FIELD}: {MARKER}\n{case.front}---\n{text}" for name, text in THEIRS.items()}
    ingest(write(folder / "a", OURS), folder / "index", "ours")
    ingest(write(folder / "b", theirs), folder / "index", case.bucket, SCHEMA)
    config = IngressConfig(
        keys=str(folder / "keys.json"),
        conversations=ConversationsConfig(store="memory"),
        documents=DocumentsConfig(path=str(folder / "uploads")),
        audit=AuditConfig(folder=str(folder / "audit"), texts=True),
    )
    file = KeyFile(folder / "keys.json")

    def key(tenant: str, sees: tuple[list[str] | None, Groups]) -> str:
        return file.create(tenant, sees[0], ["search", "ask", "ingest"], 100_000, 16, sees[1])[1]

    ours, other = key("a", case.ours), key("b", case.theirs)
    agent = Agent(ThinkingAloud(), WordTokenizer(), Registry.of(ToolsConfig()))
    store = SqliteAnswers(folder / "answers.db", 1000, 1)
    driver = LocalDriver(retriever(folder / "index"), PLAN, store, agent=agent)
    with listening(make_api(driver, config)) as url:
        yield Served(case, url, ours, other, folder / "audit", Seen())


def client(served: Served, key: str) -> httpx.Client:
    return httpx.Client(base_url=served.url, headers={"authorization": f"Bearer {key}"}, trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def theirs(served: Served) -> Seen:
    """They have asked first: whatever is kept of it is there when we ask."""
    with client(served, served.theirs) as http:
        hits = http.post("/v1/search", json={"question": QUESTION, "top_k": 50}).json()["hits"]
        seen = Seen(
            bucket=served.case.bucket, doc_ids=sorted({hit["doc_id"] for hit in hits if MARKER in json.dumps(hit)})
        )
        replies = list(asked(http, seen, kept=seen))
    assert len(seen.doc_ids) == 2 and len(seen.answers) > 3 and seen.conversations
    assert sum(MARKER in reply.text for reply in replies) > 20
    return seen


def asked(http: httpx.Client, of: Seen, kept: Seen | None = None) -> Iterator[httpx.Response]:
    """Every route, in every way that could reach a document; what is left behind is noted in ``kept``."""
    include = {"include": ["trace", "evidence", "tool_calls", "state"]}
    predicate = {"field": FIELD, "op": "is_null", "value": False}

    def search(**more: Any) -> httpx.Response:
        return http.post("/v1/search", json={"question": QUESTION, **more})

    def ask(**more: Any) -> httpx.Response:
        reply = http.post("/v1/answers", json={"question": QUESTION, **include, **more})
        if kept is not None and reply.status_code == 200:
            kept.answers += re.findall(r'"id":"(ans_\w+)"', reply.text)
        return reply

    for legs in (["dense"], ["sparse"], ["dense", "sparse"], ["dense", "sparse", "link"]):
        yield search(legs=legs, top_k=50, context_chars=2000)
    for doc_id in of.doc_ids:
        yield search(doc_id=doc_id)
        yield search(filters={"field": "doc_id", "op": "=", "value": doc_id})
        yield ask(filters={"field": "doc_id", "op": "in", "value": [doc_id]})
    for filters in (predicate, {"not": predicate}, {"field": "nofield", "op": "=", "value": "x"}):
        yield search(filters=filters)
        yield ask(filters=filters)
    yield search(filters={"field": "allowed_groups", "op": "=", "value": "x"})
    yield search(facets=["title", "bucket", "uri"])
    yield search(question="Secret Pressure Plan", facets=[FIELD])
    yield search(buckets=["nobucket"])
    for mode in ("pipeline", "agentic", "auto", "tools"):
        for stream in (True, False):
            yield ask(mode=mode, stream=stream)
    left = ask(stream=True, resumable=True)
    yield left
    if kept is not None:
        kept.streams.append(left.headers[STREAM_HEADER])
    for stream_id in (left.headers.get(STREAM_HEADER, "none"), *of.streams):
        yield http.get(f"/v1/streams/{stream_id}")
        yield http.get(f"/v1/streams/{stream_id}", headers={"last-event-id": "2"})
    for answer in of.answers:
        yield http.get(f"/v1/answers/{answer}")
        yield ask(question="Secret Pressure Plan", resume=f"plan_{answer.partition('_')[2]}")
    yield http.get("/v1/models")
    yield http.get("/v1/models/assay")
    yield http.get("/v1/tools")
    for model in ("assay", "assay-pipeline/ours"):
        for stream in (True, False):
            chat = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "stream": stream}
            yield http.post("/v1/chat/completions", json={**chat, "assay": include})
    made = http.post("/v1/conversations", json={}).json()["id"]
    if kept is not None:
        kept.conversations.append(made)
    for id_ in (made, *of.conversations):
        path = f"/v1/conversations/{id_}"
        yield http.post(f"{path}/messages", json={"question": QUESTION, **include})
        yield http.post(f"{path}/messages", json={"question": "And the plan?", "stream": True, **include})
        yield http.get(path)
        yield http.patch(path, json={"title": "The pump"})
    yield http.get("/v1/conversations")
    named, where = (f"{MARKER}.md", of.bucket) if kept is not None else ("pump.md", "ours")
    sent = http.build_request("POST", "/v1/documents", params={"bucket": where}, files={"files": (named, b"The pump.")})
    sent.read()
    job = http.send(sent)
    yield job
    if kept is not None:
        kept.jobs.append(job.json()["id"])
    for id_ in (job.json()["id"], *of.jobs):
        yield http.get(f"/v1/documents/jobs/{id_}")
    yield http.get("/v1/documents/jobs/job_none/events")
    for id_ in of.jobs if kept is None else ():
        yield http.get(f"/v1/documents/jobs/{id_}/events")
    yield http.get("/v1/buckets")
    yield http.get("/v1/documents")
    yield http.get("/v1/documents", params={"bucket": "nobucket"})
    for doc_id in of.doc_ids:
        yield http.get(f"/v1/documents/{doc_id}")
        yield http.get(f"/v1/documents/{doc_id}", params={"chunk_id": 3})
        yield http.delete(f"/v1/documents/{doc_id if kept is None else 'doc_none'}")
    again = ask(stream=True, resumable=True)
    yield http.delete(f"/v1/streams/{again.headers[STREAM_HEADER]}")
    yield http.delete(f"/v1/conversations/{http.post('/v1/conversations', json={}).json()['id']}")
    for path in ("/readyz", "/healthz", "/openapi.json"):
        yield http.get(path)


@pytest.fixture(scope="module")
def replies(served: Served, theirs: Seen) -> list[httpx.Response]:
    """What we are told, by ours and by theirs."""
    with client(served, served.ours) as http:
        return list(asked(http, theirs))


def test_the_marker_never_appears(served: Served, theirs: Seen, replies: list[httpx.Response]) -> None:
    for reply in replies:
        told = f"{reply.request.method} {reply.request.url.path} {reply.request.content!r}: {reply.text}"
        assert reply.status_code < 500, told
        for word in served.case.never:
            if word.encode() not in reply.request.content:  # an error may say what was asked
                assert word not in reply.text, told
        if not any(id_.encode() in reply.request.content for id_ in theirs.doc_ids):
            assert not any(id_ in reply.text for id_ in theirs.doc_ids), told


def test_nothing_counts_what_is_theirs(replies: list[httpx.Response]) -> None:
    """Each document of ours is one passage."""
    texts = [reply.text for reply in replies if reply.request.url.path != "/openapi.json"]  # which has examples
    told = {
        name: {int(count) for text in texts for count in re.findall(rf'"{name}":(\d+)[,}}]', text)}
        for name in (
            "total_rows",
            "allowed_rows",
            "count_without",
            "documents",
            "chunks",
            "total",
            "missing",
            "more",
            "count",
        )
    }
    assert all(max(counts, default=0) <= len(OURS) for counts in told.values()), told
    assert len(OURS) in told["total_rows"] & told["documents"] & told["chunks"] & told["total"], told


def test_every_route_is_among_them(served: Served, replies: list[httpx.Response]) -> None:
    """So that a new one cannot be forgotten."""
    done = {(reply.request.method, reply.request.url.path) for reply in replies} | {("POST", "/v1/conversations")}
    with client(served, served.ours) as http:
        paths = http.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        shape = re.compile(re.sub(r"\{[^}]*:path\}", ".+", re.sub(r"\{[^}:]*\}", "[^/]+", path)))
        for method in operations:
            assert any(m == method.upper() and shape.fullmatch(p) for m, p in done), f"{method} {path}"


def test_what_is_theirs_is_as_what_is_not(served: Served, theirs: Seen) -> None:
    """FAULT 15: by an id of theirs, and by one that was never given, the same is told."""
    volatile = re.compile(r'"(?:request_id|timings_ms)":(?:"[^"]*"|\{[^}]*\})')

    def told(
        http: httpx.Client, doc_id: str, answer: str, conversation: str, stream: str, job: str
    ) -> list[tuple[int, str]]:
        path = f"/v1/conversations/{conversation}"
        replies = [
            http.post("/v1/search", json={"question": QUESTION, "doc_id": doc_id}),
            http.get(f"/v1/answers/{answer}"),
            http.post("/v1/answers", json={"question": "x", "resume": f"plan_{answer.partition('_')[2]}"}),
            http.get(path),
            http.patch(path, json={"title": "x"}),
            http.post(f"{path}/messages", json={"question": QUESTION}),
            http.delete(path),
            http.get(f"/v1/streams/{stream}"),
            http.delete(f"/v1/streams/{stream}"),
            http.get(f"/v1/documents/{doc_id}"),
            http.delete(f"/v1/documents/{doc_id}"),
            http.get(f"/v1/documents/jobs/{job}"),
            http.get(f"/v1/documents/jobs/{job}/events"),
        ]
        texts = [volatile.sub("", reply.text) for reply in replies]
        for id_ in (doc_id, answer, conversation, stream, job):
            texts = [text.replace(id_, "ID") for text in texts]
        return [(reply.status_code, text) for reply, text in zip(replies, texts, strict=True)]

    with client(served, served.ours) as http:
        hidden = told(
            http, theirs.doc_ids[0], theirs.answers[0], theirs.conversations[0], theirs.streams[0], theirs.jobs[0]
        )
        missing = told(http, "doc_0", "ans_0", "conv_0", "stm_0", "job_0")
    assert hidden == missing
    assert [status for status, _ in hidden] == [200, *[404] * 12]
    with client(served, served.theirs) as http:  # where they are
        assert http.get(f"/v1/answers/{theirs.answers[0]}").status_code == 200
        assert http.get(f"/v1/conversations/{theirs.conversations[0]}").status_code == 200
        assert MARKER in http.get(f"/v1/streams/{theirs.streams[0]}").text
        assert MARKER in http.get(f"/v1/documents/{theirs.doc_ids[0]}").text
        assert http.get(f"/v1/documents/jobs/{theirs.jobs[0]}").status_code == 200


def test_an_answer_goes_with_what_it_rests_on(tmp_path: Path) -> None:
    files, index = write(tmp_path / "a", OURS), tmp_path / "index"
    ingest(files, index, "ours")
    searched = retriever(index)
    config = IngressConfig(
        keys=str(tmp_path / "keys.json"),
        conversations=ConversationsConfig(store="memory"),
        audit=AuditConfig(folder=None),
    )
    key = KeyFile(tmp_path / "keys.json").create("a", ["ours"], ["ask"], 1000, 16, ("ops",))[1]
    driver = LocalDriver(searched, PLAN, SqliteAnswers(tmp_path / "answers.db", 1000, 1))
    headers = {"authorization": f"Bearer {key}"}
    with (
        listening(make_api(driver, config)) as url,
        httpx.Client(base_url=url, headers=headers, trust_env=False) as http,
    ):
        answer = http.post("/v1/answers", json={"question": QUESTION}).json()["id"]
        told = http.post("/v1/answers", json={"question": QUESTION, "stream": True, "resumable": True})
        stream = f"/v1/streams/{told.headers[STREAM_HEADER]}"
        talk = f"/v1/conversations/{http.post('/v1/conversations', json={}).json()['id']}"

        def ask(question: str, key: str) -> httpx.Response:
            return http.post(f"{talk}/messages", json={"question": question}, headers={"idempotency-key": key})

        said = ask(QUESTION, "first").json()
        assert said["citations"] and said["evidence"] is None

        def now(**sidecar: Any) -> int:
            """What is said of the kept answer; of the same answer, wherever a conversation has it, the same."""
            (files / "ours.md.json").write_text(json.dumps(sidecar))
            ingest(files, index, "ours")
            searched.reload()
            code = http.get(f"/v1/answers/{answer}").status_code
            again, shown = ask(QUESTION, "first"), http.get(talk).json()["messages"][1]
            assert again.status_code == code and shown["role"] == "assistant"
            for last in ("0", "3"):
                taken_up = http.get(stream, headers={"last-event-id": last})
                assert taken_up.status_code == code and (code != 200 or taken_up.text in told.text)
            if code == 200:
                assert again.json() == said | {"request_id": again.json()["request_id"]}
                assert (shown["content"], shown["response"]["citations"]) == (said["answer"]["text"], said["citations"])
            else:
                assert (shown["content"], shown["response"], shown["error"]) == ("", None, "not_found")
                assert said["citations"][0]["quote"] not in http.get(talk).text
            further = f"And in May, {sidecar}?"
            assert ask(further, str(len(driver.asked))).status_code == 200 and driver.asked[-1].question == further
            assert any(turn.content == QUESTION for turn in driver.asked[-1].history) == (code == 200)
            return code

        assert (now(), now(allowed_groups=["hr"]), now(allowed_groups=["ops"])) == (200, 404, 200)


def test_the_audit_log_says_who_read_it(served: Served, theirs: Seen) -> None:
    with client(served, served.ours) as http:
        for mode in ("pipeline", "agentic"):
            http.post("/v1/answers", json={"question": QUESTION, "mode": mode})
        http.post("/v1/search", json={"question": QUESTION})
    ours, other = served.ours.split("_")[1], served.theirs.split("_")[1]
    lines = [json.loads(line) for path in served.audit.glob("audit-*.jsonl") for line in path.read_text().splitlines()]
    read: dict[str, set[str]] = {ours: set(), other: set()}
    for line in lines:
        read[line["key"]] |= {*line.get("read", ()), *line.get("cited", ())}
    assert read[other] >= set(theirs.doc_ids)
    assert read[ours] and not read[ours] & set(theirs.doc_ids)
    assert not any(word in json.dumps(line) for line in lines if line["key"] == ours for word in (MARKER,))


async def test_nor_by_any_tool(served: Served, theirs: Seen) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("ask", {"question": QUESTION}), ("list_buckets", {})]
    for name in ("search_text", "search_semantic", "search_hybrid"):
        calls += [(name, {"query": QUESTION, "top_k": 20, "context_chars": 2000}), (name, {"query": "five bar"})]
        calls += [(name, {"query": QUESTION, "doc_id": id_}) for id_ in theirs.doc_ids]
    for id_ in (*theirs.doc_ids, "doc_0"):
        calls += [("document_lookup", {"doc_id": id_}), ("get_document_metadata", {"doc_id": id_})]

    async def told(key: str) -> list[str]:
        async with connected(served.url, key=key) as mcp:
            tools = {tool.name for tool in (await mcp.list_tools()).tools}
            assert tools == {name for name, _ in calls}  # a new tool is to be called too
            return [(await mcp.call_tool(name, arguments)).model_dump_json() for name, arguments in calls]

    assert sum(MARKER in text for text in await told(served.theirs)) > len(calls) // 2
    replies = await told(served.ours)
    for (name, arguments), text in zip(calls, replies, strict=True):
        assert not any(word in text for word in served.case.never), (name, arguments, text)
    plain = [re.sub(r"req_\w+|doc_\w+", "ID", text) for text in replies[-6:]]
    assert plain[0] == plain[2] == plain[4] and plain[1] == plain[3] == plain[5]
