"""``eval answers``: how good a graph's answers are, on questions whose answers are known, through the batch door.

Tables go to stdout, progress and faults to stderr.
"""

import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Console

from assay import batch as door
from assay.cli.targets import check_targets
from assay.errors import AssayError, InvalidRequest, SetupError
from assay.eval.answers import Measured, Outcome, as_json, measured, tables
from assay.eval.page import page as html
from assay.eval.questions import Question, digest, read_questions
from assay.eval.report import extremes, plain
from assay.index.files import write_atomic
from assay.schemas import Mode
from assay.serve_config import ServeConfig, load
from deployments.local import LocalGraph

EXIT_FAULT, EXIT_USAGE, EXIT_SOME_FAILED, EXIT_INTERRUPTED = 1, 2, 4, 130
INCLUDE = ["trace", "evidence", "tool_calls", "state"]
START_S = 600.0


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over the questions. ``mode`` None: as the questions, or the config, say."""

    name: str
    config: ServeConfig | None
    mode: Mode | None


def answers(
    questions: Annotated[
        Path,
        typer.Option(help="JSONL, CSV or Parquet: question, answers, evidence, answerable. See docs/evaluation.md."),
    ],
    mode: Annotated[list[str] | None, typer.Option(help="May be repeated; the modes are compared.")] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            help="A Serve YAML, started for this; may be repeated, they are compared. None: the graph that runs."
        ),
    ] = None,
    address: Annotated[
        str, typer.Option(help="The running graph's Ray, as `make serve` prints it.", envvar="RAY_ADDRESS")
    ] = "auto",
    app: Annotated[str, typer.Option(help="The running graph's name in Serve.")] = "assay",
    bucket: Annotated[list[str] | None, typer.Option(help="For questions without buckets of their own.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Questions in the graph at once.")] = 4,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until a question has failed.")] = 300.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many questions.")] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="Passages of the evidence that count as found.")] = 5,
    traces: Annotated[
        Path, typer.Option(help="Folder where each run's answers are kept, with trace, evidence and tool calls.")
    ] = Path(".assay/eval/answers"),
    ask: Annotated[bool, typer.Option(help="--no-ask: compare what the folder holds already.")] = True,
    as_json_to: Annotated[
        Path | None, typer.Option("--json", help="Write all figures here, of every question.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write a page with tables, plots and every question: .html.")
    ] = None,
    show: Annotated[int, typer.Option(min=0, max=100, help="Questions to name that were won and lost by most.")] = 3,
) -> None:
    """Measure how good a graph's answers are, and compare configurations and modes on the same questions.

    May be interrupted at any time: what is answered is kept, and the same command goes on.

    Exit status: 0 measured, 1 fault, 2 usage, 4 measured but for questions that failed, 130 interrupted.
    """
    notes = Console(stderr=True)
    try:
        check_targets({"json": as_json_to, "page": page}, {"page": (".html",)})
        asked = read_questions(questions, limit)
        runs = _runs(config or [], _modes(mode or []))
        if ask:
            batch = Batch(traces, address, ["--app", app, "--concurrency", str(concurrency), "--timeout", str(timeout)])
            batch.run(runs, asked, bucket or [], notes)
        outcomes: dict[str, list[Outcome]] = {
            run.name: list(door.read_rows(traces / f"{run.name}.jsonl")) for run in runs
        }
        found = measured(asked, outcomes, top)
        title = f"{questions.name}: {len(asked)} questions"
        _tell(title, asked, found, show)
        if as_json_to is not None:
            told = {"file": str(questions), "top": top, **as_json(asked, outcomes, found)}
            as_json_to.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", "utf-8")
        if page is not None:
            page.write_text(html(title, asked, outcomes, found), "utf-8")
    except AssayError as fault:
        allowed = f" (there are: {', '.join(fault.allowed)})" if fault.allowed else ""
        _complain(notes, f"{fault}{allowed}")
        raise typer.Exit(EXIT_USAGE if isinstance(fault, InvalidRequest) else EXIT_FAULT) from None
    except OSError as fault:
        _complain(notes, f"'{fault.filename or 'a file'}' cannot be written: {fault.strerror or fault}")
        raise typer.Exit(EXIT_FAULT) from None
    except KeyboardInterrupt:
        _complain(notes, "Interrupted: what is answered is kept. The same command goes on from there.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if any(found.failed.values()):
        raise typer.Exit(EXIT_SOME_FAILED)


def _modes(given: Sequence[str]) -> list[Mode]:
    allowed: tuple[Mode, ...] = get_args(Mode)
    if unknown := [name for name in given if name not in allowed]:
        raise InvalidRequest(f"there is no mode '{unknown[0]}'", "mode", allowed)
    return [cast(Mode, name) for name in given]


def _runs(configs: Sequence[Path], modes: Sequence[Mode]) -> list[Run]:
    """Every config in every mode, under the names of what is more than one."""
    loaded: list[tuple[str, ServeConfig | None]] = [(path.stem, load(path)) for path in configs] or [("running", None)]
    runs = []
    for stem, config in loaded:
        for mode in modes or (None,):
            name = "-".join(part for part in (stem if configs or not mode else "", mode or "") if part)
            runs.append(Run(name, config, mode))
    if twice := [run.name for run in runs if [r.name for r in runs].count(run.name) > 1]:
        raise InvalidRequest(
            f"two runs would have the name '{twice[0]}': each config needs a file name of its own", "config"
        )
    return runs


def _row(question: Question, mode: Mode | None, buckets: list[str]) -> dict[str, Any]:
    row = {"id": question.id, "buckets": buckets, **question.asked, "include": INCLUDE}
    return row if mode is None else row | {"mode": mode}


class Batch:
    """Runs of ``assay batch``, each into a file of its own in ``folder``."""

    def __init__(self, folder: Path, address: str, options: Sequence[str]) -> None:
        self._folder, self._address, self._options = folder, address, options

    def run(self, runs: Sequence[Run], questions: Sequence[Question], buckets: list[str], notes: Console) -> None:
        """What an interrupted evaluation of the same had finished is not asked again."""
        self._folder.mkdir(parents=True, exist_ok=True)
        rows = {run.name: [_row(q, run.mode, buckets) for q in questions] for run in runs}
        mark, of = self._folder / "unfinished.json", digest(rows)
        done: list[str] = kept["done"] if mark.exists() and (kept := json.loads(mark.read_text()))["of"] == of else []
        for config, group in itertools.groupby(runs, lambda run: run.config):
            waiting = [run for run in group if run.name not in done]
            if not waiting:
                continue
            with self._graph(config, notes) as address:
                for run in waiting:
                    notes.print(plain(run.name), markup=False, highlight=False)
                    self._ask(run.name, rows[run.name], address)
                    done.append(run.name)
                    write_atomic(mark, json.dumps({"of": of, "done": done}).encode())
        mark.unlink(missing_ok=True)

    @contextmanager
    def _graph(self, config: ServeConfig | None, notes: Console) -> Iterator[str]:
        """The address of the Ray of the graph that runs, or of one that is started for it."""
        if config is None:
            yield self._address
            return
        with LocalGraph(config, log=self._folder / f"{config.path.stem}.log", port=_free_port()) as graph:
            notes.print(f"starting {config.path}", markup=False, highlight=False)
            graph.wait_ready(START_S)
            for warning in graph.warnings:
                notes.print(warning, markup=False, highlight=False)
            yield graph.address

    def _ask(self, name: str, rows: Sequence[Mapping[str, Any]], address: str) -> None:
        """Raises ``SetupError`` where the batch ended without its answers; it has said why."""
        source, out = self._folder / f"{name}.questions.jsonl", self._folder / f"{name}.jsonl"
        door.write_rows(source, rows)
        command = [sys.executable, "-m", "assay", "batch", str(source), str(out), "--address", address, *self._options]
        code = subprocess.run(command, check=False).returncode
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        if code not in (0, EXIT_SOME_FAILED):
            raise SetupError(f"the batch '{name}' ended with exit code {code}; its reason is above")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tell(title: str, questions: Sequence[Question], found: Measured, show: int) -> None:
    out = Console(width=None if sys.stdout.isatty() else 140)
    out.print(plain(title), markup=False, highlight=False)
    for table, signs in tables(found):
        out.print(table)
        out.print(signs, markup=False, highlight=False)
    texts = {q.id: q.asked["question"] for q in questions}
    for line in extremes(found.ranking, found.metrics[0], texts, show):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _complain(notes: Console, text: str) -> None:
    notes.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
