"""A hung engine's process is stopped, not dead: the health check finds it by its missing tokens, and ends it with the third.
A dead one's replica lives on: it says so by what the engine raises, which is all that Serve knows of it."""

import asyncio
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from assay.config import EngineConfig
from deployments.engine.replica import UNHEALTHY_AFTER, Engine, EngineStats, Monitor

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


@pytest.fixture
def stopped() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process.send_signal(signal.SIGSTOP)
    yield process
    process.kill()
    process.wait()


class Tokens:
    """The engine's next token: there at once, or never, or no more."""

    def __init__(self) -> None:
        self.hangs, self.asked = True, 0
        self.fault: Exception | None = None

    async def one_token(self) -> None:
        self.asked += 1
        if self.fault:
            raise self.fault
        if self.hangs:
            await asyncio.sleep(60)


class Health(Engine):
    """A replica with everything but the engine: its process is any process."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._name, self._config = "small", EngineConfig(health_timeout_s=0.02)
        self._monitor, self._hung = Monitor(), 0
        self.tokens = Tokens()
        self._scorer: Any = self.tokens
        self._process = process

    async def stats(self) -> EngineStats:
        return EngineStats(0, 0, self._process.pid)

    def __del__(self) -> None:  # type: ignore[override]
        """Serve awaits the engine's; nobody does here."""


async def miss(engine: Health) -> None:
    with pytest.raises(TimeoutError):
        await engine.check_health()


async def test_a_hung_process_is_ended_with_the_third_miss(stopped: "subprocess.Popen[bytes]") -> None:
    engine = Health(stopped)
    for _ in range(UNHEALTHY_AFTER - 1):
        await miss(engine)
    assert stopped.poll() is None
    await miss(engine)
    assert stopped.wait(5) == -signal.SIGKILL


async def test_a_slow_engine_that_answers_between_is_left_alone(stopped: "subprocess.Popen[bytes]") -> None:
    engine = Health(stopped)
    for _ in range(2):
        for _ in range(UNHEALTHY_AFTER - 1):
            await miss(engine)
        engine.tokens.hangs = False
        await engine.check_health()
        engine.tokens.hangs = True
    assert stopped.poll() is None


async def test_steps_are_proof_enough(stopped: "subprocess.Popen[bytes]") -> None:
    engine = Health(stopped)
    engine._monitor.last_step = math.inf
    await engine.check_health()
    assert engine.tokens.asked == 0


async def test_an_engine_that_died_makes_its_replica_unhealthy(stopped: "subprocess.Popen[bytes]") -> None:
    """With every check, three of which in a row Serve replaces it for. Its process is not ours to end: it did not hang."""
    engine = Health(stopped)
    engine.tokens.fault = RuntimeError("the engine is dead")
    for asked in range(1, UNHEALTHY_AFTER + 1):
        with pytest.raises(RuntimeError, match="the engine is dead"):
            await engine.check_health()
        assert engine.tokens.asked == asked
    assert engine._hung == 0
