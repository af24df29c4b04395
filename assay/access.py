"""What the holder of a key may do and see, and a driver that holds everybody to it: the one place for every door."""

import hashlib
import ipaddress
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from assay.audit import Trail
from assay.documents.shapes import BucketList, DocumentList, DocumentView
from assay.documents.types import DocumentsQuery, ReadQuery
from assay.errors import AssayError, NotFound, UnknownBucket
from assay.events import CitationEvent, CompletedEvent, ErrorEvent, Event, EvidenceEvent, drained, of_documents
from assay.groups import Groups, met
from assay.ports import Driver
from assay.schemas import (
    AnswerRecord,
    AskRequest,
    AskResponse,
    Citation,
    EvidenceRef,
    Predicate,
    Readiness,
    SearchRequest,
    SearchResponse,
)
from assay.types import BucketInfo, ToolSpec
from assay.types import Scope as Where

if TYPE_CHECKING:
    from assay.tools.base import ToolOutput

Scope = Literal["search", "ask", "ingest", "admin"]
R = TypeVar("R", AskRequest, SearchRequest)


class Unauthorized(AssayError):
    code = "unauthorized"
    status = 401


class Forbidden(AssayError):
    code = "forbidden"
    status = 403


class RateLimited(AssayError):
    code = "rate_limited"
    status = 429
    retryable = True


@dataclass(frozen=True, slots=True)
class Grant:
    """``buckets`` and ``groups``: None for all. ``rate`` is of requests a minute."""

    tenant: str
    buckets: tuple[str, ...] | None
    scopes: frozenset[Scope]
    key_id: str = ""
    rate: int = 0
    concurrency: int = 0
    groups: Groups = ()

    @property
    def owner(self) -> str:
        """Of what its holder leaves behind: a key of the same tenant that sees something else must not read its answers, nor,
        without keys, somebody who is said to be in other groups."""
        sees = (self.buckets, self.groups)
        if sees == (None, () if self.tenant else None):
            return self.tenant
        return f"{self.tenant}:{hashlib.sha256(repr(sees if self.groups != () else self.buckets).encode()).hexdigest()[:32]}"

    def among(self, groups: Iterable[str]) -> "Grant":
        """Less than that: for somebody who is in these groups, of those that the key holds."""
        return replace(self, groups=met(self.groups, groups))

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes


