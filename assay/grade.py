"""The reranker's second job: is the evidence enough, is more needed, or must the user say more?

The probabilities come from measured features (``assay.features``), since a small model's own yes or no is at chance; their
weights are fitted on labelled data, for each model by ``python -m assay calibrate``.
"""

from collections.abc import Sequence

from assay.config import GradeConfig
from assay.features import leads, of_evidence
from assay.text import content_terms, names, normalise, query_key, terms
from assay.types import Evidence, Grade, GradeRequest

# A question with fewer content words than this has nothing to search for; see ``_p_unclear``.
CLEAR_TERMS = 2
# Names that a follow-up takes from the evidence. On HotpotQA with one of the two passages left out, the question again finds
# it in 90 % among the next five, with one name in 94 %, with three in 96 %.
LEADS = 3


def _p_unclear(question: str) -> float:
    """How likely only the user can help: a question without content words ("what about it?") names nothing to search."""
    lacking = CLEAR_TERMS - len(set(content_terms(question)))
    return (0.05, 0.4, 0.9)[max(0, min(2, lacking))]


def follow_up(question: str, evidence: Sequence[Evidence], missing: Sequence[str]) -> str | None:
    """A query for what is not covered yet, or None where that would only repeat the question.

    The question with the names that the evidence brought up beside its words: what a second hop is about. Where there are
    none, the missing words beside the question's names; or else the question's words under the best passage's heading."""
    named, content = set(names(question)), set(content_terms(question))
    if new := leads(question, evidence, LEADS):
        wanted = [question, *new]
    elif missing:
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
    chunks = [e.hit.chunk for e in evidence]
    found = {term for c in chunks for term in terms(" ".join((c.title, *c.heading, c.text)))}
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
        measured = of_evidence(request.question, ordered)
        p_enough = self._config.probability(measured) if ordered else 0.0
        p_clarify = (1 - p_enough) * _p_unclear(normalise(request.question))
        missing = uncovered(request.question, ordered)
        return Grade(
            p_enough=p_enough,
            p_more=1 - p_enough - p_clarify,
            p_clarify=p_clarify,
            p_about=self._config.about.probability(measured) if ordered else 0.0,
            features=measured,
            missing=missing,
            follow_up=follow_up(request.question, ordered, missing),
        )
