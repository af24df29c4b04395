"""Where documents disagree: sentences about what is asked that say the same but for one value, each in another document.

No model is asked. A pair counts where both sentences have the same words of the question, name the same things, and differ in
one number of the same unit, one date, one name, or a negation, of the kind that the question asks for. Two statements that may
both be true (of other subjects, other years, other versions) are no conflict.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from assay.features import NEGATION, names_in
from assay.inert import commands
from assay.sentences import Span, sentences
from assay.text import content_terms, names, normalise, terms
from assay.types import Evidence
from assay.values import Parsed, comparable, same, values_of

Kind = Literal["number", "date", "name", "negation"]

# Share of two sentences' words, their values left out, that both have; more where nothing measurable differs.
ALIKE, ALIKE_NAMES = 0.6, 0.75
# Share of the question's words that each sentence has, under its title.
ASKED = 0.5
MOST_CHARS, MOST_SIDES, MOST_CONFLICTS = 500, 4, 2
_LISTING = ("```", "~~~", "|", "<")
_SUFFIXES = frozenset("inc corp ltd llc gmbh plc co ag".split())
_ONE_OF_MANY = re.compile(r"\s*(?:,[^,]*,)?\s*(?:is|was|are|were)\s+(?:an?|one|some|another|also)\b", re.IGNORECASE)
# The first that a question matches says what it may be asking for.
_ASKED_FOR: tuple[tuple[str, tuple[Kind, ...]], ...] = (
    (r"\bhow (?:many|much|long|old|far|big|large|tall|high|often|fast|soon|deep|wide|heavy)\b", ("number",)),
    (r"\b(?:what|which) (?:year|date|day|month)\b", ("date",)),
    (r"\bwhen\b", ("date", "number")),
    (r"\b(?:who|whom|whose|where)\b", ("name",)),
    (r"\b(?:what|which)\b", ("number", "date", "name")),
    (r"^(?:is|are|was|were|do|does|did|can|could|may|must|should|will|has|have)\b", ("negation", "number", "date")),
    (r"\b(?:how|why)\b", ()),
    (r"", ("number", "date")),
)


@dataclass(frozen=True, slots=True)
class Side:
    """One document's sentence: ``span`` is its place in the passage's text, ``value`` what the others say otherwise."""

    evidence: Evidence
    span: Span
    text: str
    value: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Sides of different documents, the best evidence first; no two of them say the same."""

    kind: Kind
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    side: Side
    covered: frozenset[str]
    frame: frozenset[str]
    known: frozenset[str]
    names: tuple[tuple[str, frozenset[str]], ...]
    parsed: Parsed
    negated: bool


def find(question: str, evidence: Sequence[Evidence]) -> tuple[Conflict, ...]:
    """The conflicts among the evidence (best first) that bear on the question, at most ``MOST_CONFLICTS``."""
    if len({e.hit.chunk.doc_id for e in evidence}) < 2 or not (kinds := _asked_kinds(question)):
        return ()
    asked, named = frozenset(content_terms(question)), frozenset(names(question))
    read = [each for e in evidence for each in _sentences(e, asked)] if asked else []
    found: list[Conflict] = []
    used: set[int] = set()
    for n, first in enumerate(read):
        if n in used:
            continue
        sides, kind = [first.side], None
        for m, other in enumerate(read[n + 1 :], n + 1):
            if m in used or len(sides) == MOST_SIDES:
                continue
            pair = _differ(first, other, named, kinds)
            if pair is None or (kind is not None and pair[0] != kind):
                continue
            kind, ours, theirs = pair
            sides[0] = Side(first.side.evidence, first.side.span, first.side.text, ours)
            if all(_plain(theirs) != _plain(side.value) for side in sides):
                sides.append(Side(other.side.evidence, other.side.span, other.side.text, theirs))
            used.add(m)
        if kind is not None:
            found.append(Conflict(kind, tuple(sides)))
    return tuple(found[:MOST_CONFLICTS])


