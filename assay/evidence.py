"""The evidence of one question: append-only, in slots that keep their names, each chunk once, no document crowding it out."""

from collections.abc import Iterable, Sequence

from assay.events import EvidenceEvent
from assay.types import Evidence, Hit, Ranked

# Share of two passages' words that both have, from which they are near-duplicates.
_SAME = 0.8

_Words = frozenset[str]


def in_order(hits: Iterable[Hit]) -> tuple[Ranked, ...]:
    """Hits that nobody has reranked."""
    return tuple(Ranked(hit, hit.score, None) for hit in hits)


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
        self._documents: dict[str, int] = {}  # passages of each
        self._words: list[_Words] = []
        self._read = set[str]()  # all words of all of them

    @property
    def all(self) -> tuple[Evidence, ...]:
        return tuple(self._all)

    def new(self, hits: Iterable[Hit]) -> tuple[Hit, ...]:
        """The hits that are not in it yet, in their order."""
        return tuple(hit for hit in hits if hit.chunk.id not in self._slots)

    def chosen(self, hits: Sequence[Hit], keep: int) -> tuple[Hit, ...]:
        """Of hits that come best first: those of the first ``keep`` that are in it already, and behind them as many new ones as
        the rest of the first ``keep``, in the order in which ``add`` would take them."""
        first = hits[:keep]
        trial = EvidenceSet(self._per_document)
        trial._all, trial._words = list(self._all), list(self._words)
        trial._slots, trial._documents, trial._read = dict(self._slots), dict(self._documents), set(self._read)
        added = trial.add(in_order(hits), len(self.new(first)), 0)
        return (*(hit for hit in first if hit.chunk.id in self._slots), *(e.hit for e in added))

    def add(self, found: Iterable[Ranked], keep: int, round_number: int) -> tuple[Evidence, ...]:
        """Appends the best ``keep`` of what is new (``found`` comes best first) and returns them, with their slots. What is
        there already, and is found again at a better place, has that place from now on.

        Passages of a document that already has its share, and near-duplicates of what is there, come after all others: they
        fill up, but crowd nothing out.
        """
        before = len(self._all)
        placed: list[int] = []  # chunks, in their order
        over: list[tuple[Ranked, _Words]] = []
        documents = dict(self._documents)
        for each in found:
            if len(self._all) == before + keep:
                break
            chunk = each.hit.chunk
            if chunk.id not in self._slots:
                own = frozenset(chunk.text.casefold().split())
                count = documents.get(chunk.doc_id, 0)
                documents[chunk.doc_id] = count + 1
                if count >= self._per_document or self._has_like(own):
                    over.append((each, own))
                    continue
                self._append(each, own, round_number)
            placed.append(chunk.id)
        for each, own in over[: before + keep - len(self._all)]:
            self._append(each, own, round_number)
            placed.append(each.hit.chunk.id)
        for rank, chunk_id in enumerate(placed):
            slot = self._slots[chunk_id]
            self._place[slot] = min((rank, round_number), self._place.get(slot, (rank, round_number)))
        return tuple(self._all[before:])

    def _append(self, found: Ranked, words: _Words, round_number: int) -> None:
        slot, doc_id = f"E{len(self._all) + 1}", found.hit.chunk.doc_id
        self._all.append(Evidence(slot, found.hit, found.score, round_number, found.gain))
        self._words.append(words)
        self._read |= words
        self._slots[found.hit.chunk.id] = slot
        self._documents[doc_id] = self._documents.get(doc_id, 0) + 1

    def _has_like(self, own: _Words) -> bool:
        """Whether a passage is one of these in other clothes: of all words of the two, nearly all are in both."""
        size = len(own)
        known = len(own & self._read)
        for words in self._words:
            both = size + len(words)
            most = min(known, len(words))  # that the two can share: for most pairs it is too little, and saves the look
            if most >= _SAME * (both - most) and (shared := len(own & words)) >= _SAME * (both - shared):
                return True
        return False

    def best(self, count: int) -> tuple[Evidence, ...]:
        """The ``count`` best over all rounds, best first.

        Scores of different rounds do not compare (each is relative to its own candidates), so that the rounds take turns
        by rank; of equals the earlier round goes first.
        """
        return tuple(sorted(self._all, key=lambda e: self._place[e.slot])[:count])
