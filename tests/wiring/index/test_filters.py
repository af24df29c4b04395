from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from assay.errors import InvalidFilter, UnknownField, in_words
from assay.index.filters import FIELDS, Field, Mask, compile_filter, over_chunks, terms_of
from assay.schemas import Filter

NEW_YEAR, JUNE = datetime(2025, 1, 1, tzinfo=UTC), datetime(2024, 6, 1, 12, tzinfo=UTC)
DOCUMENTS = pa.table(
    {
        "title": ["Supply 2024", "Lease", "100% rent_free"],
        "ingested_at": pa.array(
            [datetime(2025, 1, 1, tzinfo=UTC), datetime(2024, 6, 1, 12, tzinfo=UTC), None], pa.timestamp("us", "UTC")
        ),
        "signed": pa.array([True, False, None]),
    }
)
CHUNKS = pa.table({"document": [0, 1, 2, 1, 0], "page": pa.array([1, 2, None, 1, 3], pa.int32())})
WIDER = {**FIELDS, "signed": Field("boolean", "signed")}


class Frame:
    """Of three documents and five chunks, which do not lie in the documents' order."""

    def column(self, field: Field) -> pa.ChunkedArray:
        column = (CHUNKS if field.of_chunks else DOCUMENTS)[field.column]
        return column.cast(pa.float64()) if field.type == "number" else column

    def spread(self, documents: Mask) -> Mask:
        return documents[CHUNKS["document"].to_numpy()]


def parsed(filters: dict[str, Any]) -> Filter:
    found: Filter = TypeAdapter[Filter](Filter).validate_python(filters)
    return found


def where(field: str, op: str, value: object) -> dict[str, Any]:
    return {"field": field, "op": op, "value": value}


def rows(filters: dict[str, Any]) -> list[int]:
    held = compile_filter(parsed(filters), WIDER)(Frame())
    return [int(row) for row in np.flatnonzero(over_chunks(held, Frame()))]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (where("title", "=", "Lease"), [1, 3]),
        (where("title", "!=", "Lease"), [0, 2, 4]),
        (where("title", "in", ["Lease", "x' OR 1=1 --"]), [1, 3]),
        (where("title", "like", "Sup%"), [0, 4]),
        (where("title", "like", "%se"), [1, 3]),
        (where("title", "like", "%2024%"), [0, 4]),
        (where("title", "like", "Lease"), [1, 3]),
        (where("title", "like", "%t_f%"), [2]),
        (where("page", ">=", 2), [1, 4]),
        (where("page", "=", 1.0), [0, 3]),
        (where("page", "between", [1, 2]), [0, 1, 3]),
        (where("page", "in", [2, 3]), [1, 4]),
        (where("page", "is_null", True), [2]),
        (where("page", "is_null", False), [0, 1, 3, 4]),
        (where("page", "!=", 1), [1, 4]),
        ({"not": where("page", "=", 1)}, [1, 2, 4]),
        (where("signed", "=", True), [0, 4]),
        (where("ingested_at", ">=", "2025-01-01"), [0, 4]),
        (where("ingested_at", "<=", "2025-01-01T00:00:00Z"), [0, 1, 3, 4]),
        (where("ingested_at", "=", "2025-01-01T02:00:00+02:00"), [0, 4]),
        (where("ingested_at", "=", "2025-01-01T00:00:00"), [0, 4]),
        (where("ingested_at", "in", ["2024-06-01T12:00:00Z"]), [1, 3]),
        (where("ingested_at", "between", ["2024-01-01", "2024-12-31"]), [1, 3]),
        ({"and": [where("page", ">=", 2), where("title", "=", "Lease")]}, [1]),
        ({"or": [where("page", "=", 3), where("title", "=", "Lease")]}, [1, 3, 4]),
        ({"or": [where("page", "=", 3), where("title", "=", "Lease"), where("title", "like", "100%")]}, [1, 2, 3, 4]),
        ({"not": {"or": [where("page", "=", 3), where("title", "=", "Lease")]}}, [0, 2]),
        ({"and": [{"not": where("title", "=", "Lease")}, {"not": where("page", "=", 1)}]}, [2, 4]),
        (
            {"or": [where("title", "=", "Lease"), {"and": [where("signed", "=", True), where("page", "<", 2)]}]},
            [0, 1, 3],
        ),
        ({"or": [where("page", "=", 1), where("page", "is_null", True)]}, [0, 2, 3]),
        ({"not": {"or": [where("page", "=", 1), where("page", "is_null", True)]}}, [1, 4]),
        (where("title", "=", "nothing"), []),
    ],
)
def test_rows(filters: dict[str, Any], expected: list[int]) -> None:
    assert rows(filters) == expected


@pytest.mark.parametrize(
    ("filters", "at"),
    [
        (where("title", "in", []), "filters.value"),
        (where("title", "in", "Lease"), "filters.value"),
        (where("title", "=", 5), "filters.value"),
        (where("title", "=", ["a"]), "filters.value"),
        (where("title", "<", "a"), "filters.op"),
        (where("title", "like", "a%b"), "filters.value"),
        (where("title", "like", "%"), "filters.value"),
        (where("page", "=", True), "filters.value"),
        (where("page", "=", "1"), "filters.value"),
        (where("page", "=", float("nan")), "filters.value"),
        (where("page", "=", 1e300), "filters.value"),
        (where("page", "in", [1, "2"]), "filters.value[1]"),
        (where("page", "between", [1]), "filters.value"),
        (where("page", "is_null", 1), "filters.value"),
        (where("page", "like", "1%"), "filters.op"),
        (where("ingested_at", ">", "yesterday"), "filters.value"),
        (where("ingested_at", ">", 2025), "filters.value"),
        ({"and": [where("page", "=", 1), {"not": where("page", "in", [])}]}, "filters.and[1].not.value"),
    ],
)
def test_refused(filters: dict[str, Any], at: str) -> None:
    with pytest.raises(InvalidFilter) as fault:
        compile_filter(parsed(filters))
    assert fault.value.field == at


@pytest.mark.parametrize("value", [2**53, -(2.0**53), float("inf"), float("nan"), "1"])
def test_a_number_that_is_refused_is_told_what_it_may_be(value: object) -> None:
    with pytest.raises(InvalidFilter) as fault:
        compile_filter(parsed(where("page", "=", value)))
    assert in_words(fault.value) == "the value must be a number, finite and below 2**53 in size"


@pytest.mark.parametrize("name", ["collection_ids", "author' = 'x' OR '1'='1' --", "vector", "text", "__class__"])
def test_unknown_field_names_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownField) as fault:
        compile_filter(parsed({"or": [where("page", "=", 1), where(name, "=", "x")]}))
    assert fault.value.field == "filters.or[1].field"
    assert fault.value.allowed == tuple(sorted(FIELDS))


def test_too_deep() -> None:
    filters = where("page", "=", 1)
    for _ in range(40):
        filters = {"not": filters}
    with pytest.raises(InvalidFilter, match="nested"):
        compile_filter(parsed(filters))


def test_too_many_tests() -> None:
    part = {"or": [where("page", "=", i) for i in range(30)]}
    with pytest.raises(InvalidFilter, match="more than 64 tests"):
        compile_filter(parsed({"and": [part, part, part]}))


def test_a_double_negation_is_none() -> None:
    assert rows({"not": {"not": where("page", "=", 1)}}) == [0, 3]


def test_terms_of_flattens_and() -> None:
    one, two, three = (where("page", "=", i) for i in (1, 2, 3))
    assert len(terms_of(parsed({"and": [one, {"and": [two, {"or": [one, three]}]}]}))) == 3
