"""EPUB: the chapters in reading order, each as the HTML that it is."""

import posixpath
from typing import Any
from urllib.parse import unquote

from lxml import etree

from assay.errors import ParseFault
from assay.index.parse import html
from assay.index.parse.decode import decode
from assay.index.parse.out import Writer, told
from assay.index.parse.package import Package
from assay.index.parse.parsed import Parsed, Raw

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_FONTS_ALONE = (b"http://www.idpf.org/2008/embedding", b"http://ns.adobe.com/pdf/enc#RC")
_DC = "{http://purl.org/dc/elements/1.1/}"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


def parse(data: bytes, stem: str) -> Parsed:
    package = Package(data)
    _check_encryption(package)
    try:
        container = _xml(package.read(_CONTAINER))
        path = next(f.get("full-path") for f in container.iter("{*}rootfile"))
        book = _xml(package.read(path))
    except (KeyError, StopIteration):
        raise ParseFault("the book names no package document", "malformed") from None
    items = {i.get("id"): i for i in book.iter("{*}item")}
    out = Writer()
    for entry in book.iter("{*}itemref"):
        item = items.get(entry.get("idref"))
        if (
            item is not None
            and item.get("media-type") in _PAGES
            and "nav" not in (item.get("properties") or "").split()
        ):
            name = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(item.get("href") or "")))
            _chapter(package, name, out)
    properties = _properties(book)
    return out.parsed(str(properties.get("title") or stem), "epub", properties, "the book's chapters have no text")


def _chapter(package: Package, name: str, out: Writer) -> None:
    try:
        inner = html.parse(decode(package.read(name)), "")
    except KeyError:
        out.notes.append(f"the chapter '{name}' is not in the file")
        return
    except ParseFault as fault:
        if fault.reason != "empty":  # a cover is a picture
            out.notes.append(f"the chapter '{name}' was left out: {fault.message}")
        return
    if inner.title and all(b.kind != "heading" for b in inner.blocks):
        out.heading(inner.title, 1)
    out.splice(inner)


def _check_encryption(package: Package) -> None:
    if _ENCRYPTION not in package.names:
        return
    algorithms = {m.get("Algorithm") for m in _xml(package.read(_ENCRYPTION)).iter("{*}EncryptionMethod")}
    if algorithms - {a.decode() for a in _FONTS_ALONE}:
        raise ParseFault("the book is encrypted (DRM); no password opens it", "encrypted")


def _properties(book: Any) -> dict[str, Raw]:
    def said(name: str) -> list[str]:
        return [text for e in book.iter(_DC + name) if (text := " ".join("".join(e.itertext()).split()))]

    modified = next((m.text for m in book.iter("{*}meta") if m.get("property") == "dcterms:modified"), None)
    description = ((said("description") or [""])[0])[:2_000]
    return told(
        title=next(iter(said("title")), ""), author=", ".join(said("creator")), language=next(iter(said("language")), ""),
        created=next(iter(said("date")), ""), modified=modified, keywords=list(said("subject")), subject=description,
        publisher=next(iter(said("publisher")), ""), identifier=next(iter(said("identifier")), ""),
    )  # fmt: skip


def _xml(data: bytes) -> Any:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError as e:
        raise ParseFault(f"a part of the book is no XML ({e.msg[:100]})", "malformed") from None
