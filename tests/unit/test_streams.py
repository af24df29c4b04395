"""Streams that are kept: in order, for their owner alone, for a while, within their memory, and with an end whoever dies."""

import pytest

from assay.errors import Abandoned, InvalidRequest, NotFound, Overloaded, StageUnavailable
from assay.streams import LEASE_S, MemoryStreams, MirroredStreams, Part
from tests.fakes import Clock

pytestmark = pytest.mark.anyio


@pytest.fixture
def streams(clock: Clock) -> MemoryStreams:
    return MemoryStreams(300, 20, clock)


async def test_frames_come_after_those_that_were_seen_and_repeated_ones_once(streams: MemoryStreams) -> None:
    await streams.append("s", "a", 0, ["1", "2"])
    await streams.append("s", "a", 1, ["2", "3"])
    await streams.append("s", "a", 0, ["1"])
    assert await streams.read("s", "a", 1, 0) == Part(("2", "3"), False)
    assert await streams.read("s", "a", 3, 0) == Part((), False)
    await streams.append("s", "a", 3, ["4"], ended=True)
    assert await streams.read("s", "a", 3, 0) == Part(("4",), True)
    with pytest.raises(InvalidRequest) as caught:
        await streams.read("s", "a", 5, 0)
    assert (caught.value.field, caught.value.allowed) == ("Last-Event-ID", ("0 to 4",))
    with pytest.raises(NotFound):
        await streams.append("s", "a", 7, ["8"])


async def test_nobody_elses(streams: MemoryStreams) -> None:
    await streams.append("s", "a", 0, ["1"])
    with pytest.raises(NotFound):
        await streams.read("s", "b", 0, 0)
    with pytest.raises(NotFound):
        await streams.drop("s", "b")
    with pytest.raises(NotFound):
        await streams.append("s", "b", 0, ["1"])


async def test_kept_for_a_while_after_the_last_word(streams: MemoryStreams, clock: Clock) -> None:
    await streams.append("s", "a", 0, ["1"])
    clock.now += 200
    await streams.append("s", "a", 1, ["2"], ended=True)
    clock.now += 300
    assert len((await streams.read("s", "a", 0, 0)).frames) == 2
    clock.now += 1
    with pytest.raises(NotFound):
        await streams.read("s", "a", 0, 0)
    await streams.append("t", "a", 0, ["x" * 20])  # all the memory, which the forgotten one no longer has


async def test_what_ended_first_makes_room_and_what_runs_stays(streams: MemoryStreams, clock: Clock) -> None:
    for number, ended in enumerate((True, True, False)):
        clock.now += 1
        await streams.append(f"s{number}", "a", 0, ["12345"], ended)
    await streams.append("s3", "a", 0, ["1234567"])
    with pytest.raises(NotFound):
        await streams.read("s0", "a", 0, 0)
    for kept in ("s1", "s2", "s3"):
        await streams.read(kept, "a", 0, 0)
    with pytest.raises(Overloaded):
        await streams.append("s3", "a", 1, ["x" * 9])
    await streams.append("s3", "a", 1, ["x" * 9], ended=True)  # its error has to be told
    assert (await streams.read("s3", "a", 1, 0)).ended


async def test_the_writer_learns_for_how_long_nobody_has_read(streams: MemoryStreams, clock: Clock) -> None:
    await streams.append("s", "a", 0, ["1"])
    clock.now += 4
    assert await streams.append("s", "a", 1, []) == 4
    await streams.read("s", "a", 0, 0)
    clock.now += 1
    assert await streams.append("s", "a", 1, []) == 1
    await streams.drop("s", "a")
    with pytest.raises(Abandoned):
        await streams.append("s", "a", 1, ["2"])


async def test_dropped_after_its_end_it_is_forgotten(streams: MemoryStreams) -> None:
    await streams.append("s", "a", 0, ["1"], ended=True)
    await streams.drop("s", "a")
    with pytest.raises(NotFound):
        await streams.read("s", "a", 0, 0)


async def test_a_group_is_dropped_as_one(streams: MemoryStreams) -> None:
    for id_, owner, group in (("s", "a", "g"), ("t", "a", "g"), ("u", "a", "h"), ("v", "b", "g")):
        await streams.append(id_, owner, 0, ["1"], ended=id_ != "t", group=group)
    await streams.drop_group("a", "g")
    with pytest.raises(NotFound):
        await streams.read("s", "a", 0, 0)
    with pytest.raises(Abandoned):
        await streams.append("t", "a", 1, ["2"])
    assert (await streams.read("u", "a", 0, 0)).ended and (await streams.read("v", "b", 0, 0)).ended


async def test_a_writer_that_died_is_told_of(streams: MemoryStreams, clock: Clock) -> None:
    await streams.append("s", "a", 0, ["1"])
    clock.now += LEASE_S
    assert not (await streams.read("s", "a", 0, 0)).lost
    clock.now += 1
    assert await streams.read("s", "a", 0, 0) == Part(("1",), False, True)
    await streams.append("s", "a", 1, ["2"], ended=True)
    clock.now += LEASE_S + 1
    assert await streams.read("s", "a", 1, 0) == Part(("2",), True)


async def test_a_mirror_is_filled_again_after_it_was_lost(clock: Clock) -> None:
    far = MemoryStreams(300, 100, clock)
    here, there = MirroredStreams(MemoryStreams(300, 100, clock), far), MirroredStreams(MemoryStreams(300, 100), far)
    await here.append("s", "a", 0, ["1"])
    assert await there.read("s", "a", 0, 0) == Part(("1",), False)
    far._streams.clear()
    with pytest.raises(NotFound):
        await there.read("s", "a", 0, 0)
    await here.append("s", "a", 1, ["2"], ended=True)
    assert await there.read("s", "a", 0, 0) == Part(("1", "2"), True)
    await there.drop("s", "a")
    for replica in (here, there):
        with pytest.raises(NotFound):
            await replica.read("s", "a", 0, 0)


async def test_a_reader_elsewhere_is_somebody_who_listens_and_may_end_it(clock: Clock) -> None:
    far = MemoryStreams(300, 100, clock)
    here, there = MirroredStreams(MemoryStreams(300, 100, clock), far), MirroredStreams(MemoryStreams(300, 100), far)
    await here.append("s", "a", 0, ["1"])
    clock.now += 4
    await there.read("s", "a", 0, 0)
    assert await here.append("s", "a", 1, []) == 0
    await there.drop("s", "a")
    with pytest.raises(Abandoned):
        await here.append("s", "a", 1, ["2"])


async def test_a_mirror_that_is_away_ends_nothing(clock: Clock) -> None:
    class Away(MemoryStreams):
        async def append(self, *_: object, **__: object) -> float:
            raise StageUnavailable("streams is not available")

    here = MirroredStreams(MemoryStreams(300, 100, clock), Away(300, 100))
    await here.append("s", "a", 0, ["1"])
    assert (await here.read("s", "a", 0, 0)).frames == ("1",)
