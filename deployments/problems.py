"""Every fault as the one error shape, and its HTTP status.

What belongs to the server (paths, prompts, stacks) never leaves it: such a text is replaced by what its code means, and
the log has the original under the request's id.
"""

import json
import logging
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Literal, get_args

from fastapi import Response
from pydantic import BaseModel, ValidationError

from assay.chat import ChatExtras
from assay.errors import AssayError, InvalidFilter, InvalidRequest, UnknownField, kind_of, of_code
from assay.schemas import And, ErrorBody, ErrorResponse, Not, Or, Predicate, Shape

log = logging.getLogger("assay.api")

RETRY_AFTER_S = 2

# What a fault means, for when its own words must stay inside.
_MEANING = {
    "stage_fault": "A part of the search failed; its log names this request_id.",
    "internal": "Something went wrong on the server's side; its log names this request_id.",
    "bad_model_output": "The model's output could not be used.",
    "index_fault": "The index cannot be used; the server's log says why.",
    "setup": "The server is not set up completely; its log says what is missing.",
    "store_unavailable": "Conversations are not available; try again in a moment.",
    "overloaded": "Too many requests are in progress; try again in a moment.",
    "stage_unavailable": "A part of the search is not available; try again in a moment.",
    "stage_timeout": "A part of the search took too long.",
}
_ALWAYS_INSIDE = {"internal", "stage_fault", "bad_model_output"}
_REVEALING = re.compile(r"(?:^|[^\w/])~?/[\w.@-]+/|[A-Za-z]:\\|Traceback|\n|0x[0-9a-f]{6}")

CHAT_PATHS = ("/v1/chat/", "/v1/models")
_CHAT_NAMES = {"buckets[0]": "model", "buckets": "model"}
_CHAT_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_TAGS: dict[str, type[Shape]] = {shape.__name__: shape for shape in (Predicate, And, Or, Not)}
_QUOTED = re.compile(r"'([^']*)'")

_WORDS = {
    "missing": "is required",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "too_short": "must have at least {min_length} item",
    "too_long": "must have at most {max_length} items",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "finite_number": "must be a finite number",
    "value_error": "{error}",
}


class NoRoute(AssayError):
    code = "no_route"
    status = 404


class MethodNotAllowed(AssayError):
    code = "method_not_allowed"
    status = 405


def public_text(text: str, otherwise: str) -> str:
    return otherwise if len(text) > 400 or _REVEALING.search(text) else text


def body_of(fault: AssayError, request_id: str) -> ErrorBody:
    """What the client may read about a fault; a 5xx is logged here with its words, and a bug with its stack."""
    message = fault.message
    if fault.status >= 500:
        stack = fault if fault.status == 500 else None
        log.error("%s: %s", fault.code, message, exc_info=stack, extra={"question_id": request_id})
        meaning = _MEANING.get(fault.code, _MEANING["internal"])
        message = meaning if fault.code in _ALWAYS_INSIDE else public_text(message, meaning)
    return ErrorBody(
        code=fault.code, message=message, field=fault.field, allowed=list(fault.allowed), request_id=request_id
    )


def censored(body: ErrorBody, request_id: str) -> ErrorBody:
    """The driver's own error event, under the same rule."""
    return body_of(of_code(body.code, body.message, body.field, tuple(body.allowed)), request_id)


def internal(fault: Exception, request_id: str) -> ErrorBody:
    """A fault that is none of ours: the log has its words and its stack."""
    wrapped = AssayError(f"{type(fault).__name__}: {fault}")
    wrapped.__cause__ = fault
    return body_of(wrapped, request_id)


def response_of(body: ErrorBody, headers: dict[str, str] | None = None, path: str = "") -> Response:
    """In the form of the door that ``path`` belongs to."""
    kind = kind_of(body.code)
    headers = dict(headers or {})
    if kind.retryable:
        headers.setdefault("retry-after", str(RETRY_AFTER_S))
    if path.startswith(CHAT_PATHS):
        status = 400 if kind.status == 422 else kind.status  # that API's clients take 422 for something else
        return Response(json.dumps({"error": chat_error(body)}), status, headers, media_type="application/json")
    content = ErrorResponse(error=body).model_dump_json()
    return Response(content, kind.status, headers, media_type="application/json")


def chat_error(body: ErrorBody) -> dict[str, object]:
    """``error`` as OpenAI's API has it; the fields of our requests by the names that they have there."""
    param, message = body.field, body.message
    if param in _CHAT_NAMES:
        message = message.replace(param, _CHAT_NAMES[param])
        param = _CHAT_NAMES[param]
    elif param and re.split(r"[.\[]", param)[0] in ChatExtras.model_fields:
        message = message.replace(f"'{param}'", f"'assay.{param}'")
        param = f"assay.{param}"
    status = kind_of(body.code).status
    kind = _CHAT_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    said = {"message": message, "type": kind, "param": param, "code": body.code}
    return {**said, "allowed": body.allowed, "request_id": body.request_id}


# ---- pydantic's errors, as one sentence about one field -------------------------------------------------------------


def invalid(error: ValidationError, model: type[BaseModel]) -> AssayError:
    """The first mistake; an unknown key before all others, because a typo also makes its right name "missing"."""
    details = error.errors(include_url=False, include_input=False)
    first = next((detail for detail in details if detail["type"] == "extra_forbidden"), details[0])
    loc, kind, context = first["loc"], first["type"], first.get("ctx", {})
    path = _path(loc)
    if not path:
        return InvalidRequest("The body must be a JSON object.")
    if kind == "extra_forbidden":
        return _unknown_key(path, str(loc[-1]), _known_keys(model, loc[:-1]))
    allowed = tuple(_QUOTED.findall(context["expected"])) if kind == "literal_error" else ()
    words = _WORDS[kind].format(**context) if kind in _WORDS else first["msg"]
    says = f"must be one of: {', '.join(allowed)}" if allowed else words
    blame = InvalidFilter if "filters" in (loc[0], *loc[1:2]) else InvalidRequest  # of the OpenAI door, within "assay"
    return blame(f"'{path}' {says}.", field=path, allowed=allowed)


def _unknown_key(path: str, key: str, known: tuple[str, ...]) -> UnknownField:
    near = get_close_matches(key[:100], known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UnknownField(f"There is no field '{path}' in a request.{hint}", field=path, allowed=known)


def _path(loc: tuple[int | str, ...]) -> str:
    """``("filters", "And", "and", 1, "Predicate", "field")`` -> ``filters.and[1].field``, of bounded length."""
    path = ""
    for place, part in enumerate(loc):
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in _TAGS or place in (0, len(loc) - 1):
            path += f".{part[:100]}" if path else part[:100]
    return path if len(path) <= 400 else f"{path[:200]}...{path[-200:]}"


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, ...]:
    """The keys of the object at ``loc``."""
    for part in loc:
        if isinstance(part, str) and part in _TAGS:
            model = _TAGS[part]
        elif isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        if not isinstance(inner, str) and annotation is not Literal:
            yield from _models_in(inner)
