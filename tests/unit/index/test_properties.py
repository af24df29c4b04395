"""What a file says of itself, as its parser hands it on."""

import json

import pypdfium2 as pdfium
import pytest

from assay.index import parse as p
from assay.index.parse.parsed import Raw, dumps, from_fields
from assay.index.parse.pdf import _date, _properties


def test_front_matter_stays_text_until_a_schema_says_what_it_is() -> None:
    front = (
        "title: A\nversion: 1.10\nsigned: yes\ndate: 2024-01-05\ntags: [a, b]\nparties:\n  - X\n  - {deep: 1}\n"
        "law: {state: NY, list: [1]}\nempty:\nnothing: null\nmerge: &m {a: 1}\nmerged: {<<: *m}\n"
    )
    parsed = p.parse(f"---\n{front}---\nText".encode(), "md", "stem")
    assert parsed.metadata == {
        "title": "A",
        "version": "1.10",
        "signed": "yes",
        "date": "2024-01-05",
        "tags": ["a", "b"],
        "parties": ["X"],
        "law.state": "NY",
        "law.list": ["1"],
        "merge.a": "1",
    }
    assert from_fields(json.loads(dumps(parsed))) == parsed


@pytest.mark.parametrize("front", ["a: [1\nb: 2", "a: &x [*x]\nb: *y", "a: " + "[" * 400])
def test_front_matter_that_is_no_yaml_is_noted(front: str) -> None:
    parsed = p.parse(f"---\n{front}\n---\nText".encode(), "md", "stem")
    assert parsed.metadata == {}
    assert "front matter is not YAML" in parsed.notes[0]


def test_html_meta() -> None:
    page = (
        '<html lang="de"><head><title>T</title><meta name="Author" content="Ada"><meta name=keywords content="a, b;c">'
        '<meta property="article:published_time" content="2024-01-05T00:00:00Z"><meta name="date" content="2020">'
        '<meta charset="utf-8"><meta name="description" content="About"></head><body><p>Text'
    )
    found = p.parse(page.encode(), "html", "stem").metadata
    wanted: dict[str, Raw] = {
        "title": "T",
        "author": "Ada",
        "keywords": ["a", "b", "c"],
        "created": "2024-01-05T00:00:00Z",
        "subject": "About",
        "language": "de",
    }
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("said", "iso"),
    [
        ("D:20240105120000+01'00'", "2024-01-05T12:00:00+01:00"),
        ("D:20240105120000Z", "2024-01-05T12:00:00Z"),
        ("D:20240105120000-08'00", "2024-01-05T12:00:00-08:00"),
        ("D:202401", "2024-01-01T00:00:00"),
        ("2024", "2024-01-01T00:00:00"),
        ("yesterday", ""),
        ("", ""),
    ],
)
def test_dates_of_pdfs(said: str, iso: str) -> None:
    assert _date(said) == iso


def test_properties_of_a_pdf() -> None:
    document = pdfium.PdfDocument.new()
    document.new_page(100, 100)
    found = _properties(document)
    assert found.pop("created")  # PDFium says when it made it
    assert found == {"pages": 1}


def test_properties_are_bounded() -> None:
    front = "\n".join(f"k{i}: {'x' * (3000 if i < 3 else 3)}" for i in range(300))
    found = p.parse(f"---\n{front}\n---\nText".encode(), "md", "stem").metadata
    assert len(found) == 200
    assert {len(str(value)) for value in found.values()} == {2000, 3}
