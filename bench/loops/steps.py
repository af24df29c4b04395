"""The stages of one question, as fakes that cost next to nothing: what is left of the time is the loop's own.

Every system gets through the same: a plan with two parts; three searches side by side; reranking; a grade that asks for more; a
search for the follow-up; reranking of what is new; a grade that has enough; an answer of three sentences, one at a time; each
held against the passage that it cites.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

QUESTION = "Which pumps of the north plant were replaced, and what do the new ones move?"
PARTS = ("Which pumps of the north plant were replaced?", "What do the new pumps move?")
FOLLOW_UP = "north plant pumps replaced by Borealis"
KEEP, BEST, SENTENCES = 10, 5, 3
EVIDENCE = 17  # of two rounds: what the follow-up finds and the first round did not keep
_WORDS = """valve engine north plant pump water pressure steel winter order service line record meter house bolt gauge filter
motor shaft seal panel tank basin sluice crew shift ledger repair autumn spring summer""".split()


@dataclass(frozen=True, slots=True)
class Passage:
    id: int
    title: str
    text: str


def _text(n: int) -> str:
    def words(start: int, count: int) -> str:
        return " ".join(_WORDS[(start * 7 + k * (n + 3)) % len(_WORDS)] for k in range(count))

    sentences = (f"Record {n}{letter} of the {words(n + at, 12)} was kept." for at, letter in enumerate("abcdef"))
    return f"The north plant replaced the pumps of the {words(n, 3)}. " + " ".join(sentences)


POOL = tuple(Passage(n, f"Log {n}", _text(n)) for n in range(1, 41))
_FOUND = {
    QUESTION: POOL[:10],
    PARTS[0]: POOL[5:15],
    PARTS[1]: POOL[10:20],
    FOLLOW_UP: POOL[15:25],
}


async def plan(question: str) -> tuple[str, ...]:
    """The queries of the first round."""
    await asyncio.sleep(0)
    return (question, *PARTS)


async def search(query: str) -> Sequence[Passage]:
    await asyncio.sleep(0)
    return _FOUND[query]


async def rerank(passages: Sequence[Passage]) -> list[Passage]:
    await asyncio.sleep(0)
    return sorted(passages, key=lambda p: -(p.id % 7))


async def grade(round_number: int) -> str | None:
    """The query of the next round; None where the evidence is enough."""
    await asyncio.sleep(0)
    return FOLLOW_UP if round_number == 1 else None


async def generate(evidence: Sequence[Passage]) -> AsyncIterator[tuple[str, Passage]]:
    """Sentences and what they cite."""
    for passage in evidence[:SENTENCES]:
        await asyncio.sleep(0)
        yield passage.text[: passage.text.index(". ") + 1], passage


def verify(sentence: str, passage: Passage) -> bool:
    return sentence in passage.text


def merged(lists: Sequence[Sequence[Passage]], known: Sequence[Passage]) -> list[Passage]:
    """Each new passage once, the lists in turn."""
    seen, found = {p.id for p in known}, list[Passage]()
    for rank in range(max(map(len, lists), default=0)):
        for passage in (each[rank] for each in lists if rank < len(each)):
            if passage.id not in seen:
                seen.add(passage.id)
                found.append(passage)
    return found


@dataclass(frozen=True, slots=True)
class Answered:
    """What a system must come back with, or its times count for nothing."""

    rounds: int
    evidence: int
    sentences: tuple[str, ...]
    cited: tuple[int, ...]

    def fault(self) -> str | None:
        if (self.rounds, self.evidence) != (2, EVIDENCE):
            return f"{self.rounds} rounds with {self.evidence} passages"
        if len(self.sentences) != SENTENCES or len(self.cited) != SENTENCES:
            return f"{len(self.sentences)} sentences with {len(self.cited)} citations"
        texts = {p.id: p.text for p in POOL}
        held = all(s in texts[n] for s, n in zip(self.sentences, self.cited, strict=True))
        return None if held else "a sentence does not stand where it says"
