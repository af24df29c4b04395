"""The evidence of one question: append-only, in slots that keep their names, each chunk once, no document crowding it out."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.events import EvidenceEvent
from assay.types import Evidence, Gain, Hit

# Share of two passages' words that both have, from which they are near-duplicates.
_SAME = 0.8


@dataclass(frozen=True, slots=True)
class Found:
    """A hit on its way into the evidence; see ``Evidence`` for the fields."""

    hit: Hit
    score: float
    gain: Gain | None
    round: int


def added_event(added: Sequence[Evidence]) -> EvidenceEvent:
    return EvidenceEvent(
        added=[e.slot for e in added],
        doc_ids=[e.hit.chunk.doc_id for e in added],
        titles=[e.hit.chunk.title for e in added],
        scores=[e.score for e in added],
    )


class EvidenceSet:
    def __init__(self, per_document: int) -> None:
        self._per_document = per_document
        self._all: list[Evidence] = []
        self._slots: dict[int, str] = {}  # of chunks
        self._place: dict[str, tuple[int, int]] = {}  # of slots: the best rank, and the round that gave it
        self._documents: Counter[str] = Counter()
        self._words: list[frozenset[str]] = []

    @property
    def all(self) -> tuple[Evidence, ...]:
        return tuple(self._all)

    def new(self, hits: Iterable[Hit]) -> tuple[Hit, ...]:
        """The hits that are not in it yet, in their order."""
        return tuple(hit for hit in hits if hit.chunk.id not in self._slots)

    def add(self, found: Iterable[Found], keep: int) -> tuple[Evidence, ...]:
        """Appends the best ``keep`` of what is new (``found`` comes best first) and returns them, with their slots. What is
        there already, and is found again at a better place, has that place from now on.

        Passages of a document that already has its share, and near-duplicates of what is there, come after all others: they
        fill up, but crowd nothing out.
        """
        fair: list[Found] = []
        over: list[Found] = []
        documents = self._documents.copy()
        words = self._words.copy()
        room = keep
        for f in found:
            if room == 0:
                break
            if f.hit.chunk.id in self._slots:
                fair.append(f)
                continue
            own = _words(f.hit)
            full = documents[f.hit.chunk.doc_id] >= self._per_document
            if full or _among(own, words):
                over.append(f)
            else:
                fair.append(f)
                words.append(own)
                room -= 1
            documents[f.hit.chunk.doc_id] += 1
        added: list[Evidence] = []
        for rank, f in enumerate([*fair, *over[:room]]):
            if (slot := self._slots.get(f.hit.chunk.id)) is None:
                added.append(self._append(f))
                slot = added[-1].slot
            self._place[slot] = min((rank, f.round), self._place.get(slot, (rank, f.round)))
        return tuple(added)

    def _append(self, f: Found) -> Evidence:
        evidence = Evidence(f"E{len(self._all) + 1}", f.hit, f.score, f.round, f.gain)
        self._all.append(evidence)
        self._words.append(_words(f.hit))
        self._slots[f.hit.chunk.id] = evidence.slot
        self._documents[f.hit.chunk.doc_id] += 1
        return evidence

    def best(self, count: int) -> tuple[Evidence, ...]:
        """The ``count`` best over all rounds, best first.

        Scores of different rounds do not compare (each is relative to its own candidates), so that the rounds take turns
        by rank; of equals the earlier round goes first.
        """
        return tuple(sorted(self._all, key=lambda e: self._place[e.slot])[:count])


def _words(hit: Hit) -> frozenset[str]:
    return frozenset(hit.chunk.text.casefold().split())


def _among(own: frozenset[str], others: Sequence[frozenset[str]]) -> bool:
    """Whether a passage is one of these in other clothes: of all words of the two, nearly all are in both."""
    size = len(own)
    for words in others:
        shared = len(own & words)
        if shared >= _SAME * (size + len(words) - shared):
            return True
    return False
