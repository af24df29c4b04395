"""Bytes of a text to characters: by its mark, as UTF-8, as declared, or by what the letters then are."""

import re

from assay.errors import ParseFault

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
_DENSE = 0.2  # the share of bytes above ASCII from which a text may be in an East Asian encoding
_PUNCTUATION = frozenset("‘’“”‚„–—…•€™®©°§´«»‹›\u00a0")


def decode(data: bytes, declared: str | None = None) -> str:
    """Never with replacement characters. ``declared``: the label of the encoding that the text names.

    Raises ``ParseFault``: ``mojibake`` where no encoding makes words of it, ``malformed`` where it is no text.
    """
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if data.startswith(mark):
            return _strictly(data[len(mark) :], encoding)
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    if declared is not None:
        if declared.strip().lower() not in _CODECS:
            raise ParseFault(f"the text declares the unknown encoding '{declared}'; convert it to UTF-8", "mojibake")
        return _strictly(data, _CODECS[declared.strip().lower()])
    if b"\x00" in data[:100_000]:
        raise ParseFault("the file is binary, not text", "malformed")
    if (text := _east_asian(data)) is not None:
        return text
    text = _strictly(data, "cp1252")
    accented = sum(c > "\x7f" and c not in _PUNCTUATION for c in text)
    letters = sum(c > "\x7f" and c.isalpha() for c in text)
    if accented > 0.4 * len(text) or letters < 0.6 * accented:
        raise ParseFault(
            "the text is neither UTF-8 nor Windows Latin, nor plainly Japanese, Chinese or Korean; convert it to UTF-8",
            "mojibake",
        )
    return text


def _strictly(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        raise ParseFault(f"the text is not {encoding}; convert it to UTF-8", "mojibake") from None


def _east_asian(data: bytes) -> str | None:
    """The text where one of these encodings makes common characters of nearly all of it: they share their bytes, and only
    the right one does. The common ones are the first levels of the national standards."""
    if sum(byte > 0x7F for byte in data[:100_000]) < _DENSE * len(data[:100_000]):
        return None
    for codec, common, kana in _TRIED:
        try:
            text = data.decode(codec)
        except UnicodeDecodeError:
            continue
        wide = [c for c in text[:20_000] if c > "\x7f" and c.isalpha()]
        good = sum(bool(_KANA.match(c)) or _leads(c, *common) for c in wide)
        if wide and good >= 0.9 * len(wide) and sum(bool(_KANA.match(c)) for c in wide) >= kana * len(wide):
            return text
    return None


_KANA = re.compile("[\u3041-\u30ff]")
# Codec, the standard whose lead bytes tell common characters, and the least share of kana: only Japanese has them, and
# in EUC its other characters lie where Chinese and Korean ones do. Korean before Chinese, whose range holds it.
_TRIED: tuple[tuple[str, tuple[str, int, int], float], ...] = (
    ("cp932", ("shift_jis", 0x88, 0x98), 0.0),
    ("euc-jp", ("euc-jp", 0xB0, 0xCF), 0.1),
    ("cp949", ("euc-kr", 0xB0, 0xC8), 0.0),
    ("gb18030", ("gb2312", 0xB0, 0xD7), 0.0),
    ("big5hkscs", ("big5", 0xA4, 0xC6), 0.0),
)


def _leads(char: str, standard: str, first: int, last: int) -> bool:
    try:
        encoded = char.encode(standard)
    except UnicodeEncodeError:
        return False
    return len(encoded) == 2 and first <= encoded[0] <= last
