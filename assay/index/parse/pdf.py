"""PDF text by PDFium, page by page. Headings are the document's own outline, where its entries stand in the text."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pypdfium2 as pdfium

from assay.errors import ParseFault
from assay.index.parse.legible import check_legible
from assay.index.parse.package import encrypted_message
from assay.index.parse.parsed import Block, Parsed, Raw
from assay.index.parse.pdf_page import PageText, page_text

_MAX_PAGES = 20_000
_MAX_CHARS = 50_000_000
_FEW_LETTERS = 3  # per page with pictures on average: page numbers and stamps are no text layer
_HYPHEN = re.compile(
    "(?<=[^\\W\\d_])[\ufffe\u0002\u00ad]\r?\n?(?=[^\\W\\d_])"
)  # PDFium marks a word broken by the margin
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_ODD = re.compile("[\ufffe\u0002\u00ad]")
_NO_TITLE = re.compile(
    r"\.(docx?|pdf|tex|dvi|indd|pptx?|xlsx?|odt)$"
    r"|^\W*(untitled|anonymous|microsoft word|powerpoint presentation|document\d*$|slide \d)",
    re.IGNORECASE,
)
_DATE = re.compile(r"(?:D:)?(\d{4})(\d\d)?(\d\d)?(\d\d)?(\d\d)?(\d\d)?(?:([-+Z])(?:(\d\d)'?(?:(\d\d)'?)?)?)?\s*$")
_GAP = re.compile(r"\n[ \t]*\n")


def parse(data: bytes, stem: str, passwords: Sequence[str] = ()) -> Parsed:
    document = _open(data, passwords)
    try:
        if len(document) > _MAX_PAGES:
            raise ParseFault(f"the file has {len(document)} pages, more than {_MAX_PAGES}", "too_large")
        texts = list(_texts(document))
        if sum(len(re.findall(r"\w", t.seen + t.unseen)) for t in texts) < _FEW_LETTERS * max(1, len(texts)):
            raise ParseFault("the pages have no text layer, only pictures; run OCR on the file first", "no_text_layer")
        check_legible(
            "\n".join(part for text in texts for part in text)
        )  # with its control characters: in a file without a Unicode map they are all there is
        texts = [PageText(*(_CONTROL.sub("", part) for part in text)) for text in texts]
        outline = list(_outline(document))
        title, properties = _title(document), _properties(document)
    finally:
        document.close()
    pages: list[int] = []
    blocks: list[Block] = []
    wholes: list[str] = []
    place = 0
    for page, text in enumerate(texts):
        pages.append(place)
        whole = text.seen + "\n\n" + text.unseen if text.seen and text.unseen else text.seen + text.unseen
        begin = len(whole) - len(text.unseen)
        blocks += _blocks(text.seen, place, outline, page)
        blocks += _blocks(text.unseen, place + begin, [] if text.seen else outline, page, hidden=True)
        wholes.append(whole)
        place += len(whole) + 1
    return Parsed("\f".join(wholes), title or stem, "pdf", tuple(blocks), tuple(pages), properties)


def _open(data: bytes, passwords: Sequence[str]) -> pdfium.PdfDocument:
    for password in (None, *passwords):
        try:
            document = pdfium.PdfDocument(data, password=password)
            pages = len(document)
        except pdfium.PdfiumError as e:
            if "password" in str(e).lower():
                continue
            if "security" in str(e).lower():
                raise ParseFault("the file is encrypted in a way that no password opens here", "encrypted") from None
            raise ParseFault(f"the file is not a readable PDF ({e})", "malformed") from None
        if pages == 0:
            raise ParseFault("the file has no pages", "malformed")
        return document
    raise ParseFault(encrypted_message(passwords), "encrypted")


def _texts(document: pdfium.PdfDocument) -> Iterator[PageText]:
    total = 0
    for number in range(len(document)):
        try:
            page = document[number]
            text = page_text(page)
        except pdfium.PdfiumError as e:
            raise ParseFault(f"page {number + 1} cannot be read ({e})", "malformed") from None
        page.close()
        text = PageText(_tidy(text.seen), _tidy(text.unseen))
        total += len(text.seen) + len(text.unseen)
        if total > _MAX_CHARS:
            raise ParseFault(f"the file has more than {_MAX_CHARS} characters of text", "too_large")
        yield text


def _tidy(text: str) -> str:
    text = _ODD.sub("-", _HYPHEN.sub("", text)).replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    return "\n".join(line.rstrip() for line in text.split("\n")).strip()


def _outline(document: pdfium.PdfDocument) -> Iterator[tuple[int, int, str]]:
    """Entries as (page from 0, level from 1, title)."""
    try:
        for entry in document.get_toc(max_depth=6):
            target = entry.get_dest()
            page = target.get_index() if target is not None else None
            title = " ".join(entry.get_title().split())
            if page is not None and title:
                yield page, entry.level + 1, title
    except (pdfium.PdfiumError, ValueError):
        return  # an outline is a help, not content: without it pages alone place a passage


def _title(document: pdfium.PdfDocument) -> str:
    """The title of the metadata, unless it is plainly a file name or a program's default."""
    title = " ".join(str(document.get_metadata_dict().get("Title", "")).replace("\x00", "").split())
    junk = _NO_TITLE.search(title)
    return "" if junk or not re.search(r"\w", title) else title


