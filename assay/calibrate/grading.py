"""Fits the grader: P(enough) over what is measured of a question's evidence."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.calibrate import near_misses
from assay.calibrate.cases import NEAR_MISS, Case, Embed, Labelled
from assay.calibrate.cases import cases as cases_of
from assay.calibrate.fit import Sample, auc, balanced, ece, figure, fit
from assay.calibration import Figure
from assay.config import GradeConfig
from assay.errors import SetupError
from assay.features import of_evidence
from assay.logistic import Logistic
from assay.ports import Reranker
from assay.types import Chunk, Evidence, Hit, RerankRequest

# By the kind of what they say; a model-free fit leaves the last out.
LEXICAL = (
    "words",
    "word_coverage",
    "name_coverage",
    "phrase_coverage",
    "linked",
    "link_gain",
    "two_coverage",
    "asked_links",
    "bridge",
    "sentence_lead",
    "pairs",
    "kind",
    "denied",
    "similarity",
)
OF_THE_MODEL = ("least_gain",)  # of the best passage; the mean over tokens adds nothing to it
# What says of any collection whether its passages are about the question; links and sentences say how far they lead.
ABOUT = ("word_coverage", "name_coverage", "similarity")
# What says of one passage whether it answers, or only seems to.
HOLDS = ("pairs", "sentence_lead", "kind", "no_denial", "denies", "numbers", "similarity")
HOLDS_OF_THE_MODEL = ("against",)
BALANCED = "holds: min_holds for the best balanced accuracy"
HELD_OUT = 4  # one question in so many is kept back from a fit and its choice of the penalty, and judged once


async def cases(labelled: Sequence[Labelled], data: Path, embed: Embed) -> list[Case]:
    """Of the labelled sets, and the near misses of the folder."""
    return [*await cases_of(labelled, embed), *await cases_of(near_misses.read(data), embed)]


async def samples(
    cases: Sequence[Case], reranker: Reranker | None, show: Callable[[str, int, int], None] = lambda *_: None
) -> list[Sample]:
    """Each case's features; without a reranker those that need no model."""
    found = []
    for number, case in enumerate(cases):
        evidence = await _evidence(case, reranker)
        found.append(Sample(of_evidence(case.question, evidence), case.enough, case.group, case.weight))
        show("evidence", number + 1, len(cases))
    return found


async def _evidence(case: Case, reranker: Reranker | None) -> list[Evidence]:
    """In the order of a first stage, so that where the needed passages stand says nothing of what they are."""
    given = sorted(zip(case.cosines, case.passages, strict=True), reverse=True)
    hits = tuple(_hit(n, passage, cosine) for n, (cosine, passage) in enumerate(given))
    if reranker is None:
        return [Evidence(f"E{n}", hit, hit.score, 1) for n, hit in enumerate(hits, 1)]
    done = await reranker.rerank(RerankRequest(case.question, hits, len(hits)))
    if done.faults:
        raise SetupError(f"{done.faults} passages of the question '{case.question[:80]}' could not be scored")
    return [Evidence(f"E{n}", r.hit, r.score, 1, r.gain) for n, r in enumerate(done.ranked, 1)]


def _hit(number: int, passage: tuple[str, str], cosine: float) -> Hit:
    title, text = passage
    chunk = Chunk(
        number, title or f"untitled {number}", "docs", title, "", text, 0, len(text), 0, (title,) if title else ()
    )
    return Hit(chunk, cosine, {}, cosine)


def fitted(
    cases: Sequence[Case], measured: Sequence[Sample], min_answer: float, *, model: bool
) -> tuple[GradeConfig, list[Figure]]:
    """The fits over all cases, with what a model measured or without, and what such fits are worth on questions that they have
    not seen. Near misses are for ``holds`` alone."""
    names = (*LEXICAL, *OF_THE_MODEL) if model else LEXICAL
    holds, p_holds, of_holds = _holds(cases, measured, (*HOLDS, *HOLDS_OF_THE_MODEL) if model else HOLDS)
    kept = np.array([case.task != NEAR_MISS for case in cases])
    cases, measured = [case for case, keep in zip(cases, kept, strict=True) if keep], _of(measured, kept)
    judged = fit(measured, names)
    about, p_about, of_about = _about(cases, measured)
    figures: list[Figure] = []
    for task in dict.fromkeys(case.task for case in cases):
        at = np.array([case.task == task for case in cases])
        if task != "elsewhere":
            figures += _figures(task, "cross-validated", judged.out_of_fold[at], _of(measured, at))
            figures += _away(task, "fitted without this set", measured, at, names)
    held = np.array([_held_out(case.group) for case in cases])
    figures += _figures("all sets", "cross-validated", judged.out_of_fold, measured)
    figures += _away("all sets", "held out", measured, held, names)
    grade = GradeConfig(**judged.model.model_dump(), about=about, holds=holds, min_answer=min_answer)
    p_holds = np.where(judged.out_of_fold >= grade.enough, 1.0, p_holds[kept])
    return grade, [*figures, *of_about, *of_holds, *_refused(cases, measured, np.minimum(p_about, p_holds), min_answer)]


