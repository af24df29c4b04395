"""Which questions need no planning: one fact about one thing, in English, without history. A rule, since a call costs more.

It errs on the side of planning. What it calls simple is measured by ``python -m bench.routing``.
"""

import re
from collections.abc import Sequence

from assay.languages import DEFAULT, detect
from assay.text import content_terms, normalise, sentences, terms
from assay.types import BucketInfo

MOST_WORDS = 12
# Two things held against each other, or all of a kind.
_SETS = frozenset(
    """both either neither each every all or versus vs compare compared comparison difference differences differ similar same
    common connected related list lists summarise summarize summary overview total average sum more most less fewer than
    earlier later older younger larger smaller bigger""".split()
)
# A thing that is itself described by a clause ("the country that ...") is a second fact to find.
_CLAUSE = re.compile(r"\b(?:that|who|whom|whose|which|where|when|while|after|before|if)\b")
# A thing of a thing may be found one after the other; a place or a time beside it is a detail.
_OF = re.compile(r"\b(?:of|named|called|containing|including)\b|(?<=\w)['’]s\b")
_DETAIL = re.compile(r"\b(?:by|in|from|on|at|for|with|to|during)\b")
_PREPOSITIONS = frozenset("in on at by from for to of with under during".split())
_WORD = re.compile(r"[\w'’.-]+")


def simple(question: str, buckets: Sequence[BucketInfo] = ()) -> bool:
    """Whether the question can be searched as it stands. ``buckets``: a question that may be asking for their fields is not."""
    words = _WORD.findall(normalise(question))
    if not 2 <= len(words) <= MOST_WORDS or detect(words) != DEFAULT or not question.isascii():
        return False
    text = " ".join(words)
    rest = " ".join(words[2 if words[0] in _PREPOSITIONS else 1 :])  # the question's own word begins no clause
    if _SETS & set(words) or re.search(r"[,;:?!]", question.strip().rstrip("?!. ")) or len(sentences(question)) > 1:
        return False
    if _CLAUSE.search(rest) or (things := len(_OF.findall(text))) > 1 or things + len(_DETAIL.findall(text)) > 2:
        return False
    return bool(content_terms(question)) and not _asks_fields(question, buckets)


def _asks_fields(question: str, buckets: Sequence[BucketInfo]) -> bool:
    """Whether a bucket's fields might be meant: by a number, a field's name, or one of the values that they have."""
    fields = [field for bucket in buckets for field in bucket.fields]
    if not fields:
        return False
    asked = set(terms(question))
    named = [set(content_terms(said)) for field in fields for said in (field.name, *field.values)]
    return any(map(str.isdigit, question)) or any(words and words <= asked for words in named)