def _properties(document: pdfium.PdfDocument) -> dict[str, Raw]:
    given = {key: " ".join(str(v).replace("\x00", "").split()) for key, v in document.get_metadata_dict().items()}
    named = {"title": _title(document), "author": given.get("Author"), "subject": given.get("Subject")}
    dates = {"created": _date(given.get("CreationDate", "")), "modified": _date(given.get("ModDate", ""))}
    found: dict[str, Raw] = {key: value for key, value in {**named, **dates}.items() if value}
    if words := [word for part in re.split("[,;]", given.get("Keywords", "")) if (word := part.strip())]:
        found["keywords"] = list(words)
    return {**found, "pages": len(document)}


def _date(said: str) -> str:
    """``D:YYYYMMDDHHmmSSOHH'mm'`` (ISO 32000-1, 7.9.4), all but the year optional, in ISO 8601; empty for anything else."""
    found = _DATE.match(said)
    if found is None:
        return ""
    year, month, day, hour, minute, second, zone, hours, minutes = found.groups()
    text = f"{year}-{month or '01'}-{day or '01'}T{hour or '00'}:{minute or '00'}:{second or '00'}"
    return text + ("" if zone is None else "Z" if zone == "Z" else f"{zone}{hours or '00'}:{minutes or '00'}")


def _blocks(
    text: str, start: int, outline: list[tuple[int, int, str]], page: int, *, hidden: bool = False
) -> Iterator[Block]:
    """A page's headings and what lies between; paragraphs where the page has blank lines."""
    cuts = [(m.start(), m.end(), level, title) for m, level, title in _found(text, outline, page)]
    place = 0
    for begin, end, level, title in [*cuts, (len(text), len(text), 0, "")]:
        for gap in [*_GAP.finditer(text, place, begin), None]:
            stop = gap.start() if gap else begin
            part = text[place:stop]
            if part.strip():
                left = place + len(part) - len(part.lstrip())
                yield Block("text", start + left, start + left + len(part.strip()), hidden=hidden)
            place = gap.end() if gap else stop
        if level:
            yield Block("heading", start + begin, start + end, level, title)
        place = end


def _found(text: str, outline: list[tuple[int, int, str]], page: int) -> Iterator[tuple[Any, int, str]]:
    place = 0
    for at, level, title in outline:
        if at == page:
            # A line of its own, perhaps numbered, perhaps broken where the outline has a space.
            words = r"\s+".join(map(re.escape, title.split()))
            match = re.compile(rf"^(?:[\dA-Z.]+\s+)?{words}[ \t]*$", re.MULTILINE).search(text, place)
            if match:
                yield match, level, title
                place = match.end()
