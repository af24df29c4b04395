"""Progress of long work: a bar with the rate and the time left on a terminal, a line now and then elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from assay.index.ingest import Progress as Step

_LINE_S = 10.0  # between lines where nobody watches


class Meter:
    """``with Meter(console) as meter: ... meter.show(step)``."""

    def __init__(self, notes: Console, unit: str = "files") -> None:
        """``unit``: what an ingest reads."""
        self._progress = Progress(
            TextColumn("{task.fields[said]}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=notes,
            transient=True,
            disable=not notes.is_terminal,
        )
        self._notes, self._unit, self._what = notes, unit, ""
        self._task = self._progress.add_task("", total=None, said="reading", rate="")
        self._begun = self._told = time.monotonic()

    def __enter__(self) -> "Meter":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, step: Step) -> None:
        said = f"{step.files} of {step.total_files} {self._unit}"
        self._move(said, "passages", step.chunks, step.bytes, step.total_bytes)

    def count(self, what: str, done: int, total: int) -> None:
        """Of ``total`` things alike; rate and time left begin anew where they are others than before."""
        if what != self._what:
            self._what, self._begun = what, time.monotonic()
            self._progress.reset(self._task)
        self._move(f"{done} of {total} {what}", "", done, done, total)

    def _move(self, said: str, of: str, count: int, done: int, total: int) -> None:
        """``count``: what the rate is of; ``done`` and ``total``: what the time left is told from."""
        now = time.monotonic()
        passed = now - self._begun
        rate = f"{count / passed:.1f} {of}/s".replace(" /", "/") if count and passed > 0.1 else ""
        self._progress.update(self._task, completed=done, total=total, said=said, rate=rate)
        if not self._notes.is_terminal and now - self._told >= _LINE_S:
            self._told = now
            rest = f"about {passed * (total - done) / done:.0f} s left" if done else ""
            self._notes.print(", ".join(filter(None, (said, rate, rest))), highlight=False, soft_wrap=True)
