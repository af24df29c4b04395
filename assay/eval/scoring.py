"""What one answer is worth against what is known of its question: evidence, words, citations, and whether to answer at all."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from assay.eval.questions import Place, Question
from assay.text import is_unspaced, normalise

_ARTICLES = frozenset(("a", "an", "the"))
_MARK = re.compile(r"\s?\[\d+\]")


def answer_tokens(text: str) -> list[str]:
    """SQuAD's normalisation: case, punctuation and English articles do not count; of scripts without spaces each sign is a
    word, as in the evaluations of Chinese and Japanese."""
    kept = "".join(c for c in normalise(text) if unicodedata.category(c)[0] not in "PS")
    spaced = "".join(f" {c} " if is_unspaced(c) else c for c in kept)
    return [word for word in spaced.split() if word not in _ARTICLES]


def _both(said: str, wording: str) -> tuple[list[str], list[str]]:
    """The words of an answer and of a wording; where that is an article or a sign (the grade A), all that stands in both."""
    words = answer_tokens(wording)
    if words:
        return answer_tokens(said), words
    every = re.compile(r"\w+" if re.search(r"\w", wording) else r"\w+|[^\w\s]")
    return every.findall(normalise(said)), every.findall(normalise(wording))


def exact(said: str, gold: Sequence[str]) -> float:
    """Whether the answer is, word for word, one of the wordings."""
    return float(any(words == wanted for words, wanted in (_both(said, wording) for wording in gold)))


def f1(said: str, gold: Sequence[str]) -> float:
    """Harmonic mean of the shares of words that the answer and a wording have in common; of the best wording."""
    return max(_f1(*_both(said, wording)) for wording in gold)


def _f1(said: list[str], gold: list[str]) -> float:
    if not said or not gold:
        return float(said == gold)
    same = sum((Counter(said) & Counter(gold)).values())
    return 2 * same / (len(said) + len(gold))


def contains(said: str, gold: Sequence[str]) -> float:
    """Whether a wording stands in the answer, as whole words: what can be asked of an answer that is quoted sentences."""
    pairs = (_both(said, wording) for wording in gold)
    return float(any(f" {' '.join(wanted)} " in f" {' '.join(words)} " for words, wanted in pairs))


def abstained(outcome: Mapping[str, Any]) -> bool:
    return outcome["status"] in ("no_evidence", "clarify")


def scores(question: Question, outcome: Mapping[str, Any], top: int) -> dict[str, float]:
    """Metric -> value, of a row of the batch door that was answered; a metric that says nothing of this question is absent.

    ``top``: the passages that count as found are the best so many of the evidence."""
    said, gone = _MARK.sub("", outcome["answer"] or ""), abstained(outcome)
    found: dict[str, float] = {}
    hops = question.evidence
    if hops:
        seen = [e for e in outcome["evidence"] if e["rank"] <= top]
        reached = [float(_any(hop, seen)) for hop in hops]
        found[f"evidence R@{top}"] = sum(reached) / len(hops)
        found |= {f"hop {number}": value for number, value in enumerate(reached, start=1)}
    if question.answerable:
        found["answered"] = float(not gone)
        if question.answers:
            wordings = question.answers
            told = "" if gone else said
            found |= {"exact": exact(told, wordings), "F1": f1(told, wordings), "contains": contains(told, wordings)}
        if hops:
            cited = outcome["citations"]
            found["citation recall"] = sum(_any(hop, cited) for hop in hops) / len(hops)
            if cited:
                places = [place for hop in hops for place in hop]
                found["citation precision"] = sum(_any(places, [c]) for c in cited) / len(cited)
    else:
        found["abstention recall"] = float(gone)
    if gone:
        found["abstention precision"] = float(not question.answerable)
    usage = outcome["usage"]
    return found | {
        "rounds": float(outcome["rounds"]),
        "LLM calls": float(usage["llm_calls"]),
        "tokens": float(usage["prompt_tokens"] + usage["completion_tokens"]),
        "seconds": float(outcome["seconds"]),
    }


def _any(places: Sequence[Place], found: Sequence[Mapping[str, Any]]) -> bool:
    return any(place.holds(one) for place in places for one in found)
