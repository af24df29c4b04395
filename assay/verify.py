"""Nothing unverified is shown: each drafted sentence is held against the passages that it cites, re-cited or dropped.

A sentence's support is the share of its content words that stand in the cited passage; a verbatim quote has all of them.
"""

import re
from collections.abc import Mapping, Sequence

from assay.schemas import Citation
from assay.text import content_terms, sentences, terms
from assay.types import Chunk, Draft, Evidence, Verified

# [E1], [1], [1, 2], [E1-E3], [[3]], [ 4 ] and the full-width brackets that some models write.
_MARKER = re.compile(r"[\[【]{1,2}\s*(E?\d+(?:\s*(?:,|;|-|–)\s*E?\d+)*)\s*[\]】]{1,2}")
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


def best_quote(claim: str, chunk: Chunk) -> tuple[int, int]:
    """Span, in the chunk's text, of its sentence that covers most of the claim; the shortest of equals."""
    spans = sentences(chunk.text) or [(0, len(chunk.text))]
    return max(spans, key=lambda span: (coverage(claim, chunk.text[slice(*span)]), span[0] - span[1]))


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
        support, slots = self._supported(draft.text, cited)
        if support < self._min_support:
            return None
        spans = {slot: best_quote(draft.text, self._evidence[slot].hit.chunk) for slot in slots}
        return Verified(draft.text, support, tuple(self._cite(slot, span) for slot, span in spans.items()))

    def _supported(self, text: str, cited: Sequence[str]) -> tuple[float, list[str]]:
        """The cited slots that support the text; where none does, the one that supports it best (it is re-cited)."""
        support = {slot: coverage(text, e.hit.chunk.text) for slot, e in self._evidence.items()}
        good = [slot for slot in cited if support[slot] >= self._min_support]
        if not good and support:
            good = [max(support, key=lambda slot: support[slot])]
        return max((support[slot] for slot in good), default=0.0), good

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
