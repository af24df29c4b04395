"""The engine's own process on a CPU: forked from a server that imports vLLM while the replica does, not after it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from assay.config import EngineConfig

# Imported by the fork server: what the engine's process would import itself, after the replica had finished its own.
_PRELOAD = ["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "vllm.v1.executor.uniproc_executor", "xgrammar"]


def threads() -> dict[str, str]:
    """OpenMP's part of the environment of an engine's process on a CPU.

    Ray sets one thread per CPU that the replica reserves; the engine may use what the machine lets it use. By default a
    waiting thread spins, which beside other busy processes costs more than half of the speed."""
    waits = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    return {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "OMP_WAIT_POLICY": waits}


class ForkServer:
    """Starts the engine's process by fork from a clean server that imports vLLM while the replica does, not after it.

    vLLM spawns that process, and its imports then take as long as the replica's own did. CPU only, one worker.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.used = config.device == "cpu" and config.tensor_parallel == 1

    def __enter__(self) -> "ForkServer":
        if self.used:
            os.environ.update(threads())
            os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
            forkserver.set_forkserver_preload(_PRELOAD)
            forkserver.ensure_running()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def instead_of_spawn(self) -> Iterator[None]:
        if not self.used:
            yield
            return
        from vllm.v1.engine import utils

        spawn = utils.get_mp_context
        utils.get_mp_context = _EngineContext
        try:
            yield
        finally:
            utils.get_mp_context = spawn


class _EngineContext(ForkServerContext):
    """What vLLM needs of a multiprocessing context."""

    def Process(self, *, target: Callable[..., None], name: str, kwargs: dict[str, Any]) -> ForkServerProcess:  # type: ignore[override]  # noqa: N802
        return ForkServerProcess(target=_engine_main, name=name, args=(dict(os.environ), target), kwargs=kwargs)


def _engine_main(environment: dict[str, str], target: Callable[..., None], **kwargs: Any) -> None:
    """The engine's process. A fork server's child has the environment of the server's start: bring vLLM's later settings."""
    os.environ.update(environment)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    target(**kwargs)


def _die_with_parent() -> None:
    """A replica that was killed could not stop its engine, which would keep its memory for good."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
