"""The one error tree. The class decides the HTTP status, the stable code and whether a retry can help.

Every constructor argument reaches ``Exception.__init__``, so that an error survives pickling between replicas whole.
"""

from typing import ClassVar


class AssayError(Exception):
    """A fault with a message for people, and the field and allowed values where one input is to blame."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, field: str | None = None, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message, field, allowed)
        self.message = message
        self.field = field
        self.allowed = allowed

    def __str__(self) -> str:
        return self.message


class InvalidRequest(AssayError):
    code = "invalid_request"
    status = 422


class UnknownField(InvalidRequest):
    code = "unknown_field"


class InvalidFilter(InvalidRequest):
    code = "invalid_filter"


class MalformedBody(AssayError):
    code = "malformed_body"
    status = 400


class TooLarge(AssayError):
    code = "too_large"
    status = 413


class UnknownBucket(AssayError):
    code = "unknown_bucket"
    status = 404


class NotFound(AssayError):
    code = "not_found"
    status = 404


class Overloaded(AssayError):
    code = "overloaded"
    status = 503
    retryable = True


class StageUnavailable(AssayError):
    """A stage's replica died, or is not up yet."""

    code = "stage_unavailable"
    status = 503
    retryable = True


class StageTimeout(AssayError):
    code = "stage_timeout"
    status = 504


class BadModelOutput(AssayError):
    """A model's output broke its contract: cut off, not of its schema, or without a score. Never retried."""

    code = "bad_model_output"
    status = 502


class ItemTooLong(BadModelOutput):
    """One item of a batch does not fit the model; its neighbours are scored all the same."""

    code = "item_too_long"


class IndexFault(AssayError):
    """The index is missing, torn, or made by another embedder."""

    code = "index_fault"
    status = 503


class ParseFault(AssayError):
    """One file of an ingest cannot be read; the rest goes on. ``code`` of the report's row is ``reason``."""

    code = "parse_fault"
    status = 422

    def __init__(self, message: str, reason: str = "malformed") -> None:
        Exception.__init__(self, message, reason)
        self.message, self.reason, self.field, self.allowed = message, reason, None, ()


class SetupError(AssayError):
    """The machine is not ready: a missing package, an unprepared model, a full disk. The message says what to do."""

    code = "setup"
    status = 503


def by_code(code: str) -> type[AssayError]:
    """The class whose ``code`` this is; ``AssayError`` itself for a code that no class has."""

    def walk(cls: type[AssayError]) -> list[type[AssayError]]:
        return [cls, *(found for sub in cls.__subclasses__() for found in walk(sub))]

    return next((cls for cls in walk(AssayError) if cls.code == code), AssayError)
