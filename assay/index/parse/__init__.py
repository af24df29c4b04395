"""A file's bytes to text and structure, in a child process (``assay.index.parse.child``): files are not to be trusted."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from assay import groups
from assay.errors import ParseFault
from assay.index.parse.decode import decode
from assay.index.parse.legible import check_legible
from assay.index.parse.parsed import FORMATS, Format, Parsed, Raw

NAME_CHARS = 200  # of a title or heading: every passage under it carries it
_MOST_PROPERTIES = 200  # of one file
_PROPERTY_CHARS = 2_000
_PAGE_BYTES = 2_000  # a page of more that shows no text has lost it
_MOST_ATTACHED = 5  # mails inside mails
_META = re.compile(
    rb"(?:<meta[^>]{0,200}charset|<\?xml[^>]{0,100}encoding)\s*=\s*[\"']?([a-zA-Z0-9_:.-]{2,40})", re.IGNORECASE
)
_PAGE = re.compile(rb"\s*(?:<!--.{0,1000}?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_PACKAGES: frozenset[Format] = frozenset(["docx", "pptx", "xlsx", "epub"])
_BINARY: frozenset[Format] = _PACKAGES | {"pdf", "msg"}


def parse(data: bytes, format: Format, stem: str, passwords: Sequence[str] = (), depth: int = 0) -> Parsed:
    """``stem`` becomes the title of a file that gives itself none; ``passwords`` are tried in order on what is encrypted.

    ``format`` is what the name promises, and the content decides. Raises ``ParseFault`` with a reason of
    ``assay.errors.Reason``.
    """
    if not data.strip():
        raise ParseFault("the file is empty", "empty")
    file = _File(data, format, stem, passwords, depth)
    try:
        file = _sniffed(file)
        parsed = _PARSERS[file.format](file)
        check_legible(parsed.text)
    except ParseFault as e:
        if e.reason == "empty" and file.format == "html" and len(data) > _PAGE_BYTES:
            raise ParseFault(
                f"the page has {len(data)} bytes and shows no text; save it as a browser shows it", "no_text"
            ) from None
        raise
    return _sound(parsed)


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    format: Format
    stem: str
    passwords: Sequence[str]
    depth: int


def _sniffed(file: _File) -> _File:
    """With the format that its first bytes tell, where they tell one; decrypted, where it is an encrypted office file."""
    from assay.index.parse.package import Package, decrypted, is_ole

    data = file.data
    if data.startswith(b"%PDF-") or (file.format == "pdf" and b"%PDF-" in data[:1024]):
        return replace(file, format="pdf")
    if is_ole(data):
        if (inside := decrypted(data, file.passwords)) is not None:
            return _sniffed(replace(file, data=inside)) if not is_ole(inside) else _old()
        return replace(file, format="msg") if "__properties_version1.0".encode("utf-16-le") in data else _old()
    if data.startswith(b"PK\x03\x04"):
        kind = Package(data).kind()
        found = next((f for f in _PACKAGES if f == kind), None)
        if found is None:
            raise ParseFault("the file is a zip archive of no known kind; unpack it first", "unsupported")
        return replace(file, format=found)
    if file.format in _BINARY:
        if _PAGE.match(data):  # what some programs save under the name of a Word or Excel file
            return replace(file, format="html")
        raise ParseFault(f"the content is none of a file that is called '{file.format}'", "malformed")
    return file


def _old() -> _File:
    raise ParseFault("files of Office 97 to 2003 are not read; save it in the newer format", "unsupported")


def _md(file: _File, mdx: bool = False) -> Parsed:
    from assay.index.parse import md

    return md.parse(decode(file.data), file.stem, mdx=mdx)


def _txt(file: _File) -> Parsed:
    from assay.index.parse import md

    return md.parse_plain(decode(file.data), file.stem)


def _html(file: _File) -> Parsed:
    from assay.index.parse import html

    declared = _META.search(file.data[:4096])
    return html.parse(decode(file.data, declared.group(1).decode("ascii") if declared else None), file.stem)


def _rows(file: _File) -> Parsed:
    from assay.index.parse import rows

    text = decode(file.data)
    if file.format == "csv":
        return rows.parse_csv(text, file.stem)
    if file.format == "tsv":
        return rows.parse_csv(text, file.stem, delimiter="\t")
    return rows.parse_json(text, file.stem) if file.format == "json" else rows.parse_jsonl(text, file.stem)


def _ipynb(file: _File) -> Parsed:
    from assay.index.parse import ipynb

    return ipynb.parse(decode(file.data), file.stem)


def _pdf(file: _File) -> Parsed:
    from assay.index.parse import pdf

    return pdf.parse(file.data, file.stem, file.passwords)


def _docx(file: _File) -> Parsed:
    from assay.index.parse import docx

    return docx.parse(file.data, file.stem)


def _pptx(file: _File) -> Parsed:
    from assay.index.parse import pptx

    return pptx.parse(file.data, file.stem)


def _xlsx(file: _File) -> Parsed:
    from assay.index.parse import xlsx

    return xlsx.parse(file.data, file.stem)


def _epub(file: _File) -> Parsed:
    from assay.index.parse import epub

    return epub.parse(file.data, file.stem)


def _mail(file: _File) -> Parsed:
    from assay.index.parse import mail

    read = mail.parse_eml if file.format == "eml" else mail.parse_msg
    return read(file.data, file.stem, lambda data, name: _attached(data, name, file))


def _attached(data: bytes, name: str, mail: _File) -> Parsed:
    path = PurePath(name.replace("\\", "/"))
    format = FORMATS.get(path.suffix.lower())
    if format is None:
        raise ParseFault(f"files of the kind '{path.suffix or path.name}' are not read", "unsupported")
    if mail.depth >= _MOST_ATTACHED:
        raise ParseFault(f"it lies in mails inside mails, more than {_MOST_ATTACHED} deep", "too_large")
    return parse(data, format, path.stem, mail.passwords, mail.depth + 1)


# Each imports its library when a file needs it: most runs meet a few kinds.
_PARSERS: dict[Format, Callable[[_File], Parsed]] = {
    "md": _md,
    "mdx": lambda file: _md(file, mdx=True),
    "txt": _txt,
    "html": _html,
    "csv": _rows,
    "tsv": _rows,
    "json": _rows,
    "jsonl": _rows,
    "ipynb": _ipynb,
    "pdf": _pdf,
    "docx": _docx,
    "pptx": _pptx,
    "xlsx": _xlsx,
    "epub": _epub,
    "eml": _mail,
    "msg": _mail,
}


def _sound(parsed: Parsed) -> Parsed:
    """Names cut to ``NAME_CHARS``, and no lone surrogates, which nothing could store."""
    blocks = tuple(replace(b, name=_name(b.name)) if b.name else b for b in parsed.blocks)
    properties = list(groups.first(parsed.metadata).items())[:_MOST_PROPERTIES]
    metadata = {_name(key): _property(value) for key, value in properties if _name(key)}
    text = _SURROGATE.sub("\ufffd", parsed.text)
    return replace(parsed, text=text, title=_name(parsed.title), blocks=blocks, metadata=metadata)


def _property(value: Raw) -> Raw:
    if isinstance(value, list):
        return [_SURROGATE.sub("\ufffd", v) if isinstance(v, str) else v for v in value[:_MOST_PROPERTIES]]
    return _SURROGATE.sub("\ufffd", value[:_PROPERTY_CHARS]).strip() if isinstance(value, str) else value


def _name(name: str) -> str:
    return _SURROGATE.sub("\ufffd", name[:NAME_CHARS]).strip()
