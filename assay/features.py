"""What can be measured of a question and its evidence without asking a model to judge: the words, names and titles that the
evidence covers, what its passages say of each other, and by how much they make the question more likely.

That a passage names the title of another one, and both together have more of the question's words than any by itself, says
most of whether a question of two steps can be answered: more than all likelihoods together (docs/calibration.md).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from assay.inert import evident, headings, stated
from assay.text import content_terms, names, normalise, terms
from assay.types import Chunk, Evidence

_BRACKETS = re.compile(r"\s*\([^()]*\)\s*$")
_NAME = r"(?:[A-Z][\w'’.-]*|\d[\w.-]*)"
_PHRASE = re.compile(rf"{_NAME}(?:\s+(?:(?:of|the|and|for|in|de|von|&)\s+)?{_NAME})*")
# What ranks a name of the evidence beside the question's words in its sentence; each worth less than one word of few.
_IN_ASKED, _PER_RANK, _LONGER = 0.3, 0.05, 0.1
_FLOOR = -8.0  # nats: below that all tokens are equally unexplained
NEGATION = re.compile(r"\b(?:not?|never|none|nobody|nothing|neither|nor|cannot|without)\b|n['’]t\b", re.IGNORECASE)
# What a rule forbids ("shall not", "without consent") it does not deny: that is what it says.
_RULE = re.compile(r"\b(?:shall|may|must|should|will)\s+not\b|\bwithout\b", re.IGNORECASE)
_NUMBER = (
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|dozens?|hundreds?|thousands?|millions?|billions?|half)\b"
)
_DATE = (
    r"\d|\b(?:century|january|february|march|april|may|june|july|august|september|october|november|december|\w+day)\b"
)
_KINDS = tuple(
    (kind, re.compile(answer, flags))
    for kinds, answer, flags in (
        (("how many", "how much", "how long", "how old", "how far"), _NUMBER, re.IGNORECASE),
        (("when", "what year", "which year", "what date"), _DATE, re.IGNORECASE),
        (("who", "where"), "[A-Z]", 0),
    )
    for kind in kinds
)
_MOST_TERMS = 40  # a longer sentence (a clause of a contract, a table) may deny something else than what is asked
_CODE = ("```", "~~~")
_MOST_WORDS = 8  # a longer title is a sentence, and nobody names it whole


@dataclass(frozen=True, slots=True)
class _Read:
    """A passage as the features see it, without what it orders a model to do. ``title``: folded, as it is looked for in others;
    "" where it names nothing."""

    doc_id: str
    title: str
    title_terms: tuple[str, ...]
    text: str
    terms: frozenset[str]


@lru_cache(maxsize=512)
def _read(chunk: Chunk) -> _Read:
    title = _BRACKETS.sub("", chunk.title)
    named, text = is_name(title), evident(chunk.text)
    return _Read(
        chunk.doc_id,
        normalise(title).strip() if named else "",
        tuple(terms(title)) if named else (),
        normalise(text),
        frozenset(terms(" ".join((*headings(chunk.title, *chunk.heading), text)))),
    )


def is_name(title: str) -> bool:
    """Whether a title may be what others call its document. A long one is a sentence."""
    words = content_terms(title)  # also of scripts without spaces
    return len(words) > 0 and max(len(words), len(title.split())) <= _MOST_WORDS


def words_of(chunk: Chunk) -> frozenset[str]:
    """The terms of what a passage, its title and its headings say."""
    return _read(chunk).terms


def names_in(text: str) -> Iterator[str]:
    """Runs of capitalised words and numbers, as they are written."""
    return (match.group().strip(" .,'’") for match in _PHRASE.finditer(text))


def phrases(question: str) -> tuple[tuple[str, ...], ...]:
    """The question's names as the terms of each: runs of capitalised words and numbers, function words between them."""
    found = (tuple(content_terms(match.group())) for match in _PHRASE.finditer(question))
    return tuple(dict.fromkeys(phrase for phrase in found if phrase))


def covered(wanted: frozenset[str], found: frozenset[str]) -> float:
    """Share of ``wanted`` in ``found``; a question without a content word has nothing that could be covered."""
    return len(wanted & found) / len(wanted) if wanted else 0.0


def of_evidence(question: str, evidence: Sequence[Evidence]) -> dict[str, float]:
    """The features by name; ``docs/calibration.md`` says what each is. Those that nothing measured are absent.

    Without a name in the question, all its content words count as names: they are all that says what it is about."""
    if not evidence:
        return {}
    read = [_read(e.hit.chunk) for e in evidence]
    words, asked = frozenset(content_terms(question)), terms(question)
    found = frozenset[str]().union(*(r.terms for r in read))
    title_asked = [_asked(r, normalise(question), frozenset(asked)) for r in read]
    links = [(a, b) for a in range(len(read)) for b in range(len(read)) if _names(read[a], read[b])]
    alone = max(covered(words, r.terms) for r in read)
    named, numbers = phrases(question), {term for term in asked if any(c.isdigit() for c in term)}
    compared = len({r.doc_id for r, is_asked in zip(read, title_asked, strict=True) if is_asked}) > 1
    measured = {
        "words": min(len(words), 20) / 10,
        "word_coverage": covered(words, found),
        "name_coverage": covered(frozenset(names(question)) or words, found),
        "phrase_coverage": sum(any(set(p) <= r.terms for r in read) for p in named) / len(named) if named else 1.0,
        "linked": float(bool(links)),
        "link_gain": max((covered(words, read[a].terms | read[b].terms) for a, b in links), default=alone) - alone,
        "numbers": float(numbers <= found),
        "two_coverage": covered(words, found) if compared else 0.0,
        "asked_links": float(any(title_asked[a] or title_asked[b] for a, b in links)),
        "bridge": float(any(title_asked[a] and not title_asked[b] for a, b in links)),
        **_of_sentences(question, words, evidence),
    }
    gains = [e.gain for e in evidence if e.gain is not None]
    similarities = [e.hit.similarity for e in evidence if e.hit.similarity is not None]
    if gains:
        best = max(gains, key=lambda gain: gain.mean)
        measured |= {"likelihood_gain": best.mean, "least_gain": max(min(best.each, default=best.mean), _FLOOR)}
        # What any passage explains, the evidence does not speak against.
        each = [gain.each for gain in gains if len(gain.each) == len(best.each)]
        measured["against"] = -sum(min(max(nats), 0.0) for nats in zip(*each, strict=True))
    if similarities:
        measured["similarity"] = max(similarities)
    return measured


