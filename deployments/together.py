"""Items of a stream that are there at the same time, in one: on the way to another replica one costs as much as ten."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def together(items: AsyncGenerator[T], most: int = 64) -> AsyncGenerator[tuple[T, ...]]:
    """All that ``items`` gives before it has to wait, in their order: nothing waits for what is not there yet. It is read ahead
    of who takes it, by ``most``; an error comes after what came before it, and closing this closes it."""
    ready: list[T] = []
    some, room = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        async with aclosing(items):
            async for item in items:
                ready.append(item)
                some.set()
                if len(ready) >= most:
                    room.clear()
                    await room.wait()

    reading = asyncio.create_task(read())
    reading.add_done_callback(lambda _: some.set())
    try:
        while ready or not reading.done():
            await some.wait()
            some.clear()
            if ready:
                part = tuple(ready)
                ready.clear()
                room.set()
                yield part
        reading.result()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def whole(items: AsyncGenerator[T]) -> AsyncGenerator[tuple[T, ...]]:
    """All items in one, at the end; where they end in an error, the error alone."""
    async with aclosing(items):
        yield tuple([item async for item in items])
