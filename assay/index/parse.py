"""A file's bytes to text and structure. Runs in the child process of ``assay.index.child``: files are not to be trusted."""

import re
from collections.abc import Callable
from dataclasses import replace

from assay.errors import ParseFault
from assay.index.legible import check_legible
from assay.index.parsed import Format, Parsed, Raw

NAME_CHARS = 200  # of a title or heading: every passage under it carries it
_MOST_PROPERTIES = 200  # of one file
_PROPERTY_CHARS = 2_000
_PAGE_BYTES = 2_000  # a page of more that shows no text has lost it
_META = re.compile(
    rb"(?:<meta[^>]{0,200}charset|<\?xml[^>]{0,100}encoding)\s*=\s*[\"']?([a-zA-Z0-9_:.-]{2,40})", re.IGNORECASE
)
_SURROGATE = re.compile("[\ud800-\udfff]")
# What a page may declare, as browsers take it (https://encoding.spec.whatwg.org/#names-and-labels): most labels mean a
# larger set than they name. Codecs of Python that are no charsets (hex, unicode_escape) are not among them.
_CHARSETS = {
    "utf-8": "utf-8 utf8 unicode-1-1-utf-8",
    "cp1252": "ascii us-ascii ansi_x3.4-1968 iso-8859-1 iso8859-1 iso_8859-1 latin1 latin-1 l1 windows-1252 cp1252 x-cp1252",
    "cp1250": "windows-1250 cp1250 x-cp1250",
    "cp1251": "windows-1251 cp1251 x-cp1251",
    "cp1253": "windows-1253 cp1253",
    "cp1254": "windows-1254 cp1254 iso-8859-9 iso8859-9 latin5",
    "cp1255": "windows-1255 cp1255",
    "cp1256": "windows-1256 cp1256",
    "cp1257": "windows-1257 cp1257",
    "cp1258": "windows-1258 cp1258",
    **{f"iso8859-{n}": f"iso-8859-{n} iso8859-{n} iso_8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    "cp874": "windows-874 iso-8859-11 tis-620",
    "koi8-r": "koi8-r koi8",
    "koi8-u": "koi8-u",
    "cp866": "ibm866 cp866",
    "mac-roman": "macintosh x-mac-roman",
    "gb18030": "gb2312 gb_2312-80 gbk x-gbk gb18030 chinese",
    "big5hkscs": "big5 big5-hkscs x-x-big5",
    "cp932": "shift_jis shift-jis sjis x-sjis ms_kanji windows-31j cp932",
    "euc-jp": "euc-jp x-euc-jp",
    "iso2022-jp": "iso-2022-jp",
    "cp949": "euc-kr ks_c_5601-1987 ksc5601 korean windows-949 cp949",
}
_CODECS = {label: codec for codec, labels in _CHARSETS.items() for label in labels.split()}


def parse(data: bytes, format: Format, stem: str) -> Parsed:
    """Raises ``ParseFault`` with one of the reasons ``empty``, ``encrypted``, ``no_text_layer``, ``no_text``,
    ``malformed`` or ``mojibake``. ``stem`` becomes the title of a file that gives itself none."""
    if not data.strip():
        raise ParseFault("the file is empty", "empty")
    try:
        parsed = _parsers()[format](data, stem)
        check_legible(parsed.text)
    except ParseFault as e:
        if e.reason == "empty" and format == "html" and len(data) > _PAGE_BYTES:
            raise ParseFault(
                f"the page has {len(data)} bytes and shows no text; save it as a browser shows it", "no_text"
            ) from None
        raise
    return _sound(parsed)


def _sound(parsed: Parsed) -> Parsed:
    """Names cut to ``NAME_CHARS``, and no lone surrogates, which nothing could store."""
    blocks = tuple(replace(b, name=_name(b.name)) if b.name else b for b in parsed.blocks)
    properties = list(parsed.metadata.items())[:_MOST_PROPERTIES]
    metadata = {_name(key): _property(value) for key, value in properties if _name(key)}
    text = _SURROGATE.sub("\ufffd", parsed.text)
    return replace(parsed, text=text, title=_name(parsed.title), blocks=blocks, metadata=metadata)


def _property(value: Raw) -> Raw:
    if isinstance(value, list):
        return [_SURROGATE.sub("\ufffd", v) if isinstance(v, str) else v for v in value[:_MOST_PROPERTIES]]
    return _SURROGATE.sub("\ufffd", value[:_PROPERTY_CHARS]).strip() if isinstance(value, str) else value


def _name(name: str) -> str:
    return _SURROGATE.sub("\ufffd", name[:NAME_CHARS]).strip()


def _parsers() -> dict[Format, Callable[[bytes, str], Parsed]]:
    from assay.index import parse_html, parse_md, parse_pdf

    return {
        "md": lambda data, stem: parse_md.parse(decode(data), stem),
        "mdx": lambda data, stem: parse_md.parse(decode(data), stem, mdx=True),
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
        label = declared.group(1).decode("ascii")
        if label.lower() not in _CODECS:
            raise ParseFault(f"the page declares the unknown encoding '{label}'; convert it to UTF-8", "mojibake")
        return _strictly(data, _CODECS[label.lower()])
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
    except UnicodeDecodeError:
        raise ParseFault(f"the text is not {encoding}; convert it to UTF-8", "mojibake") from None
