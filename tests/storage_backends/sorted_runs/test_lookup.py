"""Lookups: what they read, which version wins, and what a missing or damaged run means (M1, M3, M5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from msgspec.structs import replace

from support.scripted_chunks import Hang, ScriptedChunks
from support.sorted_runs import TableWorld, entry_of, numbered, reader_of
from tierlog.storage_backends.base.errors import DataCorruption, OutcomeUnknown, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.sorted_runs import reader as run_reader
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.storage_backends.sorted_runs.lookup import find_cached, find_row, find_rows
from tierlog.storage_backends.sorted_runs.put import put_run
from tierlog.storage_backends.sorted_runs.reader import StoredRuns
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.table import Table, TableView
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind

pytestmark = pytest.mark.anyio


async def flushed(world: TableWorld, count: int = 400) -> RunEntry:
    for number in range(count):
        world.put(b"key/%06d" % (2 * number), b"value %d" % number)
    run = await world.flush()
    assert run is not None
    return run


async def scripted() -> tuple[ScriptedChunks, TableWorld]:
    """A table with one run, of which nothing is cached."""
    chunks = ScriptedChunks()
    await chunks.open()
    world = TableWorld(chunks)
    await flushed(world)
    world.forget_cache()
    return chunks, world


def view_of(*runs: RunEntry) -> TableView:
    return TableView((), RunList(runs), max(run.summary.max_version for run in runs))


async def test_m3_a_cold_row_takes_two_reads_and_a_warm_one_none(world: TableWorld) -> None:
    run = await flushed(world, 2000)
    world.reopen()
    view = world.capture()

    row = await find_row(view, world.reader, b"key/001000")

    assert row == Row(b"key/001000", 501, b"value 500")
    tail, block = world.source.reads
    assert (tail.offset, tail.length) == (run.length - run.tail_length, run.tail_length)
    assert block.length < 10_000

    assert await find_row(view, world.reader, b"key/001000") == row
    assert len(world.source.reads) == 2


async def test_an_absent_key_reads_no_block(world: TableWorld) -> None:
    run = await flushed(world)
    world.reopen()
    view = world.capture()

    assert await find_row(view, world.reader, b"key/000101") is None
    assert [read.length for read in world.source.reads] == [run.tail_length]
    for outside in (b"a", b"z", b"key/000798x"):
        assert await find_row(view, world.reader, outside) is None
    assert len(world.source.reads) == 1


async def test_rows_of_many_runs_and_memory_are_found_at_once(world: TableWorld) -> None:
    """Old run, new run, frozen memtable, memtable: the newest row of each key, tombstones too."""
    for key in (b"a", b"b", b"c", b"d", b"e"):
        world.put(key, b"1")
    await world.flush()
    for key in (b"b", b"c", b"d"):
        world.put(key, None if key == b"c" else b"2")
    await world.flush()
    world.put(b"d", b"3")
    world.table.freeze_rows()
    world.put(b"e", b"4")

    found = await find_rows(world.capture(), world.reader, [b"a", b"b", b"c", b"d", b"e", b"f"])

    assert {key: (row.version, row.value) for key, row in found.items()} == {
        b"a": (1, b"1"),
        b"b": (6, b"2"),
        b"c": (7, None),
        b"d": (9, b"3"),
        b"e": (10, b"4"),
    }


async def test_several_keys_read_each_block_once(world: TableWorld) -> None:
    await flushed(world, 2000)
    world.reopen()
    keys = [b"key/%06d" % (2 * number) for number in range(2000)]

    found = await find_rows(world.capture(), world.reader, keys)

    assert list(found) == keys
    assert len(world.source.reads) == len({read.offset for read in world.source.reads})


async def test_m1_the_highest_version_wins_wherever_it_is() -> None:
    """Even in an older run, as after a repair."""
    chunks = MemoryChunkStorage()
    await chunks.open()
    old, old_bytes = entry_of([Row(b"a", 9, b"newest"), Row(b"b", 2, b"stale")], "old", 1)
    new, new_bytes = entry_of([Row(b"a", 3, b"stale"), Row(b"b", 4, b"newest")], "new", 2)
    for run, data in ((old, old_bytes), (new, new_bytes)):
        await put_run(chunks, run, [data])

    view, reader = view_of(old, new), reader_of(StoredRuns(chunks))
    found = await find_rows(view, reader, [b"a", b"b"])

    assert found == {b"a": Row(b"a", 9, b"newest"), b"b": Row(b"b", 4, b"newest")}
    assert {key: find_cached(view.runs, reader, key) for key in found} == {
        key: (True, row) for key, row in found.items()
    }


@pytest.mark.parametrize("recent_rows", [0, 45, 8192])
async def test_m3_what_the_cache_has_is_found_or_ruled_out_without_a_read(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch, recent_rows: int
) -> None:
    """None, two and all of the runs are searched together."""
    monkeypatch.setattr(run_reader, "_RECENT_ROWS", recent_rows)
    for _ in range(4):
        await flushed(world, 20)
    world.put(b"key/000038", None)
    await world.flush()
    world.reopen()
    runs, reader = world.table.runs, world.reader
    keys = [b"key/%06d" % number for number in range(41)]
    assert find_cached(runs, reader, keys[3]) == (False, None)

    found = await find_rows(world.capture(), reader, keys)

    reads = len(world.source.reads)
    assert {key: find_cached(runs, reader, key) for key in keys} == {
        key: (True, found.get(key)) for key in keys
    }
    assert find_cached(runs, reader, b"outside") == (True, None)
    assert len(world.source.reads) == reads


async def test_m3_what_the_cache_has_evicted_is_read_again(world: TableWorld) -> None:
    for _ in range(2):
        await flushed(world, 20)
    runs, reader = world.table.runs, world.reader
    row = await find_row(world.capture(), reader, b"key/000004")
    assert find_cached(runs, reader, b"key/000004") == (True, row)

    reader._cache.clear()

    assert find_cached(runs, reader, b"key/000004") == (False, None)
    for run in runs:
        await reader.tail(run)
    assert find_cached(runs, reader, b"key/000004") == (False, None)  # its block
    assert await find_row(world.capture(), reader, b"key/000004") == row
    assert find_cached(runs, reader, b"key/000004") == (True, row)


async def test_m3_a_missing_run_is_unavailable_and_never_absent(world: TableWorld) -> None:
    run = await flushed(world)
    await world.chunks.delete(run.name)
    world.forget_cache()

    with pytest.raises(Unavailable, match="missing"):
        await find_row(world.capture(), world.reader, b"key/000100")


async def test_a_failing_storage_is_not_an_absent_row() -> None:
    chunks, world = await scripted()
    chunks.plan("read", Fault(FaultKind.BEFORE))

    with pytest.raises(Unavailable):
        await find_row(world.capture(), world.reader, b"key/000100")
    assert await find_row(world.capture(), world.reader, b"key/000100") is not None


@asynccontextmanager
async def slow_lookups(
    chunks: ScriptedChunks, world: TableWorld, count: int
) -> AsyncIterator[list[Row | None]]:
    """In the body ``count`` lookups of one row wait for a read, which ends behind it."""
    hang = Hang()
    chunks.plan("read", hang)
    found: list[Row | None] = []

    async def look_up() -> None:
        found.append(await find_row(world.capture(), world.reader, b"key/000100"))

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(look_up)
        await anyio.wait_all_tasks_blocked()
        yield found
        hang.release.set()


async def test_a_lookup_keeps_to_the_view_that_it_captured() -> None:
    """A flush and a put happen while it reads."""
    chunks, world = await scripted()
    async with slow_lookups(chunks, world, 1) as found:
        world.put(b"key/000100", b"later")
        await world.flush()

    assert found == [Row(b"key/000100", 51, b"value 50")]


async def test_lookups_of_the_same_block_read_it_once() -> None:
    chunks, world = await scripted()
    async with slow_lookups(chunks, world, 5) as found:
        pass

    assert found == [Row(b"key/000100", 51, b"value 50")] * 5
    assert len(world.source.reads) == 2


async def test_a_cancelled_lookup_leaves_the_next_one_to_read() -> None:
    chunks, world = await scripted()
    chunks.plan("read", Hang())
    async with anyio.create_task_group() as group:
        group.start_soon(partial(find_row, world.capture(), world.reader, b"key/000100"))
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()

    assert await find_row(world.capture(), world.reader, b"key/000100") is not None


async def test_m5_the_cache_stays_within_its_bytes_and_evicts_what_was_not_used() -> None:
    cache: BlockCache[bytes] = BlockCache(1000)
    for number in range(4):
        cache.put(("r", 0), number, bytes(100), 100)
        cache.get(("r", 0), 0)

    assert cache.get(("r", 0), 0) is not None
    assert cache.get(("r", 0), 1) is None
    assert [cache.get(("r", 0), number) is None for number in (2, 3)] == [False, False]
    statistics = cache.statistics()
    assert (statistics.held_bytes, statistics.loads, statistics.evictions) == (900, 4, 1)
    assert statistics.hits == 7

    cache.put(("r", 0), 9, bytes(900), 900)
    assert cache.get(("r", 0), 9) is None


async def test_a_tiny_cache_changes_no_answer(world: TableWorld) -> None:
    await flushed(world)
    world.forget_cache(capacity=0)
    keys = [b"key/%06d" % number for number in range(800)]

    found = await find_rows(world.capture(), world.reader, keys)

    assert [row.value for row in found.values()] == [b"value %d" % number for number in range(400)]


async def test_a_run_is_put_once_and_again_with_the_same_bytes() -> None:
    """Each outcome of the first attempt; storages in memory have durable reads, as object stores."""
    run, data = entry_of(numbered(50))
    for fault in (FaultKind.BEFORE, FaultKind.LOST, FaultKind.AFTER):
        chunks = ScriptedChunks()
        await chunks.open()
        chunks.plan("create_with_content", Fault(fault))
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await put_run(chunks, run, [data])
        await put_run(chunks, run, [data])

        assert await find_row(view_of(run), reader_of(StoredRuns(chunks)), b"key/000007") is not None


async def test_an_entry_that_says_more_than_its_object_has_is_damage_and_takes_no_memory() -> None:
    class Watched(MemoryChunkStorage):
        most = 0

        async def _read(self, name: str, offset: int, size: int) -> bytes:
            self.most = max(self.most, size)
            return await super()._read(name, offset, size)

    run, data = entry_of(numbered(50))
    chunks = Watched()
    await chunks.open()
    await put_run(chunks, run, [data])
    for tail in (len(data), 1 << 30):
        hostile = replace(run, length=1 << 40, tail_length=tail)
        with pytest.raises(DataCorruption) as refusal:
            await find_row(view_of(hostile), reader_of(StoredRuns(chunks)), b"key/000007")
        assert refusal.value.file == run.name
    assert chunks.most <= 16 << 20


async def test_a_put_over_other_bytes_is_refused() -> None:
    chunks = MemoryChunkStorage()
    await chunks.open()
    run, data = entry_of(numbered(50))
    await chunks.create_with_content(run.name, [data[:-1] + b"x"])

    with pytest.raises(DataCorruption, match="another object"):
        await put_run(chunks, run, [data])


async def test_bytes_that_changed_before_the_put_are_not_put() -> None:
    chunks = MemoryChunkStorage()
    await chunks.open()
    run, data = entry_of(numbered(50))

    with pytest.raises(DataCorruption, match="changed before"):
        await put_run(chunks, run, [data[:-1], b"x"])
    assert not await chunks.exists(run.name)


async def test_where_reads_are_not_durable_a_second_put_needs_another_name(world: TableWorld) -> None:
    run, data = entry_of(numbered(50))
    await put_run(world.chunks, run, [data])

    if world.chunks.capabilities.reads_are_durable:
        await put_run(world.chunks, run, [data])
    else:
        with pytest.raises(OutcomeUnknown, match="another name"):
            await put_run(world.chunks, run, [data])


async def test_an_empty_cycle_makes_no_run(world: TableWorld) -> None:
    assert await world.flush() is None
    assert len(Table(world.table.runs).runs) == 0
