"""How relevant each passage is to a question, by what a language model makes of the two: five methods, one interface.

Which of them is right hangs on the model. A small one is at chance or worse when it is asked to judge in words, while its
probabilities do order passages (``title``, ``likelihood``); a large one judges well, and cheapest all passages in one call
(``listwise``).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.config import RerankMethod
from assay.errors import BadModelOutput
from assay.features import is_name
from assay.ports import LLM
from assay.schemas import Usage
from assay.simple import simple
from assay.templates import Prompts
from assay.types import CompletionRequest, Gain, ItemScore, Message, ScoreItem, ScoreRequest, Scores

# What the question's likelihood is compared with: the same question after no passage at all.
NO_PASSAGE = "A question:"
# Of a question's evidence, the passages that a grade weighs the model's words of: those at a first stage's top.
GRADED = 3
MEASURING: tuple[RerankMethod, ...] = ("title", "likelihood")  # the methods that give a grade its gains
# Whose template stands around the passage.
TEMPLATES: Mapping[RerankMethod, str] = {
    "title": "passage",
    "likelihood": "passage",
    "pointwise": "pointwise",
    "score": "grade",
    "listwise": "listwise",
}
BEST = 10  # of the grades that ``score`` and ``listwise`` ask for


class Passage(NamedTuple):
    """``text``: with its headings."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Relevance:
    """One value per passage, higher is better; NaN where it could not be scored, and ``fault`` says why for the first.

    ``gains``: where the method measures how much more likely the passage makes the question; ``unasked``: the places of
    those whose value is not the method's own, since it has nothing to ask of them: no ``threshold`` is for it."""

    values: tuple[float, ...]
    gains: tuple[Gain | None, ...]
    usage: Usage
    fault: str | None = None
    unasked: frozenset[int] = frozenset()


class Method(Protocol):
    async def score(
        self, question: str, passages: Sequence[Passage], request_id: str, cache_salt: str | None = None
    ) -> Relevance:
        """All passages are in the engine at once. Raises ``BadModelOutput`` where none could be scored."""
        ...


def method(name: RerankMethod, llm: LLM, prompts: Prompts, graded: int = GRADED) -> Method:
    methods: dict[RerankMethod, Callable[[LLM, Prompts], Method]] = {
        "title": partial(Titles, graded=graded),
        "likelihood": Likelihood,
        "pointwise": Pointwise,
        "score": Graded,
        "listwise": Listwise,
    }
    return methods[name](llm, prompts)


def gain_of(score: ItemScore, alone: ItemScore) -> Gain | None:
    """Of a question after a passage, against the question alone; None where either could not be scored."""
    if score.fault is not None or alone.fault is not None:
        return None
    each = [with_it - without for with_it, without in zip(score.each, alone.each, strict=False)]
    return Gain(score.mean - alone.mean, tuple(each))


class Likelihood:
    """Nats per token by which the passage makes the question more likely: the model need not judge anything."""

    def __init__(self, llm: LLM, prompts: Prompts) -> None:
        self._llm, self._prompt = llm, prompts["passage"]

    async def score(
        self, question: str, passages: Sequence[Passage], request_id: str, cache_salt: str | None = None
    ) -> Relevance:
        scores = await self._llm.score(ScoreRequest(self.items(question, passages), request_id, cache_salt))
        gains = self.gains(scores.items)
        return _checked(tuple(math.nan if gain is None else gain.mean for gain in gains), scores, gains)

    def items(self, question: str, passages: Sequence[Passage]) -> tuple[ScoreItem, ...]:
        """The question alone, and after each passage."""
        contexts = [NO_PASSAGE, *(self._prompt.fill(passage=passage.text) for passage in passages)]
        return tuple(ScoreItem(context, f" {question}") for context in contexts)

    @staticmethod
    def gains(scores: Sequence[ItemScore]) -> tuple[Gain | None, ...]:
        """Of the scores of ``items``."""
        return tuple(gain_of(score, scores[0]) for score in scores[1:])