def _asked_kinds(question: str) -> frozenset[Kind]:
    asked = normalise(question).strip()
    return frozenset(next(kinds for pattern, kinds in _ASKED_FOR if re.search(pattern, asked)))


def _sentences(e: Evidence, asked: frozenset[str]) -> list[_Read]:
    """Those that are about what is asked."""
    chunk = e.hit.chunk
    if chunk.hidden:
        return []
    context = terms(" ".join((chunk.title, *chunk.heading)))
    kept: list[_Read] = []
    for start, end in sentences(chunk.text):
        text = chunk.text[start:end]
        if len(text) > MOST_CHARS or text.startswith(_LISTING) or text.endswith("?"):
            continue
        known = frozenset((*terms(text), *context))
        covered = asked & known
        if len(covered) < max(min(2, len(asked)), ASKED * len(asked)) or commands(text):
            continue
        parsed = values_of(text)
        frame = frozenset(content_terms(parsed.rest))
        own = tuple(_names(parsed.rest))
        kept.append(_Read(Side(e, (start, end), text, ""), covered, frame, known, own, parsed, _denies(text)))
    return kept


def _names(text: str) -> list[tuple[str, frozenset[str]]]:
    """Runs of capitalised words with their terms. A word that only begins the sentence is none."""
    found: list[tuple[str, frozenset[str]]] = []
    for run in names_in(text):
        own = frozenset(content_terms(run)) - _SUFFIXES
        if own and not (text.startswith(run) and " " not in run and not run.isupper()):
            found.append((run, own))
    return found


def _denies(text: str) -> bool:
    return NEGATION.search(text) is not None


def _differ(a: _Read, b: _Read, named: frozenset[str], kinds: frozenset[Kind]) -> tuple[Kind, str, str] | None:
    """Kind and the two values, where the sentences gainsay each other. ``named``: what the question names, which both must hold
    where they do not name the very same."""
    if a.side.evidence.hit.chunk.doc_id == b.side.evidence.hit.chunk.doc_id or a.covered != b.covered:
        return None
    if a.parsed.opaque != b.parsed.opaque:
        return None
    alike = all(own <= b.known for _, own in a.names) and all(own <= a.known for _, own in b.names)
    if not alike and not named <= a.covered:
        return None
    only_a = [v for v in a.parsed.values if not any(same(v, w) for w in b.parsed.values)]
    only_b = [w for w in b.parsed.values if not any(same(v, w) for v in a.parsed.values)]
    strange_a = [(run, own) for run, own in a.names if not own & b.known]
    strange_b = [(run, own) for run, own in b.names if not own & a.known]
    if a.negated == b.negated and not strange_a and not strange_b and len(only_a) == len(only_b) == 1:
        v, w = only_a[0], only_b[0]
        if v.kind in kinds and comparable(v, w) and _alike(a.frame, b.frame) >= ALIKE:
            return v.kind, v.text, w.text
    if only_a or only_b:
        return None
    if a.negated != b.negated:
        told = "negation" in kinds and not strange_a and not strange_b and _alike(a.frame, b.frame) >= ALIKE_NAMES
        return ("negation", *(("no", "yes") if a.negated else ("yes", "no"))) if told else None
    if "name" in kinds and len(strange_a) == len(strange_b) == 1:
        (ours, own), (theirs, other) = strange_a[0], strange_b[0]
        if _alike(a.frame - own, b.frame - other) >= ALIKE_NAMES and not _of_many(a, ours) and not _of_many(b, theirs):
            return "name", ours, theirs
    return None


def _alike(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / (len(a | b) or 1)


def _of_many(read: _Read, name: str) -> bool:
    """Whether the name is the sentence's subject, of which there may be many: it is in the title, or "is a"."""
    chunk = read.side.evidence.hit.chunk
    text = read.side.text
    after = text[text.find(name) + len(name) :]
    titled = frozenset(terms(" ".join((chunk.title, *chunk.heading)))) & frozenset(content_terms(name))
    return bool(titled) or _ONE_OF_MANY.match(after) is not None


def _plain(text: str) -> str:
    return " ".join(terms(text))
