"""What a request allows, made binding: a retriever that adds the request's buckets and filter to whatever it is asked."""

from collections.abc import Sequence
from dataclasses import replace

from assay.errors import UnknownBucket
from assay.ports import Retriever
from assay.schemas import And, Filter
from assay.types import (
    BucketInfo,
    DocumentInfo,
    DocumentQuery,
    DocumentText,
    Scope,
    SearchQuery,
    SearchResult,
)


def joined(parts: Sequence[Filter]) -> Filter:
    """One filter under which all of ``parts`` hold; there is at least one."""
    return parts[0] if len(parts) == 1 else And(and_=list(parts))


def both(own: Filter | None, further: Filter | None) -> Filter | None:
    """One filter under which both hold; one that holds already is not said twice."""
    parts = [part for part in (own, further) if part is not None]
    if len(parts) == 2 and (further == own or (isinstance(further, And) and own in further.and_)):
        return further
    return joined(parts) if parts else None


def beyond(own: Scope, buckets: Sequence[str]) -> tuple[str, ...]:
    """Those of ``buckets`` that the scope does not have."""
    return tuple(name for name in buckets if own.buckets and name not in own.buckets)


class BoundRetriever:
    """``ports.Retriever`` within a scope. It can be asked for less than the scope, and for nothing else; the groups are the
    scope's, whatever a query says."""

    def __init__(self, retriever: Retriever, scope: Scope) -> None:
        self._retriever, self.scope = retriever, scope

    async def search(self, query: SearchQuery) -> SearchResult:
        within = self.within(query.buckets, query.filters)
        narrowed = replace(query, buckets=within.buckets, filters=within.filters, groups=within.groups)
        return await self._retriever.search(narrowed)

    async def describe(self, scope: Scope) -> tuple[BucketInfo, ...]:
        return await self._retriever.describe(self.within(scope.buckets, scope.filters))

    async def document_lookup(self, query: DocumentQuery) -> DocumentText:
        return await self._retriever.document_lookup(self._document(query))

    async def get_document_metadata(self, query: DocumentQuery) -> DocumentInfo:
        return await self._retriever.get_document_metadata(self._document(query))

    def within(self, buckets: Sequence[str], filters: Filter | None) -> Scope:
        """The scope narrowed. A bucket that is not of it is told like one that does not exist."""
        if strange := beyond(self.scope, buckets):
            raise UnknownBucket(f"There is no bucket '{strange[0]}' here.", "bucket", self.scope.buckets)
        return Scope(tuple(buckets) or self.scope.buckets, both(self.scope.filters, filters), self.scope.groups)

    def _document(self, query: DocumentQuery) -> DocumentQuery:
        within = self.within(query.buckets, query.filters)
        return replace(query, buckets=within.buckets, filters=within.filters, groups=within.groups)