class Titles:
    """Nats by which a question that takes one step makes the passage's title more likely: what the model knows of what has that
    name. A title that is no name has the mean of the others. What a later step leads to is nothing that the question names:
    where it takes several, ``Likelihood``.

    Where most titles are no names, nothing is asked, and the passages keep the order that they came in. The first ``graded``
    are read in any case: a grade asks for their gains."""

    def __init__(self, llm: LLM, prompts: Prompts, graded: int = GRADED) -> None:
        self._llm, self._prompt, self._likelihood = llm, prompts["title"], Likelihood(llm, prompts)
        self._graded = graded
        # What the title is compared with: the same title, whatever was searched for.
        self._alone = self._prompt.fill(question="").rpartition("\n")[2]

    async def score(
        self, question: str, passages: Sequence[Passage], request_id: str, cache_salt: str | None = None
    ) -> Relevance:
        named = [passage.title if is_name(passage.title) else "" for passage in passages]
        if 2 * named.count("") > len(named):
            named = [""] * len(named)
        elif not simple(question):
            found = await self._likelihood.score(question, passages, request_id, cache_salt)
            return replace(found, unasked=frozenset(range(len(passages))))  # of no title: other units
        titles = list(dict.fromkeys(filter(None, named)))
        graded = self._likelihood.items(question, passages[: self._graded]) if self._graded else ()
        contexts = self._alone, self._prompt.fill(question=question)
        items = [ScoreItem(context, f" {title}") for context in contexts for title in titles]
        asked = ScoreRequest((*graded, *items), request_id, cache_salt)
        scores = await self._llm.score(asked) if asked.items else Scores((), Usage())
        alone, after = (scores.items[len(graded) + start :][: len(titles)] for start in (0, len(titles)))
        nats = {
            title: math.nan if with_it.fault or without.fault else with_it.logprob - without.logprob
            for title, with_it, without in zip(titles, after, alone, strict=True)
        }
        known = [nats[title] for title in named if title and not math.isnan(nats[title])]
        nats[""] = sum(known) / len(known) if known else math.nan if titles else 0.0
        gains = self._likelihood.gains(scores.items[: len(graded)])
        values = [nats[title] for title in named]
        for place, gain in enumerate(gains):
            values[place] = math.nan if gain is None else values[place]  # a fault is counted, whatever it is of
        unasked = frozenset(place for place, title in enumerate(named) if not title)
        return _checked(tuple(values), scores, (*gains, *(None,) * (len(passages) - len(gains))), unasked)


class Pointwise:
    """P(yes) against P(no) when asked whether the passage answers the question. The question stands before the passage, so
    that all passages share the prompt's beginning in the prefix cache."""

    def __init__(self, llm: LLM, prompts: Prompts) -> None:
        self._llm, self._prompt = llm, prompts["pointwise"]

    async def score(
        self, question: str, passages: Sequence[Passage], request_id: str, cache_salt: str | None = None
    ) -> Relevance:
        contexts = [self._prompt.fill(question=question, passage=passage.text) for passage in passages]
        return await yes(self._llm, contexts, request_id, cache_salt)


class Graded:
    """The expected grade from 0 to 10 over the probabilities of all eleven, scaled to [0, 1]: finer than the grade said."""

    def __init__(self, llm: LLM, prompts: Prompts) -> None:
        self._llm, self._prompt = llm, prompts["grade"]

    async def score(
        self, question: str, passages: Sequence[Passage], request_id: str, cache_salt: str | None = None
    ) -> Relevance:
        contexts = [self._prompt.fill(question=question, passage=passage.text) for passage in passages]
        grades = tuple(f" {grade}" for grade in range(BEST + 1))
        return await _choice(
            self._llm, contexts, grades, lambda p: sum(i * x for i, x in enumerate(p)) / BEST, request_id, cache_salt
        )


