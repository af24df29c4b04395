"""Judged collections: documents, queries, and how relevant which is to which. ``assay.eval.formats`` knows their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.errors import InvalidRequest
from assay.eval.formats import Document, Judged, documents_of, judgments_of, queries_of


@dataclass(frozen=True, slots=True)
class Collection:
    """``queries`` are those with at least one relevant document; the rest can't be measured."""

    documents: tuple[Document, ...]
    queries: dict[str, str]
    judged: Judged


def read_collection(corpus: Path, queries: Path, qrels: Path, gains: str = "linear") -> Collection:
    """``gains`` as of ``regraded``. Raises ``InvalidRequest`` for a file that is of none of the formats, damaged, or does
    not belong to the others."""
    judged = regraded(judgments_of(qrels), gains)
    return collection(documents_of(corpus), queries_of(queries), judged, str(qrels))


def collection(documents: Sequence[Document], queries: dict[str, str], judged: Judged, where: str) -> Collection:
    """Checks that the parts belong together. ``where`` names the judgments in messages. Raises ``InvalidRequest``."""
    if unknown := [query for query in judged if query not in queries]:
        raise InvalidRequest(
            f"{where}: {len(unknown)} of {len(judged)} judged queries are not among the queries, such as '{unknown[0]}'"
        )
    known = {document.id for document in documents}
    missing = [d for grades in judged.values() for d, grade in grades.items() if grade > 0 and d not in known]
    if missing:
        raise InvalidRequest(
            f"{where}: {len(missing)} relevant documents are not in the corpus, such as '{missing[0]}'"
        )
    relevant = {query for query, grades in judged.items() if any(grade > 0 for grade in grades.values())}
    if not relevant:
        raise InvalidRequest(f"{where}: no query has a relevant document")
    return Collection(tuple(documents), {q: text for q, text in queries.items() if q in relevant}, judged)


def regraded(judged: Judged, gains: str) -> Judged:
    """Grades turned into gains: ``linear`` leaves them, ``exponential`` is 2^grade - 1, and ``1=4,2=3`` names them
    one by one (a grade that is not named gains nothing). Raises ``InvalidRequest``."""
    if gains == "linear":
        return judged
    if gains == "exponential":
        return {q: {d: 2 ** max(0, g) - 1 for d, g in grades.items()} for q, grades in judged.items()}
    try:
        table = {int(a): int(b) for a, _, b in (pair.partition("=") for pair in gains.split(","))}
    except ValueError:
        raise InvalidRequest(
            f"the gains '{gains[:80]}' are none of linear, exponential, or pairs such as 1=4,2=3,3=2,4=1", "gains"
        ) from None
    return {q: {d: table.get(g, 0) for d, g in grades.items()} for q, grades in judged.items()}
