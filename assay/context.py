"""Which part of a passage, or of what stands around it, a hit is shown with, and a model is given."""

import re
from collections.abc import Sequence

from assay.inert import commands
from assay.ports import Tokenizer
from assay.sentences import Span, sentences
from assay.text import content_terms

_HEADING = re.compile(r" {0,3}#{1,6}[ \t]")
COMMENT = "<!--"
# What a line may begin with: a comment, indented less than code is; or a fence, indented as the list is that it stands in.
_MARK = re.compile(r"^(?: {0,3}+<!--|[ \t]*+(`{3,}+|~{3,}+)([^\n]*+))", re.MULTILINE)
_REST = re.compile(r"(?:[ \t]|<!--(?:(?!-->)[^\n])*+-->)*+\r?$", re.MULTILINE)


def beginning(text: str, first: int) -> int:
    """Where a document's text begins, whose first passage begins at ``first``: with the headings right above that. What stands
    before them is in no passage because it is no text: front matter, comments, imports of MDX."""
    begin = at = first
    while at > 0:
        line = text.rfind("\n", 0, at - 1) + 1
        if _HEADING.match(text, line, at):
            begin = line
        elif not text[line:at].isspace():
            break
        at = line
    return begin


def comments(text: str) -> list[Span]:
    """Where comments of HTML stand between the blocks of Markdown: nothing else is on their lines, and they are in no fenced
    code. One that nothing ends is none. Linear, whatever the text is."""
    found: list[Span] = []
    fence, after = "", 0
    for mark in _MARK.finditer(text):
        run, rest = mark.groups()
        if mark.start() < after:  # in a comment
            continue
        if run is None and not fence:
            if (end := text.find("-->", mark.end())) < 0:
                break
            after = end + len("-->")
            if line := _REST.match(text, after):
                after = line.end()
                found.append((mark.start(), after))
        elif run and not fence:
            fence = run if run[0] == "~" or "`" not in rest else ""  # else it is code in a line
        elif run and run.startswith(fence) and not rest.strip():
            fence = ""
    return found


def between(text: str, run: Span, chunk: Span, without: Sequence[Span], question: str) -> tuple[Span, Span]:
    """Which stretch of ``run`` a chunk is shown in, where nothing of ``without`` (in order, apart from each other) is to be
    shown, and which part of the chunk is there: of several the one that shares the most different words with the question. Both
    stay as they are where nothing would be left of the chunk."""
    cuts = [span for span in without if span[0] < run[1] and run[0] < span[1]]
    stretches = zip([run[0], *(end for _, end in cuts)], [*(start for start, _ in cuts), run[1]], strict=True)
    parts = [(stretch, (max(stretch[0], chunk[0]), min(stretch[1], chunk[1]))) for stretch in stretches]
    held = [(stretch, part) for stretch, part in parts if text[slice(*part)].strip()]
    wanted = set(content_terms(question)) if len(held) > 1 else set[str]()
    return max(held, key=lambda each: len(wanted & set(content_terms(text[slice(*each[1])]))), default=(run, chunk))


def window(text: str, chunk: Span, question: str, chars: int) -> Span:
    """At most ``chars`` characters of ``text``: around the sentence of the chunk that shares most with the question, or, where
    there is room for more than the chunk, as much before it as after it. No word is cut in two."""
    start, end = chunk
    if chars < end - start:
        begin, stop = _best(text[start:end], question)
        middle = start + (begin + stop) // 2
        first = min(max(start, middle - chars // 2), end - chars)
        return _whole_words(text, (first, first + chars), chunk)
    spare = chars - (end - start)
    before = min(start, max(spare // 2, spare - (len(text) - end)))
    first, last = start - before, min(len(text), end + spare - before)
    return _whole_words(text, (first, last), (0, len(text)))


def focus(text: str, question: str, tokens: int, tokenizer: Tokenizer) -> str:
    """The text as it is, or where it has more than ``tokens`` the whole sentences around the one that shares most with the
    question, as many as fit; a sentence that is longer by itself is cut."""
    if tokenizer.count(text) <= tokens:
        return text
    spans = sentences(text) or [(0, len(text))]
    first = last = spans.index(_best(text, question)) if len(spans) > 1 else 0
    left = tokens - tokenizer.count(text[slice(*spans[first])])
    grown = True
    while grown:
        grown = False
        for at in (last + 1, first - 1):
            if 0 <= at < len(spans) and (cost := tokenizer.count(text[slice(*spans[at])]) + 1) <= left:
                first, last, left, grown = min(first, at), max(last, at), left - cost, True
    return tokenizer.truncate(text[spans[first][0] : spans[last][1]], tokens)


def _best(text: str, question: str) -> Span:
    """The first sentence of those that share the most different words with the question; an order to a model comes last."""
    wanted = set(content_terms(question))
    spans = sentences(text) or [(0, len(text))]

    def shared(span: Span) -> int:
        own = text[slice(*span)]
        return -1 if commands(own) else len(wanted.intersection(content_terms(own)))

    return max(spans, key=shared)


def _whole_words(text: str, span: Span, bounds: Span) -> Span:
    """Narrowed to words, where there are spaces to go by."""
    start, end = span
    if start > bounds[0] and not text[start - 1].isspace():
        gap = next((i for i in range(start, min(end, start + 40)) if text[i].isspace()), start)
        start = gap
    if end < bounds[1] and not text[end].isspace():
        gap = next((i for i in range(end, max(start, end - 40), -1) if text[i - 1].isspace()), end)
        end = gap
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
