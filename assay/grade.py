"""The reranker's second job: is the evidence enough, is more needed, or must the user say more?

The probabilities come from measured features, since a small model's own yes or no is at chance: coverage of the question's
words and names by the evidence, likelihood gain of the question, and similarity. The weights are fitted on labelled data.
"""

import math
from collections.abc import Sequence

from assay.config import GradeConfig
from assay.text import content_terms, names, normalise, query_key, terms
from assay.types import Evidence, Grade, GradeRequest

# A question with fewer content words than this has nothing to search for; see ``_p_unclear``.
CLEAR_TERMS = 2


def _coverage(wanted: Sequence[str], found: set[str]) -> float:
    """Share of ``wanted`` in ``found``; a question without a content word has nothing that could be covered."""
    unique = set(wanted)
    return sum(term in found for term in unique) / len(unique) if unique else 0.0


def _stems(evidence: Sequence[Evidence]) -> set[str]:
    chunks = [e.hit.chunk for e in evidence]
    return {term for c in chunks for term in terms(" ".join((c.title, *c.heading, c.text)))}


def features(question: str, evidence: Sequence[Evidence]) -> dict[str, float]:
    """The measured features. ``likelihood_gain`` (nats per token) and ``similarity`` (cosine) are the best of any passage;
    where nothing measured them they are absent, and the logistic then rests on the others. Without a name in the
    question, all its content words count as names: they are all that says what it is about."""
    found, words = _stems(evidence), content_terms(question)
    measured = {
        "word_coverage": _coverage(words, found),
        "name_coverage": _coverage(names(question) or words, found),
    }
    gains = [e.gain for e in evidence if e.gain is not None]
    similarities = [e.hit.similarity for e in evidence if e.hit.similarity is not None]
    if gains:
        measured["likelihood_gain"] = max(gains)
    if similarities:
        measured["similarity"] = max(similarities)
    return measured


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _p_unclear(question: str) -> float:
    """How likely only the user can help: a question without content words ("what about it?") names nothing to search."""
    lacking = CLEAR_TERMS - len(set(content_terms(question)))
    return (0.05, 0.4, 0.9)[max(0, min(2, lacking))]


def follow_up(question: str, evidence: Sequence[Evidence], missing: Sequence[str]) -> str | None:
    """A query for what is not covered yet: the missing words beside the question's names; when every word is covered, the
    question's words within the best passage's own heading. None when that would only repeat the question."""
    named, content = set(names(question)), set(content_terms(question))
    if missing:
        wanted = [word for word in _words(question) if word in missing or named & set(terms(word))]
    elif evidence:
        best = evidence[0].hit.chunk
        wanted = [*(w for w in _words(question) if content & set(terms(w))), best.title, *best.heading[-1:]]
    else:
        return None
    query = " ".join(dict.fromkeys(wanted))
    return query if query_key(query) != query_key(question) else None


def uncovered(question: str, evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """The question's own words (as written) whose stems stand in no evidence."""
    found = _stems(evidence)
    content = set(content_terms(question))
    return tuple(w for w in _words(question) if (stems := set(terms(w))) & content and not stems & found)


def _words(question: str) -> list[str]:
    """The question's words as they are written, without the punctuation around them."""
    return [stripped for word in question.split() if (stripped := word.strip("?!.,;:'\"()"))]


class FeatureGrader:
    """The ``grade`` of ``ports.Reranker``: a logistic over the features, split by whether the question itself is clear."""

    def __init__(self, config: GradeConfig) -> None:
        self._config = config

    async def grade(self, request: GradeRequest) -> Grade:
        ordered = sorted(request.evidence, key=lambda e: -e.score)
        measured = features(request.question, ordered)
        p_enough = self._p_enough(measured) if ordered else 0.0
        p_clarify = (1 - p_enough) * _p_unclear(normalise(request.question))
        missing = uncovered(request.question, ordered)
        return Grade(
            p_enough=p_enough,
            p_more=1 - p_enough - p_clarify,
            p_clarify=p_clarify,
            features=measured,
            missing=missing,
            follow_up=follow_up(request.question, ordered, missing),
        )

    def _p_enough(self, measured: dict[str, float]) -> float:
        means = self._config.means
        total = self._config.intercept
        for name, weight in self._config.weights.items():
            total += weight * (measured.get(name, means[name]) - means[name])
        return _logistic(total)
