"""Shared by all tests."""

import os

# Before any test imports ray, which reads it once: a driver that connects by address does not send the token by itself.
os.environ["RAY_AUTH_MODE"] = "token"

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
