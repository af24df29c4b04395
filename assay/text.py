"""Text analysis that every stage shares: the terms of the sparse leg and of coverage, and keys of queries.

Sentence spans live in ``assay.sentences``; they are offered here too, so that one import serves both.
"""

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from assay.sentences import sentences as sentences
from assay.words import ASKING, NEGATIONS, STOP, TURNS

# Scripts written without spaces (Han, kana, Hangul, Thai, Lao, Burmese, Khmer): bigrams, since a run is no word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"  # noqa: E501
# Letters and digits, and the vowel signs that belong to a word but are no letters to ``\w`` (Hebrew, Arabic, Indic).
_WORD = "[^\\W_" + _UNSPACED + "]|[\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff]"
_TOKEN = re.compile(
    rf"(?P<run>[{_UNSPACED}]+)"
    r"|(?P<thousands>\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,]))"
    rf"|(?P<word>(?:{_WORD})+(?:[-._/:'’&](?:{_WORD})+)*(?:\+\+|#)?)"
)
_PART = re.compile(rf"(?:{_WORD})+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_RUN = re.compile(f"[{_UNSPACED}]")
_JOINTS = re.compile(r"[-_/:'’]")
_POSSESSIVE = re.compile(r"(?<=\w)['’]s$", re.IGNORECASE)
_MARKS = re.compile("[\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670]")
_STEMMERS = (("arabic", re.compile("[\u0600-\u06ff]")), ("russian", re.compile("[\u0400-\u04ff]")))
_IMPERATIVES = frozenset("explain describe list name give tell show compare define find summarise summarize".split())

_local = threading.local()


def normalise(text: str) -> str:
    """NFKC and casefold: one spelling for what readers take to be the same letters."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def terms(text: str, language: str | None = None) -> list[str]:
    """The terms of a text in order, repeats kept: stemmed, accents folded, stop words included.

    ``language`` is a Snowball name and holds for Latin script (English by default); Arabic and Cyrillic have their
    own stemmers. A compound (``B-120``, ``4.2``, ``InferenceService``) gives itself and its parts. Scripts without
    spaces give bigrams.
    """
    return [term for token in _tokens(text) for term in _analyse(token, language or "english")]


def content_terms(text: str, language: str | None = None) -> list[str]:
    """``terms`` without stop words and question words; empty for a text of nothing else."""
    return [term for token in _content_tokens(text) for term in _analyse(token, language or "english")]


def names(text: str) -> list[str]:
    """Terms of the capitalised or identifier-like words of a question, without repeats.

    A capital at the start of a sentence says nothing about stop words, question words and imperatives.
    """
    found: dict[str, None] = {}
    for token in _content_tokens(text):
        if any(c.isupper() or c.isdigit() or c == "_" for c in token) and _fold(token) not in _IMPERATIVES:
            found.update(dict.fromkeys(_analyse(token, "english")))
    return list(found)


def query_key(text: str) -> str:
    """Equal for queries that differ in case, spacing, word order, inflection or stop words only.

    A word that turns the meaning (``not``, ``without``, ``before``, ``to``) stays, with the word that it stands before.
    """
    return " ".join(sorted(set(_key_terms(text)))) or " ".join(sorted(set(terms(text)))) or normalise(text).strip()


def _key_terms(text: str) -> list[str]:
    """Content terms, the first after a turning word bound to it; empty for a text without content."""
    key: list[str] = []
    turns: list[str] = []
    before = ""
    content = set(_content_tokens(text))
    for token in _tokens(text):
        word = _fold(token)
        if token in content:
            first, *rest = _analyse(token, "english") or ("",)
            key += [term for term in (" ".join([*turns, first]).strip(), *rest) if term]
            turns = []
        elif word in NEGATIONS or word.endswith("n't"):
            turns.append("not")
        elif word in TURNS and not (word == "to" and before == "how"):
            turns.append(word)
        before = word
    return [*key, *turns] if key else []


def _tokens(text: str) -> Iterator[str]:
    # NFKC: an accent joins its letter, and full-width forms become plain ones.
    for match in _TOKEN.finditer(unicodedata.normalize("NFKC", text)):
        token = match.group()
        yield token.replace(",", "") if match.lastgroup == "thousands" else _POSSESSIVE.sub("", token)


def _content_tokens(text: str) -> Iterator[str]:
    shouted = text.isupper() and len(text.split()) > 1
    for token in _tokens(text):
        acronym = len(token) > 1 and token.isupper() and not shouted  # US, IT and WHO are no function words
        if acronym or not (_fold(token) in STOP or _fold(token) in ASKING):
            yield token


@lru_cache(maxsize=200_000)
def _analyse(token: str, language: str) -> tuple[str, ...]:
    """The terms of one token: its stem, and for a compound the whole and its parts."""
    if _RUN.match(token):
        return tuple(token[i : i + 2] for i in range(max(1, len(token) - 1)))
    whole = _fold(token)
    parts = [folded for piece in _PART.findall(token) for part in _humps(piece) if (folded := _fold(part))]
    if not parts:
        return ()  # a lone accent
    if parts == [whole]:
        return (_stem(whole, language),)
    if all(len(part) == 1 and part.isalpha() for part in parts) and "." in whole:
        return (whole.replace(".", ""),)  # U.S and US are one word
    joined = _JOINTS.sub("", whole)
    return (_stem(joined, language), *(_stem(part, language) for part in parts if part not in STOP or part.isdigit()))


def _humps(piece: str) -> list[str]:
    """``InferenceService`` has two; ``KServe``, ``iPhone`` and ``eBay`` are one word."""
    humps = _CAMEL.split(piece)
    return humps if all(len(hump) > 1 for hump in humps) else [piece]


@lru_cache(maxsize=200_000)
def _fold(token: str) -> str:
    """Casefold without accents, Arabic vowel signs, tatweel and hamza carriers: ``naïve`` is ``naive``."""
    bare = _MARKS.sub("", unicodedata.normalize("NFD", normalise(token).replace("’", "'")))
    return unicodedata.normalize("NFC", bare)


@lru_cache(maxsize=200_000)
def _stem(word: str, language: str) -> str:
    if word.isdigit() or len(word) < 3:
        return word
    for name, script in _STEMMERS:
        if script.search(word):
            return str(_stemmer(name).stemWord(word))
    return str(_stemmer(language).stemWord(word))


def _stemmer(language: str) -> Any:
    """One per thread: a Snowball stemmer keeps state while it runs."""
    stemmers: dict[str, Any] | None = getattr(_local, "stemmers", None)
    if stemmers is None:
        stemmers = _local.stemmers = {}
    if language not in stemmers:
        import Stemmer

        stemmers[language] = Stemmer.Stemmer(language)
    return stemmers[language]
