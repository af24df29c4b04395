"""Which questions the rule of ``assay.simple`` takes for simple lookups, which cost no planning.

HotpotQA and MuSiQue ask for two facts or more, so that none of theirs is simple; those of SQuAD 2 are about one paragraph each.
The rule was written with the questions at even places in view; the figures of the others are the ones that count.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from assay.simple import simple
from bench.report import Row, options, publish


def questions(data: Path) -> dict[str, list[str]]:
    hotpot = json.loads((data / "multihop" / "hotpotqa_100" / "hotpotqa_train.json").read_text())
    musique = json.loads((data / "multihop" / "musique_50" / "questions.json").read_text())
    squad = json.loads((data / "unanswerable" / "squad2_250" / "queries.json").read_text())["queries"]
    return {
        "hotpotqa_100": [q["question"] for q in hotpot],
        "musique_50": [q["question"] for q in musique],
        "squad2_250": [q.get("question") or q["query"] for q in squad],
    }


def rows(name: str, asked: Sequence[str]) -> list[Row]:
    unseen = asked[1::2]
    return [
        Row(f"{name}: called simple, of {len(asked)}", sum(map(simple, asked)), "questions"),
        Row(f"{name}: called simple, of those not in view", 100 * sum(map(simple, unseen)) / len(unseen), "%"),
    ]


def main() -> None:
    args = options(__doc__ or "")
    publish("Simple lookups", [row for name, asked in questions(args.data).items() for row in rows(name, asked)], args)


if __name__ == "__main__":
    main()
