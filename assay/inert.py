"""Text from outside is data, whatever it says of itself: it cannot open a turn of the chat nor name a slot, and what it tells a
model to do bears no claim."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from assay.sentences import Span, sentences

# What tokenizers read as the marks of turns, of tool calls or of thoughts, wherever in a text it stands.
_MARK = re.compile(
    r"<(?=[|｜])|<(?=/?(?:s|pad|bos|eos|unk|think|thinking|tool_call|tool_response|tools|start_of_turn|end_of_turn|<SYS>|<SYS>>)>)"
    r"|\[(?=/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\])",
    re.IGNORECASE,
)
_PLAIN = {"<": "‹", "[": "("}
# Characters that no reader sees and models do read: the plane of tags, a copy of ASCII.
_UNSEEN = re.compile("[\U000e0000-\U000e007f]")
# By itself: ``a[1]`` is code.
_SLOT = re.compile(r"(?<![\w\])])[\[【]\s*+(E?\d{1,4})\s*+[\]】]", re.IGNORECASE)
_FORGED = re.compile(r"(?<![\w\])])\[E\d{1,4}\]")
# What is said to whoever reads a document for somebody else, in the languages that are most used for it. It must begin the
# sentence: documents may well be about prompts and instructions.
_LEAD = (
    r"\W*+(?:(?:please|important|note|attention|warning|now|also|first|instead|p\.?s|todo|hey|dear|to|the|any|ai|llm|assistants?|"
    r"models?|agents?|chatbots?|reader|system|user|human|developer|admin|instructions?|new|override|message|answering|reading|this)\b"
    r"\W*+){0,6}+"
)
_COMMAND = re.compile(
    _LEAD + r"(?:(?:you\s++(?:must|should|shall|will|need\s++to)\s++)?+(?:(?:now|always|only|simply)\s++)?+"
    r"(?:ignore|disregard|forget|override|bypass|do\s++not\s++follow)\s++(?:\w++\s++){0,4}?"
    r"(?:instructions?|prompts?|rules|guidelines|directions|evidence|passages?|documents?|sources?|everything|anything|above|told)\b"
    r"|you\s++are\s++(?:now|no\s++longer)\b"
    r"|(?:from\s++now\s++on|henceforth)\W++(?:you|answer|reply|respond|say)\b"
    r"|(?:you\s++must\s++)?+(?:always\s++|only\s++|simply\s++)?+(?:reply|respond|answer)\s++(?:\w++\s++){0,4}?(?:only|exactly|with|that|in\s++(?:english|german|french|spanish|chinese|json|capitals))\b"
    r"|(?:say|output|print|write|repeat|reveal|call|invoke|execute|run|cite|mark|grade|rate|score)\s++(?:\w++\s++){0,3}?"
    r"(?:exactly|system\s++prompt|instructions|tools?|functions?|passage|document|[\[({]?E\d|10\b|full\s++marks)"
    r"|(?:ignoriere|vergiss|ignorez|oubliez|ignora|olvida|ignore\s++todas|dimentica)\b"
    r"|(?:игнорируй|забудь|忽略|無視して|无视|تجاهل))",
    re.IGNORECASE,
)
# What can only mean so in a later line of a sentence, or a cell of a table: most of the above is ordinary there.
_ORDER = re.compile(
    _LEAD + r"(?:(?:you\s++(?:must|should|shall|will|need\s++to)\s++)?+(?:(?:now|always|only|simply)\s++)?+"
    r"(?:ignore|disregard|forget|override|bypass|do\s++not\s++follow)\s++(?:\w++\s++){0,2}?"
    r"(?:all|any|previous|prior|above|earlier|your)\s++(?:\w++\s++){0,3}?(?:instructions?|prompts?)\b"
    r"|(?:from\s++now\s++on|henceforth)\W++(?:you|answer|reply|respond|say)\b)",
    re.IGNORECASE,
)
# How a prompt names its parts. People's texts do so too: it counts only in one that forges others of them as a prompt has them.
_PROMPT = re.compile(r"^[ \t>*-]*+\[E[1-9]\d?\]|<[|｜]\w|\[/?INST\]", re.MULTILINE)
_LABEL = re.compile(r"\W*+(?:question|evidence|answer|system|user|assistant)\s*+:", re.IGNORECASE)
# Where a title may go on with something else.
_PART = re.compile(r"[.:;|()\[\]\n–—]|\s-\s")


def inert(text: str) -> str:
    """The text without unseen characters, and with the brackets of special tokens replaced by ones that only look alike."""
    return _MARK.sub(lambda found: _PLAIN[found.group()], _UNSEEN.sub("", text))


def passage(text: str) -> str:
    """``inert``, for evidence: what looks like one of the prompt's own slots does not any more."""
    return _SLOT.sub(r"(\1)", inert(text))


def commands(sentence: str) -> bool:
    """Whether a sentence of a document tells its reader's assistant what to do, or is made up as a part of the assistant's own
    prompt: it is then no evidence of anything."""
    bare = _UNSEEN.sub("", sentence)
    if _COMMAND.match(bare) is not None or _MARK.search(bare) is not None or _FORGED.search(bare) is not None:
        return True
    lines = [line for line in bare.splitlines()[1:] if not line.lstrip()[:1].islower()]
    return any(map(_ORDER.match, [*lines, *(bare.split("|") if bare.startswith("|") else ())]))


def stated(text: str) -> tuple[Span, ...]:
    """The sentences of a document that may say something: none that commands, nor the rest of a prompt that is made up."""
    forges = _PROMPT.search(text) is not None
    found = [(span, text[slice(*span)]) for span in sentences(text)]
    return tuple(span for span, own in found if not (commands(own) or (forges and _LABEL.match(own))))


def evident(text: str) -> str:
    """A document's text as it is; where it gives orders, what it states."""
    spans, kept = sentences(text), stated(text)
    if len(kept) == len(spans) and not ("<!--" in text and any(map(commands, _between(text, spans)))):
        return text
    return "\n".join(text[slice(*span)] for span in kept)


def _between(text: str, spans: Sequence[Span]) -> Iterator[str]:
    """What is in no sentence, such as comments."""
    edges = [0, *chain.from_iterable(spans), len(text)]
    return (text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))


def headings(*texts: str) -> tuple[str, ...]:
    """Titles and headings that say what stands below them, each once: none that is an order to a model, or holds one."""
    return tuple(text for text in dict.fromkeys(texts) if not any(map(commands, _parts(text))))


def _parts(title: str) -> Iterator[str]:
    """From its beginning, and from each place where it may go on with something else."""
    yield title
    for end in _PART.finditer(title):
        yield title[end.end() :]
