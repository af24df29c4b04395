"""Questions that their passage only seems to answer, made of ones that it does: what a grader meets most, and what no set has
enough of. Of XQuAD's English questions, the first of each paragraph: before its paragraph; before the same without the
sentences that hold its answer; and before the whole again, with a name, a number or a negation of the question changed.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from assay.calibrate.cases import NEAR_MISS, Labelled, squad2
from assay.features import names_in
from assay.text import content_terms, sentences, terms

_VERB = re.compile(r"\b(?:is|was|are|were|can|could|will|would|has|have|had)\b")
_NUMBER = re.compile(r"\b\d[\d,.]*\d\b|\b\d\b")
_OTHER = 7  # what is added to a number, so that it is another one of about the same size
_BEGINNING = 60  # characters by which paragraphs are told apart that two sets spell with other spaces


def read(data: Path) -> list[Labelled]:
    """Empty without the set. The paragraphs that SQuAD 2's questions are judged on are left out."""
    file = data / "ranking" / "xquad" / "xquad.en.json"
    if not file.exists():
        return []
    known, found = {_key(q.gold[0][1]) for q in squad2(data)}, list[Labelled]()
    for article in json.loads(file.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            text, asked = paragraph["context"], paragraph["qas"][0]
            if _key(text) not in known:
                known.add(_key(text))
                found += _of(text, asked["question"], [a["text"] for a in asked["answers"]], len(known))
    return found


def _of(text: str, question: str, answers: Sequence[str], number: int) -> Iterator[Labelled]:
    def labelled(asked: str, passage: str, answerable: bool) -> Labelled:
        return Labelled(NEAR_MISS, asked, (("", passage),), (), answerable, text, 1.0 if answerable else 0.5)

    yield labelled(question, text, True)
    parts = [text[slice(*span)] for span in sentences(text)]
    if rest := [part for part in parts if not any(answer.lower() in part.lower() for answer in answers)]:
        yield labelled(question, " ".join(rest), False)
    if other := changed(question, text, number):
        yield labelled(other, text, False)


def changed(question: str, text: str, number: int) -> str | None:
    """The question with its last name replaced by another one of the text, its first number by another, or its verb denied: of
    what can be done, ``number`` says which, so that all are equally frequent. None where nothing can."""
    asked = set(terms(question))
    own = [name for name in names_in(question) if question.find(name) > 0 and _is_name(name)]
    others = [
        n for n in dict.fromkeys(names_in(text)) if _is_name(n) and text.find(n) > 0 and not set(terms(n)) & asked
    ]
    ways: list[Callable[[], str]] = []
    if own and others:
        ways.append(lambda: question.replace(own[-1], others[len(others) // 2], 1))
    if figure := _NUMBER.search(question):
        value = int(re.sub(r"\D", "", figure.group())) + _OTHER
        ways.append(lambda: question[: figure.start()] + str(value) + question[figure.end() :])
    if (verb := _VERB.search(question)) and " not " not in question:
        ways.append(lambda: f"{question[: verb.end()]} not{question[verb.end() :]}")
    return ways[number % len(ways)]() if ways else None


def _is_name(run: str) -> bool:
    return len(run) > 3 and any(c.isupper() for c in run) and ". " not in run and bool(content_terms(run))


def _key(text: str) -> str:
    return " ".join(text.split())[:_BEGINNING]
