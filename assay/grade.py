"""The reranker's second job: is the evidence enough, is more needed, or must the user say more?

The probabilities come from measured features (``assay.features``), since a small model's own yes or no is at chance; their
weights are fitted on labelled data, for each model by ``python -m assay calibrate``.
"""

from collections.abc import Sequence

from assay.config import GradeConfig
from assay.features import leads, of_evidence, words_of
from assay.inert import headings
from assay.text import content_terms, names, normalise, query_key, terms
from assay.types import Evidence, Grade, GradeRequest

# A question with fewer content words than this has nothing to search for; see ``_p_unclear``.
CLEAR_TERMS = 2
# Names of the evidence that are followed, each by a query of its own. Two or five instead of three change what the best
# passages hold by less than .02 on MuSiQue and HotpotQA.
LEADS = 3


def _p_unclear(question: str) -> float:
    """How likely only the user can help: a question without content words ("what about it?") names nothing to search."""
    lacking = CLEAR_TERMS - len(set(content_terms(question)))
    return (0.05, 0.4, 0.9)[max(0, min(2, lacking))]


def follow_ups(question: str, evidence: Sequence[Evidence], missing: Sequence[str]) -> tuple[str, ...]:
    """Queries for what is not covered yet, the likeliest first, each to be searched by itself; none where that would only
    repeat the question.

    For each name that the evidence brought up: the name, with the question's words that its passage does not have. That
    passage is one step of the question, and what is left of it is asked of the name. Where there are no names, the missing
    words beside the question's names; or else the question's words under the best passage's heading."""
    wanted = [[name, *uncovered(question, [e])] for name, e in leads(question, evidence, LEADS).items()]
    if not wanted and missing:
        named = set(names(question))
        wanted = [[word for word in _words(question) if word in missing or named & set(terms(word))]]
    elif not wanted and evidence:
        best, content = evidence[0].hit.chunk, set(content_terms(question))
        above = headings(best.title, *best.heading[-1:])
        wanted = [[*(w for w in _words(question) if content & set(terms(w))), *above]]
    found = {query_key(query): query for words in wanted if (query := " ".join(dict.fromkeys(words)))}
    return tuple(query for key, query in found.items() if key != query_key(question))


def uncovered(question: str, evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """The question's own words (as written) whose stems stand in no evidence."""
    found = frozenset[str]().union(*(words_of(e.hit.chunk) for e in evidence))
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
        first, *beside = follow_ups(request.question, ordered, missing) or (None,)
        return Grade(
            p_enough=p_enough,
            p_more=1 - p_enough - p_clarify,
            p_clarify=p_clarify,
            p_about=self._config.about.probability(measured) if ordered else 0.0,
            p_holds=self._config.holds.probability(measured) if ordered else 0.0,
            features=measured,
            missing=missing,
            follow_up=first,
            beside=tuple(query for query in beside if query),
        )
