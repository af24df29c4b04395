"""Fits the grader's logistic (``config.GradeConfig``) for one engine on labelled evidence, and says how well it separates.

Enough: a HotpotQA question with both of its passages, a SQuAD 2 question with the paragraph that answers it. Not enough: half
of the HotpotQA passages, a SQuAD 2 paragraph that does not answer, and questions put to a collection about other things.
All evidence sets have five passages, so that their number says nothing.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict

from assay.config import EngineConfig, RerankerConfig
from assay.grade import features
from assay.index.embed import SentenceEmbedder
from assay.models import resolve_model
from assay.rerank import LLMReranker
from assay.tokens import ModelTokenizer
from assay.types import Chunk, Evidence, Hit, RerankRequest
from bench.report import Row, options, publish
from deployments.engine import build_engine
from deployments.remote import RemoteLLM

PASSAGES = 5
NAMES = ("word_coverage", "name_coverage", "likelihood_gain", "similarity")


@dataclass(frozen=True, slots=True)
class Case:
    """A question before ``gold`` passages and what is nearest of ``others``; ``enough`` is the label."""

    task: str
    question: str
    gold: tuple[tuple[str, str], ...]
    others: tuple[tuple[str, str], ...]
    enough: bool


def hotpot(data: Path, most: int) -> list[Case]:
    folder = data / "multihop" / "hotpotqa_100"
    questions = json.loads((folder / "hotpotqa_train.json").read_text())[:most]
    cases = []
    for q in questions:
        wanted = list(dict.fromkeys(title for title, _ in q["supporting_facts"]))
        context = {title: " ".join("".join(sentences).split()) for title, sentences in q["context"]}
        gold = tuple((title, context[title]) for title in wanted)
        others = tuple((title, text) for title, text in context.items() if title not in wanted)
        cases.append(Case("hotpotqa", q["question"], gold, others, True))
        cases.append(Case("hotpotqa", q["question"], gold[: len(gold) // 2], others, False))
    return cases


def squad(data: Path, most: int) -> list[Case]:
    folder = data / "unanswerable" / "squad2_250"
    queries = json.loads((folder / "queries.json").read_text())["queries"][:most]
    truth = json.loads((folder / "ground_truth.json").read_text())
    paragraphs = tuple(dict.fromkeys(("", q["context"]) for q in queries))
    cases = []
    for q in queries:
        own = ("", q["context"])
        others = tuple(p for p in paragraphs if p != own)
        question = q.get("question") or q["query"]
        cases.append(Case("squad2", question, (own,), others, not truth[q["id"]]["is_impossible"]))
    return cases


def elsewhere(cases: Sequence[Case], collection: Sequence[Case], most: int) -> list[Case]:
    """Answerable questions put to a collection that is about other things."""
    others = tuple(dict.fromkeys(p for c in collection for p in (*c.gold, *c.others)))
    asked = list({c.question: c for c in cases if c.enough}.values())[:most]
    return [Case("elsewhere", c.question, (), others, False) for c in asked]


class Measurer:
    """Builds each case's evidence as the graph would: similarity, then the reranker's gains."""

    def __init__(self, embedder: SentenceEmbedder, reranker: LLMReranker) -> None:
        self._embedder, self._reranker = embedder, reranker
        self._vectors: dict[str, Any] = {}

    async def _embed(self, texts: Sequence[str]) -> Any:
        new = [t for t in dict.fromkeys(texts) if t not in self._vectors]
        self._vectors |= dict(zip(new, await self._embedder.embed(new), strict=True))
        return np.stack([self._vectors[t] for t in texts])

    async def features(self, case: Case) -> dict[str, float]:
        (query,) = await self._embed([case.question])
        passages = [*case.gold, *case.others]
        cosine = await self._embed([f"{title} {text}" for title, text in passages]) @ query
        nearest = sorted(range(len(case.gold), len(passages)), key=lambda i: -cosine[i])
        chosen = [*range(len(case.gold)), *nearest][:PASSAGES]
        hits = tuple(self._hit(i, passages[i], float(cosine[i])) for i in chosen)
        done = await self._reranker.rerank(RerankRequest(case.question, hits, PASSAGES))
        evidence = [Evidence(f"E{n}", r.hit, r.score, 1, r.gain) for n, r in enumerate(done.ranked, 1)]
        return features(case.question, evidence)

    @staticmethod
    def _hit(number: int, passage: tuple[str, str], cosine: float) -> Hit:
        title, text = passage
        chunk = Chunk(number, str(number), "docs", title, "", text, 0, len(text), 0, (title,) if title else ())
        return Hit(chunk, cosine, {}, cosine)


async def measure(cases: Sequence[Case]) -> list[dict[str, float]]:
    cache = Path("~/.cache/assay").expanduser()
    engine, config = EngineConfig(), RerankerConfig()
    model = resolve_model(engine.model, cache)
    handle = serve.run(build_engine("small", engine, model), name="engine", route_prefix=None)
    reranker = LLMReranker(RemoteLLM("small", handle), ModelTokenizer(model), config)
    embedder = SentenceEmbedder(resolve_model("embedded:all-minilm-l6-v2", cache))
    measurer = Measurer(embedder, reranker)
    measured = []
    for n, case in enumerate(cases):
        measured.append(await measurer.features(case))
        if n % 25 == 0:
            print(f"{n} of {len(cases)}", flush=True)
    return measured


def fit(cases: Sequence[Case], measured: Sequence[dict[str, float]]) -> tuple[list[Row], dict[str, Any]]:
    x = np.array([[m[name] for name in NAMES] for m in measured])
    y = np.array([case.enough for case in cases])
    means, scale = x.mean(0), x.std(0)
    z = (x - means) / scale
    groups = np.unique([case.question for case in cases], return_inverse=True)[1]
    model = LogisticRegression(C=1.0, class_weight="balanced")
    p = cross_val_predict(model, z, y, groups=groups, cv=GroupKFold(5), method="predict_proba")[:, 1]
    rows = [Row("all cases, cross-validated: AUC", roc_auc_score(y, p), "auc")]
    rows.append(Row("all cases, cross-validated: Brier score", brier_score_loss(y, p), "score"))
    tasks = np.array([case.task for case in cases])
    for task in ("hotpotqa", "squad2"):
        here = tasks == task
        rows.append(Row(f"{task}: AUC of the logistic", roc_auc_score(y[here], p[here]), "auc"))
        rows += [
            Row(f"{task}: AUC of {n} alone", roc_auc_score(y[here], x[here, i]), "auc") for i, n in enumerate(NAMES)
        ]
    away = p[tasks == "elsewhere"]
    for threshold in (0.15, 0.2, 0.25, 0.3, 0.4, 0.5):
        rows.append(Row(f"elsewhere: share below {threshold}", float((away < threshold).mean()), "share"))
        rows.append(Row(f"enough: share below {threshold}", float((p[y] < threshold).mean()), "share"))
    model.fit(z, y)
    weights = {name: round(float(w), 3) for name, w in zip(NAMES, model.coef_[0] / scale, strict=True)}
    fitted = {
        "intercept": round(float(model.intercept_[0]), 3),
        "weights": weights,
        "means": {name: round(float(m), 3) for name, m in zip(NAMES, means, strict=True)},
    }
    return rows, fitted


def main() -> None:
    args = options(__doc__ or "")
    most = 40 if args.quick else 100
    pairs, asked = hotpot(args.data, most), squad(args.data, 2 * most)
    cases = [*pairs, *asked, *elsewhere(pairs, asked, most // 2), *elsewhere(asked, pairs, most // 2)]
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        measured = asyncio.run(measure(cases))
    finally:
        serve.shutdown()
        ray.shutdown()
    rows, fitted = fit(cases, measured)
    publish(
        "Is the evidence enough? (SmolLM2-135M-Instruct)", rows, args, "each feature alone beside the logistic over all"
    )
    print(json.dumps(fitted, indent=1))


if __name__ == "__main__":
    main()
