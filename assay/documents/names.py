"""What documents are called: an uploaded file's name as a label, never as a path; and a document's id."""

import hashlib
import re
import unicodedata

from assay.errors import InvalidRequest

MOST_CHARS = 400

# What would change how the rest of a line looks, or is no character at all.
_UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


ID = re.compile(r"doc_[0-9a-f]{20}")  # what ``doc_id_of`` gives


def doc_id_of(bucket: str, uri: str) -> str:
    """Stable: the same file in the same bucket is the same document, whatever its content."""
    return "doc_" + hashlib.sha256(f"{bucket}\0{uri}".encode()).hexdigest()[:20]


def uri_of(filename: str, field: str) -> str:
    """What an uploaded file is called in the index: folders as they were sent, without what leads out of them.

    It is shown and compared, and no file is ever opened under it. Raises ``InvalidRequest`` for a name that is none.
    """
    filename = unicodedata.normalize("NFC", filename)
    parts = [part for part in filename.replace("\\", "/").split("/") if part.strip() not in ("", ".", "..")]
    name = "/".join(parts)
    if not name:
        raise InvalidRequest(f"'{field}' has no file name.", field)
    if len(name) > MOST_CHARS:
        raise InvalidRequest(f"The name of '{field}' has more than {MOST_CHARS} characters.", field)
    if _UNSHOWN.search(name):
        raise InvalidRequest(f"The name of '{field}' holds characters that cannot be shown.", field)
    return name
