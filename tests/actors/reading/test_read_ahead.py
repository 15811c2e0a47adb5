"""Read-ahead: sequential reads find their bytes on the way; random reads, failures and cancellations stay plain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from tierlog.actors.reading.read_ahead import ReadAhead, ReadAheadOptions
from tierlog.storage_backends.base.errors import Unavailable

pytestmark = pytest.mark.anyio

CONTENT = bytes(range(256)) * 8
OPTIONS = ReadAheadOptions(window_bytes=64, depth=2, streams=2)


class Storage:
    """Long-term storage that counts its reads, and fails or waits when told to."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int, int]] = []
        self.broken: set[int] = set()
        self.gate: anyio.Event | None = None

    async def fetch(self, sid: int, offset: int, size: int) -> bytes:
        self.reads.append((sid, offset, size))
        if self.gate is not None:
            await self.gate.wait()
        if offset in self.broken:
            raise Unavailable("down")

        await anyio.lowlevel.checkpoint()
        return CONTENT[offset : offset + size]


@asynccontextmanager
async def running(storage: Storage) -> AsyncIterator[ReadAhead]:
    ahead = ReadAhead(storage.fetch, OPTIONS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ahead.run)
        await anyio.wait_all_tasks_blocked()
        yield ahead
        tasks.cancel_scope.cancel()


async def read_through(ahead: ReadAhead, size: int, *, sid: int = 1, limit: int = len(CONTENT)) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while offset < limit:
        parts.append(await ahead.read(sid, offset, min(size, limit - offset), limit))
        offset += len(parts[-1])

    return b"".join(parts)


@pytest.mark.parametrize("size", [1, 7, 64, 100, 1000])
async def test_a_sequential_reader_gets_exactly_the_bytes(size: int) -> None:
    storage = Storage()
    async with running(storage) as ahead:
        assert await read_through(ahead, size) == CONTENT


async def test_windows_are_on_their_way_before_they_are_asked_for() -> None:
    storage = Storage()
    async with running(storage) as ahead:
        await ahead.read(1, 0, 10, len(CONTENT))
        await ahead.read(1, 10, 10, len(CONTENT))
        await anyio.wait_all_tasks_blocked()

    assert sorted(storage.reads) == [(1, 0, 10), (1, 10, 64), (1, 74, 64), (1, 138, 64)]
    assert ahead.statistics().hits == 1


async def test_nothing_is_fetched_beyond_what_is_flushed() -> None:
    storage = Storage()
    async with running(storage) as ahead:
        assert await read_through(ahead, 30, limit=100) == CONTENT[:100]

    assert max(offset + size for _, offset, size in storage.reads) == 100


async def test_random_reads_fetch_only_what_they_need() -> None:
    storage = Storage()
    async with running(storage) as ahead:
        for offset in (500, 100, 900):
            assert await ahead.read(1, offset, 10, len(CONTENT)) == CONTENT[offset : offset + 10]

    assert storage.reads == [(1, 500, 10), (1, 100, 10), (1, 900, 10)]


async def test_a_failed_window_is_read_again_by_the_reader_who_gets_the_error() -> None:
    storage = Storage()
    storage.broken = {74}
    async with running(storage) as ahead:
        assert await ahead.read(1, 0, 10, len(CONTENT)) == CONTENT[:10]
        assert await ahead.read(1, 10, 64, len(CONTENT)) == CONTENT[10:74]
        for _ in range(2):
            with pytest.raises(Unavailable):
                await ahead.read(1, 74, 10, len(CONTENT))

        storage.broken.clear()
        assert await ahead.read(1, 74, 10, len(CONTENT)) == CONTENT[74:84]


async def test_a_cancelled_reader_leaves_its_window_to_the_next_one() -> None:
    storage = Storage()
    async with running(storage) as ahead:
        await ahead.read(1, 0, 10, len(CONTENT))
        storage.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ahead.read, 1, 10, 10, len(CONTENT))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()

        storage.gate.set()
        assert await ahead.read(1, 10, 10, len(CONTENT)) == CONTENT[10:20]
        assert [read for read in storage.reads if read[1] == 10] == [(1, 10, 64)]


async def test_streams_are_bounded() -> None:
    storage = Storage()
    async with running(storage) as ahead:
        for sid in range(5):
            await ahead.read(sid, 0, 10, len(CONTENT))

        assert ahead.statistics().streams == OPTIONS.streams


async def test_without_its_task_every_read_goes_to_storage() -> None:
    storage = Storage()
    ahead = ReadAhead(storage.fetch, OPTIONS)
    assert await read_through(ahead, 100) == CONTENT
    assert ahead.statistics().hits == 0


async def test_readers_that_share_a_segment_get_exactly_their_bytes() -> None:
    storage = Storage()
    results: dict[int, bytes] = {}

    async def reader(index: int, size: int) -> None:
        results[index] = await read_through(ahead, size)

    async with running(storage) as ahead, anyio.create_task_group() as tasks:
        for index, size in enumerate((10, 10, 33, 64, 100)):
            tasks.start_soon(reader, index, size)

    assert set(results.values()) == {CONTENT}
