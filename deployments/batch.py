"""The batch door: questions from a file, through Ray Data and the running graph's handle, to a file of answers."""

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any, NoReturn, Self

import typer
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from assay import batch as door
from assay.errors import AssayError, Overloaded, SetupError, StageFault, StageTimeout, StageUnavailable
from assay.schemas import AskResponse, Mode
from deployments.attach import attached

EXIT_FAULT, EXIT_SOME_FAILED, EXIT_INTERRUPTED = 1, 4, 130
_LINE_S = 10.0  # between two lines of progress, where there is no terminal
_SILENCE_S = 60.0  # until a run of which no row moves says so
_FAULTS = (AssayError, RayError, RayServeException, TimeoutError)


class AskRow:
    """One question at a time, by handle. Ray Data runs as many of these as there may be questions in the graph at once."""

    def __init__(self, app: str, timeout_s: float) -> None:
        from ray import serve

        self._handle, self._timeout_s = serve.get_app_handle(app), timeout_s

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        begun = time.monotonic()
        try:
            response = self._ask(row, begun + self._timeout_s)
        except _FAULTS as error:
            return {"outcome": door.failed(row, _as_fault(error, self._timeout_s), time.monotonic() - begun)}
        return {"outcome": door.answered(row, response, time.monotonic() - begun)}

    def _ask(self, row: Mapping[str, Any], until: float) -> AskResponse:
        """A graph at its limit is asked again later, so that those who wait at a screen come first."""
        request, pause = door.request_of(row), 0.5
        while True:
            left = until - time.monotonic()
            try:
                response: AskResponse = self._handle.ask.remote(request).result(timeout_s=max(0.1, left))
                return response
            except (RayError, RayServeException) as error:
                if not isinstance(_as_fault(error, self._timeout_s), Overloaded) or left < pause:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 10.0)


def _as_fault(error: Exception, timeout_s: float) -> AssayError:
    if isinstance(error, AssayError):
        return error
    if isinstance(error, RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, AssayError) else StageFault(f"the graph failed: {type(cause).__name__}")
    if isinstance(error, BackPressureError):
        return Overloaded("the graph is at its queue limit")
    if isinstance(error, TimeoutError):
        return StageTimeout(f"no answer within {timeout_s:.0f} s")
    return StageUnavailable(f"the graph is not available: {type(error).__name__}")


