"""Progress of an ingest: a bar with the rate and the time left on a terminal, a line now and then elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from assay.index.ingest import Progress as Step

_LINE_S = 10.0  # between lines where nobody watches


class Meter:
    """``with Meter(console) as meter: ... meter.show(step)``."""

    def __init__(self, notes: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[files]}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=notes,
            transient=True,
            disable=not notes.is_terminal,
        )
        self._notes = notes
        self._task = self._progress.add_task("", total=None, files="reading", rate="")
        self._begun = self._told = time.monotonic()

    def __enter__(self) -> "Meter":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, step: Step) -> None:
        now = time.monotonic()
        rate = step.chunks / max(1e-6, now - self._begun)
        files = f"{step.files} of {step.total_files} files"
        said = f"{rate:.1f} passages/s" if step.chunks else ""
        self._progress.update(self._task, completed=step.bytes, total=step.total_bytes, files=files, rate=said)
        if not self._notes.is_terminal and now - self._told >= _LINE_S:
            self._told = now
            left = (now - self._begun) * (step.total_bytes - step.bytes) / step.bytes if step.bytes else 0.0
            rest = f"about {left:.0f} s left" if step.bytes else ""
            self._notes.print(", ".join(filter(None, (files, said, rest))), highlight=False, soft_wrap=True)
