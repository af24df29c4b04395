"""The one error tree. The class decides the HTTP status, the stable code and whether a retry can help.

Every constructor argument reaches ``Exception.__init__``, so that an error survives pickling between replicas whole.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal


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


class Abandoned(AssayError):
    """An answer that was given up because nobody listened any more."""

    code = "abandoned"
    status = 410


class Overloaded(AssayError):
    code = "overloaded"
    status = 503
    retryable = True


class StageUnavailable(AssayError):
    """A stage's replica died, or is not up yet."""

    code = "stage_unavailable"
    status = 503
    retryable = True


class StageFault(AssayError):
    """A stage's own code failed: a bug. The loop goes on by the stage's fallback; the log has the stack."""

    code = "stage_fault"


class OutOfTokens(AssayError):
    """A question's budget of tokens is used up: no model is asked for it any more."""

    code = "out_of_tokens"
    status = 422


class StageTimeout(AssayError):
    code = "stage_timeout"
    status = 504


class BadModelOutput(AssayError):
    """A model's output broke its contract: cut off, not of its schema, or without a score. Never retried."""

    code = "bad_model_output"
    status = 502


class IndexFault(AssayError):
    """The index is missing, torn, or made by another embedder."""

    code = "index_fault"
    status = 503


class IndexBusy(IndexFault):
    """Another process is writing to the index, or another job."""

    code = "index_busy"
    retryable = True


Reason = Literal[
    "encrypted",  # no password given, or none that opens it
    "no_text_layer",  # pictures of pages
    "no_text",  # a page that shows text only when its programs run
    "mojibake",  # characters that no encoding, or a font without a Unicode map, has made
    "malformed",  # not what its format says
    "too_large",  # more bytes, pages, cells, characters or depth than allowed
    "timeout",
    "memory",
    "unsupported",  # a kind of file that is not read; skipped
    "empty",  # skipped
    "unreadable",  # the file system does not give it
    "metadata",  # a required field is missing, or what is said of the file cannot be read
    "sidecar",  # it is the metadata of another file; skipped
]


class ParseFault(AssayError):
    """One file of an ingest cannot be read; the rest goes on. ``reason`` is that of the report's row."""

    code = "parse_fault"
    status = 422

    def __init__(self, message: str, reason: Reason = "malformed") -> None:
        Exception.__init__(self, message, reason)
        self.message, self.field, self.allowed = message, None, ()
        self.reason: Reason = reason


class SetupError(AssayError):
    """The machine is not ready: a missing package, an unprepared model, a full disk. The message says what to do."""

    code = "setup"
    status = 503


def in_words(fault: AssayError) -> str:
    """For people at a terminal: the message, and what there is to choose from."""
    return f"{fault} (there are: {', '.join(fault.allowed)})" if fault.allowed else str(fault)


def of_code(code: str, message: str, field: str | None = None, allowed: tuple[str, ...] = ()) -> AssayError:
    """The error that was told as ``code``, from another process; one that no class here has is an ``AssayError``."""
    return kind_of(code)(message, field, allowed)


def kind_of(code: str) -> type[AssayError]:
    """The class of a stable code, of those that are made like their base."""

    def walk(cls: type[AssayError]) -> Iterator[type[AssayError]]:
        yield cls
        for kind in cls.__subclasses__():
            yield from walk(kind)

    alike = (kind for kind in walk(AssayError) if kind.__init__ is AssayError.__init__)
    return next((kind for kind in alike if kind.code == code), AssayError)
