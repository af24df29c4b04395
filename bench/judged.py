"""The shared sets as judged collections, as ``bench.ranking`` measures them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from assay.eval.collection import Collection, collection, read_collection
from assay.eval.formats import Document, Judged


@dataclass(frozen=True, slots=True)
class Set:
    """``goal`` is of ``metric`` under the configuration ``config``."""

    read: Callable[[Path], Collection]
    metric: str
    goal: float
    config: str = "default"


def cranfield(data: Path) -> Collection:
    """Grade 1 is the best one: a gain of 5 less the code."""
    folder = data / "ranking" / "cranfield"
    return read_collection(folder / "cran.all.1400", folder / "cran.qry", folder / "cranqrel", "1=4,2=3,3=2,4=1")


def dbpedia(data: Path) -> Collection:
    folder = data / "ranking" / "dbpedia_entity_5k"
    return read_collection(
        folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv", "exponential"
    )


def xquad(data: Path, language: str) -> Collection:
    """Each question is to find the paragraph that it was asked of, among all paragraphs of its language."""
    path = data / "ranking" / "xquad" / f"xquad.{language}.json"
    documents: list[Document] = []
    queries: dict[str, str] = {}
    judged: Judged = {}
    for article in json.loads(path.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            documents.append(Document(f"p{len(documents)}", "", paragraph["context"]))
            queries |= {asked["id"]: asked["question"] for asked in paragraph["qas"]}
            judged |= {asked["id"]: {documents[-1].id: 1} for asked in paragraph["qas"]}
    return collection(documents, queries, judged, str(path))


def hotpotqa(data: Path) -> Collection:
    folder = data / "multihop" / "hotpotqa_100"
    corpus = json.loads((folder / "hotpotqa_train_corpus.json").read_text("utf-8"))
    asked = json.loads((folder / "hotpotqa_train.json").read_text("utf-8"))
    documents = [Document(title, title, "".join(sentences)) for title, sentences in corpus.items()]
    queries = {str(n): q["question"] for n, q in enumerate(asked)}
    judged = {str(n): {title: 1 for title, _ in q["supporting_facts"]} for n, q in enumerate(asked)}
    return collection(documents, queries, judged, str(folder))


def musique(data: Path) -> Collection:
    folder = data / "multihop" / "musique_50"
    corpus = json.loads((folder / "corpus.json").read_text("utf-8"))
    asked = json.loads((folder / "questions.json").read_text("utf-8"))
    documents = [Document(str(n), d["title"], d["text"]) for n, d in enumerate(corpus)]
    known = {(d.title, d.text): d.id for d in documents}
    judged = {
        q["id"]: {known[p["title"], p["paragraph_text"]]: 1 for p in q["paragraphs"] if p["is_supporting"]}
        for q in asked
    }
    return collection(documents, {q["id"]: q["question"] for q in asked}, judged, str(folder))


SETS: Mapping[str, Set] = {
    "dbpedia_entity_5k": Set(dbpedia, "nDCG@10", 0.47),
    "cranfield": Set(cranfield, "nDCG@10", 0.575),
    "xquad en": Set(partial(xquad, language="en"), "nDCG@10", 0.97),
    "xquad ar": Set(partial(xquad, language="ar"), "nDCG@10", 0.90),
    "xquad zh": Set(partial(xquad, language="zh"), "nDCG@10", 0.95),
    "hotpotqa_100": Set(hotpotqa, "R@5", 0.92, "link"),
    "musique_50": Set(musique, "R@5", 0.67, "link"),
}
QUICK = ("xquad en", "hotpotqa_100")