Fitted = tuple[Logistic, NDArray[np.float64], list[Figure]]
"""A fit, what it says of each sample that it has not seen, or such fits of those that it has, and what it is worth."""


def _about(cases: Sequence[Case], measured: Sequence[Sample]) -> Fitted:
    """P(about what is asked): a question's own passages, enough or not, against those of another collection."""
    is_own = [case.task != "elsewhere" for case in cases]
    if len(set(is_own)) < 2:  # one collection alone says nothing of it
        return (default := GradeConfig().about), _says(default, measured), []
    # Both kinds count alike: how many questions of another collection there are here says nothing of how many will be asked.
    whole = {
        kind: sum(s.weight for s, own in zip(measured, is_own, strict=True) if own == kind) for kind in (True, False)
    }
    own = [
        replace(s, holds=kind, weight=s.weight / whole[kind] * len(cases) / 2)
        for s, kind in zip(measured, is_own, strict=True)
    ]
    judged = fit(own, ABOUT)
    return judged.model, judged.out_of_fold, [figure("about, cross-validated: AUC", auc, judged.out_of_fold, own)]


def _holds(cases: Sequence[Case], measured: Sequence[Sample], names: Sequence[str]) -> Fitted:
    """P(it says what is asked): a question before one passage that answers it, or only seems to."""
    at = np.array([len(case.passages) == 1 and case.task != "elsewhere" for case in cases])
    alone, tasks = _of(measured, at), [case.task for case, chosen in zip(cases, at, strict=True) if chosen]
    if len({sample.holds for sample in alone}) < 2:
        return (default := GradeConfig().holds), _says(default, measured), []
    judged = fit(alone, names)
    figures = [figure(BALANCED, balanced, judged.out_of_fold, alone)]
    for task in dict.fromkeys(tasks):
        here = np.array([each == task for each in tasks])
        figures += _figures(f"holds, {task}", "cross-validated", judged.out_of_fold[here], _of(alone, here))
        figures += _away(f"holds, {task}", "fitted without this set", alone, here, names)
    p = _says(judged.model, measured)
    p[at] = judged.out_of_fold
    return judged.model, p, figures


def _says(model: Logistic, measured: Sequence[Sample]) -> NDArray[np.float64]:
    return np.array([model.probability(s.measured) for s in measured])


def _figures(task: str, how: str, p: NDArray[np.float64], measured: Sequence[Sample]) -> list[Figure]:
    if len({s.holds for s in measured}) < 2:
        return []
    return [figure(f"{task}, {how}: {name}", measure, p, measured) for name, measure in (("AUC", auc), ("ECE", ece))]


def _away(
    task: str, how: str, measured: Sequence[Sample], away: NDArray[np.bool_], names: Sequence[str]
) -> list[Figure]:
    """Of what a fit says of those that are ``away``, if it has seen none of their questions, not even before other passages;
    none where the others alone cannot be fitted to."""
    theirs = _of(measured, away)
    groups = {sample.group for sample in theirs}
    others = [sample for sample in measured if sample.group not in groups]
    if not theirs or len({sample.holds for sample in others}) < 2:
        return []
    model = fit(others, names, repeats=0).model
    return _figures(task, how, _says(model, theirs), theirs)


def _refused(
    cases: Sequence[Case], measured: Sequence[Sample], p: NDArray[np.float64], min_answer: float
) -> list[Figure]:
    """What ``min_answer`` does: how many questions it refuses whose evidence is enough, is not, or is of another collection."""

    def below(p: NDArray[np.float64], holds: NDArray[np.bool_], weights: NDArray[np.float64]) -> float:
        return float(np.average(p < min_answer, weights=weights))

    figures = []
    for name, chosen in (
        ("enough", [s.holds for s in measured]),
        ("one passage that does not answer", [len(c.passages) == 1 and not c.enough for c in cases]),
        ("of another collection", [case.task == "elsewhere" for case in cases]),
    ):
        at = np.array(chosen)
        if at.any():
            figures.append(figure(f"refused, cross-validated: {name}", below, p[at], _of(measured, at)))
    return figures


def _of(measured: Sequence[Sample], at: NDArray[np.bool_]) -> list[Sample]:
    return [sample for sample, chosen in zip(measured, at, strict=True) if chosen]


def _held_out(group: str) -> bool:
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % HELD_OUT == 0
