"""Labelled evidence for the grader: questions before passages that are enough, and the same before passages that are not.

All sets of one question have the same number of passages, so that their number says nothing.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import SetupError

Passage = tuple[str, str]
"""Title and text; a title may be empty."""
Embed = Callable[[Sequence[str]], Awaitable[NDArray[np.float32]]]
MOST_PADDING = 3
NEAR_MISS = "near misses"
ELSEWHERE = 30  # questions of each set that are put to another set's passages


@dataclass(frozen=True, slots=True)
class Case:
    """``cosines``: of the question with each passage. The weights of one question's cases sum to 1 on each side. ``group``:
    the passage that it needs first; questions over one passage are not on both sides of a split."""

    task: str
    group: str
    question: str
    passages: tuple[Passage, ...]
    cosines: tuple[float, ...]
    enough: bool
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Labelled:
    """A question with the passages that it needs, all of them, and others. ``answerable`` is False where even these do not
    answer it (SQuAD 2: a question that only sounds as if its paragraph did). ``group``: what its cases stay together by, the
    first gold passage if empty; ``weight``: of a question with one passage."""

    task: str
    question: str
    gold: tuple[Passage, ...]
    others: tuple[Passage, ...]
    answerable: bool = True
    group: str = ""
    weight: float = 1.0


def read(data: Path) -> list[Labelled]:
    """What of the known sets, and of one's own ``evidence.jsonl``, is in the folder. Raises ``SetupError`` where none is."""
    found = [*hotpotqa(data), *musique(data), *squad2(data), *own(data)]
    if not found:
        raise SetupError(
            f"{data} has no labelled evidence: multihop/hotpotqa_100, multihop/musique_50, unanswerable/squad2_250 or "
            "evidence.jsonl",
            "data",
        )
    return found


def hotpotqa(data: Path) -> list[Labelled]:
    file, found = data / "multihop" / "hotpotqa_100" / "hotpotqa_train.json", []
    for q in json.loads(file.read_text())[:100] if file.exists() else ():
        passages = {title: (title, " ".join("".join(sentences).split())) for title, sentences in q["context"]}
        gold = dict.fromkeys(title for title, _ in q["supporting_facts"])
        others = tuple(p for title, p in passages.items() if title not in gold)
        found.append(Labelled("hotpotqa", q["question"], tuple(passages[title] for title in gold), others))
    return found


def musique(data: Path) -> list[Labelled]:
    file, found = data / "multihop" / "musique_50" / "questions.json", []
    for q in json.loads(file.read_text()) if file.exists() else ():
        parts: dict[bool, list[Passage]] = {True: [], False: []}
        for p in q["paragraphs"]:
            parts[p["is_supporting"]].append((p["title"], p["paragraph_text"]))
        found.append(Labelled("musique", q["question"], tuple(parts[True]), tuple(parts[False])))
    return found


def squad2(data: Path) -> list[Labelled]:
    folder = data / "unanswerable" / "squad2_250"
    if not folder.is_dir():
        return []
    queries = json.loads((folder / "queries.json").read_text())["queries"]
    truth = json.loads((folder / "ground_truth.json").read_text())
    paragraphs = tuple(dict.fromkeys(("", q["context"]) for q in queries))
    return [
        Labelled(
            "squad2",
            q["question"],
            (("", q["context"]),),
            tuple(p for p in paragraphs if p[1] != q["context"]),
            not truth[q["id"]]["is_impossible"],
        )
        for q in queries
    ]


def own(data: Path) -> list[Labelled]:
    """Lines of ``{"question", "gold": [{"title", "text"}], "others": [...], "answerable": true}``."""
    file, found = data / "evidence.jsonl", []
    for number, line in enumerate(file.read_text().splitlines() if file.exists() else (), 1):
        try:
            q: dict[str, Any] = json.loads(line)
            gold, others = (tuple((p.get("title", ""), p["text"]) for p in q[part]) for part in ("gold", "others"))
            found.append(Labelled("own", q["question"], gold, others, bool(q.get("answerable", True))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SetupError(f"{file}, line {number}: {type(error).__name__}: {error}", "data") from None
    return found


async def cases(labelled: Sequence[Labelled], embed: Embed) -> list[Case]:
    """Enough: all gold passages. Not enough: one of them left out, each in turn, or a question without an answer, or
    passages of another set. The rest of each are the nearest others by cosine; a question of one passage has it alone."""
    space = await _Space.of(labelled, embed)
    found: list[Case] = []
    for q in labelled:
        if len(q.gold) == 1:
            found.append(space.case(q, q.gold, q.answerable, q.weight))
            continue
        near = space.nearest(q.question, q.others, MOST_PADDING + 1)
        found.append(space.case(q, (*q.gold, *near[:MOST_PADDING]), q.answerable))
        if q.answerable:
            found += [
                space.case(q, (*(p for p in q.gold if p != gone), *near), False, 1 / len(q.gold)) for gone in q.gold
            ]
    return [*found, *_elsewhere(labelled, space)]


def _elsewhere(labelled: Sequence[Labelled], space: "_Space") -> list[Case]:
    tasks = list(dict.fromkeys(q.task for q in labelled))
    found = []
    for task, other in zip(tasks, tasks[1:] + tasks[:1], strict=True):
        if task != other:
            foreign = tuple(dict.fromkeys(p for q in labelled if q.task == other for p in (*q.gold, *q.others)))
            for q in [q for q in labelled if q.task == task][:ELSEWHERE]:
                near = space.nearest(q.question, foreign, len(q.gold) + MOST_PADDING)
                found.append(space.case(q, near, False, task="elsewhere"))
    return found


class _Space:
    """The vectors of all questions and passages."""

    def __init__(self, rows: dict[str, int], vectors: NDArray[np.float32]) -> None:
        self._rows, self._vectors = rows, vectors

    @classmethod
    async def of(cls, labelled: Sequence[Labelled], embed: Embed) -> "_Space":
        texts = dict.fromkeys(t for q in labelled for t in (q.question, *map(_text, (*q.gold, *q.others))))
        return cls({text: row for row, text in enumerate(texts)}, await embed(list(texts)))

    def cosine(self, question: str, passage: Passage) -> float:
        return float(self._vectors[self._rows[question]] @ self._vectors[self._rows[_text(passage)]])

    def nearest(self, question: str, passages: Sequence[Passage], count: int) -> tuple[Passage, ...]:
        rows = [self._rows[_text(p)] for p in passages]
        order = np.argsort(-(self._vectors[rows] @ self._vectors[self._rows[question]]), kind="stable")
        return tuple(passages[i] for i in order[:count])

    def case(
        self, q: Labelled, passages: tuple[Passage, ...], enough: bool, weight: float = 1.0, task: str = ""
    ) -> Case:
        cosines = tuple(self.cosine(q.question, p) for p in passages)
        return Case(task or q.task, q.group or _text(q.gold[0]), q.question, passages, cosines, enough, weight)


def _text(passage: Passage) -> str:
    return "\n".join(part for part in passage if part)
