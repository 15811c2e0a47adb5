"""Read-ahead: sequential reads find the next bytes there; everything else passes through, and nobody waits
for somebody else's windows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import attrs
import pytest
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from support.patience import scaled, succeeds
from tierlog.actors.read.read_ahead import ReadAhead, ReadAheadBudget, ReadAheadOptions
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import InvalidArgument, Unavailable

pytestmark = pytest.mark.anyio

DATA = bytes(range(250)) * 4
OPTIONS = ReadAheadOptions(block_bytes=10, window_bytes=40, ahead_bytes=80, streams=4, idle=60.0)


@attrs.define
class Source:
    """Storage that counts its reads, fails those that ``breaks`` says, and keeps those that ``holds`` says
    until ``go_on``."""

    asked: list[tuple[int, int, int]] = attrs.field(factory=list)
    breaks: Callable[[int], bool] = lambda offset: False
    holds: Callable[[int], bool] = lambda offset: False
    go_on: anyio.Event = attrs.field(factory=anyio.Event)
    running: int = 0

    async def fetch(self, sid: int, offset: int, size: int) -> bytes:
        self.asked.append((sid, offset, size))
        self.running += 1
        try:
            await checkpoint()
            if self.holds(offset):
                await self.go_on.wait()
        finally:
            self.running -= 1
        if self.breaks(offset):
            raise Unavailable("scripted")

        return DATA[offset : offset + size]


@asynccontextmanager
async def running(
    source: Source, options: ReadAheadOptions = OPTIONS, budget: ReadAheadBudget | None = None
) -> AsyncIterator[ReadAhead]:
    ahead = ReadAhead(source.fetch, options, budget)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ahead.run)
        await anyio.wait_all_tasks_blocked()
        yield ahead
        tasks.cancel_scope.cancel()


async def read_all(
    ahead: ReadAhead, size: int, limit: int = len(DATA), sid: int = 1, start: int = 0
) -> bytes:
    found = b""
    while start + len(found) < limit:
        position = start + len(found)
        data = await ahead.read(sid, position, min(size, limit - position), limit)
        assert 0 < len(data) <= size
        found += data

    return found


async def begin(ahead: ReadAhead, sid: int = 1, start: int = 0, size: int = 10) -> None:
    """Two reads in sequence: the reader at ``start + 2 * size`` has windows."""
    for offset in (start, start + size):
        assert await ahead.read(sid, offset, size, len(DATA)) == DATA[offset : offset + size]
    await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize("size", [1, 7, 20, 33, 200, 1000])
@pytest.mark.parametrize("start", [0, 13])
async def test_a_sequential_reader_gets_every_byte_and_reads_once_for_itself(size: int, start: int) -> None:
    source = Source()
    async with running(source) as ahead:
        assert await read_all(ahead, size, start=start) == DATA[start:]
        assert ahead.statistics().misses == 1

    own, *windows = sorted(source.asked, key=lambda asked: asked[1])
    assert own == (1, start, min(size, len(DATA) - start))
    for (_, offset, length), (_, following, _) in pairwise(windows):
        assert following == offset + length, "windows neither overlap nor leave a gap"


async def test_without_read_ahead_exactly_the_requested_bytes_are_read() -> None:
    source = Source()
    async with running(source, replace(OPTIONS, ahead_bytes=0)) as ahead:
        assert await read_all(ahead, 30) == DATA
        assert await ahead.read(1, 990, 30, 1000) == DATA[990:]
        statistics = ahead.statistics()

    assert source.asked == [(1, offset, min(30, 1000 - offset)) for offset in [*range(0, 1000, 30), 990]]
    assert (statistics.streams, statistics.windows, statistics.hits, statistics.misses) == (
        0,
        0,
        0,
        len(source.asked),
    )


async def test_reads_of_a_window_are_views_of_it() -> None:
    """However many they are, its bytes are in memory once; a read of all of it is the window."""
    source, given = Source(), dict[int, bytes]()

    async def fetch(sid: int, offset: int, size: int) -> bytes:
        given[offset] = await source.fetch(sid, offset, size)
        return given[offset]

    ahead = ReadAhead(fetch, replace(OPTIONS, block_bytes=100, window_bytes=100, ahead_bytes=200))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ahead.run)
        await anyio.wait_all_tasks_blocked()
        await ahead.read(1, 0, 100, len(DATA))
        pieces = [await ahead.read(1, offset, 7, len(DATA)) for offset in range(100, 198, 7)]
        tail = await ahead.read(1, 198, 7, len(DATA))
        whole = await ahead.read(1, 200, 100, len(DATA))
        tasks.cancel_scope.cancel()

    assert b"".join([*pieces, tail]) == DATA[100:200]
    assert all(isinstance(piece, memoryview) and piece.obj is given[100] for piece in [*pieces, tail])
    assert whole is given[200]


async def test_the_read_ahead_grows_with_what_was_read() -> None:
    source = Source()
    async with running(source) as ahead:
        await begin(ahead)
        assert [size for _, _, size in source.asked] == [10, 10, 10]  # the read, its window, one more
        for offset in range(20, 300, 10):
            await ahead.read(1, offset, 10, len(DATA))
        await anyio.wait_all_tasks_blocked()

        assert max(size for _, _, size in source.asked) == OPTIONS.window_bytes
        assert (
            300 + 40
            <= max(offset + size for _, offset, size in source.asked)
            <= 300 + OPTIONS.ahead_bytes + OPTIONS.window_bytes
        )


async def test_windows_are_fetched_ahead_of_the_reader() -> None:
    source = Source()
    async with running(source) as ahead:
        await begin(ahead)
        asked = len(source.asked)
        source.holds = lambda offset: True
        assert await ahead.read(1, 20, 10, 200) == DATA[20:30]  # it was there before it was asked for
        await anyio.wait_all_tasks_blocked()

        assert len(source.asked) > asked
        source.go_on.set()


async def test_large_reads_are_answered_without_a_copy() -> None:
    made: list[bytes] = []

    async def fetch(sid: int, offset: int, size: int) -> bytes:
        made.append(bytes(size))
        return made[-1]

    ahead = ReadAhead(fetch, OPTIONS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ahead.run)
        await anyio.wait_all_tasks_blocked()
        for offset in range(0, 300, 30):
            data = await ahead.read(1, offset, 30, 1000)
            assert any(data is each for each in made)
        tasks.cancel_scope.cancel()


async def test_windows_end_at_whole_blocks() -> None:
    source = Source()
    async with running(source) as ahead:
        await read_all(ahead, 27, start=13)

    ends = {offset + size for _, offset, size in source.asked[1:]}
    assert all(end % OPTIONS.block_bytes == 0 for end in ends)


async def test_nothing_is_fetched_past_the_limit() -> None:
    source = Source()
    async with running(source) as ahead:
        assert await read_all(ahead, 10, 55) == DATA[:55]

    assert max(offset + size for _, offset, size in source.asked) == 55


async def test_random_reads_pass_through_and_cost_one_fetch_each() -> None:
    source = Source()
    async with running(source) as ahead:
        for offset in (100, 20, 150, 20):
            assert await ahead.read(1, offset, 10, 200) == DATA[offset : offset + 10]

        assert ahead.statistics().windows == 0
    assert source.asked == [(1, offset, 10) for offset in (100, 20, 150, 20)]


async def test_readers_at_different_offsets_of_one_segment_have_a_stream_each() -> None:
    source = Source()
    async with running(source) as ahead:
        for step in range(10):
            for start in (0, 300, 600):
                offset = start + step * 20
                assert await ahead.read(1, offset, 20, 1000) == DATA[offset : offset + 20]

        assert ahead.statistics().misses == 3


@pytest.mark.parametrize("size", [10, 25, 60])
async def test_a_reader_that_resumes_at_a_boundary_is_sequential(size: int) -> None:
    """It asks for blocks, and uses of each what ends with a whole event."""
    source = Source()
    async with running(source) as ahead:
        position = 0
        while position < 980:
            data = await ahead.read(1, position, size, 1000)
            assert data == DATA[position : position + len(data)]
            position += max(1, len(data) - 3)

        assert ahead.statistics().misses == 1
    assert sum(size for _, _, size in source.asked) <= 1000 + size


async def test_a_reader_at_anothers_expected_offset_leaves_it_its_windows() -> None:
    source = Source()
    async with running(source) as ahead:
        await begin(ahead)
        asked = len(source.asked)
        assert (
            await ahead.read(1, 5, 15, 1000) == DATA[5:20]
        )  # a read of its own, up to where the first reader goes on
        assert await ahead.read(1, 20, 5, 1000) == DATA[20:25]

        assert ahead.statistics().unread == 0
        assert source.asked[asked] == (1, 5, 15)
        assert (1, 20, 5) not in source.asked


async def test_reading_the_same_again_is_no_sequence() -> None:
    source = Source()
    async with running(source) as ahead:
        for _ in range(5):
            await ahead.read(1, 30, 10, 1000)

        assert ahead.statistics().windows == 0


async def test_a_reader_with_several_reads_in_flight_is_sequential() -> None:
    """It does not wait for the answer before it asks for what comes next."""
    source = Source(holds=lambda offset: True)
    found: dict[int, Buffer] = {}
    async with running(source) as ahead:

        async def read(offset: int) -> None:
            found[offset] = await ahead.read(1, offset, 10, 100)

        async with anyio.create_task_group() as readers:
            for offset in range(0, 80, 10):
                readers.start_soon(read, offset)
                await anyio.wait_all_tasks_blocked()
            source.go_on.set()

        assert ahead.statistics().misses == 1
    assert found == {offset: DATA[offset : offset + 10] for offset in range(0, 80, 10)}


# --- failures -----------------------------------------------------------------------------------


async def test_a_failed_window_leaves_the_reader_to_read_for_itself() -> None:
    source = Source()
    async with running(source) as ahead:
        await ahead.read(1, 0, 10, 200)
        source.breaks = lambda offset: offset == 10
        with pytest.raises(Unavailable):
            await ahead.read(1, 10, 10, 200)

        source.breaks = lambda offset: False
        assert await read_all(ahead, 10, 200, start=10) == DATA[10:200]


async def test_a_window_that_fails_once_costs_no_reader_an_error() -> None:
    source = Source()
    failed: list[int] = []

    def once(offset: int) -> bool:
        if offset % 30 or offset in failed:
            return False

        failed.append(offset)
        return True

    async with running(source) as ahead:
        await ahead.read(1, 5, 10, 1000)
        source.breaks = once
        assert await read_all(ahead, 10, start=15) == DATA[15:]

    assert failed


@pytest.mark.parametrize("size", [2, 3, 10])
async def test_a_short_window_is_no_answer(size: int) -> None:
    """What it holds need not be what its place says."""
    shortened = False

    async def fetch(sid: int, offset: int, size: int) -> bytes:
        nonlocal shortened
        if offset >= 20 and not shortened:
            shortened = True
            return DATA[offset : offset + 3]
        return DATA[offset : offset + size]

    ahead = ReadAhead(fetch, OPTIONS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ahead.run)
        await anyio.wait_all_tasks_blocked()
        assert await read_all(ahead, size) == DATA
        tasks.cancel_scope.cancel()

    assert shortened


async def test_a_slow_window_delays_no_other_reader() -> None:
    source = Source(holds=lambda offset: 0 < offset < 500)
    async with running(source) as ahead, anyio.create_task_group() as readers:
        await ahead.read(1, 0, 10, 1000)
        readers.start_soon(ahead.read, 1, 10, 10, 1000)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(scaled(30)):
            assert await read_all(ahead, 10, start=500) == DATA[500:]
            assert await ahead.read(2, 700, 10, 1000) == DATA[700:710]
        source.go_on.set()


# --- bounds -------------------------------------------------------------------------------------


async def test_the_windows_of_all_readers_stay_within_the_budget() -> None:
    """Two containers share it; a reader without a window reads for itself."""
    source, budget = Source(), ReadAheadBudget(limit_bytes=120, fetches_max=4)
    most = 0

    async def watched(sid: int, offset: int, size: int) -> bytes:
        nonlocal most
        most = max(most, budget.held_bytes)
        assert budget.fetching <= 4
        return await source.fetch(sid, offset, size)

    options = replace(OPTIONS, streams=99)
    one, other = ReadAhead(watched, options, budget), ReadAhead(watched, options, budget)
    found: list[bytes] = []

    async def reader(ahead: ReadAhead, sid: int) -> None:
        found.append(await read_all(ahead, 10, sid=sid))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        tasks.start_soon(other.run)
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as readers:
            for sid in range(6):
                readers.start_soon(reader, one, sid)
                readers.start_soon(reader, other, sid)
        tasks.cancel_scope.cancel()

    assert found == [DATA] * 12
    assert 0 < most <= 120
    assert (budget.held_bytes, budget.fetching, budget.streams) == (0, 0, 0)


async def test_a_reader_alone_cannot_take_what_others_need() -> None:
    source, budget = Source(), ReadAheadBudget(limit_bytes=400, fetches_max=99)
    async with running(source, replace(OPTIONS, ahead_bytes=1000), budget) as ahead:
        await begin(ahead, sid=1)
        await begin(ahead, sid=2)
        for offset in range(20, 400, 10):
            await ahead.read(1, offset, 10, 1000)
            await anyio.wait_all_tasks_blocked()

        assert budget.held_bytes <= 400 // 2 + 2 * OPTIONS.window_bytes + 20
        assert await ahead.read(2, 20, 10, 1000) == DATA[20:30]
        assert ahead.statistics().misses == 2


@pytest.mark.parametrize("wrong", [{"limit_bytes": 0}, {"fetches_max": 0}])
def test_a_budget_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        ReadAheadBudget(**wrong)


async def test_the_oldest_reader_is_forgotten_for_a_new_one() -> None:
    source, budget = Source(), ReadAheadBudget()
    async with running(source, budget=budget) as ahead:
        await begin(ahead, sid=1)
        assert budget.held_bytes
        for sid in (2, 3, 4, 5):
            await ahead.read(sid, 0, 10, 200)

        assert ahead.statistics().streams == 4
        assert (budget.held_bytes, budget.streams) == (0, 0)


# --- leaving ------------------------------------------------------------------------------------


async def test_a_cancelled_reader_takes_its_windows_with_it() -> None:
    source, budget = Source(holds=lambda offset: offset > 0), ReadAheadBudget()
    async with running(source, budget=budget) as ahead:
        await ahead.read(1, 0, 10, 200)
        async with anyio.create_task_group() as reader:
            reader.start_soon(ahead.read, 1, 10, 10, 200)
            await anyio.wait_all_tasks_blocked()
            assert source.running == 2
            reader.cancel_scope.cancel()

        await anyio.wait_all_tasks_blocked()
        assert source.running == 0
        assert (budget.held_bytes, budget.fetching, budget.streams) == (0, 0, 0)


async def test_a_cancelled_reader_does_not_cancel_a_window_that_another_waits_for() -> None:
    source = Source(holds=lambda offset: offset > 0)
    found: list[Buffer] = []
    async with running(source, replace(OPTIONS, block_bytes=20)) as ahead:
        await ahead.read(1, 0, 10, 200)

        async def read(offset: int) -> None:
            found.append(await ahead.read(1, offset, 5, 200))

        async with anyio.create_task_group() as readers:
            async with anyio.create_task_group() as leaver:
                readers.start_soon(read, 10)
                await anyio.wait_all_tasks_blocked()
                leaver.start_soon(read, 15)
                await anyio.wait_all_tasks_blocked()
                asked = list(source.asked)
                leaver.cancel_scope.cancel()
            source.go_on.set()

        assert found == [DATA[10:15]]
        assert source.asked == asked


async def test_the_memory_of_an_idle_reader_is_freed() -> None:
    source, budget = Source(), ReadAheadBudget()
    async with running(source, replace(OPTIONS, idle=0.1), budget) as ahead:

        async def is_held() -> bool:
            await begin(ahead)
            return budget.held_bytes > 0

        assert await succeeds(is_held)
        with anyio.fail_after(scaled(30)):
            while budget.held_bytes:
                await anyio.sleep(0.01)

        assert ahead.statistics().held_bytes == 0
        assert await read_all(ahead, 10, 200, start=20) == DATA[20:200]


async def test_without_its_task_every_read_goes_to_storage() -> None:
    source = Source()
    ahead = ReadAhead(source.fetch, OPTIONS)

    assert await read_all(ahead, 50) == DATA
    assert ahead.statistics().windows == 0


async def test_a_stop_leaves_no_reader_waiting_and_no_memory_taken() -> None:
    """Not even for a fetch that cannot be cancelled: who waits for it reads for itself, and so does who comes
    later."""
    source, budget, fetched, found = Source(), ReadAheadBudget(), anyio.Event(), list[Buffer]()

    async def fetch(sid: int, offset: int, size: int) -> bytes:
        is_first = (sid, offset, size) not in source.asked
        data = await source.fetch(sid, offset, size)
        if sid == 1 and offset and is_first:
            with anyio.CancelScope(shield=True):
                await fetched.wait()
        return data

    ahead = ReadAhead(fetch, OPTIONS, budget)

    async def read_on(sid: int) -> None:
        found.append(await ahead.read(sid, 10, 10, 200))

    with anyio.fail_after(scaled(30)):
        async with anyio.create_task_group() as readers, anyio.create_task_group() as tasks:
            tasks.start_soon(ahead.run)
            await anyio.wait_all_tasks_blocked()
            for sid in (1, 2):
                await ahead.read(sid, 0, 10, 200)
            readers.start_soon(read_on, 1)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            readers.start_soon(read_on, 2)
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
            assert found == [DATA[10:20]] * 2
            fetched.set()

    assert (budget.held_bytes, budget.fetching, budget.streams) == (0, 0, 0)
