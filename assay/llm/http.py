"""``assay.ports.LLM`` over any OpenAI-compatible endpoint: streamed, timed, and tried again only before its first token."""

import asyncio
import json
import logging
import math
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx

from assay.errors import (
    AssayError,
    BadModelOutput,
    InvalidRequest,
    Overloaded,
    SetupError,
    StageTimeout,
    StageUnavailable,
)
from assay.llm.endpoint import EndpointConfig
from assay.llm.sse import EventData
from assay.llm.wire import DeltaReader, chat_body, check_output, usage_of
from assay.schemas import Usage
from assay.types import Completion, CompletionRequest, Delta, ItemScore, ScoreItem, ScoreRequest, Scores

log = logging.getLogger("assay.llm")

BASE_S, MOST_S = 0.5, 8.0  # of the wait before a second try, doubled each time, of which a random part is waited
_MAX_ERROR_BYTES = 64_000
_MESSAGE_CHARS = 300

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


class _Again(Exception):
    """A fault that may pass by itself; ``after_s`` is what the endpoint asks to wait."""

    def __init__(self, fault: AssayError, after_s: float | None = None) -> None:
        super().__init__(fault)
        self.fault, self.after_s = fault, after_s


def key_of(config: EndpointConfig) -> str | None:
    """The key from its environment variable. Raises ``SetupError``, which names the variable and never its value."""
    name = config.key_variable
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        state = "is not set" if not key else "holds no key"
        raise SetupError(f"The environment variable {name} {state}: it must hold the key for {config.url}.", "key_env")
    return key


