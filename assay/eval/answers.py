"""What answers of the batch door are worth, by run: every question's figures, their means, and what sets the runs apart."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Table
from rich.text import Text

from assay.errors import SetupError
from assay.eval.compare import LEVEL, RESAMPLES, Comparison, Estimate, Ranking, compared
from assay.eval.metrics import Values
from assay.eval.questions import Question
from assay.eval.report import interval, plain, summary, table_of
from assay.eval.scoring import abstained, scores

Outcome = Mapping[str, Any]
Runs = Mapping[str, Sequence[Outcome]]
"""Of each configuration, a row of the batch door for each question."""

BALANCED = "balanced accuracy"
COSTS = ("rounds", "LLM calls", "tokens", "seconds")
# What follows from the question alone, once it is in: no two runs can differ on the same one.
_OF_THE_QUESTION = ("abstention precision",)
_COUNTED: dict[str, Callable[[Outcome], list[str]]] = {
    "ended by": lambda o: [o["terminated_by"]],
    "status": lambda o: [o["status"]],
    "fell back": lambda o: [f"{d['stage']}: {d['fallback']}" for d in o["degraded"]],
}


@dataclass(frozen=True, slots=True)
class Measured:
    """``ranking``: as of any comparison, by run and metric. ``counts``: by run, what is counted, and value. ``failed``: by run,
    the codes of the faults of questions that were not answered; they have no figures."""

    ranking: Ranking
    metrics: tuple[str, ...]
    counts: Mapping[str, Mapping[str, Mapping[str, int]]]
    failed: Mapping[str, Mapping[str, int]]


def measured(questions: Sequence[Question], runs: Runs, top: int) -> Measured:
    """The first run is the baseline. Raises ``SetupError`` where a run answered nothing, or is of other questions."""
    values: dict[str, Values] = {}
    held: dict[str, dict[str, Outcome]] = {}
    for name, outcomes in runs.items():
        by_id = held[name] = _by_id(name, questions, outcomes)
        if not by_id:
            codes = ", ".join(_faults(outcomes))
            raise SetupError(f"'{name}' answered none of {len(questions)} questions: {codes}", "run")
        values[name] = _values(questions, by_id, top)
    baseline = next(iter(values))
    metrics = _ordered([metric for of in values.values() for metric in of], top)
    ranking = compared(values, baseline, partial=True)
    against = {name: {m: c for m, c in of.items() if m not in _OF_THE_QUESTION} for name, of in ranking.against.items()}
    for name, of in against.items():
        if of.pop(BALANCED, None) is not None:
            of |= _balanced_against(questions, held[baseline], held[name])
    answered = {name: [o for o in outcomes if o["error"] is None] for name, outcomes in runs.items()}
    counts = {
        name: {what: _counted(said for o in outcomes for said in count(o)) for what, count in _COUNTED.items()}
        for name, outcomes in answered.items()
    }
    return Measured(
        replace(ranking, against=against), metrics, counts, {name: _faults(outcomes) for name, outcomes in runs.items()}
    )


def _by_id(name: str, questions: Sequence[Question], outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    """The answered rows. All rows are there, each of the question that it says, or this is another file's run."""
    held = {str(o["id"]): o for o in outcomes}
    wrong = [q.id for q in questions if held.get(q.id, {}).get("question") != q.asked["question"]]
    if wrong or len(held) != len(questions):
        raise SetupError(f"'{name}' is a run of other questions: '{wrong[0] if wrong else next(iter(held))}'", "run")
    return {i: o for i, o in held.items() if o["error"] is None}


def _values(questions: Sequence[Question], by_id: Mapping[str, Outcome], top: int) -> Values:
    values: Values = {}
    for q in questions:
        if q.id in by_id:
            for metric, value in scores(q, by_id[q.id], top).items():
                values.setdefault(metric, {})[q.id] = value
    return values | _balanced(questions, by_id)


def _balanced(questions: Sequence[Question], by_id: Mapping[str, Outcome]) -> Values:
    """Each side weighs half, so that the mean is the balanced accuracy; nothing where there is one side only."""
    answered = [q for q in questions if q.id in by_id]
    sides = Counter(q.answerable for q in answered)
    if len(sides) < 2:
        return {}
    weights = {side: len(answered) / (2 * count) for side, count in sides.items()}
    return {BALANCED: {q.id: weights[q.answerable] * (abstained(by_id[q.id]) != q.answerable) for q in answered}}