class _Grades(BaseModel):
    model_config = ConfigDict(extra="forbid")
    grades: list[int]


class Listwise:
    """One call that grades all passages, under a schema that leaves the model nothing but the grades."""

    def __init__(self, llm: LLM, prompts: Prompts) -> None:
        self._llm, self._prompt = llm, prompts["listwise"]

    async def score(
        self, question: str, passages: Sequence[Passage], request_id: str, cache_salt: str | None = None
    ) -> Relevance:
        if not passages:
            return Relevance((), (), Usage())
        listed = "\n\n".join(f"[{number}]\n{passage.text}" for number, passage in enumerate(passages, start=1))
        completion = await self._llm.complete(
            CompletionRequest(
                messages=(
                    Message("system", self._prompt.fill(best=str(BEST))),
                    Message("user", f"Question: {question}\n\n{listed}"),
                ),
                max_tokens=listwise_tokens(len(passages)),
                json_schema=listwise_schema(len(passages)),
                request_id=request_id,
                cache_salt=cache_salt,
            )
        )
        if completion.finish_reason != "stop":
            raise BadModelOutput("the grades of the passages were cut off")
        try:
            grades = _Grades.model_validate_json(completion.text).grades
        except ValidationError as e:
            raise BadModelOutput(f"the grades of the passages are not of their schema: {e.error_count()} errors") from e
        if len(grades) != len(passages) or not all(0 <= grade <= BEST for grade in grades):
            raise BadModelOutput(f"{len(grades)} grades for {len(passages)} passages, or one out of 0 to {BEST}")
        return Relevance(tuple(g / BEST for g in grades), (None,) * len(grades), completion.usage)


def listwise_tokens(passages: int) -> int:
    """Of an answer: a grade, the comma and the space before it are at most four in any vocabulary."""
    return 16 + 4 * passages


def listwise_schema(passages: int) -> str:
    grades = {"type": "array", "items": {"enum": list(range(BEST + 1))}, "minItems": passages, "maxItems": passages}
    schema = {"type": "object", "properties": {"grades": grades}, "required": ["grades"], "additionalProperties": False}
    return json.dumps(schema)


async def yes(llm: LLM, contexts: Sequence[str], request_id: str, cache_salt: str | None = None) -> Relevance:
    """P(yes) against P(no) after each context. Raises ``BadModelOutput`` where none could be scored."""
    return await _choice(llm, contexts, (" no", " yes"), lambda p: p[1], request_id, cache_salt)


async def _choice(
    llm: LLM,
    contexts: Sequence[str],
    answers: Sequence[str],
    value: Callable[[Sequence[float]], float],
    request_id: str,
    cache_salt: str | None = None,
) -> Relevance:
    """``value`` of the answers' probabilities among each other, for each context; one that lacks an answer's is unknown."""
    items = tuple(ScoreItem(context, answer) for context in contexts for answer in answers)
    scores = await llm.score(ScoreRequest(items, request_id, cache_salt))
    rows = [scores.items[i : i + len(answers)] for i in range(0, len(items), len(answers))]
    return _checked(tuple(value(p) if (p := _among(row)) else math.nan for row in rows), scores)


def _among(row: Sequence[ItemScore]) -> list[float] | None:
    if any(score.fault is not None for score in row):
        return None
    most = max(score.logprob for score in row)
    weights = [math.exp(score.logprob - most) for score in row]
    return [weight / sum(weights) for weight in weights]


def _checked(
    values: tuple[float, ...],
    scores: Scores,
    gains: tuple[Gain | None, ...] = (),
    unasked: frozenset[int] = frozenset(),
) -> Relevance:
    fault = next((score.fault for score in scores.items if score.fault is not None), None)
    if values and all(map(math.isnan, values)):
        raise BadModelOutput(f"No passage could be scored: {fault}")
    return Relevance(values, gains or (None,) * len(values), scores.usage, fault, unasked)