def is_loopback(name: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


# Whoever asks from this machine, where there are no keys.
LOCAL = Grant("", None, frozenset(("admin",)), groups=None)


class BoundDriver:
    """A ``Driver`` for one grant: requests are narrowed to its buckets and groups, and what comes back tells of no others."""

    def __init__(self, driver: Driver, grant: Grant, trail: Trail) -> None:
        """``trail``: where the audit log is told of what is asked, and of the documents in what comes back."""
        self._driver, self._grant, self._trail = driver, grant, trail

    async def stream(self, request: AskRequest, request_id: str) -> AsyncGenerator[Event]:
        with self._trail:
            self._asked(request, mode=request.mode)
            try:
                narrowed = await self._narrowed(request, request_id)
                async with aclosing(self._driver.stream(narrowed, request_id)) as events:
                    async for event in events:
                        if isinstance(event, ErrorEvent):
                            seen = self._seen(event.error.code, tuple(event.error.allowed))
                            error = event.error.model_copy(update={"allowed": list(seen)})
                            event = event.model_copy(update={"error": error})
                        self._trail.heard(event)
                        yield event
            except AssayError as fault:
                raise self._told(fault) from fault.__cause__

    async def ask(self, request: AskRequest, request_id: str) -> AskResponse:
        return await drained(self.stream(request, request_id))

    async def search(self, request: SearchRequest, request_id: str) -> SearchResponse:
        self._asked(request, document=request.doc_id)
        found = await self._search(self._own(request), request_id)
        self._trail.read(hit.doc_id for hit in found.hits)
        return found

    async def _search(self, request: SearchRequest, request_id: str) -> SearchResponse:
        if self._grant.buckets is None:
            return await self._driver.search(request, request_id)
        try:
            visible = await self.describe(Where(), request_id)
            found = await self._driver.search(self._within(request, visible), request_id)
        except AssayError as fault:
            raise self._told(fault) from fault.__cause__
        total = sum(bucket.chunks for bucket in visible)  # of the whole index it would count what must not be seen
        return found.model_copy(update={"explain": found.explain.model_copy(update={"total_rows": total})})

    async def describe(self, scope: Where, request_id: str) -> tuple[BucketInfo, ...]:
        scope = replace(scope, groups=self._grant.groups)
        if self._grant.buckets is None:
            return await self._driver.describe(scope, request_id)
        for at, name in enumerate(scope.buckets):
            self._check(name, f"buckets[{at}]")
        try:
            found = await self._driver.describe(replace(scope, buckets=()), request_id)
        except AssayError as fault:
            raise self._told(fault) from fault.__cause__
        wanted = scope.buckets or self._grant.buckets
        return tuple(bucket for bucket in found if bucket.name in wanted and bucket.name in self._grant.buckets)

    def may_fill(self, bucket: str) -> None:
        """Raises ``UnknownBucket``, in the words for one that does not exist."""
        self._trail.note(buckets=[bucket])
        self._check(bucket, "bucket")

    async def buckets(self, scope: Where, request_id: str) -> BucketList:
        return await self._driver.buckets(self._where(scope), request_id)

    async def documents(self, query: DocumentsQuery, request_id: str) -> DocumentList:
        self._trail.note(buckets=[query.bucket] if query.bucket else None)
        return await self._driver.documents(replace(query, scope=self._where(query.scope)), request_id)

    async def read_document(self, query: ReadQuery, request_id: str) -> DocumentView:
        found = await self._driver.read_document(replace(query, scope=self._where(query.scope)), request_id)
        self._trail.read([found.document.doc_id])
        return found

    async def delete_document(self, query: ReadQuery, request_id: str) -> None:
        await self._driver.delete_document(replace(query, scope=self._where(query.scope)), request_id)

    async def recall(self, answer_id: str, owner: str = "") -> AnswerRecord:
        """Of the grant's own owner, whoever is named; as long as all documents are there for them that it rests on."""
        record = await self._driver.recall(answer_id, self._grant.owner)
        if await self.seen([record.response], record.response.request_id) != [True]:
            raise NotFound("There is no such answer, or no more.", "id")
        self._trail.answered(record.response)
        return record

    async def seen(self, answers: Sequence[AskResponse], request_id: str) -> list[bool]:
        """Of each, whether all documents are there for the grant that it rests on. Mostly they are, and one look tells."""
        if await self._there({id for answer in answers for id in _rests_on(answer)}, request_id):
            return [True] * len(answers)
        if len(answers) == 1:
            return [False]
        half = len(answers) // 2
        return [*await self.seen(answers[:half], request_id), *await self.seen(answers[half:], request_id)]

    async def check_stream(self, frames: str, request_id: str) -> None:
        """Raises ``NotFound``, as of a stream that is not there: a document that its events tell of is not, or no more."""
        found: set[str] = set()
        for event in of_documents(frames):
            match event:
                case EvidenceEvent():
                    found.update(id for id in event.doc_ids if "://" not in id)  # of the web
                case CitationEvent():
                    found.update(_own([event.citation]))
                case CompletedEvent():
                    found.update(_rests_on(event.response))
        if not await self._there(found, request_id):
            raise NotFound("There is no such stream, or no more.", "id")

    async def _there(self, doc_ids: set[str], request_id: str) -> bool:
        if not doc_ids:
            return True
        where = Where((), Predicate(field="doc_id", op="in", value=sorted(doc_ids)))
        return len(doc_ids) == sum(bucket.documents for bucket in await self.describe(where, request_id))

    def replayed(self, answer: AskResponse) -> None:
        self._trail.answered(answer)

    async def tools(self, scope: Where, request_id: str) -> tuple[ToolSpec, ...]:
        return await self._driver.tools(await self._scope(request_id, scope), request_id)

    async def use_tool(self, name: str, arguments: Mapping[str, Any], scope: Where, request_id: str) -> "ToolOutput":
        self._trail.note(tool=name[:80])
        self._trail.said(arguments=dict(arguments))
        try:
            output = await self._driver.use_tool(name, arguments, await self._scope(request_id, scope), request_id)
        except AssayError as fault:
            raise self._told(fault) from fault.__cause__
        self._trail.read([*output.documents, *(hit.chunk.doc_id for hit in output.hits)])
        return output

    def _asked(self, request: AskRequest | SearchRequest, **told: object) -> None:
        self._trail.note(buckets=request.buckets, **told)
        filters = request.filters and request.filters.model_dump(mode="json", by_alias=True)
        self._trail.said(question=request.question, filters=filters)

    async def _scope(self, request_id: str, scope: Where) -> Where:
        """The scope's buckets that may be seen, each of them by name."""
        scope = replace(scope, groups=self._grant.groups)
        if self._grant.buckets is None:
            return scope
        visible = await self.describe(scope, request_id)
        if not visible:
            raise UnknownBucket("There is no bucket that this key may see.", "buckets")
        return replace(scope, buckets=tuple(bucket.name for bucket in visible))

    async def readiness(self) -> Readiness:
        return await self._driver.readiness()

    async def _narrowed(self, request: AskRequest, request_id: str) -> AskRequest:
        request = self._own(request)
        if self._grant.buckets is None:
            return request
        return self._within(request, await self.describe(Where(), request_id))

    def _own(self, request: R) -> R:
        return request.owned_by(self._grant.owner).seen_by(self._grant.groups)

    def _within(self, request: R, visible: tuple[BucketInfo, ...]) -> R:
        """In named buckets that it may see, or in all of those: never in none, which would mean everything."""
        names = tuple(bucket.name for bucket in visible)
        for at, name in enumerate(request.buckets):
            if name not in names:
                raise self._unknown(name, f"buckets[{at}]", names)
        if not names:
            raise UnknownBucket("There is no bucket that this key may see.", "buckets")
        return request if request.buckets else request.model_copy(update={"buckets": list(names)})

    def _where(self, scope: Where) -> Where:
        """For what takes names of buckets that do not exist as well."""
        for at, name in enumerate(scope.buckets):
            self._check(name, f"buckets[{at}]")
        return replace(scope, buckets=scope.buckets or self._grant.buckets or (), groups=self._grant.groups)

    def _check(self, name: str, field: str) -> None:
        if self._grant.buckets is not None and name not in self._grant.buckets:
            raise self._unknown(name, field, self._grant.buckets)

    @staticmethod
    def _unknown(name: str, field: str, visible: tuple[str, ...]) -> UnknownBucket:
        return UnknownBucket(f"There is no bucket '{name[:80]}'.", field, visible)

    def _seen(self, code: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
        if self._grant.buckets is None or code != UnknownBucket.code:
            return allowed
        return tuple(name for name in allowed if name in self._grant.buckets)

    def _told(self, fault: AssayError) -> AssayError:
        seen = self._seen(fault.code, fault.allowed)
        return fault if seen == fault.allowed else type(fault)(fault.message, fault.field, seen)


def _rests_on(answer: AskResponse) -> Iterable[str]:
    return _own([*answer.citations, *(answer.evidence or ())])


def _own(parts: Iterable[Citation | EvidenceRef]) -> Iterable[str]:
    """The documents of the collection, and none of the web."""
    return (part.doc_id for part in parts if not part.untrusted)
