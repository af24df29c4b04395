"""How much of one query's fused score the dense leg has: more where its best passage stands out, less where BM25's does.

Chosen once with seven public sets in view and judged by leaving each out (docs/search.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from assay.text import is_unspaced

Scores = NDArray[np.float32]

# What both curves look like on average: the weight is then the configured one.
_TYPICAL_STANDING = 1.5
_TYPICAL_LEAD = 0.5
_DEPTH = 10  # BM25's best against its tenth
AGREED = 5  # of BM25's best, the passages whose cosines are looked at
# Standard scores at which BM25's best are taken to be known to the dense leg as well: passages about the question's
# subject lie at 2 to 5, whatever a foreign script holds at 0.
_KNOWN = 1.5
_SPELLED, _READ = 1.0, 2.0  # letters per token of a text that is spelled out, and of one that is read in parts of words


@dataclass(frozen=True, slots=True)
class Curves:
    """The two legs' scores of one query.

    ``mean`` and ``deviation``: of the cosines of all passages; ``best``: the highest cosine; ``allowed``: how many passages
    could be found; ``sparse``: BM25 scores, the best first; ``agreed``: cosines of the first ``AGREED`` of these; ``letters``
    counts the letters per token of the query in the embedder's own tokens: asked only where they matter, it takes as long as
    all else.
    """

    mean: float
    deviation: float
    best: float
    allowed: int
    sparse: Scores
    agreed: Sequence[float]
    letters: Callable[[], float]


def letters_per_token(text: str, tokens: int) -> float:
    """Near 1 where a model spells a word out, letter by letter, as it does for scripts that it was not made for. Scripts
    without spaces count none: a sign of theirs is a token even to models that read them."""
    letters = map(str.isalnum, text) if text.isascii() else (c.isalnum() and not is_unspaced(c) for c in text)
    return sum(letters) / max(1, tokens)


def dense_share(curves: Curves, usual: float, by_standing: float, by_lead: float) -> float:
    """In [0, 1]. ``usual`` is the share for typical curves; the others say how much a curve moves it, per unit.

    Standing: how far the best cosine lies above the mean, in standard deviations, over what the best of as many random
    ones would reach. Lead: by how much BM25's best beats its tenth, as a share of the best.

    A query that the embedder spells out letter by letter has, besides, only the share by which the dense leg agrees
    with BM25: an English model sees in all Arabic passages the same thing, Arabic, and is as sure of its best as ever.
    """
    mean, deviation = curves.mean, curves.deviation
    if not len(curves.sparse) or deviation < 1e-6:  # nothing to weigh against, or nothing to measure by
        return usual
    standing = (curves.best - mean) / (deviation * sqrt(2 * log(max(3, curves.allowed))))
    tenth = curves.sparse[_DEPTH - 1] if len(curves.sparse) >= _DEPTH else 0.0
    lead = 1 - float(tenth) / float(curves.sparse[0])
    share = usual + by_standing * (standing - _TYPICAL_STANDING) - by_lead * (lead - _TYPICAL_LEAD)
    known = (sum(curves.agreed) / len(curves.agreed) - mean) / (deviation * _KNOWN)
    if known < 1:
        known = max(known, (curves.letters() - _SPELLED) / (_READ - _SPELLED))
    return _clipped(share) * _clipped(known)


def _clipped(share: float) -> float:
    return min(1.0, max(0.0, share))
