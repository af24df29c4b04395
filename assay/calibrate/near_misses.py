"""Questions that their passage only seems to answer, made of ones that it does: what a grader meets most, and what no set has
enough of. Of XQuAD's English questions, the first of each paragraph: before its paragraph; before the same without the
sentences that hold its answer; and before the whole again, with a name, a number or a word of the question changed, the
question denied, or what answers it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from assay.calibrate.cases import NEAR_MISS, Labelled, squad2
from assay.features import NEGATION, names_in
from assay.text import content_terms, sentences, terms

_VERB = re.compile(r"\b(?:is|was|are|were|can|could|will|would|has|have|had)\b")
_NUMBER = re.compile(r"\b\d[\d,.]*\d\b|\b\d\b")
_PAIRS = """first last, before after, more less, most least, more fewer, larger smaller, largest smallest, higher lower,
highest lowest, north south, northern southern, east west, eastern western, early late, earlier later,
earliest latest, increase decrease, increased decreased, won lost, win lose, older younger, oldest youngest,
began ended, begin end, start end, major minor, large small, longer shorter, longest shortest, high low,
good bad, better worse, best worst, same different, men women, man woman, male female, public private,
inside outside, above below, left right, positive negative, rich poor, strong weak, hot cold, maximum
minimum, allowed forbidden, buy sell, top bottom, modern ancient, success failure"""
_OPPOSITES = {
    a: b for pair in _PAIRS.split(",") for one, other in [pair.split()] for a, b in ((other, one), (one, other))
}
_OPPOSED = re.compile(rf"\b(?:{'|'.join(_OPPOSITES)})\b")
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
    if rest := [part for part in parts if not _has(part, answers)]:
        yield labelled(question, " ".join(rest), False)
    if other := changed(question, text, answers, number):
        yield labelled(*other, False)


def changed(question: str, text: str, answers: Sequence[str], number: int) -> tuple[str, str] | None:
    """A question and its text, with the question's last name replaced by another one of the text, its first number by another,
    a word by its opposite, its verb denied, or that of the sentence that answers it (what readers make such questions of, say
    SQuAD 2's authors): of what can be done, ``number`` says which, so that all are equally frequent. None where nothing can.
    """
    asked = set(terms(question))
    own = [name for name in names_in(question) if question.find(name) > 0 and _is_name(name)]
    others = [
        n for n in dict.fromkeys(names_in(text)) if _is_name(n) and text.find(n) > 0 and not set(terms(n)) & asked
    ]
    ways: list[tuple[str, str]] = []
    if own and others:
        ways.append((question.replace(own[-1], others[len(others) // 2], 1), text))
    if figure := _NUMBER.search(question):
        value = int(re.sub(r"\D", "", figure.group())) + _OTHER
        ways.append((question[: figure.start()] + str(value) + question[figure.end() :], text))
    if word := _OPPOSED.search(question):
        ways.append((question[: word.start()] + _OPPOSITES[word.group()] + question[word.end() :], text))
    if not NEGATION.search(question):
        holding = [span for span in sentences(text) if _has(text[slice(*span)], answers)]
        said = max(holding, key=lambda span: len(asked & set(terms(text[slice(*span)]))), default=(0, 0))
        if verb := _VERB.search(question):
            ways.append((_denied(question, verb), text))
        if (verb := _VERB.search(text, *said)) and not NEGATION.search(text, *said):
            ways.append((question, _denied(text, verb)))
    return ways[number % len(ways)] if ways else None


def _denied(text: str, verb: re.Match[str]) -> str:
    return f"{text[: verb.end()]} not{text[verb.end() :]}"


def _has(text: str, answers: Sequence[str]) -> bool:
    return any(answer.lower() in text.lower() for answer in answers)


def _is_name(run: str) -> bool:
    return len(run) > 3 and any(c.isupper() for c in run) and ". " not in run and bool(content_terms(run))


def _key(text: str) -> str:
    return " ".join(text.split())[:_BEGINNING]
