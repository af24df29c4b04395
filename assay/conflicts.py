"""Where documents disagree: sentences about what is asked that say the same but for one value, each in another document.

No model is asked. A pair counts where both sentences have the same words of the question, name the same things, and differ in
one number of the same unit, one date, one name, or a negation, of the kind that the question asks for. Two statements that may
both be true (of other subjects, other years, other versions) are no conflict.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from assay.features import NEGATION, names_in
from assay.inert import commands, headings
from assay.sentences import Span, sentences
from assay.text import content_terms, names, normalise, terms
from assay.types import Evidence
from assay.values import Parsed, Value, comparable, same, values_of

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
_ASKING: tuple[tuple[str, tuple[Kind, ...]], ...] = (
    (r"\bhow (?:many|much|long|old|far|big|large|tall|high|often|fast|soon|deep|wide|heavy)\b", ("number",)),
    (r"\b(?:what|which) (?:year|date|day|month)\b", ("date",)),
    (r"\bwhen\b", ("date", "number")),
    (r"\b(?:who|whom|whose|where)\b", ("name",)),
    (r"\b(?:what|which)\b", ("number", "date", "name")),
    (r"^(?:is|are|was|were|do|does|did|can|could|may|must|should|will|has|have)\b", ("negation", "number", "date")),
    (r"\b(?:how|why)\b", ()),
    (r"", ("number", "date")),
)
_ASKED_FOR = tuple((re.compile(pattern), frozenset(kinds)) for pattern, kinds in _ASKING)


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

    @property
    def negated(self) -> bool:
        return NEGATION.search(self.side.text) is not None

    @property
    def place(self) -> tuple[int, Span]:
        return self.side.evidence.hit.chunk.id, self.side.span


def find(
    question: str, evidence: Sequence[Evidence], rests_on: Mapping[int, Sequence[Span]] | None = None
) -> tuple[Conflict, ...]:
    """The conflicts among the evidence (best first) that bear on the question, at most ``MOST_CONFLICTS``. ``rests_on``: only
    those that one of these sentences has a side in, as spans of the passages' texts, by the passages' ids."""
    kinds, asked = _asked_kinds(question), frozenset(content_terms(question))
    if len({e.hit.chunk.doc_id for e in evidence}) < 2 or not kinds or not asked:
        return ()
    wanted = {e.hit.chunk.id: [(0, len(e.hit.chunk.text))] for e in evidence} if rests_on is None else rests_on
    first = [each for e in evidence for span in wanted.get(e.hit.chunk.id, ()) for each in _sentences(e, span, asked)]
    if not any(_may_differ(each, kinds) for each in first):
        return ()
    named = frozenset(names(question))
    read = first if rests_on is None else [each for e in evidence for each in _sentences(e, None, asked)]
    found: list[Conflict] = []
    used: set[tuple[int, Span]] = set()
    for anchor in first:
        if anchor.place in used:
            continue
        used.add(anchor.place)
        sides, kind = [anchor.side], None
        for other in read:
            if other.place in used or len(sides) == MOST_SIDES:
                continue
            pair = _differ(anchor, other, named, kinds)
            if pair is None or (kind is not None and pair[0] != kind):
                continue
            kind, ours, theirs = pair
            sides[0] = replace(anchor.side, value=ours)
            if all(_plain(theirs) != _plain(side.value) for side in sides):
                sides.append(replace(other.side, value=theirs))
            used.add(other.place)
        if kind is not None:
            order = {e.slot: rank for rank, e in enumerate(evidence)}
            found.append(Conflict(kind, tuple(sorted(sides, key=lambda side: order[side.evidence.slot]))))
    return tuple(found[:MOST_CONFLICTS])


def _may_differ(read: _Read, kinds: frozenset[Kind]) -> bool:
    """Whether it has anything that another sentence could say otherwise."""
    return (
        any(value.kind in kinds for value in read.parsed.values)
        or ("name" in kinds and bool(read.names))
        or "negation" in kinds
    )


def _asked_kinds(question: str) -> frozenset[Kind]:
    asked = normalise(question).strip()
    return next(kinds for pattern, kinds in _ASKED_FOR if pattern.search(asked))


def _sentences(e: Evidence, within: Span | None, asked: frozenset[str]) -> list[_Read]:
    """Those of a part of the passage (None: of all of it) that are about what is asked."""
    chunk = e.hit.chunk
    offset, until = within or (0, len(chunk.text))
    if chunk.hidden:
        return []
    context = terms(" ".join(headings(chunk.title, *chunk.heading)))
    kept: list[_Read] = []
    for start, end in sentences(chunk.text[offset:until]):
        start, end = start + offset, end + offset
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
        kept.append(_Read(Side(e, (start, end), text, ""), covered, frame, known, own, parsed))
    return kept


def _names(text: str) -> list[tuple[str, frozenset[str]]]:
    """Runs of capitalised words with their terms. A word that only begins the sentence is none."""
    found: list[tuple[str, frozenset[str]]] = []
    for run in names_in(text):
        own = frozenset(content_terms(run)) - _SUFFIXES
        if own and not (text.startswith(run) and " " not in run and not run.isupper()):
            found.append((run, own))
    return found


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
    only_a, only_b = _others(a.parsed, b.parsed), _others(b.parsed, a.parsed)
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


def _others(a: Parsed, b: Parsed) -> list[Value]:
    """What ``a`` says and ``b`` does not: the first two, for more say nothing more."""
    return list(islice((v for v in a.values if not any(same(v, w) for w in b.values)), 2))


def _alike(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / (len(a | b) or 1)


def _of_many(read: _Read, name: str) -> bool:
    """Whether the name is the sentence's subject, of which there may be many: it is in the title, or "is a"."""
    chunk = read.side.evidence.hit.chunk
    text = read.side.text
    after = text[text.find(name) + len(name) :]
    titled = frozenset(terms(" ".join(headings(chunk.title, *chunk.heading)))) & frozenset(content_terms(name))
    return bool(titled) or _ONE_OF_MANY.match(after) is not None


def _plain(text: str) -> str:
    return " ".join(terms(text))
