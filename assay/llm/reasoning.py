"""Keeps a model's reasoning out of its answer, however the tags are written and wherever the stream is cut."""

import re
from typing import Literal, NamedTuple

OPEN, CLOSE = "<think>", "</think>"
_TAG = re.compile(r"(?<!`)</?think>")  # behind a backtick it is a mention of the tag


class Parted(NamedTuple):
    text: str = ""
    reasoning: str = ""


class ThinkSplitter:
    """Feed it the pieces of a generation; it gives back what is answer and what is reasoning. Its time is linear.

    Reasoning stands before the answer, in one or more blocks with only space between them; inside, tags may be nested.
    Once the answer has begun it is left as it is: a tag in its code is its own. A block that is still open at the end is
    reasoning to its last word: there is no answer yet.

    ``opened``: whether the prompt ended with the opening tag, so that the text starts inside. None is "not known": a text
    without an opening tag is then held back, until a closing tag says that it was reasoning or the end that it was not.
    """

    def __init__(self, opened: bool | None = False) -> None:
        self._mode: Literal["before", "inside", "unknown", "answer"] = "inside" if opened else "before"
        self._may_be_inside = opened is None
        self._depth = 1  # of open blocks, where it is inside one
        self._tagged = bool(opened)
        self._fresh = True  # nothing since the opening tag yet: another one adds nothing
        self._held: list[str] = []  # space before the answer, or all of a text of which it is not known what it is
        self._rest = ""  # what may become a tag
        self._last = ""  # the character before it

    def feed(self, piece: str) -> Parted:
        if self._answering():
            return Parted(piece)
        at = len(self._last)
        data = self._last + self._rest + piece
        stop = _end_of_whole(data, at)
        parts = []
        for tag in _TAG.finditer(data, at):
            parts += [self._say(data[at : tag.start()]), self._turn(tag.group())]
            at = tag.end()
        parts.append(self._say(data[at:stop]))
        self._last, self._rest = data[:stop][-1:], data[stop:]
        if self._answering():
            parts.append(Parted(self._rest))
        return Parted("".join(p.text for p in parts), "".join(p.reasoning for p in parts))

    def end(self, *, whole: bool = True) -> Parted:
        """What was held back. ``whole``: the model ended by itself; of one that was cut off, what may be reasoning is."""
        if self._answering():
            return Parted()
        last = self._say(self._rest)
        held = "".join(self._held)
        if self._mode == "unknown":
            return Parted(held) if whole and self._depth == 1 else Parted("", held)
        return Parted(held) if self._mode == "before" and not self._tagged else last

    def _answering(self) -> bool:
        return self._mode == "answer"

    def _say(self, said: str) -> Parted:
        """A text without a tag."""
        if self._mode == "before" and said.strip():
            self._mode = "unknown" if self._may_be_inside and not self._tagged else "answer"
            if self._mode == "answer":
                return Parted(said.lstrip() if self._tagged else "".join(self._held) + said)
        if self._mode == "answer":
            return Parted(said)
        if self._mode == "inside":
            said = said.lstrip() if self._fresh else said
            self._fresh = self._fresh and not said
            return Parted("", said)
        self._held.append(said)
        return Parted()

    def _turn(self, tag: str) -> Parted:
        """A tag: it opens or closes a block, or is a part of what is said."""
        if self._mode == "answer":
            return Parted(tag)
        if self._mode == "before":
            self._held, self._tagged = [], True
            if tag == OPEN:
                self._mode, self._depth, self._fresh = "inside", 1, True
            return Parted()
        if tag == OPEN and self._mode == "inside" and self._fresh:
            return Parted()
        self._depth += 1 if tag == OPEN else -1
        if self._depth == 0:
            reasoning, self._held = "".join(self._held), []
            self._mode, self._tagged = "before", True
            return Parted("", reasoning)
        if self._mode == "inside":
            return Parted("", tag)
        self._held.append(tag)
        return Parted()


def _end_of_whole(data: str, start: int) -> int:
    """Where a tag may begin of which the rest is still to come, or the end."""
    at = data.rfind("<", max(start, len(data) - len(CLOSE) + 1))
    tail = data[at:]
    begun = at >= 0 and data[at - 1 : at] != "`" and any(tag.startswith(tail) and tag != tail for tag in (OPEN, CLOSE))
    return at if begun else len(data)
