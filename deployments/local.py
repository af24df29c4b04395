"""A whole graph on this machine, in a Ray instance of its own: started, watched until ready, stopped without trace.

It is ``serve run CONFIG`` in a child process, with three differences: Ray comes without its dashboard (ten processes
and 3 s less), a Ray cluster that already runs here is left alone, and the child stops when its parent is gone, however
that ended. ``make demo``, ``make serve``, the benches and the integration tests start it here.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import yaml

from assay.errors import SetupError
from assay.serve_config import ServeConfig, check_keys
from deployments import haproxy

APP = "assay"
STOP_S = 25.0  # a stop that takes longer is no longer polite
_LOOPBACK = "127.0.0.1"
_PR_SET_CHILD_SUBREAPER = 36
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# Found to help on two cores; a caller's environment wins.
FAST_START = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1",  # a constructor that fails here fails again: say so at once
    "RAY_DEDUP_LOGS": "0",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "2000",  # of the proxy and the controller too, which no config reaches
    "RAY_SERVE_PROXY_USE_GRPC": "1",  # the configs say the same of the replicas
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**28),
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # HAProxy knows of a stopping Ingress within .2 s; else 30
    "RAY_worker_niceness": "0",  # Ray's 15 would starve the engine beside a browser or a compiler; a person waits for it
}


@dataclass(frozen=True, slots=True)
class Status:
    """What the child last said. ``phase``: starting | ray | building | deploying | running | failed."""

    phase: str = "starting"
    deployments: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    address: str = ""
    metrics: str = ""

    @property
    def ready(self) -> tuple[str, ...]:
        return tuple(name for name, state in self.deployments.items() if state == "HEALTHY")


class LocalGraph:
    """``with LocalGraph(serve_config.load(path)) as graph: graph.wait_ready()``; leaving the block stops everything.

    ``port`` wins over the config's; ``log`` gets what Serve and Ray print.
    """

    def __init__(
        self, config: ServeConfig, *, log: Path, port: int | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.port = config.port if port is None else port
        self.url = f"http://{_LOOPBACK}:{self.port}"
        self.log = log
        self.address = ""  # of its Ray, for ``ray.init(address=...)``; known from the first status on, like the next
        self.metrics = ""  # URL of the metrics, in Prometheus' format
        self.warnings: tuple[str, ...] = ()  # why it is up but not whole: no index yet, a torn segment
        self._config, self._environ = config, environ or {}
        self._folder = Path()
        self._buffer = b""

    def __enter__(self) -> Self:
        check_keys(self._config)
        self._folder = _run_folder()
        try:
            self._start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def statuses(self, timeout_s: float) -> Iterator[Status]:
        """Each new status, until the child has ended or ``timeout_s`` is over."""
        until = time.monotonic() + timeout_s
        while (left := until - time.monotonic()) > 0:
            self._leash.settimeout(min(left, 60))
            try:
                piece = self._leash.recv(65536)
            except TimeoutError:
                continue
            if not piece:
                return
            *lines, self._buffer = (self._buffer + piece).split(b"\n")
            for line in lines:
                status = Status(**json.loads(line))
                self.address, self.metrics = status.address, status.metrics
                yield status

    def wait_ready(self, timeout_s: float = 600, on_status: Callable[[Status], None] = lambda _: None) -> None:
        """Returns when all deployments are healthy and answer over HTTP; else ``SetupError`` with the log's end.

        A graph without an index is up: it takes one up when it is there. ``warnings`` says so.
        """
        started, last = time.monotonic(), Status()
        for last in self.statuses(timeout_s):
            on_status(last)
            if last.phase == "failed":
                raise self._fault(f"the graph did not start: {_last_line(last.message)}")
            if last.phase == "running" and self._answers(timeout_s - (time.monotonic() - started)):
                return
        if self._child.poll() is not None:
            raise self._fault(f"serve ended with exit code {self._child.returncode}")
        waiting = sorted(set(last.deployments) - set(last.ready))
        raise self._fault(f"not ready after {timeout_s:.0f} s; waiting for {', '.join(waiting) or last.phase}")

    @property
    def logs(self) -> Path:
        """Folder of Serve's own logs, one file a replica; it goes when the graph stops."""
        return self._folder / "session_latest" / "logs" / "serve"

    @property
    def pid(self) -> int:
        """Of the child, from which every process of the graph descends."""
        return self._child.pid

    def stop(self) -> None:
        """Ends Serve, Ray and all they started; what does not end in ``STOP_S`` seconds is killed."""
        family = descendants(self._child.pid)
        self._leash.close()  # the child takes this for Ctrl-C
        try:
            self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            family += [p for p in descendants(self._child.pid) if p not in family]
            self._child.kill()
            self._child.wait()
        kill(family)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        raw = json.loads(json.dumps(self._config.raw))
        raw.setdefault("http_options", {})["port"] = self.port
        path = self._folder / self._config.path.name
        path.write_text(yaml.safe_dump(raw))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._leash, theirs = socket.socketpair()
        # A Ray address in the environment would lead to a cluster that is not ours.
        environ = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RAY_NAMESPACE")}
        command = [sys.executable, "-m", "deployments.local", str(path), str(theirs.fileno()), str(self._folder)]
        environ = {**FAST_START, **environ, **self._environ}
        with theirs, self.log.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                env={**environ, **haproxy.environ(self._folder / "h", environ)},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C on the terminal is the parent's to handle
            )

    def _answers(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until and self._child.poll() is None:
            ready = self._readiness()
            if ready and set(ready["stages"].values()) == {"ready"}:
                self.warnings = tuple(ready["reasons"])
                return True
            time.sleep(0.2)
        return False

    def _readiness(self) -> dict[str, Any] | None:
        """What ``/readyz`` says; None where nothing answers yet."""
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=10) as response:  # noqa: S310
                body = response.read()
        except urllib.error.HTTPError as error:
            body = error.read()
        except OSError:
            return None
        try:
            found: dict[str, Any] = json.loads(body)
        except ValueError:
            return None  # Serve's own page, while the routes are not there yet
        return found if found.get("stages") else None

    def _fault(self, message: str) -> SetupError:
        lines = _COLOUR.sub("", self.log.read_text(errors="replace")).splitlines()[-12:]
        return SetupError("\n  ".join([message, f"the end of {self.log}:", *lines]))


