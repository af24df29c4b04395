"""Clients of a running graph: many streams at once, and one question through every door."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import httpx2
import openai
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from ray import serve

from assay.chat import SOURCES
from assay.client import Client
from assay.events import CompletedEvent
from assay.schemas import AskRequest, AskResponse

ROOT = Path(__file__).parents[1]
NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)


@asynccontextmanager
async def clients(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """One client for as many connections as are asked for, each of which ends with its request."""
    async with httpx.AsyncClient(base_url=url, limits=NO_LIMITS, timeout=600, trust_env=False) as http:
        yield http


async def events_until(
    http: httpx.AsyncClient, question: str, count: int, resumable: bool = False
) -> tuple[float, str]:
    """Asks, and closes the connection at the event ``count``. Seconds to the first event; the stream's id, where it has one."""
    start, first, seen = time.perf_counter(), 0.0, b""
    body = {"question": question, "stream": True, "resumable": resumable}
    async with http.stream("POST", "/v1/answers", json=body) as reply:
        async for piece in reply.aiter_raw():
            seen += piece
            if not first and b"data:" in seen:
                first = time.perf_counter() - start
            if seen.count(b"\ndata:") >= count:
                return first, reply.headers.get("x-stream-id", "")
        raise RuntimeError(f"HTTP {reply.status_code}, and the stream ended before its event {count}: {seen[-300:]!r}")


@dataclass(frozen=True, slots=True)
class Told:
    """What a door said: the answer's text, and its citations as JSON."""

    text: str
    citations: str


def told(response: AskResponse) -> Told:
    text = response.answer.text if response.answer else ""
    return Told(text, json.dumps([c.model_dump(mode="json") for c in response.citations], sort_keys=True))


def every_door(url: str, question: str) -> Mapping[str, Told]:
    """One question through six doors, whose answers should be one. This process must be ``attached``."""
    request = AskRequest(question=question)
    with Client(url) as client:
        found = {"HTTP": told(client.ask(request))}
        (last,) = [event for event in client.stream(request) if isinstance(event, CompletedEvent)]
    found["SSE"] = told(last.response)
    found["OpenAI"] = _by_openai(url, question)
    found["MCP"] = told(asyncio.run(_by_mcp(url, question)))
    found["Python handle"] = told(serve.get_app_handle("assay").ask.remote(request).result(timeout_s=60))
    command = [sys.executable, "-m", "assay", "ask", question, "--url", url, "--json"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found["CLI"] = told(AskResponse.model_validate_json(printed))
    return found


def _by_openai(url: str, question: str) -> Told:
    http = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http) as client:
        reply = client.chat.completions.create(model="assay", messages=[{"role": "user", "content": question}])
    message = reply.choices[0].message
    cited = json.dumps([a.model_dump()["assay"] for a in message.annotations or []], sort_keys=True)
    return Told((message.content or "").rpartition(SOURCES)[0], cited)


async def _by_mcp(url: str, question: str) -> AskResponse:
    async with (
        httpx2.AsyncClient(trust_env=False, timeout=60) as http,
        McpClient(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        result = await client.call_tool("ask", {"question": question})
    return AskResponse.model_validate(result.structured_content)
