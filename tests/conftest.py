"""Shared by all tests."""

import os
import signal

# Before any test imports ray, which reads it once: a driver that connects by address does not send the token by itself.
os.environ["RAY_AUTH_MODE"] = "token"

import pytest

# Where tests are started in the background of a shell, they and their children would not hear Ctrl-C, which some are about.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
