"""By what the bytes of an index's files are known: BLAKE3, as cryptographic as SHA-256 and several times as fast.

What is small keeps SHA-256: a manifest, by its line in ``CURRENT``, and each passage, where BLAKE3 is the slower of the two.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from blake3 import blake3

OTHER_BYTES = "has other bytes than were written (the checksum differs)"

# What a manifest keeps of a file: its length in ``bytes``, and its checksum in ``blake3``; before format 5 in ``sha256``.
Expected = Mapping[str, Any]


def known_by(expected: Expected) -> tuple[str, Callable[[], Any]]:
    """A file's checksum, and what computes it. Both kinds leave the interpreter's lock alone while they do."""
    if "blake3" in expected:
        return expected["blake3"], blake3
    return expected["sha256"], hashlib.sha256
