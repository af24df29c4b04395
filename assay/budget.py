"""The bounds of one question: rounds, tool calls, tokens and time, with what the ending needs kept back from the search."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from assay.config import LoopConfig
from assay.errors import InvalidRequest
from assay.schemas import AskBudget

Clock = Callable[[], float]
N = TypeVar("N", int, float)


def finish_s(deadline_s: float) -> float:
    """Of a deadline, kept back from the generator: what it wrote has yet to be verified, kept and sent, beside others."""
    return min(0.5, 0.1 * deadline_s)


def _bounded(name: str, asked: N | None, limit: N) -> N:
    if asked is not None and asked > limit:
        message = f"budget.{name} is {asked}, but at most {limit} is allowed here."
        raise InvalidRequest(message, f"budget.{name}", (f"<= {limit}",))
    return limit if asked is None else asked


@dataclass(slots=True)
class Budget:
    """Counts down while a question runs. Times are in seconds of ``clock``."""

    rounds: int
    tool_calls: int
    deadline_s: float
    answer_tokens: int
    reserve_s: float
    clock: Clock = time.monotonic
    tokens: int = 2**63
    """Of all prompts and outputs together. No model is asked once they are used up, and none by the search once only the
    ``answer_tokens`` are left; what is asked before that may go beyond."""
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()
        # A short deadline must not be eaten whole by the reserve: then nothing could be searched at all.
        self.reserve_s = min(self.reserve_s, 0.4 * self.deadline_s)

    @classmethod
    def of(cls, asked: AskBudget, limits: LoopConfig, clock: Clock = time.monotonic) -> "Budget":
        """The request's budget inside the configured bounds; a value above its bound is an ``InvalidRequest``."""
        return cls(
            rounds=_bounded("rounds", asked.rounds, limits.rounds),
            tool_calls=_bounded("tool_calls", asked.tool_calls, limits.tool_calls),
            deadline_s=_bounded("deadline_s", asked.deadline_s, limits.deadline_s),
            answer_tokens=_bounded("answer_tokens", asked.answer_tokens, limits.answer_tokens),
            reserve_s=limits.reserve_s,
            clock=clock,
            tokens=_bounded("tokens", asked.tokens, limits.tokens),
        )

    def elapsed(self) -> float:
        return self.clock() - self.started

    def left(self) -> float:
        return max(0.0, self.deadline_s - self.elapsed())

    def left_for_answer(self) -> float:
        """What the generator may still use; the rest is for what comes after it."""
        return max(0.0, self.left() - finish_s(self.deadline_s))

    def left_for_search(self) -> float:
        """What the search may still use; the rest belongs to the answer and its verification."""
        return max(0.0, self.left() - self.reserve_s)
