"""The evidence of one question: append-only, in slots that keep their names, each chunk once, no document crowding it out."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from assay.types import Evidence, Hit


@dataclass(frozen=True, slots=True)
class Found:
    """A hit on its way into the evidence; see ``Evidence`` for the fields."""

    hit: Hit
    score: float
    gain: float | None
    round: int


class EvidenceSet:
    def __init__(self, per_document: int) -> None:
        self._per_document = per_document
        self._all: list[Evidence] = []
        self._rank: dict[str, int] = {}
        self._chunks: set[int] = set()
        self._documents: Counter[str] = Counter()

    @property
    def all(self) -> tuple[Evidence, ...]:
        return tuple(self._all)

    def new(self, hits: Iterable[Hit]) -> tuple[Hit, ...]:
        """The hits that would still be admitted, in their order."""
        documents, kept = self._documents.copy(), []
        for hit in hits:
            if hit.chunk.id not in self._chunks and documents[hit.chunk.doc_id] < self._per_document:
                documents[hit.chunk.doc_id] += 1
                kept.append(hit)
        return tuple(kept)

    def add(self, found: Iterable[Found]) -> tuple[Evidence, ...]:
        """Appends what is admitted and returns it, with its slots."""
        added: list[Evidence] = []
        for f in found:
            if self.new((f.hit,)):
                evidence = Evidence(f"E{len(self._all) + 1}", f.hit, f.score, f.round, f.gain)
                self._all.append(evidence)
                self._rank[evidence.slot] = len(added)
                self._chunks.add(f.hit.chunk.id)
                self._documents[f.hit.chunk.doc_id] += 1
                added.append(evidence)
        return tuple(added)

    def best(self, count: int) -> tuple[Evidence, ...]:
        """The ``count`` best over all rounds, best first.

        Scores of different rounds do not compare (each is relative to its own candidates), so that the rounds take turns
        by rank; of equals the earlier round goes first.
        """
        return tuple(sorted(self._all, key=lambda e: (self._rank[e.slot], e.round))[:count])