def _balanced_against(
    questions: Sequence[Question], one: Mapping[str, Outcome], other: Mapping[str, Outcome]
) -> dict[str, Comparison]:
    """Over the questions that both have answered: the weights of one run's own would be losses where both are right."""
    both = [q for q in questions if q.id in one and q.id in other]
    found = {"one": _balanced(both, one), "other": _balanced(both, other)}
    return dict(compared(found, "one").against["other"]) if found["one"] else {}


def _ordered(found: Sequence[str], top: int) -> tuple[str, ...]:
    hops = sorted({metric for metric in found if metric.startswith("hop ")}, key=lambda m: int(m[4:]))
    usual = [f"evidence R@{top}", *hops, "exact", "F1", "contains", "citation precision", "citation recall"]
    usual += ["answered", "abstention precision", "abstention recall", BALANCED]
    return tuple(metric for metric in (*usual, *COSTS) if metric in found)


def _counted(said: Any) -> dict[str, int]:
    return dict(Counter(said).most_common())


def _faults(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return _counted(o["error"]["code"] for o in outcomes if o["error"] is not None)


# ---- to read and to keep --------------------------------------------------------------------------------------------


def tables(found: Measured) -> list[tuple[Table, str]]:
    """Means of each run, and what sets the others apart from the first; how the questions ended. With each what it means."""
    ranking, names = found.ranking, list(found.ranking.estimates)
    means = table_of("", *names)
    for metric in found.metrics:
        held = [ranking.estimates[name].get(metric) for name in names]
        means.add_row(metric, *(Text(mean(of, metric)) for of in held))
    shown = [(means, f"in brackets: {LEVEL:.0%} of the bootstrap over the questions\n")]
    if ranking.against:
        differences = table_of(f"minus {ranking.baseline}", *ranking.against)
        for metric in found.metrics:
            cells = [apart(of.get(metric), metric) for of in ranking.against.values()]
            if any(cells):
                differences.add_row(metric, *map(Text, cells))
        shown.append((differences, "of the questions that both have; * the interval leaves out 0\n"))
    ended = table_of("", *names)
    for said, counts in counted(found):
        ended.add_row(Text(plain(said)), *map(str, counts))
    return [*shown, (ended, "questions\n")]


def counted(found: Measured) -> list[tuple[str, list[int]]]:
    """What was counted, and in each run how often."""
    names = list(found.ranking.estimates)
    rows: list[tuple[str, list[int]]] = []
    for what in (*_COUNTED, "failed"):
        held = {name: found.failed[name] if what == "failed" else found.counts[name][what] for name in names}
        values = dict.fromkeys(v for of in held.values() for v in of)
        rows += [(f"{what} {value}", [held[name].get(value, 0) for name in names]) for value in values]
    return rows


def _digits(metric: str) -> int:
    return {"tokens": 0, "seconds": 1, "rounds": 2, "LLM calls": 2}.get(metric, 3)


def mean(of: Estimate | None, metric: str) -> str:
    return "" if of is None else interval(of, digits=_digits(metric))


def apart(of: Comparison | None, metric: str) -> str:
    return "" if of is None else interval(of.difference, "+", _digits(metric)) + ("*" if of.certain else " ")


def as_json(questions: Sequence[Question], runs: Runs, found: Measured) -> dict[str, Any]:
    """By run: its means, what sets it apart from the first, how questions ended, and every value of every question."""
    ranking, told = found.ranking, {}
    for name in runs:
        values = ranking.values[name]
        told[name] = {
            "means": {metric: asdict(ranking.estimates[name][metric]) for metric in found.metrics if metric in values},
            "against": {metric: summary(of) for metric, of in ranking.against.get(name, {}).items()},
            **found.counts[name],
            "failed": found.failed[name],
            "questions": {q.id: {m: round(of[q.id], 6) for m, of in values.items() if q.id in of} for q in questions},
        }
    bootstrap = {"level": LEVEL, "resamples": RESAMPLES}
    return {"questions": len(questions), "baseline": ranking.baseline, "bootstrap": bootstrap, "runs": told}