def kill(processes: list[psutil.Process]) -> None:
    """``psutil`` compares start times, so a number that was given to another process since is left alone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=5)


def adopt_orphans() -> None:
    """From now on what our children leave behind becomes our own child, and ``psutil`` can find it. Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _run_folder() -> Path:
    """A short path: Ray and HAProxy put sockets under it, whose names may have 107 bytes. Also removes those of dead runs."""
    base = tempfile.gettempdir()
    base = base if len(base) <= 9 else "/tmp"  # noqa: S108
    for old in Path(base).glob("assay-*-*"):
        pid = old.name.split("-")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"assay-{os.getpid()}-", dir=base))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason given")


# ---- in the child ---------------------------------------------------------------------------------------------------


def main(config: str, leash_fd: int, folder: str) -> None:
    # A shell's background job starts with SIGINT ignored, and `serve run` stops on KeyboardInterrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.umask(0o077)  # Ray 2.60.0 writes its token and logs readable for everybody
    adopt_orphans()
    leash = socket.socket(fileno=leash_fd)
    leash.set_inheritable(False)
    threading.Thread(target=_stop_with_parent, args=(leash,), daemon=True).start()
    try:
        _serve(config, leash, folder)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
        kill(descendants(os.getpid()))
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # nothing is left to flush, and a half-started Ray may hang in its exit handlers


def _stop_with_parent(leash: socket.socket) -> None:
    with contextlib.suppress(OSError):
        leash.recv(1)
    os.kill(os.getpid(), signal.SIGINT)


def _serve(config: str, leash: socket.socket, folder: str) -> None:
    import ray
    from ray.serve.scripts import cli

    ray.init(
        address="local",
        namespace="serve",
        include_dashboard=False,
        num_cpus=max(2, os.cpu_count() or 2),  # shares of the config add up to less than two
        object_store_memory=256 * 2**20,  # requests are small; the default is a third of the memory
        _temp_dir=folder,
    )  # its ports listen on all interfaces, whatever one says; the token that Ray makes by default is what guards them
    address = ray.get_runtime_context().gcs_address
    metrics = f"http://{_LOOPBACK}:{ray.nodes()[0]['MetricsExportPort']}/metrics"
    said = {"address": address, "metrics": metrics}
    threading.Thread(target=_report, args=(leash, said), daemon=True).start()
    cli.main(["run", config])


def _report(leash: socket.socket, fixed: dict[str, str]) -> None:
    """Sends every change of the status to the parent."""
    said = None
    while True:
        status = {**_status(), **fixed}
        if status != said:
            said = status
            try:
                leash.sendall(json.dumps(status).encode() + b"\n")
            except OSError:
                return  # the other thread stops us
        time.sleep(2 if status["phase"] == "running" else 0.25)


def _status() -> dict[str, Any]:
    from ray import serve
    from ray.serve.exceptions import RayServeException

    try:
        app = serve.status().applications.get(APP)
    except RayServeException:  # between starts
        app = None
    if app is None:
        return {"phase": "ray"}
    deployments = {name: str(d.status.value) for name, d in app.deployments.items()}
    messages = [d.message for d in app.deployments.values() if d.status.value in ("UNHEALTHY", "DEPLOY_FAILED")]
    phase = {"RUNNING": "running", "DEPLOY_FAILED": "failed"}.get(app.status.value)
    return {
        "phase": phase or ("deploying" if deployments else "building"),
        "deployments": deployments,
        "message": "\n".join([app.message, *messages]).strip(),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
