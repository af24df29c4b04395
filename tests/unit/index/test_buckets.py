"""Schemas, and raw values to typed ones."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from assay.errors import ParseFault, SetupError
from assay.index.buckets import BucketSchema, FieldSchema, column_of, dump_schema, infer, load_schema, typed
from assay.index.metadata import Given, MetadataTable, Pattern
from assay.index.parse.parsed import Raw
from assay.schemas import FieldType

KINDS: tuple[FieldType, ...] = ("text", "number")


def schema(**fields: Any) -> BucketSchema:
    return BucketSchema.model_validate(
        {"fields": {name: {"type": f} if isinstance(f, str) else f for name, f in fields.items()}}
    )


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        ("text", "1.10", "1.10"),
        ("text", 4.5, "4.5"),
        ("text", True, "true"),
        ("text", ["one"], "one"),
        ("number", "1,234.50", 1234.5),
        ("number", "-3", -3.0),
        ("number", ".5", 0.5),
        ("number", 7, 7.0),
        ("boolean", "Yes", True),
        ("boolean", False, False),
        ("date", "2024-01-05", datetime(2024, 1, 5, tzinfo=UTC)),
        ("date", "2024-01-05T02:00:00+02:00", datetime(2024, 1, 5, tzinfo=UTC)),
        ({"type": "date", "format": "%m/%d/%y"}, "5/8/14", datetime(2014, 5, 8, tzinfo=UTC)),
        ("list", "a; b|c", ["a", "b", "c"]),
        ("list", ["a", 1], ["a", "1"]),
        ("list", "alone", ["alone"]),
    ],
)
def test_values_that_fit(kind: Any, raw: Raw, value: Any) -> None:
    found = typed(schema(x=kind), {"x": raw})
    assert (found.values, found.problems) == ({"x": value}, ())


@pytest.mark.parametrize(
    ("kind", "raw", "why"),
    [
        ("text", ["a", "b"], "is a list, not a text"),
        ("text", "x" * 3000, "more than 2000"),
        ("number", "12,34", "is not a number"),
        ("number", "nan", "is not a number"),
        ("number", float("inf"), "is not a number that is finite and below 2**53"),
        ("number", 10**400, "is not a number that is finite and below 2**53"),
        ("number", "9007199254740992", "is not a number that is finite and below 2**53"),
        ("number", True, "is not a number"),
        ("number", "$5", "is not a number"),
        ("boolean", "maybe", "is not true or false"),
        ("boolean", 1, "is not true or false"),
        ("date", "20240105", "is not an ISO 8601 date"),
        ("date", "5/8/14", "is not an ISO 8601 date"),
        ("date", "2024-13-01", "is not an ISO 8601 date"),
        ("date", 2024, "is not a date"),
        ({"type": "date", "format": "%m/%d/%y"}, "2014", "is not a date as %m/%d/%y"),
    ],
)
def test_values_that_do_not_fit_are_named(kind: Any, raw: Raw, why: str) -> None:
    found = typed(schema(x=kind), {"x": raw})
    assert found.values == {}
    assert len(found.problems) == 1
    assert found.problems[0].startswith("x: ")
    assert why in found.problems[0]


def test_an_empty_value_is_none() -> None:
    assert typed(schema(x="number", y="list"), {"x": "", "y": []}) == ({}, (), (), ())


def test_other_names_required_and_undeclared() -> None:
    asked = schema(
        law={"type": "text", "from": ["Governing Law"], "required": True}, n={"type": "number", "required": True}
    )
    found = typed(asked, {"Governing Law": "NY", "colour": "red", "n": "x"})
    assert found.values == {"law": "NY"}
    assert found.missing == ("n",)
    assert found.undeclared == ("colour",)


def test_columns_are_plain_names_and_never_shared_by_two_fields() -> None:
    names = ["a", "A", "a.b", "a-b", "a_b", "author"]
    columns = [column_of(name, kind) for name in names for kind in KINDS]
    assert len(set(columns)) == len(columns)
    assert all(column.isidentifier() for column in columns)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"title": {"type": "text"}}, "every document has the field 'title' already"),
        ({"a' OR 1=1 --": {"type": "text"}}, "letters, digits"),
        ({"a": {"type": "flag"}}, "text"),
        ({"a": {"type": "text", "format": "%Y"}}, "of dates alone"),
        ({"a": {"kind": "text"}}, "required"),
    ],
)
def test_schemas_that_are_none(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        BucketSchema.model_validate({"fields": fields})


def test_a_schema_survives_its_file(tmp_path: Path) -> None:
    whole = BucketSchema(
        description="Contracts: all",
        fields={
            "type": FieldSchema(type="text", required=True, description="What it is: a kind"),
            "signed": FieldSchema(type="date", format="%m/%d/%y", from_=("Agreement Date-Answer",)),
            "parties": FieldSchema(type="list", extract=True),
        },
    )
    (tmp_path / "s.yaml").write_text(dump_schema(whole, {"type": "in 3 of 4 files: a, b"}), "utf-8")
    assert load_schema(tmp_path / "s.yaml") == whole
    (tmp_path / "empty.yaml").write_text(dump_schema(BucketSchema()), "utf-8")
    assert load_schema(tmp_path / "empty.yaml") == BucketSchema()


@pytest.mark.parametrize("text", ["fields: [1", "fields:\n  a: {type: colour}", "other: 1", "- a"])
def test_a_wrong_schema_file_is_a_setup_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(SetupError, match="the schema"):
        load_schema(tmp_path / "s.yaml")


def test_inference() -> None:
    raws: list[dict[str, Raw]] = [
        {
            "amount": "4.11",
            "date": "2014-08-03",
            "ok": "yes",
            "tags": ["a"],
            "Bill to": "X",
            "mixed": "1",
            "title": "T",
        },
        {"amount": 279.84, "date": "2015-08-03T00:00:00Z", "ok": True, "tags": "b", "mixed": "one"},
    ]
    found, notes = infer(raws)
    assert {name: f.type for name, f in found.fields.items()} == {
        "amount": "number",
        "date": "date",
        "ok": "boolean",
        "tags": "list",
        "mixed": "text",
        "bill_to": "text",
    }
    assert found.fields["bill_to"].from_ == ("Bill to",)
    assert notes["amount"] == "in 2 of 2 files: 4.11, 279.84"
    for raw in raws:
        assert not typed(found, raw).problems


def test_patterns() -> None:
    pattern = Pattern("{type}/*-{year}.pdf")
    assert pattern("contracts/Supply/a-2024.PDF") == {"type": "Supply", "year": "2024"}
    assert pattern("contracts/Supply/a.pdf") == {}
    for wrong in ("plain.pdf", "{a}/{a}.pdf", "{a b}.pdf"):
        with pytest.raises(SetupError, match="path pattern"):
            Pattern(wrong)


def test_what_is_most_deliberate_counts(tmp_path: Path) -> None:
    folder = Path(tmp_path).resolve()
    for name, text in {
        "lease/a.pdf.json": '{"who": "sidecar"}',
        "lease/a.json": '{"who": "no"}',
        "lease/b.json": "[1]",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    table = folder / "t.csv"
    table.write_text("\ufeffpath,who,when\nlease/a.pdf,table,2024\nlease/c.pdf,table,\ngone.pdf,x,y\n", "utf-8")
    files = [folder / "lease" / name for name in ("a.pdf", "a.pdf.json", "a.json", "b.md", "b.json", "c.pdf", "d.json")]
    given = Given(files, MetadataTable(table), [Pattern("{who}/{name}.pdf")])
    assert {path.name for path in given.sidecars} == {"a.pdf.json", "a.json", "b.json"}
    assert given.of("x/lease/a.pdf", files[0]) == {"who": "sidecar", "name": "a", "when": "2024"}
    assert given.of("x/lease/c.pdf", files[5]) == {"who": "table", "name": "c"}
    with pytest.raises(ParseFault, match=r"b\.json holds no object"):
        given.of("x/lease/b.md", files[3])
    assert given.unused_rows == ["gone.pdf"]


@pytest.mark.parametrize("text", ["", "path,a\nx,1,2\n", "path,a\nx,1\nx,2\n", 'path,a\n"x,1\n'])
def test_a_wrong_table_is_a_setup_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(SetupError):
        MetadataTable(tmp_path / "t.csv")
