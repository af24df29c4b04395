"""What one question has used and met: time per stage, tokens, tool calls, the fallbacks taken and the trace of its steps."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from assay.budget import Budget
from assay.errors import AssayError, OutOfTokens, StageTimeout
from assay.events import DegradedEvent
from assay.schemas import Degraded, ToolCall, TraceStep, Usage

T = TypeVar("T")

# Outcomes of the search that was begun beside the plan, where the plan wanted another: let go, or used where that one failed.
UNUSED, STAND_IN = "unused", "stand_in"


class Ledger:
    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.usage = Usage()
        self.degraded: list[Degraded] = []
        self.tool_calls: list[ToolCall] = []
        self.trace: list[TraceStep] = []
        self.late = False
        self._stage_ms: dict[str, float] = {}
        self._awaited_s = 0.0
        self.consumer_s = 0.0
        """What whoever reads the events took: neither a stage's time nor the driver's."""

    async def call(self, stage: str, work: Awaitable[T], timeout_s: float, *, ending: bool = False) -> T:
        """Awaits a stage for at most ``timeout_s`` and what the budget leaves; raises ``StageTimeout`` beyond that.

        The search stages leave the reserve alone; only the ``ending`` may use it. ``late`` is set where it was the
        budget that ran out, not the stage's own time.
        """
        left = self.budget.left_for_answer() if ending else self.budget.left_for_search()
        limit = min(timeout_s, left)
        start = self.budget.clock()
        try:
            async with asyncio.timeout(limit):
                return await work
        except TimeoutError:
            self.late = self.late or left <= timeout_s
            raise StageTimeout(f"timeout after {limit:.1f} s") from None
        finally:
            self._took(stage, self.budget.clock() - start)

    def _took(self, stage: str, seconds: float) -> None:
        self._awaited_s += seconds
        self._stage_ms[stage] = self._stage_ms.get(stage, 0.0) + 1000 * seconds

    def calls_left(self) -> int:
        """Of the budget's tool calls, of which the search beside the plan is none."""
        made = sum(call.outcome not in (UNUSED, STAND_IN) for call in self.tool_calls)
        return max(0, self.budget.tool_calls - made)

    def tokens_left(self, *, ending: bool = False) -> int:
        """What may still be used of the budget's tokens; the search leaves the answer's own alone."""
        used = self.usage.prompt_tokens + self.usage.completion_tokens
        return self.budget.tokens - used - (0 if ending else self.budget.answer_tokens)

    def check_tokens(self, *, ending: bool = False) -> None:
        """Before a model is asked. Raises ``OutOfTokens``: what it would use is not known before, only whether any is left."""
        if self.tokens_left(ending=ending) <= 0:
            raise OutOfTokens(f"the budget of {self.budget.tokens} tokens is used up")

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time inside to the stage's, and keeps it out of the driver's own."""
        start = self.budget.clock()
        try:
            yield
        finally:
            self._took(stage, self.budget.clock() - start)

    def fell_back(self, stage: str, reason: AssayError | str, fallback: str) -> DegradedEvent:
        degraded = Degraded(stage=stage, reason=str(reason), fallback=fallback)
        self.degraded.append(degraded)
        return DegradedEvent(degraded=degraded)

    def note(self, stage: str, summary: str) -> None:
        self.trace.append(TraceStep(step=len(self.trace) + 1, stage=stage, summary=summary))

    def timings_ms(self) -> dict[str, float]:
        """Wall time per stage as the driver saw it, ``driver`` (its own code) and ``total``, in milliseconds."""
        total = self.budget.elapsed() - self.consumer_s
        own = {"driver": 1000 * (total - self._awaited_s), "total": 1000 * total}
        return {name: round(ms, 2) for name, ms in (self._stage_ms | own).items()}