def batch(
    questions: Annotated[Path, typer.Argument(metavar="IN", help="JSONL, CSV or Parquet with a column 'question'.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="JSONL or Parquet, by its name.")],
    address: Annotated[
        str, typer.Option(help="The graph's Ray, as `make serve` prints it.", envvar="RAY_ADDRESS")
    ] = "auto",
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Questions in the graph at once.")] = 4,
    mode: Annotated[Mode, typer.Option(help="For rows without a mode of their own.")] = "auto",
    bucket: Annotated[list[str] | None, typer.Option(help="For rows without buckets of their own.")] = None,
    groups: Annotated[
        str, typer.Option(help="For rows without groups of their own, as a,b: who may read the answers.")
    ] = "",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until a row has failed.")] = 300.0,
    app: Annotated[str, typer.Option(help="The graph's name in Serve.")] = "assay",
    again: Annotated[bool, typer.Option("--retry-failed", help="Ask the failed rows again.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run has answered.")] = False,
) -> None:
    """Answer a file of questions with the running graph.

    Stop it at any point: what is answered is kept in OUT.partial, and the same command goes on from there.

    Exit status: 0 all answered, 1 fault, 4 some rows failed (each says why), 130 interrupted.
    """
    if out.suffix.lower() not in (".jsonl", ".ndjson", ".parquet"):
        raise SetupError(f"'{out.name}' is of no format that can be written", "OUT", (".jsonl", ".parquet"))
    rows = [{**row, door.PLACE: n} for n, row in enumerate(door.read_rows(questions), start=1)]
    asked = {"mode": mode, "buckets": bucket or [], door.GROUPS: groups}
    for row in rows:
        for name, value in asked.items():
            if row.get(name) in (None, ""):
                row[name] = value
    journal_path = out.with_name(f"{out.name}.partial")
    if fresh:
        journal_path.unlink(missing_ok=True)
    with door.Journal(out, rows, {}) as journal:
        if again:
            journal.forget([n for n, line in journal.done.items() if line["error"] is not None])
        before = signal.signal(signal.SIGINT, lambda *_: _interrupted(journal, len(rows)))
        try:
            _answer(rows, journal, address, concurrency, app, timeout)
        finally:
            signal.signal(signal.SIGINT, before)
        door.write_rows(out, [journal.done[row[door.PLACE]] for row in rows])
        bad = [line for line in journal.done.values() if line["error"] is not None]
        hint = ""
        if any(door.can_retry(line["error"]["code"]) for line in bad):
            hint = "; --retry-failed asks them again"
        else:
            journal.delete()
        _say(f"{out}: {len(rows) - len(bad)} of {len(rows)} rows answered, {len(bad)} failed{hint}.")
        raise typer.Exit(EXIT_SOME_FAILED if bad else 0)


def _interrupted(journal: door.Journal, rows: int) -> NoReturn:
    """Ends at once: every answer is in the journal, which bears half a line, and Ray's own way out of a running dataset can
    end in an abort of the process (2.60: a task completes while it is cancelled). Ray clears up after a driver that is gone."""
    done = f"{len(journal.done)} of {rows} rows are done and kept in {journal.path}"
    _say(f"{done}; the same command goes on from there.")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)


def _answer(
    rows: list[dict[str, Any]], journal: door.Journal, address: str, concurrency: int, app: str, timeout_s: float
) -> None:
    waiting = [row for row in rows if row[door.PLACE] not in journal.done]
    if not waiting:
        return
    import ray

    with connected(address, app), Progress(len(rows), len(journal.done), timeout_s, _free) as progress:
        # A block a row: an answer is handed on, and kept, as soon as it is there.
        dataset = ray.data.from_items([{"payload": row} for row in waiting], override_num_blocks=len(waiting))
        dataset = dataset.map(_payload, num_cpus=0)  # the graph may leave less than one of the machine's
        answers = door.answers(dataset, concurrency=min(concurrency, len(waiting)), app=app, timeout_s=timeout_s)
        for row in answers.iter_rows():
            journal.add(row["outcome"])
            progress.show(journal)


def _payload(row: dict[str, Any]) -> dict[str, Any]:
    return dict(row["payload"])


def _free() -> str:
    import ray

    free, whole = ray.available_resources().get("CPU", 0.0), ray.cluster_resources().get("CPU", 0.0)
    return f"{free:g} of Ray's {whole:g} processors are free"


@contextmanager
def connected(address: str, app: str) -> Iterator[None]:
    """To the Ray of a running graph. Raises ``SetupError`` where there is none."""
    import ray
    from ray import serve

    with ExitStack() as stack:
        try:
            _knock(address)
            stack.enter_context(attached(address))
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            context.print_on_execution_start = False
            serve.get_app_handle(app)
        except (OSError, ValueError, RuntimeError, RayError, RayServeException) as e:
            raise SetupError(
                f"no graph '{app}' can be reached at {address} ({type(e).__name__}): start it with `make serve`, and set "
                f"the RAY_ADDRESS that it prints"
            ) from e
        yield


def _knock(address: str) -> None:
    """Ray itself takes two minutes to find that nothing listens at an address."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


class Progress:
    """Rows done, rate, time left and failures: one moving line on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int, before: int, timeout_s: float, free: Callable[[], str]) -> None:
        """``timeout_s``: until a row has failed; ``free``: says what Ray has free, for when nothing moves."""
        self._total, self._before, self._begun, self._shown = total, before, time.monotonic(), time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._timeout_s, self._free, self._moved, self._ended = timeout_s, free, time.monotonic(), Event()
        if before:
            _say(f"going on: {before} of {total} rows are done")

    def __enter__(self) -> Self:
        Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._terminal:
            print(file=sys.stderr)

    def _watch(self) -> None:
        """A run of which nothing moves says so: rows have a time limit once they are asked, and none before."""
        told = self._begun
        while not self._ended.wait(_SILENCE_S / 10):
            now = time.monotonic()
            if now - max(told, self._moved) >= _SILENCE_S:
                told = now
                waits = f"no row has moved for {now - self._moved:.0f} s"
                waits += f"; one that was asked fails after {self._timeout_s:.0f} s"
                with suppress(RayError, RuntimeError, OSError):
                    waits += f"; {self._free()}"
                _say(waits)

    def show(self, journal: door.Journal) -> None:
        now, done = time.monotonic(), len(journal.done)
        self._moved = now
        if not self._terminal and now - self._shown < _LINE_S and done < self._total:
            return
        self._shown = now
        rate = (done - self._before) / max(now - self._begun, 1e-9)
        bad = sum(line["error"] is not None for line in journal.done.values())
        left = (self._total - done) / rate if rate else 0.0
        text = f"{done} of {self._total} rows, {bad} failed, {60 * rate:.1f} a minute, {left:.0f} s left"
        print(
            f"\r\x1b[K{text}" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )


def _say(text: str) -> None:
    print(f"assay: {text}", file=sys.stderr)
