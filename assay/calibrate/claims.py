"""Labelled claims for the support score: questions with their answers as statements, before the passage that answers them.

A claim holds with the right answer before its own passage. It does not with a name or a number of the same passage that is
no answer, nor before the passage, of those of other questions, that shares most words with it.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.calibrate.cases import Passage
from assay.calibrate.fit import Sample, auc, ece, figure, fit
from assay.calibration import Figure
from assay.config import SupportConfig
from assay.features import names_in
from assay.support import FEATURES, measured
from assay.text import content_terms, terms
from assay.types import Chunk
from assay.verify import best_quote, contradicts

_ASKING = re.compile(r"^\s*(who|what|which \w+|what \w+|when|where)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Claim:
    task: str
    text: str
    passage: Passage
    holds: bool
    weight: float


@dataclass(frozen=True, slots=True)
class _Answered:
    task: str
    question: str
    answers: tuple[str, ...]
    passage: Passage


def stated(question: str, answer: str) -> str:
    """The answer in the place of the asking word at the beginning, or behind the question."""
    bare = question.strip().rstrip("?").strip().replace(" >> ", " ")
    stated, replaced = _ASKING.subn(answer.replace("\\", r"\\"), bare, count=1)
    return stated if replaced else f"{bare} {answer}"


def claims(data: Path) -> list[Claim]:
    """Of SQuAD 2's answerable questions and MuSiQue's single steps; empty where neither is in the folder."""
    answered = [*_squad2(data), *_musique(data)]
    words = {a.passage: frozenset(terms(" ".join(a.passage))) for a in answered}
    found: list[Claim] = []
    for a in answered:
        text = stated(a.question, a.answers[0])
        found.append(Claim(a.task, text, a.passage, True, 1.0))
        wanted = frozenset(content_terms(text))
        others = [p for p in words if p != a.passage]
        foreign = max(others, key=lambda p: len(wanted & words[p]))
        found.append(Claim(a.task, text, foreign, False, 0.5))
        if wrong := _wrong(a):
            found.append(Claim(a.task, stated(a.question, wrong), a.passage, False, 0.5))
    return found


def _wrong(a: _Answered) -> str | None:
    """A name or number of the passage that is in no answer and not in the question: one of them, by chance but always the
    same."""
    known = {term for text in (a.question, *a.answers) for term in terms(text)}
    found = sorted({name for name in names_in(a.passage[1]) if not known & set(terms(name))})
    return found[int(hashlib.sha256(a.question.encode()).hexdigest(), 16) % len(found)] if found else None


def _squad2(data: Path) -> Iterator[_Answered]:
    folder = data / "unanswerable" / "squad2_250"
    if not folder.is_dir():
        return
    truth = json.loads((folder / "ground_truth.json").read_text())
    for q in json.loads((folder / "queries.json").read_text())["queries"]:
        if not truth[q["id"]]["is_impossible"]:
            yield _Answered("squad2", q["question"], tuple(truth[q["id"]]["answers"]), ("", q["context"]))


def _musique(data: Path) -> Iterator[_Answered]:
    file = data / "multihop" / "musique_50" / "questions.json"
    for q in json.loads(file.read_text()) if file.exists() else ():
        passages = {p["idx"]: (p["title"], p["paragraph_text"]) for p in q["paragraphs"]}
        answers: list[str] = []
        for step in q["question_decomposition"]:
            question = step["question"]
            for number, answer in enumerate(answers, 1):
                question = question.replace(f"#{number}", answer)
            answers.append(step["answer"])
            yield _Answered("musique", question, (step["answer"],), passages[step["paragraph_support_idx"]])


def fitted(found: Sequence[Claim]) -> tuple[SupportConfig, list[Figure]]:
    """Fitted on what does not contradict its quote; judged on all, where what contradicts has no support."""
    samples: list[Sample] = []
    against: list[bool] = []
    for claim in found:
        title, text = claim.passage
        chunk = Chunk(0, "d", "docs", title, "", text, 0, len(text), 0, (title,) if title else ())
        quote = text[slice(*best_quote(claim.text, chunk)[1])]
        against.append(contradicts(claim.text, f"{title} {quote}"))
        samples.append(Sample(measured(claim.text, quote, title), claim.holds, text, claim.weight))
    kept = [sample for sample, is_against in zip(samples, against, strict=True) if not is_against]
    judged = fit(kept, FEATURES)
    p = np.zeros(len(samples))
    p[~np.array(against)] = judged.out_of_fold
    plain = np.array([0.0 if no else s.measured["covered"] for s, no in zip(samples, against, strict=True)])
    figures = []
    for name, measure in (("AUC", auc), ("ECE", ece)):
        figures.append(figure(f"support, cross-validated: {name}", measure, p, samples))
        figures.append(figure(f"support, share of words alone: {name}", measure, plain, samples))
    return SupportConfig(**judged.model.model_dump()), figures
