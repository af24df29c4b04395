"""An OpenAI-compatible server on loopback that speaks for any ``ports.LLM``, and can misbehave in the ways servers do.

Written on bare sockets, so that it can also hang, cut the connection and send what is no HTTP.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, Self

from assay.ports import LLM
from assay.types import CompletionRequest, Message, ScoreItem, ScoreRequest, ToolSpec

Fault = Literal[
    "hang",
    "hang_after_head",
    "hang_after_text",
    "cut",
    "cut_in_body",
    "cut_after_text",
    "garbage",
    "not_sse",
    "no_done",
    "no_reason",
    "no_end",  # neither of them
]


class Refusal:
    """What is answered instead: a status, headers and a body."""

    def __init__(self, status: int, message: str = "", body: bytes | None = None, **headers: str) -> None:
        self.status, self.headers = status, headers
        told = {"error": {"message": message, "type": "test", "code": status}}
        self.body = json.dumps(told).encode() if body is None else body


class OpenAIServer:
    """``faults`` are taken one a request, None for none; ``requests`` are those that came; ``open`` are answered now."""

    def __init__(
        self, llm: LLM, halves: bool = False, usage: bool = True, reasoning: str = "reasoning_content"
    ) -> None:
        self._llm, self._halves, self._usage, self._reasoning = llm, halves, usage, reasoning
        self.faults: deque[Fault | Refusal | dict[str, Any] | None] = deque()
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.open = 0
        self._tokens: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))))
            path = head[0].split()[1]
            self.requests.append((path, headers, body))
            gone = asyncio.create_task(reader.read())
            answer = asyncio.create_task(self._counted(path, body, writer))
            await asyncio.wait([gone, answer], return_when=asyncio.FIRST_COMPLETED)
            for task in (gone, answer):
                task.cancel()
            await asyncio.gather(gone, answer, return_exceptions=True)
            if not answer.cancelled() and (error := answer.exception()):
                raise error
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _counted(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await self._answer(path, body, writer)
        finally:
            self.open -= 1

    async def _answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        fault = self.faults.popleft() if self.faults else None
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "cut":
            return
        if fault == "cut_in_body":
            self._head(writer, 200, {"content-type": "application/json"}, 100)
            writer.write(b'{"to')
        elif isinstance(fault, Refusal):
            self._head(writer, fault.status, {"content-type": "application/json", **fault.headers}, len(fault.body))
            writer.write(fault.body)
        elif path == "/tokenize":
            self._json(writer, {"tokens": self._tokenised(body["prompt"])})
        elif path == "/v1/completions":
            await self._completion(writer, body)
        elif path == "/v1/chat/completions":
            await self._chat(writer, body, fault)
        else:
            self._head(writer, 404, {"content-type": "application/json"}, 2)
            writer.write(b"{}")
        await writer.drain()

    async def _chat(self, writer: asyncio.StreamWriter, body: dict[str, Any], fault: Any) -> None:
        if fault == "not_sse":
            self._json(writer, {"choices": []})
            return
        self._head(writer, 200, {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"})
        chunk(writer, b": keep-alive\n\n")
        event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        await writer.drain()
        if fault == "hang_after_head":
            while True:  # comments are no token
                await asyncio.sleep(0.02)
                chunk(writer, b": keep-alive\n\n")
        if isinstance(fault, dict):
            event(writer, fault)
            return
        count = 0
        async with aclosing(self._events(body)) as events:
            async for said in events:
                if count == 3 and fault in ("cut_after_text", "garbage", "hang_after_text"):
                    if fault == "hang_after_text":
                        await asyncio.sleep(3600)
                    if fault == "garbage":
                        chunk(writer, b"data: {not json\n\n")
                    return
                if fault in ("no_reason", "no_end") and any(each["finish_reason"] for each in said["choices"]):
                    continue
                event(writer, said)
                await writer.drain()
                count += 1
        if fault not in ("no_done", "no_end"):
            chunk(writer, b"data: [DONE]\n\n")
        chunk(writer, b"")

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        async with aclosing(self._llm.stream(request_of(body))) as deltas:
            async for delta in deltas:
                for text in self._cut(delta.text):
                    yield choice({"content": text})
                if delta.reasoning:
                    yield choice({self._reasoning: delta.reasoning})
                for index, use in enumerate(delta.tool_uses):
                    begun = {
                        "index": index,
                        "id": use.id,
                        "type": "function",
                        "function": {"name": use.name, "arguments": ""},
                    }
                    yield choice({"tool_calls": [begun]})
                    for start in range(0, len(use.written), 3):
                        part = {"index": index, "function": {"arguments": use.written[start : start + 3]}}
                        yield choice({"tool_calls": [part]})
                if delta.finish_reason:
                    yield choice({}, "tool_calls" if delta.tool_uses else delta.finish_reason)
                if delta.usage and self._usage:
                    told = delta.usage
                    yield {
                        "choices": [],
                        "usage": {
                            "prompt_tokens": told.prompt_tokens,
                            "completion_tokens": told.completion_tokens,
                            "prompt_tokens_details": {"cached_tokens": told.cached_tokens},
                        },
                    }

    def _cut(self, text: str) -> list[str]:
        """As some servers do it: at UTF-16 units, so that a pair's halves are in two events."""
        units = text.encode("utf-16-le")
        halves = [units[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(units), 2)]
        return halves if self._halves else [text] if text else []

    async def _completion(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        """Tokens are words here; the words of a prompt that were a continuation before are scored by the port."""
        words = {number: word for word, number in self._tokens.items()}
        text = [words[token] for token in body["prompt"]]
        positions: list[Any] = [None]
        for at in range(1, len(text)):
            item = ScoreItem("".join(text[:at]), text[at])
            (score,) = (await self._llm.score(ScoreRequest((item,)))).items
            positions.append({str(body["prompt"][at]): {"logprob": -0.5 if score.fault else score.logprob}})
        usage = {"prompt_tokens": len(text), "completion_tokens": 1, "total_tokens": len(text) + 1}
        self._json(writer, {"choices": [{"text": "x", "prompt_logprobs": positions}], "usage": usage})

    def _tokenised(self, text: str) -> list[int]:
        return [self._tokens.setdefault(word, len(self._tokens)) for word in re.findall(r"\s*\S+|\s+$", text)]

    def _json(self, writer: asyncio.StreamWriter, value: Any) -> None:
        data = json.dumps(value).encode()
        self._head(writer, 200, {"content-type": "application/json"}, len(data))
        writer.write(data)

    def _head(
        self, writer: asyncio.StreamWriter, status: int, headers: dict[str, str], length: int | None = None
    ) -> None:
        lines = [
            f"HTTP/1.1 {status} x",
            "connection: close",
            *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()),
        ]
        lines += [] if length is None else [f"content-length: {length}"]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def event(writer: asyncio.StreamWriter, value: Any) -> None:
    """In two writes, cut in the middle."""
    data = f"data: {json.dumps(value)}\r\n\r\n".encode()
    chunk(writer, data[: len(data) // 2])
    chunk(writer, data[len(data) // 2 :])


def choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def request_of(body: dict[str, Any]) -> CompletionRequest:
    held = body.get("structured_outputs") or {}
    asked = (body.get("response_format") or {}).get("json_schema", {}).get("schema")
    tools = [tool["function"] for tool in body.get("tools") or ()]
    return CompletionRequest(
        tuple(Message(m["role"], m["content"]) for m in body["messages"]),
        max_tokens=body["max_tokens"],
        temperature=body["temperature"],
        json_schema=held.get("json") or (json.dumps(asked) if asked else None),
        regex=held.get("regex"),
        choice=tuple(held.get("choice") or ()),
        grammar=held.get("grammar"),
        tools=tuple(ToolSpec(t["name"], t["description"], json.dumps(t["parameters"])) for t in tools),
        tool_choice=body.get("tool_choice", "auto"),
    )
