"""Nothing unverified is shown: each drafted sentence is held against the passages that it cites, re-cited or dropped.

A sentence's support is the share of its content words that stand in the quote which it cites, and nothing where a number, a
name or a negation is not the quote's; a verbatim quote has all of it.
"""

import itertools
import re
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache

from assay.config import SupportConfig
from assay.inert import headings, stated
from assay.quotations import quotations
from assay.schemas import Citation
from assay.sentences import Span
from assay.support import measured
from assay.text import UNSPACED, content_terms, sentences, terms
from assay.types import Chunk, Draft, Evidence, Verified

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEGATION = re.compile(
    r"\b(?:not?|never|none|nobody|nothing|neither|nor|cannot|without)\b|n['\u2019]t\b", re.IGNORECASE
)
_QUOTE_TERMS = 3
# Of scripts with spaces between words, but for those that join small words to the next one (Hebrew, Arabic).
_WORD = re.compile(rf"[^\W{UNSPACED}\u0590-\u06ff]{{2}}")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_STOPS = frozenset(".!?…。！？؟।\"'”’»)")


def coverage(claim: str, passage: str) -> float:
    """Share of the claim's content words (all its words where it has none) that stand in the passage, in [0, 1]."""
    wanted = set(content_terms(claim)) or set(terms(claim))
    return len(wanted & set(terms(passage))) / len(wanted) if wanted else 0.0


def contradicts(claim: str, quote: str) -> bool:
    """Whether the claim has a number or a name that the quote lacks, or only one of the two has a negation.

    Words alone would let "port 9999" stand on a source that says 7441, and "does support" on "does not support".
    """
    return _strange(claim, quote) or _turned(claim, quote)


def _strange(claim: str, quote: str) -> bool:
    numbers = set(_NUMBER.findall(claim)) - set(_NUMBER.findall(quote))
    words = claim.split()
    # The first word has its first capital anyway.
    named = [w for n, w in enumerate(words) if w[:1].isupper() and (n or any(map(str.isupper, w[1:])))]
    known = set(terms(quote))
    return bool(numbers) or any((stems := set(terms(word))) and not stems <= known for word in named)


def _turned(claim: str, quote: str) -> bool:
    return bool(_NEGATION.search(claim)) != bool(_NEGATION.search(quote))


def support(claim: str, quote: str, context: str = "") -> float:
    """How far the quote, under its title and headings (``context``), bears the claim, in [0, 1]: its words' coverage, and
    nothing where it contradicts it."""
    read = f"{context} {quote}"
    return 0.0 if _strange(claim, read) or _turned(claim, quote) else coverage(claim, read)


def quoted(text: str) -> list[str]:
    """The phrases that stand between quotation marks, of three words or more."""
    return [phrase for phrase in quotations(text) if len(terms(phrase)) >= _QUOTE_TERMS]


def places(phrase: str, text: str) -> Iterator[Span]:
    """Where the phrase stands in the text, but for line breaks and the stop before its closing mark; not within a word."""
    words = " ".join(phrase.split()).rstrip(".,;:!? ")
    flat, offsets = _flat(text)
    start = flat.find(words) if words else -1
    while start >= 0:
        end = start + len(words)
        if not (_in_word(flat[start - 1 : start + 1]) or _in_word(flat[end - 1 : end + 1])):
            yield offsets[start], offsets[end - 1] + 1
        start = flat.find(words, start + 1)


@lru_cache(maxsize=256)
def _flat(text: str) -> tuple[str, Sequence[int]]:
    """The text with single spaces, and where each character of it stood."""
    kept = [found.span() for found in re.finditer(r"\S+", text)]
    offsets = [at for start, end in kept for at in range(start, end + 1)]
    return " ".join(text[start:end] for start, end in kept), offsets


def _in_word(two: str) -> bool:
    return _WORD.fullmatch(two) is not None


