"""Conflicting evidence: how often it is told where nobody planted it, and how often where one number was changed.

Each question of the shared sets has the five passages that BM25 finds for it, each of another document. What is told there of
sets without a contradiction is a false alarm, or one that nobody knew of: ``--show`` prints each. Planted: the sentence that
holds a question's numeric answer, in a document of its own, with another number in it, in the same words or turned round.
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import bm25s

from assay.conflicts import Conflict, find
from assay.sentences import sentences
from assay.text import index_terms
from assay.types import Chunk, Evidence, Hit
from bench import judged
from bench.report import Row, at_least, at_most, options, publish

TOP = 5
_NUMBER = re.compile(r"(?<![\w.,-])\d{1,4}(?![\w,-]|\.\d)")
_INTRODUCTIONS = ("", "According to a later report, ", "It is also said that ")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the answers that its own paragraph (by place) gives, where they are known."""

    question: str
    paragraph: int = -1
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Passages:
    name: str
    texts: Sequence[tuple[str, str]]
    asked: Sequence[Asked]


def read(data: Path) -> list[Passages]:
    squad = json.loads((data / "unanswerable" / "squad2_250" / "queries.json").read_text())["queries"]
    truth = json.loads((data / "unanswerable" / "squad2_250" / "ground_truth.json").read_text())
    paragraphs = list(dict.fromkeys(q["context"] for q in squad))
    sets = [
        Passages(
            "squad2_250",
            [("", text) for text in paragraphs],
            [Asked(q["question"], paragraphs.index(q["context"]), tuple(truth[q["id"]]["answers"])) for q in squad],
        ),
        _xquad(data / "ranking" / "xquad" / "xquad.en.json"),
        _pages(data / "markdown" / "kserve_docs"),
    ]
    for name in ("hotpotqa_100", "musique_50", "cranfield"):
        held = judged.SETS[name].read(data)
        sets.append(Passages(name, [(d.title, d.text) for d in held.documents], [*map(Asked, held.queries.values())]))
    return sets


def _xquad(file: Path) -> Passages:
    texts: list[tuple[str, str]] = []
    asked: list[Asked] = []
    for article in json.loads(file.read_text())["data"]:
        for paragraph in article["paragraphs"]:
            asked += [
                Asked(q["question"], len(texts), tuple(a["text"] for a in q["answers"])) for q in paragraph["qas"]
            ]
            texts.append((article["title"].replace("_", " "), paragraph["context"]))
    return Passages("xquad en", texts, asked)


def _pages(folder: Path) -> Passages:
    """The documentation by its headings, and the questions that its tests ask."""
    texts: list[tuple[str, str]] = []
    for page in sorted(folder.rglob("*.md")):
        for part in re.split(r"\n(?=#)", page.read_text(encoding="utf-8")):
            heading, _, text = part.partition("\n")
            texts += [(f"{page.stem} {heading.strip('# ')}", text[at : at + 1500]) for at in range(0, len(text), 1500)]
    file = Path(__file__).parents[1] / "tests" / "integration" / "kserve_questions.json"
    return Passages("kserve_docs", texts, [Asked(q["question"]) for q in json.loads(file.read_text())])


class Search:
    def __init__(self, texts: Sequence[tuple[str, str]]) -> None:
        self._texts = texts
        self._bm25 = bm25s.BM25()
        self._bm25.index([index_terms(" ".join(each)) or ["-"] for each in texts], show_progress=False)

    def best(self, question: str) -> list[int]:
        words = index_terms(question)
        if not words:
            return []
        found, _ = self._bm25.retrieve([words], k=min(TOP, len(self._texts)), show_progress=False)
        return [int(n) for n in found[0]]

    def evidence(self, numbers: Sequence[int]) -> list[Evidence]:
        return [_evidence(rank, number, *self._texts[number]) for rank, number in enumerate(numbers, 1)]


def _evidence(rank: int, number: int, title: str, text: str) -> Evidence:
    where = Chunk(number, f"doc_{number}", "bench", title, "", text, 0, len(text), 0)
    return Evidence(f"E{rank}", Hit(where, 1 / rank), 1 / rank, 1)


def planted(asked: Asked, text: str) -> list[str]:
    """The sentence with the answer's number changed, under each introduction; empty where the answer has no number."""
    for start, end in sentences(text):
        sentence = text[start:end]
        for answer in asked.answers:
            at = sentence.find(answer)
            number = _NUMBER.search(sentence, at, at + len(answer)) if at >= 0 else None
            if number is not None:
                other = str(int(number.group()) + 3)
                changed = sentence[: number.start()] + other + sentence[number.end() :]
                return [begin + changed for begin in _INTRODUCTIONS]
    return []


def measure(passages: Passages, show: bool, quick: bool) -> list[Row]:
    search, told, spent = Search(passages.texts), 0, list[float]()
    found = [0] * len(_INTRODUCTIONS)
    plants = 0
    for asked in passages.asked[:: 10 if quick else 1]:
        best = search.best(asked.question)
        evidence = search.evidence(best)
        start = time.perf_counter()
        conflicts = find(asked.question, evidence)
        spent.append(1000 * (time.perf_counter() - start))
        told += bool(conflicts)
        if show and conflicts:
            _print(asked.question, conflicts)
        if not (changed := planted(asked, passages.texts[asked.paragraph][1]) if asked.answers else []):
            continue
        plants += 1
        title = passages.texts[asked.paragraph][0]
        rest = [n for n in best if n != asked.paragraph][: TOP - 2]
        for n, sentence in enumerate(changed):
            with_plant = [*search.evidence([asked.paragraph, *rest]), _evidence(TOP, -1, title, sentence)]
            hit = any(
                {asked.paragraph, -1} <= {side.evidence.hit.chunk.id for side in c.sides}
                for c in find(asked.question, with_plant)
            )
            found[n] += hit
            if show and not hit and n == 0:
                print(f"MISSED {asked.question}\n    {sentence}")
    start_of = f"{passages.name}: "
    count = len(spent)
    rows = [
        at_most(f"{start_of}questions of {count} with a conflict that nobody planted", 100 * told / count, "%", 2.0),
        Row(f"{start_of}time of a question, median", statistics.median(spent), "ms"),
    ]
    if plants:
        rows.append(at_least(f"{start_of}of {plants} planted, told", 100 * found[0] / plants, "%", 60.0))
        rest_found = sum(found[1:]) / (len(found) - 1)
        rows.append(Row(f"{start_of}of {plants} planted in other words, told", 100 * rest_found / plants, "%"))
    return rows


def _print(question: str, conflicts: Sequence[Conflict]) -> None:
    for conflict in conflicts:
        print(f"\n{question}  [{conflict.kind}]")
        for side in conflict.sides:
            print(f"    {side.value!r} in {side.evidence.hit.chunk.title!r}: {side.text}")


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--show", action="store_true", help="print each conflict, and each planted one that was missed"
        )

    args = options(__doc__ or "", more=more)
    rows = [row for passages in read(args.data) for row in measure(passages, args.show, args.quick)]
    publish("Conflicting evidence", rows, args)


if __name__ == "__main__":
    main()
