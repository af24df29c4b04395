"""Streams of events, kept for a while, so that a client whose connection dropped can take its own up again.

A stream is a list of frames, the texts that go over the wire, numbered from 1. One writer appends to it and any number read;
from who reads the writer learns whether anybody is still there.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from assay.errors import Abandoned, AssayError, InvalidRequest, NotFound, Overloaded

log = logging.getLogger("assay.streams")

LEASE_S = 10.0  # a writer that says nothing for so long is dead: a living one does every second


@dataclass(frozen=True, slots=True)
class Part:
    """The frames that a read found, and whether the stream ends with them. ``lost``: it has no end, for its writer died."""

    frames: tuple[str, ...]
    ended: bool
    lost: bool = False


class Streams(Protocol):
    """Where streams are kept, each for its owner alone: to everybody else it does not exist."""

    async def append(
        self, id: str, owner: str, at: int, frames: Sequence[str], ended: bool = False, group: str = ""
    ) -> float:
        """Appends what comes after the first ``at`` frames; the first call, with 0, begins the stream, and frames that it has
        are passed over. ``group``: what it is dropped with. Returns the seconds since somebody last read, 0 while one does.

        Raises ``Abandoned`` once the stream was dropped and has not ended, ``NotFound`` where frames before ``at`` are missing,
        and ``Overloaded`` where no memory is left for it."""
        ...

    async def read(self, id: str, owner: str, after: int, wait_s: float) -> Part:
        """The frames after the first ``after``, waiting for one for at most ``wait_s``.

        Raises ``NotFound``, and ``InvalidRequest`` where there are not so many."""
        ...

    async def drop(self, id: str, owner: str) -> None:
        """Its client will not come back: the writer is told so, and what has ended is forgotten. Raises ``NotFound``."""
        ...

    async def drop_group(self, owner: str, group: str) -> None:
        """The same for all streams of a group, if there are any."""
        ...


@dataclass(slots=True)
class _Stream:
    owner: str
    group: str
    told_at: float  # when its writer last said something
    read_at: float
    frames: list[str] = field(default_factory=list)
    size: int = 0
    readers: int = 0
    ended: bool = False
    dropped: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, frames: Sequence[str], size: int, ended: bool) -> None:
        self.frames += frames
        self.size += size
        self.ended = self.ended or ended
        if frames or ended:
            self.changed.set()
            self.changed = asyncio.Event()

    async def beyond(self, after: int, wait_s: float) -> None:
        """Returns when there are more than ``after`` frames, the stream has ended, or ``wait_s`` are over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while len(self.frames) <= after and not self.ended:
                    await self.changed.wait()


class MemoryStreams:
    """``Streams`` of one process: each for ``kept_s`` after its last word, ``max_chars`` of frames in all. Those that ended
    first make room for new ones."""

    def __init__(self, kept_s: float, max_chars: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s, self._max_chars, self._clock = kept_s, max_chars, clock
        self._streams: dict[str, _Stream] = {}
        self._chars = 0

    async def append(
        self, id: str, owner: str, at: int, frames: Sequence[str], ended: bool = False, group: str = ""
    ) -> float:
        now = self._clock()
        stream = self._streams.get(id)
        if stream is None and at == 0:
            self._forget_old(now)
            stream = self._streams[id] = _Stream(owner, group, now, now)
        if stream is None or stream.owner != owner or at > len(stream.frames):
            raise NotFound("There is no such stream, or no more.", "id")
        stream.told_at = now
        fresh = frames[len(stream.frames) - at :]
        size = sum(map(len, fresh))
        if self._chars + size > self._max_chars and not ended:  # what ends a stream is let in
            self._make_room(size)
        self._chars += size
        stream.add(fresh, size, ended)
        if stream.dropped and not stream.ended:
            raise Abandoned("Its client has ended this answer.")
        return 0.0 if stream.readers else now - stream.read_at

    async def read(self, id: str, owner: str, after: int, wait_s: float) -> Part:
        stream = self._of(id, owner)
        stream.readers += 1
        try:
            await stream.beyond(after, wait_s)
        finally:
            stream.readers -= 1
            stream.read_at = self._clock()
        if after > len(stream.frames):
            last = len(stream.frames)
            raise InvalidRequest(
                f"The last event of this stream has the id {last}.", "Last-Event-ID", (f"0 to {last}",)
            )
        lost = not stream.ended and self._clock() - stream.told_at > LEASE_S
        return Part(tuple(stream.frames[after:]), stream.ended, lost)

    async def drop(self, id: str, owner: str) -> None:
        stream = self._of(id, owner)
        stream.dropped = True
        if stream.ended:
            self.forget(id)

    async def drop_group(self, owner: str, group: str) -> None:
        for id in [id for id, s in self._streams.items() if (s.owner, s.group) == (owner, group)]:
            await self.drop(id, owner)

    def forget(self, id: str) -> None:
        if (stream := self._streams.pop(id, None)) is not None:
            self._chars -= stream.size

    def _of(self, id: str, owner: str) -> _Stream:
        stream = self._streams.get(id)
        if stream is None or stream.owner != owner or self._clock() - stream.told_at > self._kept_s:
            raise NotFound("There is no such stream, or no more.", "id")
        return stream

    def _forget_old(self, now: float) -> None:
        for id in [id for id, stream in self._streams.items() if now - stream.told_at > self._kept_s]:
            self.forget(id)

    def _make_room(self, size: int) -> None:
        """Raises ``Overloaded``."""
        for _, id in sorted((s.told_at, id) for id, s in self._streams.items() if s.ended and not s.readers):
            self.forget(id)
            if self._chars + size <= self._max_chars:
                return
        raise Overloaded("No memory is left for streams that can be taken up again; ask without 'resumable'.")


class MirroredStreams:
    """``Streams`` of this process that others can take up too, from ``far``. When ``far`` is away nothing ends here; what has
    ended is kept there alone, so that there is one place to forget it in."""

    def __init__(self, near: MemoryStreams, far: Streams) -> None:
        self._near, self._far = near, far

    async def append(
        self, id: str, owner: str, at: int, frames: Sequence[str], ended: bool = False, group: str = ""
    ) -> float:
        idle = await self._near.append(id, owner, at, frames, ended, group)
        try:
            idle = min(idle, await self._mirrored(id, owner, at, frames, ended, group))
        except Abandoned:
            raise
        except AssayError as fault:
            log.warning("a stream is not mirrored: %s", fault)
        else:
            if ended:
                self._near.forget(id)
        return idle

    async def _mirrored(self, id: str, owner: str, at: int, frames: Sequence[str], ended: bool, group: str) -> float:
        try:
            return await self._far.append(id, owner, at, frames, ended, group)
        except NotFound:  # it was restarted
            whole = await self._near.read(id, owner, 0, 0)
            return await self._far.append(id, owner, 0, whole.frames, whole.ended, group)

    async def read(self, id: str, owner: str, after: int, wait_s: float) -> Part:
        try:
            return await self._near.read(id, owner, after, wait_s)
        except NotFound:
            return await self._far.read(id, owner, after, wait_s)

    async def drop(self, id: str, owner: str) -> None:
        try:
            await self._near.drop(id, owner)
        except NotFound:
            await self._far.drop(id, owner)

    async def drop_group(self, owner: str, group: str) -> None:
        await self._near.drop_group(owner, group)
        try:
            await self._far.drop_group(owner, group)
        except AssayError as fault:
            log.warning("mirrored streams stay until their time is over: %s", fault)
