"""A file's bytes to text and structure. Runs in the child process of ``assay.index.child``: files are not to be trusted."""

import re
from collections.abc import Callable

from assay.errors import ParseFault
from assay.index.legible import check_legible
from assay.index.parsed import Format, Parsed

_META = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([a-zA-Z0-9_:.-]{2,40})", re.IGNORECASE)


def parse(data: bytes, format: Format, stem: str) -> Parsed:
    """Raises ``ParseFault`` with one of the reasons ``empty``, ``encrypted``, ``no_text_layer``, ``malformed`` or
    ``mojibake``. ``stem`` becomes the title of a file that gives itself none."""
    if not data.strip():
        raise ParseFault("the file is empty", "empty")
    parsed = _parsers()[format](data, stem)
    check_legible(parsed.text)
    return parsed


def _parsers() -> dict[Format, Callable[[bytes, str], Parsed]]:
    from assay.index import parse_html, parse_md, parse_pdf

    return {
        "md": lambda data, stem: parse_md.parse(decode(data), stem),
        "txt": lambda data, stem: parse_md.parse_plain(decode(data), stem),
        "html": lambda data, stem: parse_html.parse(decode(data, declared=_META.search(data[:4096])), stem),
        "pdf": parse_pdf.parse,
    }


def decode(data: bytes, declared: re.Match[bytes] | None = None) -> str:
    """UTF-8, UTF-16 with its mark, what the page declares, or Windows Latin; never with replacement characters."""
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if data.startswith(mark):
            return _strictly(data[len(mark) :], encoding)
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    if declared is not None:
        return _strictly(data, declared.group(1).decode("ascii"))
    if b"\x00" in data[:100_000]:
        raise ParseFault("the file is binary, not text", "malformed")
    text = _strictly(data, "cp1252")
    accented = sum(c > "\x7f" for c in text)
    letters = sum(c > "\x7f" and c.isalpha() for c in text)
    if accented > 0.4 * len(text) or letters < 0.6 * accented:
        raise ParseFault("the text is neither UTF-8 nor Windows Latin; convert it to UTF-8", "mojibake")
    return text


def _strictly(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        raise ParseFault(f"the text is not {encoding}; convert it to UTF-8", "mojibake") from None
