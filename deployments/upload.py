"""Reads a multipart body into a job's folder: bounded while it arrives, to disk, and never under a name that was sent."""

import asyncio
import errno
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from assay.config import DocumentsConfig
from assay.documents.names import doc_id_of, uri_of
from assay.documents.spool import Stored
from assay.errors import AssayError, InvalidRequest, MalformedBody, TooLarge, UnknownField
from deployments.body import NotJson, SlowBody, check_plain, parse

METADATA = "metadata"
METADATA_BYTES = 1_000_000
IDLE_S = 30.0  # an upload of which nothing arrives for so long is given up
_PIECE = 1 << 18  # bytes that are parsed and written at a time, in a thread
_SUFFIX = re.compile(r"\.[a-z0-9]{1,10}")


class NotMultipart(NotJson):
    pass


class SameName(AssayError):
    code = "same_name"
    status = 409


class NoRoom(AssayError):
    code = "no_room"
    status = 507


async def receive(
    request: Request, folder: Path, bucket: str, config: DocumentsConfig
) -> tuple[list[Stored], dict[str, dict[str, Any]]]:
    """The files, which lie under ``folder`` then, and what is said of them by their names.

    Raises ``NotMultipart``, ``MalformedBody``, ``TooLarge``, ``SlowBody``, ``InvalidRequest``, ``SameName``, ``NoRoom``, and
    ``ClientDisconnect``.
    """
    parts = _Parts(folder, bucket, config)
    try:
        parser = MultipartParser(_boundary(request), parts.callbacks())
        async with asyncio.timeout(config.upload_s):
            async for piece in _pieces(request, config.max_body_bytes):
                with _faults():
                    await asyncio.to_thread(parser.write, piece)
    except TimeoutError:
        raise SlowBody(f"The upload did not arrive within {config.upload_s:g} seconds.") from None
    finally:
        parts.close()
    return parts.done()


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except FormParserError:
        raise MalformedBody("The body is not valid multipart/form-data.") from None
    except OSError as fault:
        if fault.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoom("There is no room for this upload on the server.") from fault
        raise


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise NotMultipart("Send files as multipart/form-data, each in a part with a file name.")
    check_plain(request.headers)
    if len(options[b"boundary"]) > 200:
        raise MalformedBody("The boundary is too long.")
    return options[b"boundary"]


async def _pieces(request: Request, max_bytes: int) -> AsyncGenerator[bytes]:
    """Of the body, each of some size."""
    too_large = TooLarge(f"An upload must have at most {max_bytes} bytes; send fewer files at a time.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large
    held, taken, stream = bytearray(), 0, aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(IDLE_S):
                piece = await anext(stream, None)
        except TimeoutError:
            raise SlowBody(f"Nothing of the upload arrived for {IDLE_S:g} seconds.") from None
        if piece is None:
            break
        taken += len(piece)
        if taken > max_bytes:
            raise too_large
        held += piece
        if len(held) >= _PIECE:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


class _Parts:
    """What the parser calls, in a thread: one part after the other."""

    def __init__(self, folder: Path, bucket: str, config: DocumentsConfig) -> None:
        self._folder, self._bucket, self._config = folder, bucket, config
        self._header, self._value = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._file: BinaryIO | None = None
        self._name = ""
        self._metadata: bytearray | None = None
        self._bytes = 0
        self._files: dict[str, Stored] = {}
        self._whole = False

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._field,
            "on_header_value": self._said,
            "on_header_end": self._header_end,
            "on_headers_finished": self._open,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._all,
        }

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def done(self) -> tuple[list[Stored], dict[str, dict[str, Any]]]:
        if not self._whole:
            raise MalformedBody("The body ends before its last part does.")
        if not self._files:
            raise InvalidRequest("'files' is required: at least one part with a file name.", "files")
        return list(self._files.values()), self._described()

    def _described(self) -> dict[str, dict[str, Any]]:
        if self._metadata is None:
            return {}
        said = parse(bytes(self._metadata))
        if not isinstance(said, dict) or not all(isinstance(row, dict) for row in said.values()):
            raise InvalidRequest("'metadata' must be an object: file names, and an object for each.", METADATA)
        return {_label(name): row for name, row in said.items()}

    @property
    def _place(self) -> str:
        return f"files[{len(self._files)}]"

    def _begin(self) -> None:
        self._headers, self._header, self._value = {}, b"", b""

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _said(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header, self._value = b"", b""

    def _open(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._bytes = 0
        if b"filename" in options:
            self._open_file(options[b"filename"])
            return
        name = options.get(b"name", b"").decode(errors="replace")[:80]
        if name != METADATA:
            raise UnknownField(f"There is no field '{name}' in an upload; a file needs a file name.", name, (METADATA,))
        if self._metadata is not None:
            raise InvalidRequest("'metadata' is there twice.", METADATA)
        self._metadata = bytearray()

    def _open_file(self, filename: bytes) -> None:
        if len(self._files) >= self._config.max_files:
            raise TooLarge(f"An upload must have at most {self._config.max_files} files.", "files")
        try:
            self._name = uri_of(filename.decode(), self._place)
        except UnicodeDecodeError:
            raise InvalidRequest(f"The name of '{self._place}' is not UTF-8.", self._place) from None
        if self._name in self._files:
            raise SameName(f"'{self._place}' has the name of another file of this upload.", self._place)
        self._file = (self._folder / "files" / self._stored).open("xb")

    @property
    def _stored(self) -> str:
        kind = _kind(self._name)
        return f"{len(self._files):06d}{kind if _SUFFIX.fullmatch(kind) else '.unknown'}"

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._bytes += end - start
        if self._file is None:
            assert self._metadata is not None
            if self._bytes > METADATA_BYTES:
                raise TooLarge(f"'metadata' must have at most {METADATA_BYTES} bytes.", METADATA)
            self._metadata += data[start:end]
            return
        if self._bytes > (most := self._config.max_file_bytes):
            raise TooLarge(f"'{self._place}' ({self._name}) must have at most {most} bytes.", self._place)
        self._file.write(data[start:end])

    def _end(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        id_ = doc_id_of(self._bucket, self._name)
        self._files[self._name] = Stored(name=self._name, bytes=self._bytes, doc_id=id_, stored=self._stored)

    def _all(self) -> None:
        self._whole = True


def _label(name: str) -> str:
    """As a file of that name is called; what cannot be one is of no file."""
    try:
        return uri_of(name, METADATA)
    except InvalidRequest:
        return name


def _kind(name: str) -> str:
    return PurePosixPath(name).suffix.lower()