class EndpointLLM:
    """``complete``, ``stream`` and, where the endpoint is a vLLM server, ``score``. ``close`` it when done.

    ``complete`` is a stream that is gathered: so it has a time to its first token too, and hybrid models think in it. A
    generation is never sent again once its first token is there, nor for being cut off: that would only cost it twice.
    """

    def __init__(
        self, config: EndpointConfig, *, sleep: Sleep = asyncio.sleep, chance: Callable[[], float] = random.random
    ) -> None:
        self._config, self._sleep, self._chance = config, sleep, chance
        self._key = key_of(config)
        loopback = httpx.URL(config.url).host in ("127.0.0.1", "localhost", "::1")
        headers = {"accept-encoding": "identity", "user-agent": "assay"}
        self._client = httpx.AsyncClient(
            headers=headers | ({"authorization": f"Bearer {self._key}"} if self._key else {}),
            timeout=httpx.Timeout(None, connect=config.connect_timeout_s),
            limits=httpx.Limits(max_connections=config.max_ongoing_requests),
            follow_redirects=False,  # a key goes nowhere but where it was meant to
            trust_env=not loopback,  # a proxy cannot reach our loopback
        )
        self._told_no_usage = False

    async def close(self) -> None:
        await self._client.aclose()

    # ---- assay.ports.LLM --------------------------------------------------------------------------------------------

    async def complete(self, request: CompletionRequest) -> Completion:
        async with aclosing(self.stream(request)) as deltas:
            return gathered([delta async for delta in deltas])

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta]:
        """Closing it closes the connection, which ends the generation at the endpoint."""
        body = chat_body(self._config, request)
        reader = DeltaReader(request, self._config.reasoning_opened if self._config.strategy == "thinking" else False)
        text: list[str] = []
        async with aclosing(self._events(body, reader)) as events:
            async for event in events:
                for delta in reader.feed(event):
                    text.append(delta.text)
                    yield delta
        if reader.finish is None:
            raise StageUnavailable(f"{self._config.url} broke off before the end of its answer.")
        if reader.usage is None and not self._told_no_usage:
            self._told_no_usage = True
            log.warning("%s tells no usage: its tokens are not counted", self._config.url)
        *held, last = reader.end()
        text += [delta.text for delta in held]
        if last.finish_reason == "stop" and not last.tool_uses:
            check_output(request, "".join(text))
        for delta in (*held, last):
            yield delta

    async def score(self, request: ScoreRequest) -> Scores:
        """All items are with the endpoint at once. Raises ``InvalidRequest`` where it cannot score."""
        if "score" not in self._config.can:
            message = f"The endpoint of the model {self._config.model} cannot score given texts (prompt_logprobs)."
            raise InvalidRequest(message, "score", tuple(self._config.can))
        results = await _side_by_side([self._score_one(item, request) for item in request.items])
        return Scores(tuple(score for score, _ in results), sum((usage for _, usage in results), Usage()))

    # ---- scoring ----------------------------------------------------------------------------------------------------

    async def _score_one(self, item: ScoreItem, request: ScoreRequest) -> tuple[ItemScore, Usage]:
        context = item.context.rstrip(" ")  # in most vocabularies a space belongs to the word that follows it
        continuation = item.context[len(context) :] + item.continuation
        if not continuation.strip():
            return ItemScore(math.nan, 0, "empty continuation"), Usage()
        try:
            before, tokens = await _side_by_side([self._tokens(context), self._tokens(context + continuation)])
            shared = next((i for i, (a, b) in enumerate(zip(before, tokens, strict=False)) if a != b), len(before))
            if shared == 0:
                return ItemScore(math.nan, 0, "empty context"), Usage()
            body = {
                "model": self._config.model,
                "prompt": tokens,
                "max_tokens": 1,
                "temperature": 0,
                "prompt_logprobs": 0,
            }
            salted = {"cache_salt": request.cache_salt} if request.cache_salt else {}
            answer = await self._json("/completions", body | salted)
        except BadModelOutput as fault:  # this item's own, such as one too long; the endpoint's would be another error
            return ItemScore(math.nan, 0, str(fault)), Usage()
        return _item_score(answer, tokens, shared), usage_of(answer.get("usage") or {})

    async def _tokens(self, text: str) -> list[int]:
        if not text:
            return []
        root = self._config.url.removesuffix("/v1")
        answer = await self._json("/tokenize", {"model": self._config.model, "prompt": text}, root)
        if not isinstance(tokens := answer.get("tokens"), list):
            raise StageUnavailable(f"{root}/tokenize answered without tokens.")
        return tokens

    # ---- HTTP -------------------------------------------------------------------------------------------------------

    async def _json(self, path: str, body: dict[str, Any], root: str | None = None) -> dict[str, Any]:
        until = _now() + self._config.total_timeout_s

        async def once() -> dict[str, Any]:
            try:
                async with asyncio.timeout_at(until):
                    async with aclosing(await self._send((root or self._config.url) + path, body)) as response:
                        answer = json.loads(await response.aread())
            except TimeoutError:
                raise self._late("did not answer within", self._config.total_timeout_s) from None
            except httpx.TransportError as error:
                raise _Again(self._cut(error)) from None
            except (ValueError, RecursionError):
                raise StageUnavailable(
                    f"{root or self._config.url}{path} answered with something else than JSON."
                ) from None
            return answer if isinstance(answer, dict) else {}

        for attempt in range(self._config.retries + 1):
            try:
                return await once()
            except _Again as again:
                await self._wait(again, attempt, until)
        raise AssertionError("the last attempt raised")

    async def _events(self, body: dict[str, Any], reader: DeltaReader) -> AsyncGenerator[dict[str, Any]]:
        until = _now() + self._config.total_timeout_s
        for attempt in range(self._config.retries + 1):
            try:
                async with aclosing(self._attempt(body, reader, until)) as events:
                    async for event in events:
                        yield event
                return
            except _Again as again:
                if reader.begun:
                    raise again.fault from None
                await self._wait(again, attempt, until)

    async def _attempt(self, body: dict[str, Any], reader: DeltaReader, until: float) -> AsyncGenerator[dict[str, Any]]:
        """The events of one try. Each wait has its bound; keep-alive comments are no token."""
        first_by = min(until, _now() + self._config.first_token_timeout_s)
        data = EventData()
        try:
            async with asyncio.timeout_at(first_by):
                response = await self._send(f"{self._config.url}/chat/completions", body)
        except TimeoutError:
            raise self._late("gave no first token within", self._config.first_token_timeout_s) from None
        try:
            if "text/event-stream" not in response.headers.get("content-type", ""):
                raise BadModelOutput(f"{self._config.url} did not answer with an event stream.")
            pieces = response.aiter_raw()
            while True:
                limit = until if reader.begun else first_by
                try:
                    async with asyncio.timeout_at(limit):
                        piece = await anext(pieces, None)
                except TimeoutError:
                    if reader.begun or first_by == until:
                        raise self._late("did not finish within", self._config.total_timeout_s) from None
                    raise self._late("gave no first token within", self._config.first_token_timeout_s) from None
                except httpx.TransportError as error:
                    raise _Again(self._cut(error)) from None
                for event in data.end() if piece is None else data.feed(piece):
                    if event.strip() == b"[DONE]":
                        return
                    yield self._event(event)
                if piece is None:
                    if reader.finish is None:
                        raise _Again(StageUnavailable(f"{self._config.url} broke off before the end of its answer."))
                    return
        finally:
            await response.aclose()

    async def _send(self, url: str, body: dict[str, Any]) -> httpx.Response:
        """The response with its head read and a good status, for the caller to close; anything else is raised."""
        try:
            response = await self._client.send(self._client.build_request("POST", url, json=body), stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            unreachable = StageUnavailable(f"{self._config.url} cannot be reached: {type(error).__name__}")
            raise _Again(unreachable) from None
        except httpx.TransportError as error:
            raise _Again(self._cut(error)) from None
        if response.status_code == 200:
            return response
        try:
            raise await self._refused(response)
        except httpx.TransportError as error:
            raise _Again(self._cut(error)) from None
        finally:
            await response.aclose()

    async def _refused(self, response: httpx.Response) -> AssayError | _Again:
        data = b""
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > _MAX_ERROR_BYTES:
                break
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        return self._fault(response.status_code, body, _retry_after(response.headers.get("retry-after")))

    def _event(self, data: bytes) -> dict[str, Any]:
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise BadModelOutput(f"{self._config.url} sent an event that is not JSON.") from None
        if not isinstance(event, dict):
            raise BadModelOutput(f"{self._config.url} sent an event that is no object.")
        if event.get("error"):
            error = event["error"]
            code = error.get("code") if isinstance(error, dict) else None
            raise self._fault(code if isinstance(code, int) else 500, event)
        return event

    def _fault(self, status: int, body: Any, after_s: float | None = None) -> AssayError | _Again:
        """The endpoint's refusal as one of our errors."""
        said, where = self._said(body), self._config.url
        if status in (401, 403):
            key = f"the key in {self._config.key_variable}" if self._key else "a call without a key"
            return SetupError(f"{where} refused {key} (HTTP {status}).", "key_env")
        if status == 402:
            return SetupError(f"{where} says that the account has no balance (HTTP 402).")
        if status == 404:
            return SetupError(f"{where} has no such address or no model '{self._config.model}' (HTTP 404){said}")
        if status in (429, 503):
            return _Again(Overloaded(f"{where} is overloaded (HTTP {status}){said}"), after_s)
        if status == 408 or status >= 500:
            return _Again(StageUnavailable(f"{where} failed (HTTP {status}){said}"), after_s)
        if 400 <= status < 500:
            return BadModelOutput(f"{where} refused the request (HTTP {status}){said}")
        return SetupError(f"{where} answered HTTP {status}; give the address that it redirects to, if any.", "base_url")

    def _said(self, body: Any) -> str:
        """What the endpoint says of it, bounded and without our key, which some endpoints repeat."""
        error = body.get("error", body) if isinstance(body, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        if not isinstance(message, str) or not message.strip():
            return "."
        if self._key:
            message = message.replace(self._key, "***")
        return f": {' '.join(message.split())[:_MESSAGE_CHARS]}"

    def _late(self, what: str, seconds: float) -> StageTimeout:
        return StageTimeout(f"{self._config.url} {what} {seconds:g} s.")

    def _cut(self, error: httpx.TransportError) -> StageUnavailable:
        return StageUnavailable(f"{self._config.url} cut the connection: {type(error).__name__}")

    async def _wait(self, again: _Again, attempt: int, until: float) -> None:
        """Before the next try; raises the fault where there is none, or where it would come too late."""
        wait = self._chance() * min(MOST_S, BASE_S * 2**attempt)
        if again.after_s is not None:
            wait += again.after_s
        if attempt >= self._config.retries or _now() + wait >= until:
            raise again.fault from None
        log.info("%s; trying again in %.1f s", again.fault, wait)
        await self._sleep(wait)


async def _side_by_side(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Where one fails, the others are ended, which closes their connections."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except* AssayError as faults:
        raise next(iter(faults.exceptions)) from None
    return [task.result() for task in tasks]


def gathered(deltas: list[Delta]) -> Completion:
    """The deltas of one generation as a whole."""
    last = deltas[-1]
    assert last.finish_reason is not None and last.usage is not None
    text, reasoning = "".join(d.text for d in deltas), "".join(d.reasoning for d in deltas)
    return Completion(text, last.finish_reason, last.usage, reasoning, last.tool_uses)


def _item_score(answer: dict[str, Any], tokens: list[int], shared: int) -> ItemScore:
    """The log-probabilities of the tokens from ``shared`` on; positions are in the order of the prompt's tokens."""
    try:
        positions = answer["choices"][0]["prompt_logprobs"][shared : len(tokens)]
        logprobs = [float(at[str(token)]["logprob"]) for at, token in zip(positions, tokens[shared:], strict=True)]
    except (KeyError, IndexError, TypeError, ValueError):
        return ItemScore(math.nan, 0, "the endpoint returned no score")
    if not all(map(math.isfinite, logprobs)):
        return ItemScore(math.nan, 0, "the endpoint returned no score")
    return ItemScore(sum(logprobs), len(logprobs), each=tuple(logprobs))


def _retry_after(header: str | None) -> float | None:
    """Seconds, from a number of them or a date."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _now() -> float:
    """The event loop's clock, which ``asyncio.timeout_at`` reads."""
    return asyncio.get_running_loop().time()
