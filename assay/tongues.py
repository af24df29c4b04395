"""Which language a text is in, as people and ISO 639-1 call it: by its script, and for Latin script by its function words."""

import re
import unicodedata

from assay.languages import DEFAULT, FUNCTION_WORDS, detect
from assay.text import normalise

_CODES = {
    "english": "en",
    "german": "de",
    "french": "fr",
    "spanish": "es",
    "portuguese": "pt",
    "italian": "it",
    "dutch": "nl",
    "swedish": "sv",
    "danish": "da",
    "norwegian": "no",
    "finnish": "fi",
    "polish": "pl",
    "czech": "cs",
    "romanian": "ro",
    "hungarian": "hu",
    "turkish": "tr",
    "indonesian": "id",
}
_NAMES = {code: name.capitalize() for name, code in _CODES.items()} | {
    "ja": "Japanese",
    "ko": "Korean",
    "zh": "Chinese",
    "ar": "Arabic",
    "fa": "Persian",
    "ru": "Russian",
    "uk": "Ukrainian",
    "el": "Greek",
    "he": "Hebrew",
    "hi": "Hindi",
    "th": "Thai",
    "ta": "Tamil",
    "hy": "Armenian",
}
# Letters that one language of a script has and its most common one has not stand before that one.
_SCRIPTS = tuple(
    (code, re.compile(f"[{letters}]"), least)
    for code, letters, least in (
        ("ja", "\u3040-\u30ff\u31f0-\u31ff", 0.05),
        ("ko", "\u1100-\u11ff\uac00-\ud7af", 0.3),
        ("zh", "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff", 0.3),
        ("fa", "\u067e\u0686\u0698\u06af\u06cc\u06a9", 0.03),
        ("ar", "\u0600-\u06ff", 0.3),
        ("uk", "\u0456\u0457\u0454\u0491", 0.02),
        ("ru", "\u0400-\u04ff", 0.3),
        ("el", "\u0370-\u03ff", 0.3),
        ("he", "\u0590-\u05ff", 0.3),
        ("hi", "\u0900-\u097f", 0.3),
        ("th", "\u0e00-\u0e7f", 0.3),
        ("ta", "\u0b80-\u0bff", 0.3),
        ("hy", "\u0530-\u058f", 0.3),
    )
)
_READ = 2_000
_WORD = re.compile(r"[^\W\d_]+")


def language_of(text: str) -> str | None:
    """The ISO 639-1 code; None where nothing tells, as in a name or two."""
    text = text[:_READ]
    letters = sum(map(str.isalpha, text))
    if not letters:
        return None
    for code, script, least in _SCRIPTS if not text.isascii() else ():
        if len(script.findall(text)) > least * letters:
            return code
    words = [word if word.isascii() else _bare(word) for word in _WORD.findall(normalise(text))]
    found = detect(words)
    if found == DEFAULT and not FUNCTION_WORDS[DEFAULT] & set(words):
        return None
    return _CODES[found]


def name_of(text: str) -> str:
    """The language of a text, for a prompt."""
    return _NAMES.get(language_of(text) or "", "the language of the question")


def _bare(word: str) -> str:
    """As ``assay.languages`` has them: without accents."""
    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))
