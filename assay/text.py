"""Text analysis that every stage shares: the terms of the sparse leg and of coverage, and keys of queries.

Sentence spans live in ``assay.sentences``; they are offered here too, so that one import serves both.
"""

import re
import threading
import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any

from assay.languages import DEFAULT, FUNCTION_WORDS, detect
from assay.sentences import sentences as sentences
from assay.words import ASKING, NEGATIONS, TURNS

# Scripts written without spaces (Han, kana, Hangul, Thai, Lao, Burmese, Khmer): bigrams, since a run is no word.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"  # noqa: E501
# Letters and digits, and the vowel signs that belong to a word but are no letters to ``\w`` (Hebrew, Arabic, Indic).
_WORD = "[^\\W_" + UNSPACED + "]|[\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff]"
_TOKEN = re.compile(
    rf"[{UNSPACED}]+"
    r"|\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])"
    rf"|(?:§\s?)?(?:{_WORD})+(?:[-._/:'’&](?:{_WORD})+)*(?:\+\+|#(?!\w))?"
)
# What ``_TOKEN`` is for ASCII alone, in a third of the time.
_ASCII_TOKEN = re.compile(
    r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|[A-Za-z0-9]+(?:[-._/:'&][A-Za-z0-9]+)*(?:\+\+|#(?!\w))?", re.ASCII
)
_PART = re.compile(rf"(?:{_WORD})+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_RUN = re.compile(f"[{UNSPACED}]")
_JOINTS = re.compile(r"[-_/:'’]")
_POSSESSIVE = re.compile(r"(?<=\w)['’]s$", re.IGNORECASE)
_MARKS = re.compile("[\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670]")
# Letters that Unicode does not take for a letter with a mark, though their readers' keyboards do; and the apostrophe.
_PLAIN = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ı": "i", "æ": "ae", "œ": "oe", "’": "'"})
# Scripts that name their stemmer; Latin letters leave it to the language.
_STEMMERS = (
    ("arabic", re.compile("[\u0600-\u06ff]")),
    ("russian", re.compile("[\u0400-\u04ff]")),
    ("greek", re.compile("[\u0370-\u03ff]")),
    ("hindi", re.compile("[\u0900-\u097f]")),
    ("tamil", re.compile("[\u0b80-\u0bff]")),
    ("armenian", re.compile("[\u0530-\u058f]")),
)
# A passage in another language than English says so by a term of its own, which no text can hold: a query then looks
# for the stems of all languages that its index has. Short queries need not be told apart, and mixed ones are no fault.
_MARK = "\x00"
_IMPERATIVES = frozenset("explain describe list name give tell show compare define find summarise summarize".split())

# One question looks at the same passages and sentences many times, and the next one at many of them again.
REMEMBERED, REMEMBERED_CHARS = 4_096, 4_000

_local = threading.local()


def normalise(text: str) -> str:
    """NFKC and casefold: one spelling for what readers take to be the same letters."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def terms(text: str, language: str = DEFAULT) -> list[str]:
    """The terms of a text in order, repeats kept: stemmed, accents folded, stop words included.

    ``language`` is a Snowball name and holds for Latin script; other scripts have their own stemmers. A compound
    (``B-120``, ``4.2``, ``InferenceService``) gives itself and its parts, ``§4.2`` also 4.2. Scripts without spaces
    give bigrams.
    """
    return list(_terms(text, language) if len(text) <= REMEMBERED_CHARS else _terms.__wrapped__(text, language))


@lru_cache(maxsize=REMEMBERED)
def _terms(text: str, language: str) -> tuple[str, ...]:
    return tuple(term for token in _tokens(text) for term in _analyse(token, language))


def content_terms(text: str, language: str = DEFAULT) -> list[str]:
    """``terms`` without stop words and question words; empty for a text of nothing else."""
    remembered = len(text) <= REMEMBERED_CHARS
    return list(_content_terms(text, language) if remembered else _content_terms.__wrapped__(text, language))


@lru_cache(maxsize=REMEMBERED)
def _content_terms(text: str, language: str) -> tuple[str, ...]:
    found = _content(_tokens(text), language, _shouted(text))
    return tuple(term for token in found for term in _analyse(token, language))


def index_terms(text: str) -> list[str]:
    """What the sparse leg indexes of a passage: its content terms in its own language, a term that names this language
    unless it is English, and single signs of the scripts without spaces beside their bigrams."""
    tokens = _tokens(text)
    language = detect(map(_fold, tokens))
    found = [term for token in _content(tokens, language, _shouted(text)) for term in _analyse(token, language)]
    if not text.isascii():
        found += [sign for token in tokens if len(token) > 1 and _RUN.match(token) for sign in token]
    return found if language == DEFAULT else [*found, _MARK + language]


class Analyser:
    """``index_terms`` of many texts, as numbers: what a token gives in a language is looked up, not worked out again."""

    def __init__(self) -> None:
        self.vocabulary: dict[str, int] = {}
        self._content: dict[str, dict[str, tuple[int, ...]]] = {}

    def ids(self, text: str) -> list[int]:
        """The places of the text's terms in ``vocabulary``, which grows by new ones."""
        tokens = _tokens(text)
        language = detect(map(_fold, tokens))
        content, shouted = self._content.setdefault(language, {}), _shouted(text)
        known = list(map(content.get, tokens))
        for at in _places_of(None, known):
            known[at] = self._worked_out(tokens[at], tokens[at - 1] if at else "", language, shouted)
        found = list(chain.from_iterable(known))  # type: ignore[arg-type]
        if not text.isascii():
            for token in tokens:
                if len(token) > 1 and _RUN.match(token):
                    found += self._places(token)
        return found if language == DEFAULT else [*found, *self._places([_MARK + language])]

    def _worked_out(self, token: str, before: str, language: str, shouted: bool) -> tuple[int, ...]:
        function = _is_function(token, language)
        named = function and not shouted and _is_name(token, before)
        places = self._places(_analyse(token, language)) if named or not function else ()
        if not (function and token.isupper()):  # what is in capitals hangs on the words around it
            self._content[language][token] = places
        return places

    def _places(self, terms: Iterable[str]) -> tuple[int, ...]:
        vocabulary = self.vocabulary
        return tuple(vocabulary.setdefault(term, len(vocabulary)) for term in terms)


def _places_of(wanted: object, values: list[Any]) -> Iterator[int]:
    at = -1
    with suppress(ValueError):
        while True:
            yield (at := values.index(wanted, at + 1))


def languages_of(vocabulary: Container[str]) -> list[str]:
    """Of the texts that a vocabulary made of ``index_terms`` was made of; always English, first."""
    return [DEFAULT, *(name for name in FUNCTION_WORDS if _MARK + name in vocabulary)]


def query_terms(text: str, vocabulary: Container[str], languages: Sequence[str] | None = None) -> list[str]:
    """The content terms of a query that a vocabulary made of ``index_terms`` has, stemmed in each of its ``languages``, where
    these are known."""
    languages = tuple(languages or languages_of(vocabulary))
    tokens = _tokens(text)
    content = _content(tokens, detect(map(_fold, tokens), languages), _shouted(text))
    return [term for token in content for term in _stems(token, languages) if term in vocabulary]


@lru_cache(maxsize=200_000)
def _stems(token: str, languages: tuple[str, ...]) -> tuple[str, ...]:
    """Each once, in the order of the languages."""
    return tuple(dict.fromkeys(term for name in languages for term in _analyse(token, name)))


def is_unspaced(sign: str) -> bool:
    """Whether a character belongs to a script that is written without spaces."""
    return _RUN.match(sign) is not None


def names(text: str) -> list[str]:
    """Terms of the capitalised or identifier-like words of a question, without repeats.

    A capital at the start of a sentence says nothing about stop words, question words and imperatives.
    """
    found: dict[str, None] = {}
    for token in _content(_tokens(text), DEFAULT, _shouted(text)):
        if any(c.isupper() or c.isdigit() or c == "_" for c in token) and _fold(token) not in _IMPERATIVES:
            found.update(dict.fromkeys(_analyse(token, DEFAULT)))
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
    found = _tokens(text)
    # "the TIDES, THE": what stands there in small letters, too, is no name.
    tokens = [word if (word := _fold(token)) in found else token for token in found]
    words = text.split()
    # "the MOONS OF MARS" asks what "moons of Mars" does: its OF is no name, as it would be beside few capitals.
    shouted = _shouted(text) or (len(words) > _FEW_WORDS and 3 * sum(map(str.isupper, words)) > 2 * len(words))
    content = set(_content(tokens, DEFAULT, shouted))
    for token in tokens:
        word = _fold(token)
        if token in content:
            first, *rest = _analyse(token, DEFAULT) or ("",)
            key += [term for term in (" ".join([*turns, first]).strip(), *rest) if term]
            turns = []
        elif word in NEGATIONS or word.endswith("n't"):
            turns.append("not")
        elif word in TURNS and not (word == "to" and before == "how"):
            turns.append(word)
        before = word
    return [*key, *turns] if key else []


def _tokens(text: str) -> list[str]:
    if text.isascii():
        return _ASCII_TOKEN.findall(text)
    # NFKC: an accent joins its letter, and full-width forms become plain ones.
    return _TOKEN.findall(unicodedata.normalize("NFKC", text))


def _content(tokens: Iterable[str], language: str, shouted: bool) -> Iterator[str]:
    before = ""
    for token in tokens:
        if not _is_function(token, language) or (not shouted and _is_name(token, before)):
            yield token
        before = token


_FEW_WORDS = 3


def _shouted(text: str) -> bool:
    return text.isupper() and len(text.split()) > 1


@lru_cache(maxsize=200_000)
def _is_function(token: str, language: str) -> bool:
    word = _fold(token if token.isalnum() else _POSSESSIVE.sub("", token))
    return word in FUNCTION_WORDS[language] or (language == DEFAULT and word in ASKING)


def _is_name(token: str, before: str) -> bool:
    """US, IT and WHO are no function words, nor is the letter of a Plan A; of World War I, but not of "where I live"."""
    if not token.isupper():
        return False
    return len(token) > 1 or (token == "A" and before != "") or (token == "I" and before[:1].isupper())


@lru_cache(maxsize=200_000)
def _analyse(token: str, language: str) -> tuple[str, ...]:
    """The terms of one token: its stem, and for a compound the whole and its parts."""
    if token.isascii() and token.isalnum() and (token[1:].islower() or token.isdigit() or len(token) == 1):
        return (_stem(token.lower(), language),)  # what the rest comes to, for most tokens
    if _RUN.match(token):
        return tuple(token[i : i + 2] for i in range(max(1, len(token) - 1)))
    if token[0] == "§":
        number = token[1:].strip()
        return (f"§{_fold(number)}", *_analyse(number, language))
    token = _POSSESSIVE.sub("", token.replace(",", ""))  # a comma is only in thousands
    whole = _fold(token)
    parts = [folded for piece in _PART.findall(token) for part in _humps(piece) if (folded := _fold(part))]
    if not parts:
        return ()  # a lone accent
    if parts == [whole]:
        return (_stem(whole, language),)
    if all(len(part) == 1 and part.isalpha() for part in parts) and "." in whole:
        return (whole.replace(".", ""),)  # U.S and US are one word
    lone = "'" not in whole  # the letter of B-120 counts, that of I'd does not
    kept = [p for p in parts if not _is_function(p, language) or (len(p) == 1 and lone)]
    return (_stem(_JOINTS.sub("", whole), language), *(_stem(part, language) for part in kept))


def _humps(piece: str) -> list[str]:
    """``InferenceService`` has two; ``KServe``, ``iPhone`` and ``eBay`` are one word."""
    humps = _CAMEL.split(piece)
    return humps if all(len(hump) > 1 for hump in humps) else [piece]


@lru_cache(maxsize=200_000)
def _fold(token: str) -> str:
    """Casefold without accents, Arabic vowel signs, tatweel and hamza carriers: ``naïve`` is ``naive``."""
    if token.isascii():
        return token.lower()
    bare = _MARKS.sub("", unicodedata.normalize("NFD", normalise(token).translate(_PLAIN)))
    return unicodedata.normalize("NFC", bare)


@lru_cache(maxsize=200_000)
def _stem(word: str, language: str) -> str:
    if word.isdigit() or len(word) < 3:
        return word
    if not word.isascii():
        language = next((name for name, script in _STEMMERS if script.search(word)), language)
    return str(_stemmer(language).stemWord(word))


def _stemmer(language: str) -> Any:
    """One per thread: a Snowball stemmer keeps state while it runs."""
    stemmers: dict[str, Any] | None = getattr(_local, "stemmers", None)
    if stemmers is None:
        stemmers = _local.stemmers = {}
    if language not in stemmers:
        import Stemmer

        stemmers[language] = Stemmer.Stemmer(language, 0)  # no memory of its own: ours is larger, and is not swept
    return stemmers[language]
