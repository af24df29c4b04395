"""Chooses how the model reorders candidates: the method, and how much it counts beside the first stage, or against it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.calibrate.fit import REPEATS, interval
from assay.calibration import Figure, Reranking
from assay.config import IndexConfig, RerankMethod, RetrieverConfig
from assay.errors import SetupError
from assay.eval.collection import Collection, read_collection
from assay.eval.metrics import measured
from assay.eval.ranking import BUCKET, Bench, BulkEncoder
from assay.ports import LLM, Tokenizer
from assay.relevance import method
from assay.rerank import blend, passage
from assay.retrieve import LocalRetriever
from assay.templates import Prompts
from assay.types import Hit, SearchQuery

METRIC = "nDCG@10"
FOLDS = 5
WEIGHTS = tuple(round(w / 20, 2) for w in range(-20, 21))
# What a grade is worth in the sets that are known; others are linear.
_GAINS = {"dbpedia_entity_5k": "exponential", "cranfield": "1=4,2=3,3=2,4=1"}
_DEARER = 0.005  # less than chance makes of some hundred queries
_ALL = 200  # passages asked for, so that there are enough documents among them

Show = Callable[[str, int, int], None]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """One judged query with the best passage of each of the first stage's best documents, best first."""

    task: str
    query: str
    text: str
    hits: tuple[Hit, ...]
    gains: Mapping[str, int]

    def ndcg(self, order: Sequence[int]) -> float:
        """Of the candidates in this order; documents that are no candidates count in what would be ideal."""
        run = {self.query: [self.hits[i].chunk.uri for i in order]}
        return measured((METRIC,), {self.query: dict(self.gains)}, run)[METRIC][self.query]


def collections(data: Path) -> dict[str, Collection]:
    """Name -> judged collection of ``ranking/``: BEIR folders (corpus.jsonl, queries.jsonl, qrels), and Cranfield's files."""
    found: dict[str, Collection] = {}
    for folder in sorted(p for p in (data / "ranking").glob("*") if p.is_dir()):
        gains = _GAINS.get(folder.name, "linear")
        if (folder / "corpus.jsonl").exists():
            qrels = sorted(f for f in (folder / "qrels").rglob("*.tsv"))
            if len(qrels) != 1:
                raise SetupError(f"{folder / 'qrels'} must hold one .tsv of judgments, it holds {len(qrels)}", "data")
            found[folder.name] = read_collection(folder / "corpus.jsonl", folder / "queries.jsonl", qrels[0], gains)
        elif (folder / "cranqrel").exists():
            found[folder.name] = read_collection(
                folder / "cran.all.1400", folder / "cran.qry", folder / "cranqrel", gains
            )
    return found


async def candidates(name: str, bench: Bench, encoder: BulkEncoder, queries: int, top: int) -> list[Candidates]:
    """The first ``queries`` queries of a collection whose index is built, with the default search's ``top`` documents."""
    retriever = LocalRetriever(IndexConfig(uri=str(bench.folder)), RetrieverConfig(timeout_s=600), encoder)
    found = []
    for query, text in list(bench.collection.queries.items())[:queries]:
        result = await retriever.search(SearchQuery((text,), (BUCKET,), top_k=_ALL))
        if result.degraded:
            raise SetupError(f"the query '{query}' was degraded: {result.degraded[0].reason}")
        best: dict[str, Hit] = {}
        for hit in result.hits:
            best.setdefault(hit.chunk.uri, hit)
        found.append(Candidates(name, query, text, tuple(best.values())[:top], bench.collection.judged[query]))
    return found


async def scored(
    found: Sequence[Candidates],
    kind: RerankMethod,
    llm: LLM,
    tokenizer: Tokenizer,
    passage_tokens: int,
    prompts: Prompts = Prompts(),
    show: Show = lambda *_: None,
) -> tuple[list[Numbers], int]:
    """Each query's values by one method, and the prompt tokens that they took."""
    by, values, tokens = method(kind, llm, prompts), [], 0
    for number, c in enumerate(found, 1):
        texts = [passage(c.text, hit, passage_tokens, tokenizer) for hit in c.hits]
        relevance = await by.score(c.text, texts, f"calibrate-{number}")
        if relevance.fault is not None:
            raise SetupError(f"a passage of the query '{c.query}' could not be scored: {relevance.fault}")
        values.append(np.array(relevance.values))
        tokens += relevance.usage.prompt_tokens
        show(f"rerank by {kind}", number, len(found))
    return values, tokens


def reranked(c: Candidates, values: Numbers, weight: float) -> float:
    order = np.argsort(-blend([hit.score for hit in c.hits], values.tolist(), weight), kind="stable")
    return c.ndcg([int(i) for i in order])


def chosen(
    found: Sequence[Candidates], values: Mapping[RerankMethod, Sequence[Numbers]], passage_tokens: int, seed: int = 7
) -> tuple[Reranking, list[Figure]]:
    """The method and weight with the best mean over the sets, and what choosing so is worth on queries that had no part in
    it, a mean over splits. Methods come cheapest first: a later one must be better by ``_DEARER``."""
    tables = {kind: _table(found, each) for kind, each in values.items()}
    tasks = np.array([c.task for c in found])
    first = tables[next(iter(tables))][:, WEIGHTS.index(0.0)]
    gained = np.zeros(len(found))
    for repeat in range(REPEATS):  # some hundred queries: how they fall into one split's fifths would decide too much
        fold = np.random.default_rng(seed + repeat).permutation(len(found)) % FOLDS
        for k in range(FOLDS):
            away = fold == k
            kind, at = _best(tables, tasks, ~away)
            gained[away] += (tables[kind][away, at] - first[away]) / REPEATS
    kind, at = _best(tables, tasks, np.ones(len(found), dtype=bool))
    figures: list[Figure] = []
    for task in dict.fromkeys(tasks):
        here = tasks == task
        figures.append(_figure(f"{task}, first stage: {METRIC}", first[here]))
        figures.append(_figure(f"{task}, reranked, cross-validated: {METRIC}", (first + gained)[here]))
        figures.append(_figure(f"{task}, gain by reranking, cross-validated: {METRIC}", gained[here]))
    return Reranking(method=kind, weight=WEIGHTS[at], passage_tokens=passage_tokens), figures


def _table(found: Sequence[Candidates], values: Sequence[Numbers]) -> Numbers:
    """Shape (queries, weights)."""
    return np.array([[reranked(c, v, weight) for weight in WEIGHTS] for c, v in zip(found, values, strict=True)])


def _best(
    tables: Mapping[RerankMethod, Numbers], tasks: NDArray[np.str_], of: NDArray[np.bool_]
) -> tuple[RerankMethod, int]:
    """Every set counts the same; the weight is the middle of its best neighbours, so that one lucky query decides less."""
    best: tuple[float, RerankMethod, int] | None = None
    for kind, table in tables.items():
        curve = np.mean([table[of & (tasks == task)].mean(0) for task in dict.fromkeys(tasks[of])], axis=0)
        smooth = np.convolve(np.pad(curve, 1, mode="edge"), np.ones(3) / 3, mode="valid")
        at = int(np.argmax(smooth))
        if best is None or smooth[at] > best[0] + _DEARER:
            best = (float(smooth[at]), kind, at)
    assert best is not None
    return best[1], best[2]


def _figure(name: str, values: Numbers) -> Figure:
    low, high = interval(len(values), lambda at: float(values[at].mean()))
    return Figure(name=name, value=float(values.mean()), low=low, high=high, questions=len(values))
