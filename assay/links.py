"""The link hop: from what a search found, and from the question, to the documents whose titles are mentioned there.

Mentions are looked up when a question is asked, in a table of all titles, so that no document must be read again when
another one arrives (docs/adr/0006).
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from assay.inert import evident
from assay.text import UNSPACED

Rows = NDArray[np.int64]

SOURCES = 3  # hits that are read for mentions
_SHARED = 4  # a title that more documents have names none of them
_WORDS = 12  # of a title; longer ones are not mentioned as they stand
_REMEMBERED, _REMEMBERED_CHARS = 1_024, 4_000  # passages that were read for mentions: good for more questions
_PASSAGES = 8  # of a mentioned document: its first, where it is introduced

_TOKEN = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])\w)+")
_ASIDE = re.compile(r"\s*[(（][^()（）]*[)）]\s*$")
_PRIME = np.uint64(0x9E3779B97F4A7C15)


class Titles:
    """Which documents have a title. Kept as 64-bit hashes of word sequences: some 20 bytes for a title."""

    def __init__(self, titles: Sequence[str | None]) -> None:
        """``titles[i]`` is of document i. ``Mercury (planet)`` is also found as ``Mercury``."""
        keys: list[int] = []
        documents: list[int] = []
        self._longest = 0
        for document, title in enumerate(titles):
            for name in dict.fromkeys((title or "", _ASIDE.sub("", title or ""))):
                words = _words(name)
                if not words or len(words) > _WORDS or (len(words) == 1 and len(words[0]) < 3):
                    continue
                keys.append(_key(words))
                documents.append(document)
                self._longest = max(self._longest, len(words))
        order = np.argsort(np.array(keys, np.uint64), kind="stable")
        self._keys = np.array(keys, np.uint64)[order]
        self._documents = np.array(documents, np.int32)[order]
        self._known = lru_cache(_REMEMBERED)(self._mentioned)

    def mentioned(self, text: str, *, document: bool = False) -> Mapping[str, tuple[int, ...]]:
        """The titles in a text, in order, the longest where several begin, and the documents that have them. Of the
        text of a ``document``: not those in orders to a model."""
        return self._known(text, document) if len(text) <= _REMEMBERED_CHARS else self._mentioned(text, document)

    def _mentioned(self, text: str, document: bool) -> dict[str, tuple[int, ...]]:
        words = _words(evident(text) if document else text)
        if not words or not len(self._keys):
            return {}
        starts, lengths = self._matches(np.array([hash(word) for word in words], np.int64).view(np.uint64))
        found: dict[str, tuple[int, ...]] = {}
        end = 0
        for at in np.lexsort((-lengths, starts)).tolist():
            start, length = int(starts[at]), int(lengths[at])
            if start < end:
                continue
            name = words[start : start + length]
            documents = self._of(_key(name))
            if len(documents) <= _SHARED:
                found[" ".join(name)] = documents
                end = start + length
        return found

    def _matches(self, words: NDArray[np.uint64]) -> tuple[Rows, Rows]:
        """Where word sequences that are titles begin, and how many words they have."""
        sums = np.zeros(len(words), np.uint64)
        starts: list[Rows] = []
        lengths: list[Rows] = []
        for length in range(1, min(self._longest, len(words)) + 1):
            last = len(words) - length + 1
            sums = sums[:last] * _PRIME + words[length - 1 :]
            place = np.searchsorted(self._keys, sums).clip(max=len(self._keys) - 1)
            at = np.flatnonzero(self._keys[place] == sums)
            starts.append(at)
            lengths.append(np.full(len(at), length))
        return np.concatenate(starts), np.concatenate(lengths)

    def _of(self, key: int) -> tuple[int, ...]:
        low, high = (
            np.searchsorted(self._keys, np.uint64(key), "left"),
            np.searchsorted(self._keys, np.uint64(key), "right"),
        )
        return tuple(sorted({int(d) for d in self._documents[low:high]}))


class Links:
    """The titles of a snapshot, and the rows of each document. Build it once per snapshot: a second for 300,000 titles."""

    def __init__(self, titles: Sequence[str | None], document: NDArray[np.int32]) -> None:
        """``document``: of each row, its number in ``titles``."""
        self._titles = Titles(titles)
        self._document = document
        self._order = np.argsort(document, kind="stable").astype(np.int32)
        self._starts = np.searchsorted(document[self._order], np.arange(len(titles) + 1))

    def hop(
        self,
        question: str,
        sources: Sequence[tuple[int, str]],
        is_rare: Callable[[str], bool],
        cosines: Callable[[Rows], NDArray[np.float32]],
        allowed: NDArray[np.bool_] | None,
        best: float,
    ) -> dict[int, float]:
        """Row -> what it gains: its cosine to the question over the ``best`` one, divided by the root of the number of
        documents that its source mentions; of several sources, the most that one gives.

        ``sources``: row and text of the best hits. ``is_rare``: whether a title says enough to be a mention. ``allowed``:
        the rows that may be returned, as of the search itself. Rows of no positive cosine gain nothing.
        """
        gains: dict[int, float] = {}
        for own, text in [(-1, question), *((int(self._document[row]), text) for row, text in sources)]:
            named = self._titles.mentioned(text, document=own >= 0)
            documents = dict.fromkeys(d for name, of in named.items() if is_rare(name) for d in of if d != own)
            if not documents:
                continue
            rows = np.concatenate([self._rows(d) for d in documents])
            rows = rows if allowed is None else rows[allowed[rows]]
            similar = cosines(rows) / (max(best, 1e-6) * sqrt(len(documents)))
            for row, gain in zip(rows.tolist(), similar.tolist(), strict=True):
                if gain > 0:  # false for NaN, too: the row's dense leg is missing
                    gains[row] = max(gains.get(row, 0.0), gain)
        return gains

    def _rows(self, document: int) -> Rows:
        return self._order[self._starts[document] : self._starts[document + 1]][:_PASSAGES].astype(np.int64)


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).casefold()
    if not plain.isascii():
        plain = unicodedata.normalize("NFC", "".join(c for c in plain if not unicodedata.combining(c)))
    return _TOKEN.findall(plain)


def _key(words: Sequence[str]) -> int:
    key = 0
    for word in words:
        key = (key * int(_PRIME) + hash(word)) & 0xFFFFFFFFFFFFFFFF
    return key
