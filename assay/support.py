"""How likely a quote bears a claim: measured on their words, weighed by a logistic that is fitted on labelled claims.

What contradicts is decided before (``assay.verify``); this says how much what is left is worth.
"""

from assay.features import neighbours
from assay.text import content_terms, terms

FEATURES = ("covered", "covered_by_quote", "neighbours")


def measured(claim: str, quote: str, context: str = "") -> dict[str, float]:
    """``covered``: share of the claim's content words in the quote or above it; ``covered_by_quote``: in the quote alone;
    ``neighbours``: share of its neighbouring words that are neighbours in the quote. A claim without a content word is its
    words."""
    wanted = frozenset(content_terms(claim) or terms(claim))
    own, asked = terms(quote), neighbours(terms(claim))
    read = frozenset(own) | frozenset(terms(context))
    share = len(wanted & read) / len(wanted) if wanted else 0.0
    return {
        "covered": share,
        "covered_by_quote": len(wanted & frozenset(own)) / len(wanted) if wanted else 0.0,
        "neighbours": len(asked & neighbours(own)) / len(asked) if asked else share,
    }
