"""Benchmarks of reads: flushed data that the store has not cached, and the latency from an append to a
waiting reader."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import anyio
import anyio.to_thread
from crc32c import crc32c

import tierlog
from benchmarks.harness import (
    Benchmark,
    BenchmarkError,
    Pair,
    Setting,
    alternate,
    event_class,
    payloads,
    quantile,
    store_in,
)
from tierlog.actors.settings.configuration import CacheConfig

SEGMENT = "bench/reading"
BLOCK = 4 << 20
SMALL_CACHE = tierlog.StoreConfig(append_bytes_max=1 << 20, cache=CacheConfig(bytes=1 << 20))
"""Recovery loads the log into the tail cache; a small cache drops flushed data again."""


# --- cold reads ---------------------------------------------------------------------------------


async def cold_read(setting: Setting) -> Sequence[Pair]:
    size = setting.size(192 << 20, 16 << 20)
    folder = setting.fresh("cold")
    expected = await fill(folder, size)
    chunks = chunk_files(f"{folder}/lts", size)
    for path in chunks:
        with open(path, "rb") as stream:
            stream.read()  # into the page cache, from which the store dropped it

    async def value() -> float:
        async with store_in(folder, config=SMALL_CACHE) as store:
            check_cache(store, size)
            begin = time.perf_counter()
            blocks = [block async for block in read_segment(store, size, BLOCK)]
            seconds = time.perf_counter() - begin
            check(blocks, expected)
            return size / seconds / 1e6

    return await alternate(setting, value, lambda: read_files(chunks, size), 6)


async def read_files(paths: Sequence[str], size: int, *, keep: bool = True) -> float:
    """Read the files in a worker thread, block by block and without checks; returns MB/s. Blocks that are
    kept take new memory each."""
    limiter = anyio.CapacityLimiter(1)
    blocks, total = [], 0
    begin = time.perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as stream:
            while block := await anyio.to_thread.run_sync(stream.read, BLOCK, limiter=limiter):
                total += len(block)
                if keep:
                    blocks.append(block)
    seconds = time.perf_counter() - begin
    if total != size:
        raise BenchmarkError("the chunk files do not hold the segment's bytes")

    return size / seconds / 1e6


async def fill(folder: str, size: int, rolling_size: int | None = None) -> int:
    """Write and flush a segment; returns the CRC32C of its bytes."""
    crc, items = 0, payloads(1 << 20, 61)
    async with store_in(folder) as store:
        await store.create_segment(SEGMENT, rolling_size=rolling_size)
        for number in range(size >> 20):
            block = items[number % len(items)]  # 61 blocks in turn: no two chunks of 16 are equal
            await store.append(SEGMENT, block)
            crc = crc32c(block, crc)
            if number % 32 == 31:
                await store.flush()
        await store.flush()
        info = await store.segment_info(SEGMENT)
        if info.flushed_length != size:
            raise BenchmarkError(
                f"{info.flushed_length} of {size} bytes are in long-term storage after a flush"
            )

    return crc


def chunk_files(folder: str, size: int) -> list[str]:
    """The files with user data: all but the store's own small ones."""
    paths = [
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if "_system" not in parent
    ]
    found = sum(os.path.getsize(path) for path in paths)
    if found != size:
        raise BenchmarkError(f"the chunk files in {folder} hold {found} bytes, not {size}")

    return sorted(paths)


async def read_segment(store: tierlog.SegmentStore, size: int, piece: int) -> AsyncIterator[bytes]:
    position = 0
    while position < size:
        block = await store.read(SEGMENT, position, piece)
        if not block:
            raise BenchmarkError(f"nothing to read at {position} of {size}")
        yield block
        position += len(block)


def check_cache(store: tierlog.SegmentStore, size: int) -> None:
    """Recovery loaded the log into the tail cache. That must have been evicted, or the reads would not be
    cold."""
    current = store.statistics().containers[0].current
    cached = current.cache.total_bytes if current else 0
    if cached > max(size // 16, 8 << 20):
        raise BenchmarkError(f"{cached} of {size} bytes are in the store's cache after a reopen")


def check(blocks: Iterable[bytes], expected: int) -> None:
    crc = 0
    for block in blocks:
        crc = crc32c(block, crc)
    if crc != expected:
        raise BenchmarkError("what was read is not what was written")


# --- tail wake-up -------------------------------------------------------------------------------


async def tail_wakeup(setting: Setting) -> Sequence[Pair]:
    count, items = setting.size(600, 20), payloads(1024)
    event = event_class()
    async with store_in(setting.fresh("tail")) as store:
        await store.create_segment(SEGMENT)
        start = 0

        async def value() -> float:
            nonlocal start
            acked: list[float] = []
            seen: list[float] = []

            async def reader() -> None:
                position = start
                async for block in store.tail(SEGMENT, start):
                    now = time.perf_counter()
                    if block != items[(position - start) // 1024 % len(items)]:
                        raise BenchmarkError(
                            f"the tail reader got other bytes than were appended at {position}"
                        )
                    position += len(block)
                    seen.append(now)
                    progress.set()
                    if len(seen) == count:
                        return

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reader)
                for number in range(count):
                    progress = event()
                    await store.append(SEGMENT, items[number % len(items)])
                    acked.append(time.perf_counter())
                    await progress.wait()

            start += count * 1024
            # A reader may wake up before the writer's task runs again, and has not waited then.
            return quantile([max(0.001, (s - a) * 1000) for s, a in zip(seen, acked, strict=True)], 0.99)

        return await alternate(setting, value, lambda: _bare_wakeup(count, event), 7)


async def _bare_wakeup(count: int, event: Any) -> float:
    """p99 from setting an event to the waiting task, in ms."""
    waits: list[float] = []
    question, ready, begin = event(), event(), 0.0

    async def waiter() -> None:
        for _ in range(count):
            ready.set()
            await question.wait()
            waits.append(time.perf_counter() - begin)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter)
        for _ in range(count):
            await ready.wait()
            asked, question, ready = question, event(), event()
            begin = time.perf_counter()
            asked.set()

    return max(0.001, quantile(waits, 0.99) * 1000)


BENCHMARKS = (
    Benchmark(
        "cold_read",
        "flushed bytes, in blocks of 4 MiB",
        "The store is opened afresh with a tiny tail cache for each round, so that only the system's page "
        "cache helps both sides; "
        "checksums are verified. Against reading the same chunk files in a worker thread with blocks of the "
        "same size and no checks.",
        "MB/s",
        0.7,
        cold_read,
    ),
    Benchmark(
        "tail_wakeup",
        "from an append's ack to the tail reader's block, p99",
        "One writer and one tail reader in one process, each append on its own. Against the p99 of a bare "
        "event between two tasks.",
        "ms",
        1.0,
        tail_wakeup,
        lower_is_better=True,
        goal_of="value",
    ),
)
