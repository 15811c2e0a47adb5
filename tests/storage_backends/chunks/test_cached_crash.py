"""The chunk cache on a simulated disk: crashes at every I/O call of filling, evicting and reconciling, a full
disk, failing calls. Whatever the folder holds then, reads give the chunks' bytes (rules K2, K4, K6)."""

from __future__ import annotations

import errno
from collections.abc import Collection, Sequence
from random import Random

import anyio
import pytest
from simulation.disk import BLOCK as DISK_BLOCK
from simulation.disk import Keep, SimulatedDisk
from simulation.file_layer import Fail, Pause, SimulatedFiles

from support.chunk_caches import CachedStorage, cached
from support.power_loss import ends_before_power_loss
from tierlog.storage_backends.base.files import IoCall, ListFolder
from tierlog.storage_backends.chunks.cached_blocks import BLOCK
from tierlog.storage_backends.chunks.chunk_cache import ChunkCacheOptions
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
FOLDER = "/cache/store"
CHUNKS = {f"c/{number}": Random(number).randbytes(40_000 + number) for number in range(8)}
SMALL = ChunkCacheOptions(200_000, prefix="")
"""Room for four of the chunks, so that filling evicts."""


def on_disk(
    files: SimulatedFiles, state: MemoryChunkState, options: ChunkCacheOptions = SMALL
) -> CachedStorage:
    inner = MemoryChunkStorage(state, append=False, concat=False)
    return cached(inner, FOLDER, options=options, files=files)


async def workload(files: SimulatedFiles, state: MemoryChunkState) -> None:
    """Fill by writes and reads, evict, delete, reopen, reconcile."""
    one = on_disk(files, state)
    await one.storage.open()
    for name, content in CHUNKS.items():
        if name in state.chunks:  # an earlier attempt has written it
            await one.storage.read(name, 0, len(content))
        else:
            await one.storage.create_with_content(name, [content])
    await one.storage.read("c/0", 0, len(CHUNKS["c/0"]))
    await one.storage.delete("c/6")
    await one.storage.close()
    await one.storage.open()

    async def keep(names: Sequence[str]) -> Collection[str]:
        return set(names) - {"c/7"}

    await one.cache.retain("c/", keep)


async def serves_all(disk: SimulatedDisk, state: MemoryChunkState) -> CachedStorage:
    """Whether the successor reads every chunk that the storage has, twice."""
    later = on_disk(SimulatedFiles(disk), state)
    await later.storage.open()
    for name in [*state.chunks] * 2:
        assert await later.storage.read(name, 0, len(CHUNKS[name])) == CHUNKS[name]
    assert later.reports == []
    return later


@pytest.mark.parametrize("keep", ["none", "all", "random"])
async def test_k2_after_power_loss_at_every_call_all_chunks_are_read(keep: Keep) -> None:
    call, ended = 0, False
    while not ended:
        disk, state = SimulatedDisk(Random(call)), MemoryChunkState()

        async def work(files: SimulatedFiles, state: MemoryChunkState = state) -> None:
            await workload(files, state)

        ended = await ends_before_power_loss(disk, call, work)
        await serves_all(disk.crash(keep), state)
        call += 1

    assert call > 80


async def test_k3_after_a_crash_at_every_call_the_bound_is_kept() -> None:
    """The process dies, and the page cache stays."""
    call, ended = 0, False
    while not ended:
        disk, state = SimulatedDisk(Random(call)), MemoryChunkState()

        async def work(files: SimulatedFiles, state: MemoryChunkState = state) -> None:
            await workload(files, state)

        ended = await ends_before_power_loss(disk, call, work)
        after = disk.crash("all")
        later = on_disk(SimulatedFiles(after), state)
        await later.storage.open()
        held = after.files_below(FOLDER)
        assert sum(len(after.find(path).cache) for path in held) <= SMALL.size
        call += 1

    assert call > 80


async def test_k3_what_is_cached_while_the_folder_is_listed_counts_as_well() -> None:
    disk, listed, go_on = SimulatedDisk(Random(0)), anyio.Event(), anyio.Event()
    calls: list[IoCall] = []

    def pause(number: int, call: IoCall) -> Pause | None:
        """Behind the first list of a cache that is nearly full."""
        calls.append(call)
        is_list = len(calls) > 1 and isinstance(calls[-2], ListFolder)
        if is_list and len(disk.files_below(FOLDER)) >= 20 and not listed.is_set():
            listed.set()
            return Pause(go_on)
        return None

    size = 24 * 26 * DISK_BLOCK
    one = on_disk(SimulatedFiles(disk, pause), MemoryChunkState(), ChunkCacheOptions(size, prefix=""))
    await one.storage.open()

    async def fill(first: int, last: int) -> None:
        for number in range(first, last):
            await one.storage.create_with_content(f"c/{number}", [bytes(40_000)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fill, 0, 20)
        await listed.wait()
        await fill(30, 40)
        go_on.set()
    assert sum(disk.find(path).blocks * DISK_BLOCK for path in disk.files_below(FOLDER)) <= size


async def test_k6_every_call_may_fail_and_no_read_or_write_does() -> None:
    """Each I/O call of the workload in turn fails; the storage's answers are the same."""
    index, seen = 0, 1
    while index < seen:
        seen = 0

        def fail(number: int, call: IoCall, index: int = index) -> Fail | None:
            nonlocal seen
            seen += 1
            return Fail(OSError(errno.EIO, "scripted")) if number == index else None

        disk, state = SimulatedDisk(Random(index)), MemoryChunkState()
        await workload(SimulatedFiles(disk, fail), state)
        assert set(state.chunks) == set(CHUNKS) - {"c/6"}
        await serves_all(disk, state)
        index += 1

    assert seen > 80


async def test_k6_a_full_disk_is_reported_once_and_used_again() -> None:
    disk, state = SimulatedDisk(Random(1)), MemoryChunkState()
    one = on_disk(SimulatedFiles(disk), state, ChunkCacheOptions(64 * BLOCK, prefix="", retry=0))
    await one.storage.open()
    disk.capacity = 100_000
    for name, content in CHUNKS.items():
        await one.storage.create_with_content(name, [content])
        assert await one.storage.read(name, 0, len(content)) == content
    assert [event for event, _ in one.reports] == ["chunk_cache_bypassed"]
    assert one.cache.statistics().failures > 6

    disk.capacity = 100_000_000
    assert await one.storage.read("c/7", 0, len(CHUNKS["c/7"])) == CHUNKS["c/7"]
    assert [event for event, _ in one.reports] == ["chunk_cache_bypassed", "chunk_cache_used_again"]
    assert one.cache.statistics().bypassed == 0
