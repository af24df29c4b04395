"""Which part of a passage, or of what stands around it, a hit is shown with."""

from assay.sentences import Span, sentences
from assay.text import content_terms


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


def _best(text: str, question: str) -> Span:
    """The first sentence of those that share the most different words with the question."""
    wanted = set(content_terms(question))
    spans = sentences(text) or [(0, len(text))]
    return max(spans, key=lambda span: len(wanted.intersection(content_terms(text[span[0] : span[1]]))))


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
