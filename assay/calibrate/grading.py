"""Fits the grader: P(enough) over what is measured of a question's evidence."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from assay.calibrate.cases import Case
from assay.calibrate.fit import Judged, Sample, auc, ece, figure, fit
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
HELD_OUT = 4  # one question in so many is kept back from a fit and its choice of the penalty, and judged once


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
    cases: Sequence[Case], measured: Sequence[Sample], names: Sequence[str], min_answer: float
) -> tuple[GradeConfig, list[Figure]]:
    """The fits over all cases, and what such fits are worth on questions that they have not seen."""
    judged = fit(measured, names)
    about, of_about = _about(cases, measured, min_answer)
    figures: list[Figure] = []
    for task in dict.fromkeys(case.task for case in cases):
        at = np.array([case.task == task for case in cases])
        if task != "elsewhere":
            figures += _figures(task, "cross-validated", judged.out_of_fold[at], _of(measured, at))
            figures += _away(task, "fitted without this set", measured, at, names)
    held = np.array([_held_out(case.group) for case in cases])
    figures += _figures("all sets", "cross-validated", judged.out_of_fold, measured)
    figures += _away("all sets", "held out", measured, held, names)
    grade = GradeConfig(**judged.model.model_dump(), about=about, min_answer=min_answer)
    return grade, figures + of_about


def _about(cases: Sequence[Case], measured: Sequence[Sample], min_answer: float) -> tuple[Logistic, list[Figure]]:
    """P(about what is asked): a question's own passages, enough or not, against those of another collection."""
    is_own = [case.task != "elsewhere" for case in cases]
    if len(set(is_own)) < 2:  # one collection alone says nothing of it
        return GradeConfig().about, []
    # Both kinds count alike: how many questions of another collection there are here says nothing of how many will be asked.
    whole = {
        kind: sum(s.weight for s, own in zip(measured, is_own, strict=True) if own == kind) for kind in (True, False)
    }
    own = [
        replace(s, holds=kind, weight=s.weight / whole[kind] * len(cases) / 2)
        for s, kind in zip(measured, is_own, strict=True)
    ]
    judged = fit(own, ABOUT)
    figures = [figure("about, cross-validated: AUC", auc, judged.out_of_fold, own)]
    return judged.model, figures + _wrongly_answered(cases, measured, judged, min_answer)


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
    return _figures(task, how, np.array([model.probability(s.measured) for s in theirs]), theirs)


def _wrongly_answered(
    cases: Sequence[Case], measured: Sequence[Sample], judged: Judged, min_answer: float
) -> list[Figure]:
    """What ``min_answer`` does: how many questions it refuses whose evidence is enough, or of another collection."""

    def below(p: NDArray[np.float64], holds: NDArray[np.bool_], weights: NDArray[np.float64]) -> float:
        return float(np.average(p < min_answer, weights=weights))

    figures = []
    for name, chosen in (
        ("enough, refused", [s.holds for s in measured]),
        ("of another collection, refused", [case.task == "elsewhere" for case in cases]),
    ):
        at = np.array(chosen)
        if at.any():
            figures.append(figure(f"about, cross-validated: {name}", below, judged.out_of_fold[at], _of(measured, at)))
    return figures


def _of(measured: Sequence[Sample], at: NDArray[np.bool_]) -> list[Sample]:
    return [sample for sample, chosen in zip(measured, at, strict=True) if chosen]


def _held_out(group: str) -> bool:
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % HELD_OUT == 0
