"""Files that other parsers' projects keep because they are odd: what becomes of each, and a phrase that must be found."""

from pathlib import Path
from typing import NamedTuple

import lance
import pytest

from assay.errors import ParseFault
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Report, find_sources
from assay.index.parse.parser import Parser
from assay.retrieve import LocalRetriever
from assay.types import Chunk, SearchQuery
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import retriever, search, text_of

DATA = (Path(__file__).parents[3].parent / "shared" / "data" / "messy_files").resolve()
PASSWORDS = ("wrong", "foo", "openpassword", "1234")


class Want(NamedTuple):
    """``reason`` of a file that is not read; or a phrase of its text, and where it stands."""

    phrase: str = ""
    reason: str = ""
    page: int | None = None
    heading: str = ""
    hidden: bool = False


WANTED = {
    "docling/2206.01062_pg3.pdf": Want("annotating the same pages multiple times", page=1),
    "docling/LICENSE": Want(reason="unsupported"),
    "docling/Strict.docx": Want("Some text"),
    "docling/bookmark_sample.pdf": Want("This clause is provided for demonstration purposes only", page=1),
    "docling/docx_rich_cells.docx": Want("Rich cell A nested table A B C Cell 1 Cell 2 Cell 3"),
    "docling/eml_simple.eml": Want("This is a simple email body."),
    "docling/eml_with_attachment.eml": Want("This is a test attachment file.", heading="Attachment: test.txt"),
    "docling/html_code_snippets.html": Want("The Pythagorean theorem", heading="Code snippets"),
    "docling/invisible_text_layer.pdf": Want("Invisible OCR text layer", page=1, hidden=True),
    "docling/lorem_ipsum.docx": Want("Proin elit mi, fermentum vitae dolor"),
    "docling/ocr_test.pdf": Want(reason="no_text_layer"),
    "docling/powerpoint_sample.pptx": Want("Some notes on the second slide.", page=2, heading="Second slide title"),
    "docling/right_to_left_02.pdf": Want("فإن الحكومة المصرية تضع", page=1),
    "docling/textbox.docx": Want("Suggested Reportable Symptoms"),
    "docling/word_sample.docx": Want("Blueberry, Strawberry, Cranberry", heading="Let’s eat"),
    "docling/word_tables.docx": Want("| Header 0.0 | Header 0.1 | Header 0.2 |", heading="Test with tables"),
    "markitdown/LICENSE": Want(reason="unsupported"),
    "markitdown/MEDRPT-2024-PAT-3847_medical_report_scan.pdf": Want(reason="no_text_layer"),
    "markitdown/RECEIPT-2024-TXN-98765_retail_purchase.pdf": Want("TECHMART ELECTRONICS", page=1),
    "markitdown/REPAIR-2022-INV-001_multipage.pdf": Want("Insured name Gabriel Diaz", page=1),
    "markitdown/SPARSE-2024-INV-1234_borderless_table.pdf": Want("INVENTORY RECONCILIATION REPORT", page=1),
    "markitdown/expected_outputs/movie-theater-booking-2024.md": Want("STARLIGHT CINEMAS"),
    "markitdown/masterformat_partial_numbering.pdf": Want("RFP for Construction Management Services", page=1),
    "markitdown/movie-theater-booking-2024.pdf": Want("Holiday Movie Marathon Package", page=1),
    "markitdown/test.epub": Want("This is a blockquote for testing.", heading="Chapter 2: More Content"),
    "markitdown/test.json": Want("5b64c88c-b3c3-4510-bcb8-da0b200602d8: uuid_key"),
    "markitdown/test.pdf": Want("Large language models (LLMs) are becoming a crucial building block", page=1),
    "markitdown/test.pptx": Want("| 7 | 8 | 9 | 1b92870d-e3b5-4e65-8153-919f4ff45592 | 11 | 12 |", page=3),
    "markitdown/test.xlsx": Want("| Alpha | Beta | Gamma | Delta |", heading="Sheet1"),
    "markitdown/test_blog.html": Want("Large language models (LLMs) are powerful tools"),
    "markitdown/test_mskanji.csv": Want("| 佐藤太郎 | 30 | 東京 |"),
    "markitdown/test_notebook.ipynb": Want('print("markitdown")', heading="Test Notebook"),
    "markitdown/test_outlook_msg.msg": Want("This is the body of the test email message"),
    "markitdown/test_with_comment.docx": Want("This is a test comment. 12df-321a"),
    "pdfminer_samples/LICENSE": Want(reason="unsupported"),
    "pdfminer_samples/README": Want(reason="unsupported"),
    "pdfminer_samples/contrib/issue-791-non-unicode-cmap.pdf": Want(reason="mojibake"),
    "pdfminer_samples/encryption/aes-128-m.pdf": Want("Secret!", page=1),
    "pdfminer_samples/encryption/rc4-40.pdf": Want("Secret!", page=1),
    "pdfminer_samples/font-size-test.pdf": Want("Batang font", page=3),
    "pdfminer_samples/jo.pdf": Want("宇宙塵をたべ、または空気や塩水を呼吸しながら", page=1),
    "pdfminer_samples/simple2.pdf": Want(reason="no_text_layer"),
    "pypdf_sample_files/001-trivial/minimal-document.pdf": Want("Lorem ipsum dolor sit amet, consetetur", page=1),
    "pypdf_sample_files/004-pdflatex-4-pages/pdflatex-4-pages.pdf": Want("Hello, here is some text without a meaning."),
    "pypdf_sample_files/005-libreoffice-writer-password/README.md": Want("openpassword"),
    "pypdf_sample_files/005-libreoffice-writer-password/libreoffice-writer-password.pdf": Want("Lorem ipsum", page=1),
    "pypdf_sample_files/007-imagemagick-images/imagemagick-CCITTFaxDecode.pdf": Want(reason="no_text_layer"),
    "pypdf_sample_files/014-outlines/mistitled_outlines_example.pdf": Want("Hello, here is some text", page=2),
    "pypdf_sample_files/015-arabic/habibi-rotated.pdf": Want("حَبيبي", page=1),
    "pypdf_sample_files/015-arabic/habibi.html": Want("حَبيبي habibi"),
    "pypdf_sample_files/015-arabic/habibi.pdf": Want("habibi حَبيبي", page=1),
    "pypdf_sample_files/024-annotations/annotated_pdf.pdf": Want("Not highlighted", page=1),
    "pypdf_sample_files/025-attachment/with-attachment.pdf": Want("Lorem ipsum dolor sit amet", page=1),
    "pypdf_sample_files/LICENSE": Want(reason="unsupported"),
    "pypdf_sample_files/README.md": Want("files for testing software that reads", heading="PDF Sample Files"),
    "pypdf_sample_files/files.json": Want("path: 001-trivial/minimal-document.pdf", heading="data"),
}

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the shared test data is not beside the project")


