"""Chooses how the model reorders candidates: the method, how much it counts beside the first stage, or against it, and from
which value on a passage is kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
from assay.types import Hit, Leg, SearchQuery

METRIC = "nDCG@10"
FOLDS = 5
WEIGHTS = tuple(round(w / 20, 2) for w in range(-20, 21))
# Whoever writes a document writes its title. With this share the search's first passage stays among the three first, whatever
# the titles of the others say (tests/unit/test_stages.py).
MOST: Mapping[RerankMethod, float] = {"title": 0.3}
# What a grade is worth in the sets that are known; others are linear.
_GAINS = {"dbpedia_entity_5k": "exponential", "cranfield": "1=4,2=3,3=2,4=1"}
_DEARER = 0.005  # less than chance makes of some hundred queries
LOST = 0.02  # of the relevant passages, at most, by a threshold
_WORTH = 0.25  # of the others, at least: with less, a threshold is not worth what it loses
_ALL = 200  # passages asked for, so that there are enough documents among them

Show = Callable[[str, int, int], None]
Numbers = NDArray[np.float64]


class Scored(NamedTuple):
    """One query's values by one method, and which of them are the method's own (``Relevance.unasked`` are not)."""

    values: Numbers
    own: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Candidates:
    """One judged query with the best passage of each of the first stage's best documents, best first."""

    task: str
    query: str
    text: str
    hits: tuple[Hit, ...]
    gains: Mapping[str, int]

    def relevant(self) -> NDArray[np.bool_]:
        return np.array([self.gains.get(hit.chunk.uri, 0) > 0 for hit in self.hits], bool)

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


async def candidates(
    name: str, bench: Bench, encoder: BulkEncoder, queries: int, top: int, legs: tuple[Leg, ...] = ("dense", "sparse")
) -> list[Candidates]:
    """The first ``queries`` queries of a collection whose index is built, with the default search's ``top`` documents, or with
    those of some of its ``legs``."""
    retriever = LocalRetriever(IndexConfig(uri=str(bench.folder)), RetrieverConfig(timeout_s=600), encoder)
    found = []
    for query, text in list(bench.collection.queries.items())[:queries]:
        result = await retriever.search(SearchQuery((text,), (BUCKET,), top_k=_ALL, legs=legs))
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
) -> tuple[list[Scored], int]:
    """Each query's values by one method, and the prompt tokens that they took."""
    by, values, tokens = method(kind, llm, prompts), [], 0
    for number, c in enumerate(found, 1):
        texts = [passage(c.text, hit, passage_tokens, tokenizer) for hit in c.hits]
        relevance = await by.score(c.text, texts, f"calibrate-{number}")
        if relevance.fault is not None:
            raise SetupError(f"a passage of the query '{c.query}' could not be scored: {relevance.fault}")
        own = [place not in relevance.unasked for place in range(len(texts))]
        values.append(Scored(np.array(relevance.values), np.array(own, bool)))
        tokens += relevance.usage.prompt_tokens
        show(f"rerank by {kind}", number, len(found))
    return values, tokens


def reranked(c: Candidates, scored: Scored, weight: float) -> float:
    order = np.argsort(-blend([hit.score for hit in c.hits], scored.values.tolist(), weight), kind="stable")
    return c.ndcg([int(i) for i in order])


def chosen(
    found: Sequence[Candidates], values: Mapping[RerankMethod, Sequence[Scored]], passage_tokens: int, seed: int = 7
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
    threshold, of_threshold = _threshold(found, values[kind]) if WEIGHTS[at] > 0 else (None, [])
    fitted = Reranking(method=kind, weight=WEIGHTS[at], passage_tokens=passage_tokens, threshold=threshold)
    return fitted, [*figures, *of_threshold]


def _threshold(found: Sequence[Candidates], scored: Sequence[Scored]) -> tuple[float | None, list[Figure]]:
    """The value that all but ``LOST`` of the relevant passages have, and what it keeps of queries that had no part in it; None
    where it drops too few of the others to be worth that."""

    def of(queries: NDArray[np.bool_], relevant: bool) -> Numbers:
        chosen = [
            s.values[s.own & (c.relevant() == relevant)] for c, s, q in zip(found, scored, queries, strict=True) if q
        ]
        return np.concatenate(chosen) if chosen else np.zeros(0)

    every = np.ones(len(found), bool)
    if not len(of(every, True)) or not len(of(every, False)):
        return None, []
    fold = np.random.default_rng(7).permutation(len(found)) % FOLDS
    shares = {True: np.full(len(found), np.nan), False: np.full(len(found), np.nan)}
    for k in range(FOLDS):
        if len(known := of(fold != k, True)):
            bound = np.quantile(known, LOST)
            for at in np.flatnonzero(fold == k):
                for relevant, share in shares.items():
                    theirs = of(np.arange(len(found)) == at, relevant)
                    share[at] = np.mean(theirs >= bound) if len(theirs) else np.nan
    kept, left = (share[~np.isnan(share)] for share in shares.values())
    figures = [
        _figure("threshold, cross-validated: share of the relevant passages that it keeps", kept),
        _figure("threshold, cross-validated: share of the others that it drops", 1 - left),
    ]
    worth = float(1 - left.mean()) >= _WORTH
    return (float(round(np.quantile(of(every, True), LOST), 3)) if worth else None), figures


def _table(found: Sequence[Candidates], values: Sequence[Scored]) -> Numbers:
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
        smooth[np.abs(WEIGHTS) > MOST.get(kind, 1.0)] = -np.inf
        # Of equal ones the least: where a method has nothing to ask, it has no say.
        at = min(np.flatnonzero(smooth >= smooth.max() - 1e-12), key=lambda i: abs(WEIGHTS[i]))
        if best is None or smooth[at] > best[0] + _DEARER:
            best = (float(smooth[at]), kind, at)
    assert best is not None
    return best[1], best[2]


def _figure(name: str, values: Numbers) -> Figure:
    low, high = interval(len(values), lambda at: float(values[at].mean()))
    return Figure(name=name, value=float(values.mean()), low=low, high=high, questions=len(values))
