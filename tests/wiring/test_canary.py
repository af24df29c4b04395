"""The canary: a document of another bucket holds a marker, and no route, tool or error shows it to a key that may not see it.

A real index and the real loop over it; the model alone is scripted. The other key asks the same, and does see the marker.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.config import ConversationsConfig, IngressConfig
from assay.index.buckets import BucketSchema
from assay.index.files import Layout
from assay.index.ingest import Ingestion, find_sources
from assay.index.metadata import Given
from assay.keys import KeyFile
from deployments.api import make_api
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, retriever, write
from tests.wiring.local_driver import LocalDriver
from tests.wiring.test_client import listening
from tests.wiring.test_mcp import connected

pytestmark = pytest.mark.anyio

MARKER, FIELD, BUCKET = "quetzalcoatl", "canaryfield", "hiddenbucket"
OURS = {
    "ours.md": "# Pump manual\n\nThe pump holds five bar. For the pressure plan see Secret Pressure Plan and the pump log.",
    "log.md": "# Pump log\n\nThe pump was serviced in May. Its pressure was five bar that day.",
}
THEIRS = {
    "secret.md": f"---\n{FIELD}: {MARKER}\n---\n# Secret Pressure Plan\n\nThe pump's pressure plan says {MARKER}, five bar.",
    f"{MARKER}.md": f"# Pump pressure {MARKER}\n\nThe pump pressure is what {MARKER} says, five bar.",
}
QUESTION = "What does the pressure plan of the pump say?"
PLAN = json.dumps({"variants": ["pump pressure plan", "five bar"]})


def ingest(folder: Path, index: Path, bucket: str, schema: BucketSchema | None = None) -> None:
    encoder, sources = WordEncoder(), find_sources([folder], folder)
    given = Given([source.path for source in sources])
    parser = DirectParser()
    Ingestion(Layout(str(index)), bucket, sources, encoder, encoder.embed_now, parser, schema=schema, given=given).run()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("canary")
    schema = BucketSchema.model_validate({"fields": {FIELD: {"type": "text"}}})
    ingest(write(folder / "a", OURS), folder / "index", "ours")
    ingest(write(folder / "b", THEIRS), folder / "index", BUCKET, schema)
    return folder / "index"


@pytest.fixture
def url(index: Path, tmp_path: Path) -> Iterator[str]:
    config = IngressConfig(keys=str(tmp_path / "keys.json"), conversations=ConversationsConfig(store="memory"))
    with listening(make_api(LocalDriver(retriever(index), PLAN), config)) as url:
        yield url


def asked(http: httpx.Client, doc_id: str, chunk_title: str) -> Iterator[httpx.Response]:
    """Every route, in every way that could reach a document."""
    include = {"include": ["trace", "evidence", "tool_calls"]}
    predicate = {"field": FIELD, "op": "is_null", "value": False}
    for legs in (["dense"], ["sparse"], ["dense", "sparse"], ["dense", "sparse", "link"]):
        yield http.post("/v1/search", json={"question": QUESTION, "legs": legs, "top_k": 50, "context_chars": 2000})
    yield http.post("/v1/search", json={"question": QUESTION, "doc_id": doc_id})
    yield http.post("/v1/search", json={"question": QUESTION, "filters": predicate})
    yield http.post("/v1/search", json={"question": QUESTION, "filters": {"not": predicate}})
    yield http.post("/v1/search", json={"question": QUESTION, "filters": {"field": "nofield", "op": "=", "value": "x"}})
    yield http.post("/v1/search", json={"question": QUESTION, "facets": ["title", "bucket", "uri"]})
    yield http.post("/v1/search", json={"question": chunk_title, "facets": [FIELD]})
    for mode in ("pipeline", "agentic", "auto"):
        for stream in (True, False):
            yield http.post("/v1/answers", json={"question": QUESTION, "mode": mode, "stream": stream, **include})
    yield http.post("/v1/answers", json={"question": QUESTION, "filters": predicate, **include})
    yield http.get("/v1/models")
    yield http.get("/v1/tools")
    for model in ("assay", "assay-pipeline/ours"):
        for stream in (True, False):
            chat = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "stream": stream}
            yield http.post("/v1/chat/completions", json={**chat, "assay": include})
    made = http.post("/v1/conversations", json={}).json()
    path = f"/v1/conversations/{made['id']}"
    yield http.post(f"{path}/messages", json={"question": QUESTION, **include})
    yield http.post(f"{path}/messages", json={"question": "And the plan?", "stream": True, **include})
    yield http.get(path)
    yield http.get("/v1/conversations")
    yield http.get("/readyz")
    yield http.get("/openapi.json")


def client(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, trust_env=False, timeout=60)


async def test_the_marker_never_appears(url: str, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    ours = file.create("a", ["ours"], ["search", "ask"], 10_000, 16)[1]
    theirs = file.create("b", [BUCKET], ["search", "ask"], 10_000, 16)[1]
    with client(url, theirs) as http:
        hits = http.post("/v1/search", json={"question": QUESTION, "top_k": 50}).json()["hits"]
        doc_id = next(hit["doc_id"] for hit in hits if "Secret" in hit["title"])
        seen = [MARKER in reply.text for reply in asked(http, doc_id, hits[0]["title"])]
    assert sum(seen) > 15  # it can be found, and whatever is kept of it is there when the other key asks
    with client(url, ours) as http:
        for reply in asked(http, doc_id, "Secret Pressure Plan"):
            told = f"{reply.request.method} {reply.request.url.path} {reply.request.content!r}: {reply.text}"
            assert reply.status_code < 500, told
            assert MARKER not in reply.text, told
            assert BUCKET not in reply.text, told
            if FIELD.encode() not in reply.request.content:  # an error may say what was asked
                assert FIELD not in reply.text, told


async def test_nor_by_any_tool(url: str, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    ours = file.create("a", ["ours"], ["search", "ask"], 10_000, 16)[1]
    theirs = file.create("b", [BUCKET], ["search", "ask"], 10_000, 16)[1]
    with client(url, theirs) as http:
        hits = http.post("/v1/search", json={"question": QUESTION, "top_k": 50}).json()["hits"]
    ids = {hit["doc_id"] for hit in hits}
    calls: list[tuple[str, dict[str, Any]]] = [("ask", {"question": QUESTION}), ("list_buckets", {})]
    for name in ("search_text", "search_semantic", "search_hybrid"):
        calls += [(name, {"query": QUESTION, "top_k": 20, "context_chars": 2000}), (name, {"query": "five bar"})]
        calls += [(name, {"query": QUESTION, "doc_id": id_}) for id_ in ids]
    for id_ in ids:
        calls += [("document_lookup", {"doc_id": id_}), ("get_document_metadata", {"doc_id": id_})]

    async def told(key: str) -> list[str]:
        async with connected(url, key=key) as mcp:
            return [(await mcp.call_tool(name, arguments)).model_dump_json() for name, arguments in calls]

    assert sum(MARKER in text for text in await told(theirs)) > len(calls) // 2
    for (name, arguments), text in zip(calls, await told(ours), strict=True):
        assert MARKER not in text and FIELD not in text and BUCKET not in text, (name, arguments, text)
