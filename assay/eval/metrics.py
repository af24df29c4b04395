"""Metrics of a run, computed by ir-measures."""

from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import InvalidRequest
from assay.eval.formats import Judged

DEFAULT = ("nDCG@10", "R@5", "R@100", "RR@10")

# Query -> its documents, best first.
Run = Mapping[str, Sequence[str]]
# Metric -> query -> value.
Values = dict[str, dict[str, float]]


def checked(names: Sequence[str]) -> list[Any]:
    """ir-measures' objects for names such as ``nDCG@10``, ``R@5``, ``AP``. Raises ``InvalidRequest``."""
    import ir_measures

    pipeline: Any = ir_measures.DefaultPipeline
    out = []
    for name in names:
        try:
            measure = ir_measures.parse_measure(name)
            if not pipeline.supports(measure):
                raise ValueError("nothing installed computes it")
        except (ValueError, NameError, SyntaxError, TypeError, KeyError, AssertionError) as e:
            raise InvalidRequest(
                f"'{name[:80]}' is no metric ({e}); some are nDCG@10, R@5, AP, RR@10, P@5, Success@5", "metric"
            ) from None
        out.append(measure)
    return out


def measured(names: Sequence[str], judged: Judged, run: Run) -> Values:
    """Every metric of every query of the run. A query that found nothing has 0, as in trec_eval's complete mean."""
    import ir_measures

    qrels = {query: dict(judged[query]) for query in run}
    # A score that falls with the rank: trec_eval orders equal scores by the documents' names.
    scored = {q: {doc: float(-rank) for rank, doc in enumerate(docs)} for q, docs in run.items()}
    values: Values = {name: dict.fromkeys(run, 0.0) for name in names}
    for name, measure in zip(names, checked(names), strict=True):
        for metric in ir_measures.iter_calc([measure], qrels, scored):
            values[name][metric.query_id] = float(metric.value)
    return values
