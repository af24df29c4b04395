"""Nothing unverified is shown: each drafted sentence is held against the passages that it cites, re-cited or dropped.

A sentence's support is the share of its content words that stand in the quote which it cites, and nothing where a number, a
name or a negation is not the quote's; a verbatim quote has all of it.
"""

import itertools
import re
from collections.abc import Mapping, Sequence

from assay.schemas import Citation
from assay.text import content_terms, sentences, terms
from assay.types import Chunk, Draft, Evidence, Verified

# [E1], [1], [1, 2], [E1-E3], [[3]], [ 4 ] and the full-width brackets that some models write.
_MARKER = re.compile(r"[\[【]{1,2}\s*(E?\d+(?:\s*(?:,|;|-|–)\s*E?\d+)*)\s*[\]】]{1,2}")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEGATION = re.compile(
    r"\b(?:not?|never|none|nobody|nothing|neither|nor|cannot|without)\b|n['\u2019]t\b", re.IGNORECASE
)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def _numbers(body: str) -> list[int]:
    found: list[int] = []
    for part in re.split(r"[,;]", body):
        ends = [int(n) for n in re.findall(r"\d+", part)]
        found += range(ends[0], min(ends[-1], ends[0] + 50) + 1) if len(ends) == 2 else ends
    return found


def read_markers(text: str, slots: Sequence[str]) -> tuple[str, tuple[str, ...], int]:
    """The text without its citation markers, the slots they name in order, and how many named no slot.

    Lists and ranges are read; markers inside code are left alone.
    """
    code = [match.span() for match in _CODE.finditer(text)]
    kept: list[str] = []
    unknown = 0

    def take(match: re.Match[str]) -> str:
        nonlocal unknown
        if any(start <= match.start() < end for start, end in code):
            return match.group()
        for number in _numbers(match.group(1)):
            if f"E{number}" in slots:
                kept.append(f"E{number}")
            else:
                unknown += 1
        return ""

    bare = _MARKER.sub(take, text)
    return re.sub(r"\s+([.,;:!?])", r"\1", bare).strip(), tuple(dict.fromkeys(kept)), unknown


def coverage(claim: str, passage: str) -> float:
    """Share of the claim's content words (all its words where it has none) that stand in the passage, in [0, 1]."""
    wanted = set(content_terms(claim)) or set(terms(claim))
    return len(wanted & set(terms(passage))) / len(wanted) if wanted else 0.0


def contradicts(claim: str, quote: str) -> bool:
    """Whether the claim has a number or a name that the quote lacks, or only one of the two has a negation.

    Words alone would let "port 9999" stand on a source that says 7441, and "does support" on "does not support".
    """
    numbers = set(_NUMBER.findall(claim)) - set(_NUMBER.findall(quote))
    named = [word for word in claim.split()[1:] if word[:1].isupper()]  # the first word has its capital anyway
    known = set(terms(quote))
    strange = [word for word in named if (stems := set(terms(word))) and not stems <= known]
    return bool(numbers or strange) or bool(_NEGATION.search(claim)) != bool(_NEGATION.search(quote))


def support(claim: str, quote: str) -> float:
    """How far the quote bears the claim, in [0, 1]: its words' coverage, and nothing where it contradicts it."""
    return 0.0 if contradicts(claim, quote) else coverage(claim, quote)


def best_quote(claim: str, chunk: Chunk) -> tuple[float, tuple[int, int]]:
    """Support and span, in the chunk's text, of the sentence, or two in a row, that bear most of the claim."""
    alone = sentences(chunk.text) or [(0, len(chunk.text))]
    pairs = [(start, end) for (start, _), (_, end) in itertools.pairwise(alone)]
    rated = [(support(claim, chunk.text[slice(*span)]), span) for span in (*alone, *pairs)]
    return max(rated, key=lambda r: (r[0], r[1][0] - r[1][1]))


class Verifier:
    """Verifies the sentences of one answer, in order. A document keeps the number of its first citation."""

    def __init__(self, evidence: Sequence[Evidence], min_support: float) -> None:
        self._evidence: Mapping[str, Evidence] = {e.slot: e for e in evidence}
        self._min_support = min_support
        self._number: dict[str, int] = {}

    def verify(self, draft: Draft) -> Verified | None:
        """None when no passage supports the sentence well enough: it is then not shown."""
        cited = [slot for slot in draft.slots if slot in self._evidence]
        if draft.quote_span is not None and cited:
            chunk = self._evidence[cited[0]].hit.chunk
            if chunk.text[slice(*draft.quote_span)] == draft.text:
                return Verified(draft.text, 1.0, (self._cite(cited[0], draft.quote_span),))
        slots = self._bearing(draft.text, cited)
        if not slots:
            return None
        citations = tuple(self._cite(slot, span) for slot, (_, span) in slots.items())
        return Verified(draft.text, max(borne for borne, _ in slots.values()), citations)

    def _bearing(self, text: str, cited: Sequence[str]) -> dict[str, tuple[float, tuple[int, int]]]:
        """The cited slots whose quote bears the text well enough; where none does, the best other one (it is re-cited)."""
        quotes = {slot: best_quote(text, e.hit.chunk) for slot, e in self._evidence.items()}
        good = {slot: quotes[slot] for slot in cited if quotes[slot][0] >= self._min_support}
        if good or not quotes:
            return good
        slot = max(quotes, key=lambda s: quotes[s][0])
        return {slot: quotes[slot]} if quotes[slot][0] >= self._min_support else {}

    def _cite(self, slot: str, span: tuple[int, int]) -> Citation:
        chunk = self._evidence[slot].hit.chunk
        number = self._number.setdefault(chunk.doc_id, len(self._number) + 1)
        return Citation(
            number=number,
            slot=slot,
            doc_id=chunk.doc_id,
            chunk_id=chunk.id,
            bucket=chunk.bucket,
            title=chunk.title,
            uri=chunk.uri,
            page=chunk.page,
            heading=list(chunk.heading),
            span=(chunk.start + span[0], chunk.start + span[1]),
            quote=chunk.text[slice(*span)],
        )
