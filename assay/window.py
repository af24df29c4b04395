"""Which part of a conversation goes with its next question: whole turns, at most so many messages and tokens of them.

The window does not slide with every turn: when it is over a bound it is cut to half of it. Between two cuts what is sent
only grows at its end, so that an engine's prefix cache holds for it. The start is a function of the turns alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from assay.ports import Tokenizer
from assay.schemas import Turn
from assay.types import Message


@dataclass(frozen=True, slots=True)
class Bounds:
    messages: int = 20
    tokens: int = 2_000


@dataclass(frozen=True, slots=True)
class Size:
    """Of one turn: a question with all that followed it, up to the next question. It is kept whole or left out whole, so
    that no tool's call is without its result."""

    messages: int
    tokens: int


def start_of(turns: Sequence[Size], bounds: Bounds, start: int = 0) -> int:
    """The first turn of the window over all ``turns``, where ``start`` was the first one when the conversation began (or of
    a window that was cut before). The newest turn is always in it."""
    messages = [0, *accumulate(turn.messages for turn in turns)]
    tokens = [0, *accumulate(turn.tokens for turn in turns)]
    for end in range(start + 1, len(turns) + 1):
        if messages[end] - messages[start] <= bounds.messages and tokens[end] - tokens[start] <= bounds.tokens:
            continue
        while start < end - 1 and (
            messages[end] - messages[start] > bounds.messages // 2 or tokens[end] - tokens[start] > bounds.tokens // 2
        ):
            start += 1
    return start


def size_of(turn: Sequence[Turn], tokenizer: Tokenizer) -> Size:
    return Size(len(turn), sum(tokenizer.count(message.content) for message in turn))


def windowed(turns: Sequence[Sequence[Turn]], bounds: Bounds, tokenizer: Tokenizer, start: int = 0) -> list[Turn]:
    """The messages of the window. Of a newest turn that is too long by itself, the last ones, each shortened to its share."""
    sizes = [size_of(turn, tokenizer) for turn in turns]
    kept = turns[start_of(sizes, bounds, start) :]
    if len(kept) == 1:
        last = list(kept[0])[-bounds.messages :]
        if sum(tokenizer.count(message.content) for message in last) > bounds.tokens:
            share = bounds.tokens // len(last)
            return [m.model_copy(update={"content": tokenizer.truncate(m.content, share)}) for m in last]
        return last
    return [message for turn in kept for message in turn]


def stepped(most: int, left: int) -> int:
    """``most``, halved until it is no more than is ``left``: a bound that hung on every question's length would move the
    window with each of them, and leave nothing for a prefix cache."""
    while most > max(0, left):
        most //= 2
    return most


def shortened(history: Sequence[Message], tokens: int, tokenizer: Tokenizer, least: int = 0) -> list[Message]:
    """A conversation whose newest turn is at most so many tokens long: each of its messages that is longer than its share is
    cut to that. ``least``: of a share; only the last messages have one, where there are too many of them."""
    newest = max((at for at, message in enumerate(history) if message.role == "user"), default=0)
    last = history[newest:]
    if not last or sum(tokenizer.count(message.content) for message in last) <= tokens:
        return list(history)
    last = last[-max(1, tokens // least) :] if least else last
    share = max(0, tokens) // len(last)
    cut = [replace(message, content=tokenizer.truncate(message.content, share)) for message in last]
    return [*history[:newest], *cut]


def recent(history: Sequence[Message], bounds: Bounds, count: Callable[[str], int] = len) -> tuple[Message, ...]:
    """Of a conversation the last turns, for a prompt that has room for less than the conversation's own window. Of a newest
    turn that is too long by itself, the last messages that fit. ``count``: the tokens of a text."""
    starts = [at for at, message in enumerate(history) if message.role == "user" and at > 0]
    turns = [history[a:b] for a, b in pairwise([0, *starts, len(history)])]
    sizes = [Size(len(turn), sum(count(message.content) for message in turn)) for turn in turns]
    start = start_of(sizes, bounds)
    kept, left = [message for turn in turns[start:] for message in turn], bounds.tokens
    for at in range(len(kept) - 1, -1, -1):
        left -= count(kept[at].content)
        if left < 0 or len(kept) - at > bounds.messages:
            return tuple(kept[at + 1 :])
    return tuple(kept)
