"""Read-ahead: sequential reads find the next bytes there; everything else passes through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import attrs
import pytest
from anyio.lowlevel import checkpoint

from tierlog.actors.reading.read_ahead import ReadAhead, ReadAheadOptions
from tierlog.storage_backends.base.errors import Unavailable

pytestmark = pytest.mark.anyio

DATA = bytes(range(200))
OPTIONS = ReadAheadOptions(window_bytes=20, depth=2, streams=2)


@attrs.define
class Source:
    """Storage that counts its reads, and fails those that ``breaks`` says."""

    asked: list[tuple[int, int, int]] = attrs.field(factory=list)
    breaks: Callable[[int], bool] = lambda offset: False

    async def fetch(self, sid: int, offset: int, size: int) -> bytes:
        self.asked.append((sid, offset, size))
        await checkpoint()
        if self.breaks(offset):
            raise Unavailable("scripted")

        return DATA[offset : offset + size]


@asynccontextmanager
async def running(source: Source, options: ReadAheadOptions = OPTIONS) -> AsyncIterator[ReadAhead]:
    ahead = ReadAhead(source.fetch, options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ahead.run)
        await anyio.wait_all_tasks_blocked()
        yield ahead
        tasks.cancel_scope.cancel()


async def read_all(ahead: ReadAhead, size: int, limit: int = len(DATA), sid: int = 1) -> bytes:
    found = b""
    while len(found) < limit:
        found += await ahead.read(sid, len(found), min(size, limit - len(found)), limit)

    return found


@pytest.mark.parametrize("size", [1, 7, 20, 33, 200])
async def test_a_sequential_reader_gets_every_byte(size: int) -> None:
    source = Source()
    async with running(source) as ahead:
        assert await read_all(ahead, size) == DATA
        assert ahead.statistics().misses == 1


async def test_windows_are_fetched_once_and_ahead_of_the_reader() -> None:
    source = Source()
    async with running(source) as ahead:
        await ahead.read(1, 0, 10, 200)
        await ahead.read(1, 10, 10, 200)
        await anyio.wait_all_tasks_blocked()

        assert sorted(source.asked) == [(1, 0, 10), (1, 10, 20), (1, 30, 20), (1, 50, 20)]
        assert await ahead.read(1, 20, 10, 200) == DATA[20:30]
        assert len(source.asked) == 4
        assert ahead.statistics().hits == 2


async def test_nothing_is_fetched_past_the_limit() -> None:
    source = Source()
    async with running(source) as ahead:
        assert await read_all(ahead, 10, 55) == DATA[:55]

    assert max(offset + size for _, offset, size in source.asked) == 55


async def test_random_reads_pass_through() -> None:
    source = Source()
    async with running(source) as ahead:
        for offset in (100, 20, 150, 20):
            assert await ahead.read(1, offset, 10, 200) == DATA[offset : offset + 10]

        assert ahead.statistics().windows == 0
        assert ahead.statistics().misses == 4


async def test_a_failed_window_leaves_the_reader_to_read_for_itself() -> None:
    source = Source()
    async with running(source) as ahead:
        await ahead.read(1, 0, 10, 200)
        source.breaks = lambda offset: offset == 10
        with pytest.raises(Unavailable):
            await ahead.read(1, 10, 10, 200)

        source.breaks = lambda offset: False
        assert await ahead.read(1, 10, 10, 200) == DATA[10:20]
        assert await ahead.read(1, 20, 10, 200) == DATA[20:30]


async def test_the_oldest_stream_makes_room_for_a_new_one() -> None:
    source = Source()
    async with running(source) as ahead:
        for sid in (1, 2, 3):
            await ahead.read(sid, 0, 10, 200)

        assert ahead.statistics().streams == 2
        await ahead.read(1, 10, 10, 200)
        assert ahead.statistics().misses == 4


async def test_a_cancelled_reader_leaves_its_window_to_the_next() -> None:
    source = Source()
    async with running(source) as ahead:
        await ahead.read(1, 0, 10, 200)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ahead.read(1, 10, 10, 200)

        assert await ahead.read(1, 10, 10, 200) == DATA[10:20]
        assert source.asked.count((1, 10, 20)) == 1


async def test_without_its_task_every_read_goes_to_storage() -> None:
    source = Source()
    ahead = ReadAhead(source.fetch, OPTIONS)

    assert await read_all(ahead, 50) == DATA
    assert ahead.statistics().windows == 0


async def test_a_stop_leaves_no_reader_waiting() -> None:
    """Between the stop and the end of a fetch that cannot be cancelled nobody takes windows any more: who queued one reads for itself."""
    source, fetched, found = Source(), anyio.Event(), list[bytes]()

    async def fetch(sid: int, offset: int, size: int) -> bytes:
        if sid == 1 and offset:
            with anyio.CancelScope(shield=True):
                await fetched.wait()
        return await source.fetch(sid, offset, size)

    ahead = ReadAhead(fetch, OPTIONS)

    async def read_on(sid: int) -> None:
        found.append(await ahead.read(sid, 10, 10, 200))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as readers, anyio.create_task_group() as tasks:
            tasks.start_soon(ahead.run)
            await anyio.wait_all_tasks_blocked()
            for sid in (1, 2):
                await ahead.read(sid, 0, 10, 200)
            readers.start_soon(read_on, 1)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            readers.start_soon(read_on, 2)
            readers.start_soon(_set_when_blocked, fetched)

    assert found == [DATA[10:20]] * 2


async def _set_when_blocked(event: anyio.Event) -> None:
    await anyio.wait_all_tasks_blocked()
    event.set()
