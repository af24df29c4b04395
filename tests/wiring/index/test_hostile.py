"""Files made to do harm: each is refused, or bounded, by name and in the child process, and the rest is ingested."""

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from email.message import EmailMessage
from pathlib import Path

import pytest

from assay.errors import ParseFault
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Row, find_sources
from assay.index.parse import parse
from assay.index.parse.package import Package
from assay.index.parse.parser import Limits, Parser
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import found, retriever, search
from tests.wiring.index.pdf import assembled, pdf
from tests.wiring.index.test_formats import book, workbook

LAUGHS = (
    '<!DOCTYPE lolz [<!ENTITY a "ha ha ha ha">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    + "]>"
)


def archive(parts: Mapping[str, bytes | str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as package:
        for name, part in parts.items():
            package.writestr(name, part)
    return out.getvalue()


def altered(data: bytes, part: str, text: bytes) -> bytes:
    """A package with another text of one part."""
    with zipfile.ZipFile(io.BytesIO(data)) as package:
        return archive({name: text if name == part else package.read(name) for name in package.namelist()})


def lying(size: int) -> bytes:
    """A package whose directory states another size of its largest part than that has."""
    data = bytearray(archive({"word/document.xml": b"x" * 100_000}))
    for sign, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = data.index(sign) + at
        data[place : place + 4] = size.to_bytes(4, "little")
    return bytes(data)


def nested_mail(depth: int) -> bytes:
    message = EmailMessage()
    message["From"], message["Subject"] = "a@example.com", "innermost"
    message.set_content("the core")
    for i in range(depth):
        outer = EmailMessage()
        outer["From"], outer["Subject"] = "a@example.com", f"level {i}"
        outer.set_content(f"body {i}")
        outer.add_attachment(message)
        message = outer
    return message.as_bytes()


def sheet(xml: str) -> bytes:
    return altered(
        workbook(),
        "xl/worksheets/sheet1.xml",
        f'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">{xml}</worksheet>'.encode(),
    )


def stream_bomb() -> bytes:
    """A page whose content unpacks twice, to 400 million bytes."""
    content = zlib.compress(zlib.compress(b" " * 400_000_000, 1), 9)
    return assembled(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
            b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n%s\nendstream" % (len(content), content),
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 3 0 R >>",
        ]
    )


HOSTILE: dict[str, tuple[bytes, set[str]]] = {
    "bomb.docx": (archive({"word/document.xml": b" " * 60_000_000}), {"too_large"}),
    "understated.docx": (lying(10), {"malformed"}),
    "overstated.docx": (lying(3_000_000_000), {"too_large"}),
    "parts.docx": (archive({f"word/{i}": "" for i in range(20_001)}), {"too_large"}),
    "archive.docx": (archive({"inner.zip": archive({"a.txt": "x"})}), {"unsupported"}),
    "laughs.docx": (
        archive({"[Content_Types].xml": f"{LAUGHS}<x>&i;</x>", "word/document.xml": "<x/>"}),
        {"malformed"},
    ),
    "laughs.xlsx": (altered(workbook(), "xl/workbook.xml", f"{LAUGHS}<x>&i;</x>".encode("utf-16")), {"malformed"}),
    "corner.xlsx": (
        sheet('<sheetData><row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData>'),
        {"too_large"},
    ),
    "pages.pdf": (pdf("(zebra) Tj", pages=20_001), {"too_large"}),
    "stream.pdf": (stream_bomb(), {"memory"}),
    "deep.json": (b"[" * 1_000_000 + b"]" * 1_000_000, {"too_large"}),
    "cells.ipynb": (b'{"cells":' * 200_000, {"too_large"}),
    "columns.csv": (b"a," * 1_000_000, {"too_large"}),
    "quote.csv": (b'a,b\n"' + b"x" * 2_000_000, {"malformed"}),
    "values.json": (json.dumps([[[i] for i in range(300_000)]]).encode(), {"too_large"}),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    folder, index = tmp_path_factory.mktemp("hostile"), tmp_path_factory.mktemp("index")
    for name, (data, _) in HOSTILE.items():
        (folder / name).write_bytes(data)
    (folder / "mail.eml").write_bytes(nested_mail(100))
    (folder / "zzz.md").write_text("The last file says zebra.")
    with open(folder / "line.txt", "wb") as file:  # a line of 200 MB that takes no disk
        os.truncate(file.fileno(), 200_000_000)
    encoder = WordEncoder()
    with Parser(Limits(seconds=30, memory_bytes=700_000_000)) as parser:
        sources = find_sources([folder], folder)
        report = Ingestion(Layout(str(index)), "docs", sources, encoder, encoder.embed_now, parser).run()
    assert found(search(retriever(index), "last zebra"))[0] == "zzz.md"
    return {row.uri: row for row in report.rows}


@pytest.mark.parametrize("name", HOSTILE)
def test_harm_is_refused_by_name(rows: dict[str, Row], name: str) -> None:
    assert rows[name].reason in HOSTILE[name][1], rows[name]
    assert rows[name].chunks == 0


def test_a_line_of_200_mb_is_refused_unread(rows: dict[str, Row]) -> None:
    assert (rows["line.txt"].outcome, rows["line.txt"].reason) == ("failed", "too_large")


def test_mails_inside_mails_are_read_to_a_depth(rows: dict[str, Row]) -> None:
    assert rows["mail.eml"].outcome == "ingested"
    parsed = parse(nested_mail(100), "eml", "t")
    assert ["5 deep" in note for note in parsed.notes] == [True]
    assert [f"body {i}" in parsed.text for i in (99, 94, 93)] == [True, True, False]


def test_the_rest_is_ingested(rows: dict[str, Row]) -> None:
    assert rows["zzz.md"].outcome == "ingested"


def test_external_entities_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    harm = f'<!DOCTYPE package [<!ENTITY x SYSTEM "{secret.as_uri()}">]>'
    package = altered(book(), "O/b.opf", b"")
    with zipfile.ZipFile(io.BytesIO(book())) as plain:
        opf = plain.read("O/b.opf").decode().replace("The book", "&x;")
    parsed = parse(altered(package, "O/b.opf", (harm + opf).encode()), "epub", "t")
    assert "hunter2" not in json.dumps([parsed.text, dict(parsed.metadata)])
    assert "First chapter." in parsed.text


@pytest.mark.parametrize(
    "name", ["../outside.txt", "%2e%2e%2foutside.txt", "..\\outside.txt", "/outside.txt", "out\0side.txt"]
)
def test_a_name_inside_a_file_is_no_place(tmp_path: Path, name: str) -> None:
    """What is attached or packed is read where it lies: by whatever name, nothing is written outside of the index."""
    folder, index = tmp_path / "files", tmp_path / "index"
    folder.mkdir()
    message = EmailMessage()
    message["From"], message["Subject"] = "a@example.com", "a letter"
    message.set_content("the body")
    message.add_attachment("The attached zebra.", filename="PLACE.txt")
    (folder / "letter.eml").write_bytes(message.as_bytes().replace(b"PLACE.txt", name.encode()))
    with zipfile.ZipFile(io.BytesIO(book())) as plain:
        parts = {part: plain.read(part) for part in plain.namelist()}
    (folder / "book.epub").write_bytes(archive({**parts, name: b"outside"}))
    before, roots = set(tmp_path.rglob("*")), set(Path("/").iterdir())
    encoder = WordEncoder()
    with Parser(Limits(seconds=30, memory_bytes=700_000_000)) as parser:
        run = Ingestion(Layout(str(index)), "docs", find_sources([folder], folder), encoder, encoder.embed_now, parser)
        report = run.run()
    made = {path for path in set(tmp_path.rglob("*")) - before if path != index and index not in path.parents}
    assert made == set()
    assert set(Path("/").iterdir()) == roots
    assert {row.uri: row.outcome for row in report.rows} == {"letter.eml": "ingested", "book.epub": "ingested"}


@pytest.mark.parametrize("size", [0, 1, 99_999])
def test_no_more_is_unpacked_than_was_stated(size: int) -> None:
    with pytest.raises(ParseFault):
        Package(lying(size)).read("word/document.xml")
