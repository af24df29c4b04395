"""Zip packages (office files, EPUB), opened with care: nothing is unpacked before its size is known to be bearable."""

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence

from assay.errors import ParseFault

MOST_BYTES = 400_000_000  # of all parts, unpacked: the child's memory has to hold a tree of what is parsed
_MOST_PARTS = 20_000
_RATIO = 200  # of one part above a size where it matters; text at its most regular compresses to a hundredth
_RATIO_FROM = 50_000_000
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_DOCTYPE = re.compile(rb"<!(?:DOCTYPE|ENTITY)|<\0!\0(?:D\0O\0C|E\0N\0T)|\0<\0!\0(?:D\0O\0C|E\0N\0T)")
# ISO 29500 Strict has its own names for the same vocabulary; the libraries know the Transitional ones.
_STRICT = b"http://purl.oclc.org/ooxml/"
_TRANSITIONAL = (
    (b"http://purl.oclc.org/ooxml/officeDocument/", b"http://schemas.openxmlformats.org/officeDocument/2006/"),
    (b"http://purl.oclc.org/ooxml/wordprocessingml/main", b"http://schemas.openxmlformats.org/wordprocessingml/2006/main"),
    (b"http://purl.oclc.org/ooxml/spreadsheetml/main", b"http://schemas.openxmlformats.org/spreadsheetml/2006/main"),
    (b"http://purl.oclc.org/ooxml/presentationml/main", b"http://schemas.openxmlformats.org/presentationml/2006/main"),
    (b"http://purl.oclc.org/ooxml/drawingml/", b"http://schemas.openxmlformats.org/drawingml/2006/"),
)  # fmt: skip


class Package:
    """Raises ``ParseFault``: ``malformed``, ``encrypted``, ``too_large`` (what its directory states is checked, and no
    more than that is ever unpacked)."""

    def __init__(self, data: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as e:
            raise ParseFault(f"the file is no readable zip package ({e})", "malformed") from None
        parts = self._zip.infolist()
        if len(parts) > _MOST_PARTS:
            raise ParseFault(f"the package has {len(parts)} parts, more than {_MOST_PARTS}", "too_large")
        if sum(part.file_size for part in parts) > MOST_BYTES:
            raise ParseFault(f"the package unpacks to more than {MOST_BYTES} bytes", "too_large")
        for part in parts:
            if part.file_size > max(_RATIO_FROM, _RATIO * part.compress_size):
                raise ParseFault(f"a part unpacks to {part.file_size} bytes, as no document does", "too_large")
            if part.flag_bits & 1:
                raise ParseFault("the package is encrypted; decrypt it first", "encrypted")
        self.names: Sequence[str] = [part.filename for part in parts]

    def read(self, name: str) -> bytes:
        """Raises ``KeyError`` where there is no such part."""
        try:
            return self._zip.read(name)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as e:
            raise ParseFault(f"the package's part '{name[:100]}' cannot be unpacked ({e})", "malformed") from None

    def kind(self) -> str:
        """``docx``, ``pptx``, ``xlsx``, ``epub``, or empty for any other package."""
        for name, kind in (("word/", "docx"), ("ppt/", "pptx"), ("xl/", "xlsx")):
            if any(part.startswith(name) for part in self.names):
                return kind
        return "epub" if "META-INF/container.xml" in self.names else ""


def office(data: bytes) -> io.BytesIO:
    """An office package that its library can be trusted with: parts that unpack, no document types, Transitional names."""
    package, out = Package(data), io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as copy:
        for name in dict.fromkeys(package.names):
            if name.endswith("/") or not re.search(r"\.(xml|rels|vml)$|^\[Content_Types\]", name, re.IGNORECASE):
                if not name.endswith("/"):
                    copy.writestr(name, b"")  # pictures and fonts are not looked at, but they must be there
                continue
            part = package.read(name)
            if _DOCTYPE.search(part[:100_000]):
                raise ParseFault(f"the part '{name[:100]}' declares a document type, which office files never do")
            if _STRICT in part:
                for strict, transitional in _TRANSITIONAL:
                    part = part.replace(strict, transitional)
            copy.writestr(name, part)
    return out


def is_ole(data: bytes) -> bool:
    return data.startswith(_OLE)


def decrypted(data: bytes, passwords: Sequence[str]) -> bytes | None:
    """What an encrypted office file holds; None where it is none. Raises ``ParseFault``: ``encrypted``, where no password
    opens it."""
    import msoffcrypto
    import olefile

    try:
        with olefile.OleFileIO(io.BytesIO(data)) as ole:
            if not ole.exists("EncryptedPackage"):
                return None
        file = msoffcrypto.OfficeFile(io.BytesIO(data))
    except (OSError, ValueError, TypeError, IndexError, struct.error, msoffcrypto.exceptions.FileFormatError) as e:
        raise ParseFault(f"the file is no readable office file ({type(e).__name__})", "malformed") from None
    for password in (*passwords, "VelvetSweatshop"):  # what Excel encrypts with where it only forbids changes
        out = io.BytesIO()
        try:
            file.load_key(password=password, verify_password=True)
            file.decrypt(out)
        except (msoffcrypto.exceptions.InvalidKeyError, msoffcrypto.exceptions.DecryptionError):
            continue
        return out.getvalue()
    raise ParseFault(encrypted_message(passwords), "encrypted")


def encrypted_message(passwords: Sequence[str]) -> str:
    if not passwords:
        return "the file is encrypted; give its password"
    return f"the file is encrypted, and none of the {len(passwords)} given passwords opens it"
