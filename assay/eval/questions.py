"""Files of questions whose answers, and the passages that hold them, are known: one question a line."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from assay.batch import ASKED, read_rows, request_of
from assay.errors import InvalidRequest

GOLD = ("id", "answers", "evidence", "answerable")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Place(_Part):
    """A passage that holds what is needed: a document, and where in its text, as characters; the whole of it without a
    ``span``."""

    uri: str | None = None
    doc_id: str | None = None
    title: str | None = None
    span: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _names_a_document(self) -> Self:
        if self.uri is None and self.doc_id is None and self.title is None:
            raise ValueError("names no document: it needs uri, doc_id or title")
        if self.span is not None and not 0 <= self.span[0] < self.span[1]:
            raise ValueError("span must be two characters of the text, the first and the one after the last")
        return self

    def holds(self, found: Mapping[str, Any]) -> bool:
        """Whether a citation or a piece of evidence, as a response has it, is of this place."""
        wanted = {"uri": self.uri, "doc_id": self.doc_id, "title": self.title}
        if any(value is not None and found[name] != value for name, value in wanted.items()):
            return False
        start, end = found["span"]
        return self.span is None or (start < self.span[1] and self.span[0] < end)


def _alternatives(hop: object) -> object:
    return hop if isinstance(hop, list) else [hop]


class Question(_Part):
    """``answers``: every wording that counts as right. ``evidence``: for each step that it takes, the places any of which holds
    what the step needs. ``asked``: the row that the batch door is given, with the request's own columns."""

    id: str
    answers: list[Annotated[str, Field(min_length=1)]] = []
    evidence: list[Annotated[list[Place], Field(min_length=1), BeforeValidator(_alternatives)]] = []
    answerable: bool = True
    asked: dict[str, Any]

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if not self.answerable and (self.answers or self.evidence):
            raise ValueError("is not answerable, and has answers or evidence")
        return self


def read_questions(path: Path, most: int | None = None) -> list[Question]:
    """JSONL, CSV or Parquet, the first ``most`` of them. Raises ``SetupError`` for a file that cannot be read, and
    ``InvalidRequest`` that names the row, the column and what is allowed."""
    found = [question_of(number, row) for number, row in enumerate(read_rows(path), start=1)]
    if twice := [i for i, count in Counter(q.id for q in found).items() if count > 1]:
        raise InvalidRequest(f"{path.name}: two rows have the id '{twice[0]}'", "id")
    return found[:most]


def question_of(number: int, row: Mapping[str, Any]) -> Question:
    """Of one row, whose ``number`` is its id where it has none. Raises ``InvalidRequest``."""
    allowed = (*GOLD, *ASKED)
    held = {name: value for name, value in row.items() if value is not None and value != ""}
    if unknown := [name for name in held if name not in allowed]:
        raise InvalidRequest(f"row {number}: there is no column '{unknown[0]}'", unknown[0], allowed)
    asked = {name: value for name, value in held.items() if name in ASKED}
    try:
        request_of(asked)
        gold = {name: _read(name, held[name]) for name in GOLD if name in held}
        return Question.model_validate({**gold, "id": str(gold.get("id", number)), "asked": asked})
    except InvalidRequest as fault:
        raise InvalidRequest(f"row {number}: {fault.message}", fault.field, fault.allowed) from None
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(map(str, first["loc"])) or "answerable"
        said = first["msg"].removeprefix("Value error, ")
        raise InvalidRequest(f"row {number}, {place}: {said}", place) from None


def _read(name: str, value: Any) -> Any:
    """Text in a column of another kind is JSON, as CSV needs it."""
    if name == "id" or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise InvalidRequest(f"the column '{name}' holds neither a value nor JSON", name) from None


def digest(rows: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]