def _of_sentences(question: str, words: frozenset[str], evidence: Sequence[Evidence]) -> dict[str, float]:
    """How the sentence that shares most with the question stands to it: an answer stands in one that shares much, more than
    the others, in the same order, denies nothing that the question does not, and has something of the kind asked for."""
    texts = [e.hit.chunk.text[slice(*span)] for e in evidence for span in stated(e.hit.chunk.text)]
    if not texts:
        return {}
    found = [terms(text) for text in texts]
    shares = [covered(words, frozenset(f)) for f in found]
    at = max(range(len(texts)), key=lambda i: shares[i])
    wanted = neighbours(terms(question))
    denied, denies = (bool(NEGATION.search(t)) for t in (question, texts[at]))
    everywhere = frozenset[tuple[str, str]]().union(*(neighbours(f) for f in found))
    like = zip(texts, shares, strict=True)
    return {
        "sentence_lead": shares[at] - max((s for i, s in enumerate(shares) if i != at), default=0.0),
        "pairs": len(wanted & everywhere) / len(wanted) if wanted else 0.0,
        "kind": float(_has_kind(question, texts[at])),
        "denied": float(denied and not denies),
        "no_denial": float(denied and not any(NEGATION.search(t) for t, s in like if 2 * s >= shares[at])),
        "denies": float(
            not denied and len(found[at]) <= _MOST_TERMS and bool(NEGATION.search(_RULE.sub(" ", texts[at])))
        ),
    }


def neighbours(found: Sequence[str]) -> frozenset[tuple[str, str]]:
    """The pairs of terms that stand next to each other."""
    return frozenset(pairwise(found))


def _has_kind(question: str, sentence: str) -> bool:
    """Whether a sentence has something of the kind that an English question asks for; True where no kind is known."""
    asked = normalise(question)
    return next((bool(answer.search(sentence)) for kind, answer in _KINDS if kind in asked), True)


def _asked(passage: _Read, question: str, asked: frozenset[str]) -> bool:
    """Whether the question names the passage's title, as it stands or by all its words."""
    return bool(passage.title) and (_stands(passage.title, question) or set(passage.title_terms) <= asked)


def _names(a: _Read, b: _Read) -> bool:
    return a.doc_id != b.doc_id and a.title != b.title and len(b.title) > 2 and _stands(b.title, a.text)


def _stands(title: str, text: str) -> bool:
    """Whether a title stands in a text as a word or a run of words."""
    at = text.find(title)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(title) : at + len(title) + 1]
        if not (before.isalnum() or after.isalnum()):
            return True
        at = text.find(title, at + 1)
    return False


def leads(question: str, evidence: Sequence[Evidence], most: int) -> dict[str, Evidence]:
    """Names that stand in the evidence, but neither in the question nor as a title of the evidence, as they are written, each
    with the passage that it stands in: what the evidence says beyond the question, and may have to be looked up. Those first
    that stand in a sentence with more of the question's words, in a passage that the question names, and in a better one
    (``evidence`` comes best first)."""
    asked, words = frozenset(terms(question)), frozenset(content_terms(question))
    read = [_read(e.hit.chunk) for e in evidence]
    titles = {r.title for r in read}
    found: dict[str, tuple[float, Evidence]] = {}
    for rank, (e, r) in enumerate(zip(evidence, read, strict=True)):
        worth = (_IN_ASKED if _asked(r, normalise(question), asked) else 0.0) - _PER_RANK * rank
        above = " ".join(headings(e.hit.chunk.title))
        for start, end in stated(e.hit.chunk.text):
            sentence = e.hit.chunk.text[start:end]
            share = covered(words, frozenset(terms(f"{above} {sentence}")))
            for name in _new_names(sentence, asked, titles):
                score = share + worth + (_LONGER if " " in name else 0.0)
                if name not in found or score > found[name][0]:
                    found[name] = score, e
    ordered = sorted(found.items(), key=lambda item: -item[1][0])[:most]
    return {name: e for name, (_, e) in ordered}


def _new_names(sentence: str, asked: frozenset[str], titles: set[str]) -> Iterator[str]:
    if sentence.startswith(_CODE):
        return
    for match in _PHRASE.finditer(sentence):
        name, content = match.group().strip(" .,'’"), content_terms(match.group())
        first_word = " " not in name and _begins(sentence[: match.start()])  # has its capital anyway
        known = set(content) <= asked or normalise(name) in titles
        if content and not known and not first_word and len(name) > 3 and any(c.isalpha() for c in name):
            yield name


def _begins(before: str) -> bool:
    """Whether what follows begins a sentence or a table's cell. Units that are not split hold several of them."""
    bare = before.rstrip(" \t\n*_`'\"“‘([>#-")
    return not bare or bare[-1] == "|" or (bare[-1] in ".!?" and bare[-5:-1].isalpha() and bare[-5:-1].islower())