class Read(NamedTuple):
    report: Report
    retriever: LocalRetriever
    chunks: dict[str, list[Chunk]]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    index, encoder = tmp_path_factory.mktemp("messy"), WordEncoder()
    with Parser(passwords=PASSWORDS) as parser:
        run = Ingestion(Layout(str(index)), "messy", find_sources([DATA], DATA), encoder, encoder.embed_now, parser)
        report = run.run()
    over = retriever(index)
    columns = ["id", "doc_id", "bucket", "title", "uri", "text", "start", "end", "ordinal", "heading", "page", "hidden"]
    chunks: dict[str, list[Chunk]] = {}
    for fields in lance.dataset(str(index / "chunks.lance")).to_table(columns=columns).to_pylist():
        chunks.setdefault(fields["uri"], []).append(Chunk(**{**fields, "heading": tuple(fields["heading"])}))
    return Read(report, over, chunks)


def test_every_file_has_its_row(read: Read) -> None:
    assert {row.uri for row in read.report.rows} == set(WANTED)


@pytest.mark.parametrize("uri", WANTED)
def test_a_messy_file(read: Read, uri: str) -> None:
    want = WANTED[uri]
    row = next(row for row in read.report.rows if row.uri == uri)
    if want.reason:
        assert (row.reason, row.chunks, uri in read.chunks) == (want.reason, 0, False)
        assert row.outcome == ("skipped" if want.reason == "unsupported" else "failed")
        return
    assert (row.outcome, row.reason) == ("ingested", "")
    assert row.chunks == len(read.chunks[uri])
    held = [chunk for chunk in read.chunks[uri] if want.phrase in " ".join(chunk.text.split())]
    assert held, [chunk.text for chunk in read.chunks[uri]]
    assert want.page is None or want.page in [chunk.page for chunk in held]
    assert not want.heading or any(want.heading in chunk.heading for chunk in held)
    assert any(chunk.hidden == want.hidden for chunk in held)
    hits = search(read.retriever, SearchQuery((want.phrase,), doc_id=held[0].doc_id, top_k=50)).hits
    assert {chunk.id for chunk in held} <= {hit.chunk.id for hit in hits}


def test_spans_are_of_the_text_that_is_kept(read: Read) -> None:
    for chunks in read.chunks.values():
        text = text_of(read.retriever, chunks[0].doc_id)
        assert all(text[chunk.start : chunk.end] == chunk.text for chunk in chunks)


def test_only_the_invisible_layer_is_hidden(read: Read) -> None:
    hidden = {chunk.text for chunks in read.chunks.values() for chunk in chunks if chunk.hidden}
    assert hidden == {"Invisible OCR text layer"}


def test_without_passwords_what_is_encrypted_is_told() -> None:
    locked = [uri for uri in WANTED if "encryption/" in uri or "password.pdf" in uri or "2206" in uri]
    with Parser() as parser:
        for uri in locked:
            with pytest.raises(ParseFault, match="give its password") as fault:
                parser.parse((DATA / uri).read_bytes(), uri)
            assert fault.value.reason == "encrypted"
    assert len(locked) == 4