def best_quote(claim: str, chunk: Chunk) -> tuple[float, tuple[int, int]]:
    """Support and span, in the chunk's text, of the sentence, or two in a row, that bear most of the claim. A passage that
    does not hold what the claim quotes bears nothing."""
    alone = sentences(chunk.text) or [(0, len(chunk.text))]
    ordered = {*sentences(chunk.text)} - {*stated(chunk.text)}  # an order to a model is evidence of nothing
    quotes = [_source(phrase, chunk.text, alone, ordered) for phrase in quoted(claim)]
    if None in quotes:
        return 0.0, alone[0]
    context = " ".join(headings(chunk.title, *chunk.heading))
    # Two in a row are one statement only where both are prose: a list or a table would lend its words to its neighbours.
    prose = [chunk.text[end - 1] in _STOPS and chunk.text[start].isalnum() for start, end in alone]
    pairs = [
        (a[0], b[1])
        for (a, b), whole in zip(itertools.pairwise(alone), itertools.pairwise(prose), strict=True)
        if all(whole) and not {a, b} & ordered
    ]
    # A question says nothing; the one before its answer says what the answer is about.
    saying = [span for span in (*alone, *pairs, *filter(None, quotes)) if chunk.text[span[1] - 1] not in "?？؟"]
    spans = [span for span in saying if span not in ordered]
    rated = [(support(claim, chunk.text[slice(*span)], context), span) for span in spans] or [(0.0, alone[0])]
    return max(rated, key=lambda r: (r[0], r[1][0] - r[1][1]))


def _source(phrase: str, text: str, alone: Sequence[Span], ordered: Set[Span]) -> Span | None:
    """The sentences that a quote is from, of which none is an order. What is in a comment, or goes over one, is from none."""
    unread = [found.span() for found in _COMMENT.finditer(text)]
    for start, end in places(phrase, text):
        met = [span for span in alone if span[0] < end and start < span[1]]
        hidden = any(first < end and start < last for first, last in unread) or any(span in ordered for span in met)
        if met and met[0][0] <= start and end <= met[-1][1] and not hidden:
            return met[0][0], met[-1][1]
    return None


class Verifier:
    """Verifies the sentences of one answer, in order. A document keeps the number of its first citation."""

    def __init__(
        self, evidence: Sequence[Evidence], min_support: float, support: SupportConfig = SupportConfig()
    ) -> None:
        """``support``: what makes a probability of how a quote stands to a claim."""
        self._support = support
        self._evidence: dict[str, Evidence] = {e.slot: e for e in evidence}
        self._min_support = min_support
        self.numbers: dict[str, int] = {}  # of the documents, by their first citation

    def add(self, evidence: Sequence[Evidence]) -> None:
        """What was found since: a sentence may rest on it too."""
        self._evidence |= {e.slot: e for e in evidence}

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
        citations = tuple(self._cite(slot, span, borne) for slot, (borne, span) in slots.items())
        return Verified(draft.text, max(borne for borne, _ in slots.values()), citations)

    def _bearing(self, text: str, cited: Sequence[str]) -> dict[str, tuple[float, tuple[int, int]]]:
        """The cited slots whose quote bears the text well enough; where none does, the best other one (it is re-cited)."""
        quotes = {slot: self._borne(text, e.hit.chunk) for slot, e in self._evidence.items()}
        good = {slot: quotes[slot] for slot in cited if quotes[slot][0] >= self._min_support}
        if good or not quotes:
            return good
        slot = max(quotes, key=lambda s: quotes[s][0])
        return {slot: quotes[slot]} if quotes[slot][0] >= self._min_support else {}

    def number(self, doc_id: str) -> int:
        return self.numbers.setdefault(doc_id, len(self.numbers) + 1)

    def _borne(self, text: str, chunk: Chunk) -> tuple[float, tuple[int, int]]:
        """How likely the passage's best quote bears the text, and where it stands; 0 for one that contradicts it."""
        share, span = best_quote(text, chunk)
        if share == 1 and any(places(text, chunk.text[slice(*span)])):
            return 1.0, span
        context = " ".join(headings(chunk.title, *chunk.heading))
        found = measured(text, chunk.text[slice(*span)], context)
        return (self._support.probability(found) if share > 0 else 0.0), span

    def is_heading(self, draft: Draft, question: str) -> bool:
        """Whether a table's header only names what the question or the evidence is about."""
        read = " ".join([question, *(e.hit.chunk.text for e in self._evidence.values())])
        return coverage(draft.text, read) >= self._min_support

    def _cite(self, slot: str, span: tuple[int, int], borne: float = 1.0) -> Citation:
        chunk = self._evidence[slot].hit.chunk
        return Citation(
            number=self.number(chunk.doc_id),
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
            support=borne,
            untrusted=chunk.untrusted,
            hidden=chunk.hidden,
        )
