"""How well the model reranks and grades: every figure is of questions that the judged fit has not seen."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay.calibrate import cases, grading, ranking
from assay.calibrate.fit import interval
from assay.calibration import Figure
from assay.config import GradeConfig, RerankerConfig, RerankMethod
from assay.eval.ranking import Bench
from assay.relevance import GRADED, MEASURING
from assay.rerank import LLMReranker
from bench.llm_parts import Parts, row_of
from bench.report import Row
from deployments.calibrate import vectors

QUERIES = {"dbpedia_entity_5k": 40, "cranfield": 60}
TOP = 20
SHORT = 48  # tokens of a passage, against the configured length
FEW = 10  # queries by which a method's cost is measured, and what short passages cost


async def rerank(parts: Parts) -> list[Row]:
    size = RerankerConfig().passage_tokens
    found, of_dense = list[ranking.Candidates](), list[ranking.Candidates]()
    for name, collection in ranking.collections(parts.data).items():
        bench = Bench(collection, parts.cache, parts.encoder)
        bench.index()
        most = FEW if parts.quick else QUERIES.get(name, 40)
        found += await ranking.candidates(name, bench, parts.encoder, most, TOP)
        of_dense += await ranking.candidates(name, bench, parts.encoder, most, TOP, ("dense",))
    passages, values, weights = sum(len(c.hits) for c in found), {}, {}
    rows: list[Row] = []
    for kind in MEASURING:
        values[kind], tokens = await ranking.scored(found, kind, parts.known, parts.tokenizer, size)
        alone, figures = ranking.chosen(found, {kind: values[kind]}, size)
        weights[kind] = alone.weight
        rows.append(Row(f"rerank by {kind}: weight fitted over all queries", alone.weight, "share"))
        rows += [row_of(_of_method(figure, kind)) for figure in figures if "gain" in figure.name]
        rows.append(Row(f"rerank by {kind}: prompt tokens a passage of at most {size}", tokens / passages, "tokens"))
    fitted, figures = ranking.chosen(found, values, size)
    rows.append(Row(f"rerank, method chosen: {fitted.method}, weight fitted over all queries", fitted.weight, "share"))
    for figure in figures:
        gain = "gain by reranking" in figure.name
        goal = (0.015 if figure.name.startswith("dbpedia") else 0.0) if gain else None
        rows.append(row_of(figure, at_least=goal))
    rows += await _over_dense(parts, of_dense, size)
    few = [c for name in QUERIES for c in [c for c in found if c.task == name][:FEW]]
    rows += await _shorter(parts, few, weights["likelihood"] or RerankerConfig().weight, size)
    for kind in ("pointwise", "score"):
        rows += await _other(parts, few, kind, size)
    return rows


async def _over_dense(parts: Parts, found: Sequence[ranking.Candidates], size: int) -> list[Row]:
    """Titles over the dense leg alone, which is the better first stage where titles gain most."""
    values, _ = await ranking.scored(found, "title", parts.known, parts.tokenizer, size)
    fitted, figures = ranking.chosen(found, {"title": values}, size)
    named = [f.model_copy(update={"name": f"dense leg alone: {f.name}"}) for f in figures if ranking.METRIC in f.name]
    fit = Row("rerank by title, dense leg alone: weight fitted over all queries", fitted.weight, "share")
    return [fit, *(row_of(_of_method(figure, "title")) for figure in named)]


async def _shorter(parts: Parts, few: Sequence[ranking.Candidates], weight: float, size: int) -> list[Row]:
    values, tokens = await ranking.scored(few, "likelihood", parts.known, parts.tokenizer, SHORT)
    long, _ = await ranking.scored(few, "likelihood", parts.known, parts.tokenizer, size)
    lost = np.array(
        [
            ranking.reranked(c, s, weight) - ranking.reranked(c, v, weight)
            for c, s, v in zip(few, values, long, strict=True)
        ]
    )
    return [
        Row(f"passages of {SHORT} tokens: prompt tokens a passage", tokens / sum(len(c.hits) for c in few), "tokens"),
        row_of(_mean(f"passages of {SHORT} tokens against {size}, weight {weight:g}: nDCG@10 gained", lost)),
    ]


async def _other(parts: Parts, few: Sequence[ranking.Candidates], kind: RerankMethod, size: int) -> list[Row]:
    """A method that asks the model to judge, with its best weight of these very queries: the most that it could gain."""
    values, tokens = await ranking.scored(few, kind, parts.known, parts.tokenizer, size)
    first = np.array([ranking.reranked(c, v, 0.0) for c, v in zip(few, values, strict=True)])
    gains = {
        weight: np.array([ranking.reranked(c, v, weight) for c, v in zip(few, values, strict=True)]) - first
        for weight in (-0.3, -0.1, 0.1, 0.3, 0.5)
    }
    best = max(gains, key=lambda weight: float(gains[weight].mean()))
    return [
        Row(f"rerank by {kind}: prompt tokens a passage", tokens / sum(len(c.hits) for c in few), "tokens"),
        row_of(_mean(f"rerank by {kind}, best weight {best} of these queries: nDCG@10 gained", gains[best])),
        row_of(_mean(f"rerank by {kind}, weight 0.5: nDCG@10 gained", gains[0.5])),
    ]


async def sufficiency(parts: Parts) -> list[Row]:
    """Enough or not, and answerable or not, from one fit over all labelled sets."""
    labelled = cases.read(parts.data)
    found = await grading.cases(labelled, parts.data, lambda texts: vectors(texts, parts.encoder, parts.cache))
    config = RerankerConfig(candidates=GRADED)
    measured = await grading.samples(found, LLMReranker(parts.known, parts.tokenizer, config))
    _, figures = grading.fitted(found, measured, GradeConfig().min_answer, model=True)
    _, without = grading.fitted(found, measured, GradeConfig().min_answer, model=False)
    goals = {
        "hotpotqa, cross-validated: AUC": {"at_least": 0.82},
        "hotpotqa, cross-validated: ECE": {"at_most": 0.10},
        "holds, squad2, cross-validated: AUC": {"at_least": 0.70},
    }
    rows = [row_of(figure, **goals.get(figure.name, {})) for figure in figures]
    named = [f.model_copy(update={"name": f"{f.name}, without the model"}) for f in without]
    return [*rows, *map(row_of, named)]


def _of_method(figure: Figure, kind: RerankMethod) -> Figure:
    return figure.model_copy(update={"name": f"rerank by {kind}: {figure.name}"})


def _mean(name: str, values: NDArray[np.float64]) -> Figure:
    low, high = interval(len(values), lambda at: float(values[at].mean()))
    return Figure(name=name, value=float(values.mean()), low=low, high=high, questions=len(values))
