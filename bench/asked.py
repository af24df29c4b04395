"""The shared sets as files of questions for ``eval answers``, each with an index of its documents and a config beside it.

``python -m bench.asked --data ../shared/data --out FOLDER`` writes ``SET.jsonl`` and ``SET.yaml``, and keeps what is embedded.
"""

import argparse
import ast
import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from assay.cli.meter import Meter
from assay.config import AppConfig, IndexConfig
from assay.eval.collection import Collection
from assay.eval.formats import Document
from assay.eval.ranking import BUCKET, Bench, BulkEncoder
from assay.index.embed import SentenceEmbedder
from assay.models import resolve_model
from bench.contracts import CLAUSES
from bench.judged import hotpotqa as hotpotqa_collection
from bench.judged import musique as musique_collection
from bench.report import options

ROOT = Path(__file__).parents[1]
CONTRACTS = 12  # the shortest ones
EACH = 60  # questions of contracts, with an answer and without one
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    """``rows``: as docs/evaluation.md describes them. A document's uri in the index is its id."""

    documents: tuple[Document, ...]
    rows: Rows


def hotpotqa(data: Path) -> Asked:
    """Two documents hold what a question needs, in no order."""
    file = data / "multihop" / "hotpotqa_100" / "hotpotqa_train.json"
    rows = [
        {
            "id": str(number),
            "question": q["question"],
            "answers": [q["answer"]],
            "evidence": [{"uri": title} for title in dict.fromkeys(title for title, _ in q["supporting_facts"])],
        }
        for number, q in enumerate(json.loads(file.read_text("utf-8")))
    ]
    return Asked(hotpotqa_collection(data).documents, rows)


def musique(data: Path) -> Asked:
    """Two to four steps, in their order."""
    documents = musique_collection(data).documents
    place = {(d.title, d.text): d.id for d in documents}
    rows = []
    for q in json.loads((data / "multihop" / "musique_50" / "questions.json").read_text("utf-8")):
        steps = [q["paragraphs"][step["paragraph_support_idx"]] for step in q["question_decomposition"]]
        uris = dict.fromkeys(place[p["title"], p["paragraph_text"]] for p in steps)
        answers = list(dict.fromkeys([q["answer"], *q["answer_aliases"]]))
        evidence = [{"uri": uri} for uri in uris]
        rows.append({"id": q["id"], "question": q["question"], "answers": answers, "evidence": evidence})
    return Asked(documents, rows)


def squad2(data: Path) -> Asked:
    """A question is put to its own paragraph alone: of that, and not of the others, it is known whether it answers."""
    folder = data / "unanswerable" / "squad2_250"
    queries = json.loads((folder / "queries.json").read_text("utf-8"))["queries"]
    truth = json.loads((folder / "ground_truth.json").read_text("utf-8"))
    place = {text: f"p{number}" for number, text in enumerate(dict.fromkeys(q["context"] for q in queries))}
    rows: Rows = []
    for q in queries:
        known, uri = truth[q["id"]], place[q["context"]]
        row = {"id": q["id"], "question": q["question"], "filters": {"field": "uri", "op": "=", "value": uri}}
        gold = {"answers": list(dict.fromkeys(known["answers"])), "evidence": [{"uri": uri}]}
        rows.append({**row, "answerable": not known["is_impossible"], **({} if known["is_impossible"] else gold)})
    return Asked(tuple(Document(uri, "", text) for text, uri in place.items()), rows)


def cuad(data: Path) -> Asked:
    """Clauses of contracts: a question is put to one contract, whose lawyers' labels say whether it has such a clause."""
    folder = data / "contracts" / "cuad"
    txt = {Path(m["filename"]).stem: folder / m["txt"] for m in json.loads((folder / "manifest.json").read_text())}
    with (folder / "master_clauses.csv").open(newline="", encoding="utf-8-sig") as file:
        labels = {Path(row["Filename"]).stem: row for row in csv.DictReader(file)}
    named = sorted(txt.keys() & labels.keys(), key=lambda stem: (txt[stem].stat().st_size, stem))[:CONTRACTS]
    sides: dict[bool, Rows] = {True: [], False: []}
    for clause, asked in CLAUSES.items():
        for number, stem in enumerate(named):
            there = bool(ast.literal_eval(labels[stem][clause]))
            only = {"field": "uri", "op": "=", "value": stem}
            row = {"id": f"{number}: {clause}", "question": f"{asked} this agreement?", "filters": only}
            sides[there].append({**row, "answerable": there})
    documents = tuple(Document(stem, stem, txt[stem].read_text("utf-8")) for stem in named)
    return Asked(documents, [row for side in sides.values() for row in _evenly(side, EACH)])


def _evenly(rows: Rows, most: int) -> Rows:
    """So many of them from all over, where there are more."""
    step = max(1.0, len(rows) / most)
    return [rows[int(number * step)] for number in range(min(most, len(rows)))]


SETS: Mapping[str, Callable[[Path], Asked]] = {
    "musique_50": musique,
    "hotpotqa_100": hotpotqa,
    "squad2_250": squad2,
    "cuad_clauses": cuad,
}


def indexed(asked: Asked, folder: Path, encoder: BulkEncoder, notes: Console) -> Path:
    """The folder of the documents' index, which is made where it is not there."""
    bench = Bench(Collection(asked.documents, {}, {}), folder, encoder)
    with Meter(notes, "documents") as meter:
        bench.index(meter.show)
    return bench.folder


def config(index: Path) -> dict[str, Any]:
    """The laptop's, over this index."""
    raw: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    raw["applications"][0]["args"]["index"] = {"uri": str(index.absolute())}
    return raw


def main(argv: Sequence[str] | None = None) -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--out", type=Path, default=Path(".assay/bench/asked"), help="(default: %(default)s)")
        parser.add_argument("--only", choices=list(SETS), nargs="+", default=list(SETS), help="these sets alone")

    args = options(__doc__ or "", argv, more)
    if not (args.data / "multihop").is_dir():
        sys.exit(f"bench.asked: the data sets are not at {args.data}: name their folder with --data")
    encoder = SentenceEmbedder(resolve_model(IndexConfig().embedder, Path(AppConfig().cache)))
    args.out.mkdir(parents=True, exist_ok=True)
    notes = Console(stderr=True)
    for name in args.only:
        asked = SETS[name](args.data)
        lines = [json.dumps({"buckets": [BUCKET], **row}, ensure_ascii=False) for row in asked.rows]
        (args.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
        where = indexed(asked, args.out / "indexes", encoder, notes)
        (args.out / f"{name}.yaml").write_text(yaml.safe_dump(config(where)))
        notes.print(f"{args.out / name}.jsonl: {len(asked.rows)} questions over {len(asked.documents)} documents")


if __name__ == "__main__":
    main()
