"""No test here waits for anything: a second is far too long, a signal ends it without a thread for each test, and one event
loop serves them all, since making one takes longer than what most of them do in it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.fakes import Clock


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/unit/" in item.path.as_posix() and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(10, method="signal"))


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    yield
    left = [
        task for task in asyncio.all_tasks() if not str(task.get_coro()).startswith("<coroutine object TestRunner.")
    ]
    assert not left, f"left running: {left}"


@pytest.fixture
def clock() -> Clock:
    return Clock()
