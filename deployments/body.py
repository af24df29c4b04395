"""Reads a request's body before any work begins: bounded while it arrives, strict JSON, then one of the shapes."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import jiter
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers

from assay.errors import AssayError, MalformedBody, TooLarge
from deployments.problems import invalid

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E", bound=Callable[..., Any])

READ_TIMEOUT_S = 30
MAX_DEPTH = 64


class NotJson(AssayError):
    code = "unsupported_media_type"
    status = 415


class SlowBody(AssayError):
    code = "request_timeout"
    status = 408


class JsonRequest(Request):
    """A request whose body is a checked shape already, when FastAPI asks for it."""

    shape: BaseModel

    async def body(self) -> bytes:
        return b"{}"  # FastAPI only asks whether there is one

    async def json(self) -> BaseModel:
        return self.shape


def admitted(check: Callable[[], None]) -> Callable[[E], E]:
    """Of a route's function, under the route: ``check`` raises before a body is read that would be refused after it."""

    def mark(endpoint: E) -> E:
        endpoint.__dict__[admitted.__name__] = check
        return endpoint

    return mark


def json_route(max_bytes: int) -> type[APIRoute]:
    """The route class of all routes with a body: FastAPI documents the shapes, this reads them."""

    class JsonRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()
            if self.body_field is None:
                return handler
            model = cast(type[BaseModel], self.body_field.field_info.annotation)

            check = getattr(self.endpoint, admitted.__name__, None)

            async def read_then_handle(request: Request) -> Response:
                if check is not None:
                    check()
                checked = JsonRequest(request.scope, request.receive)
                checked.shape = shape_of(await read(request, max_bytes), model)
                return await handler(checked)

            return read_then_handle

    return JsonRoute


async def read(request: Request, max_bytes: int) -> bytes:
    """The whole body, or TooLarge as soon as it is known: by its declared length, or while it arrives. Raises ``SlowBody``."""
    _check_headers(request)
    too_large = TooLarge(f"The body must have at most {max_bytes} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise SlowBody(f"The body did not arrive within {READ_TIMEOUT_S:g} seconds.") from None
    return bytes(body)


def _check_headers(request: Request) -> None:
    media, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    main, _, sub = media.strip().partition("/")
    charset = parameters.partition("charset=")[2].strip(' "')
    if main != "application" or not (sub == "json" or sub.endswith("+json")) or charset not in ("", "utf-8", "utf8"):
        raise NotJson("Send JSON in UTF-8, with the header 'content-type: application/json'.")
    check_plain(request.headers)


def check_plain(headers: Headers) -> None:
    """Raises ``NotJson``: what is compressed has no size before it is read."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise NotJson("Send the body without a content-encoding.")


def shape_of(body: bytes, model: type[M]) -> M:
    """Bytes -> shape. Types are not converted: ``"5"`` is no number and ``1`` is not true."""
    value = parse(body)
    try:
        return model.model_validate(value, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise invalid(error, model) from None


def parse(body: bytes) -> Any:
    """Strict JSON: no duplicate key, NaN, infinity (``1e400`` is one), lone surrogate, bad UTF-8 or deep nesting."""
    if not body.strip():
        raise MalformedBody("The body is empty; send a JSON object.")
    try:
        value = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="keys")
    except ValueError as error:
        raise MalformedBody(f"The body is not valid JSON: {_short(str(error))}.") from None
    _check(value, MAX_DEPTH)
    return value


def _check(value: Any, depth: int) -> None:
    """A megabyte of numbers must not hold up the event loop, so only what nests is called for."""
    if depth == 0:
        raise MalformedBody(f"The body is nested more than {MAX_DEPTH} levels deep.")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(inner, dict | list):
            _check(inner, depth - 1)
        elif isinstance(inner, float) and not math.isfinite(inner):
            raise MalformedBody("The body has a number that is too large.")


def _short(text: str) -> str:
    """jiter quotes a duplicate key whole, however long; the place stands at the end."""
    return text if len(text) <= 160 else f"{text[:80]}...{text[-60:]}"
