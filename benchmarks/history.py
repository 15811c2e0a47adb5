"""Benchmarks of old data: a long segment read from its first byte to its last, and one large read from slow
storage."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from benchmarks.harness import (
    Benchmark,
    BenchmarkError,
    NoGarbage,
    Pair,
    Setting,
    alternate,
    payloads,
    store_in,
)
from benchmarks.reading import SMALL_CACHE, check, check_cache, chunk_files, fill, read_segment
from tierlog.actors.chunk_io.actor import StorageActor
from tierlog.actors.chunk_io.client import StorageClient
from tierlog.actors.chunk_io.options import StorageOptions
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.segments.memory_store import MemoryMetadataState, MemoryMetadataStore
from tierlog.storage_backends.segments.storage import ChunkedSegmentStorage
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, FaultyChunkStorage, every

MIB = 1 << 20
CHUNKS = 64
DELAY = 0.02
WAYS = 16


# --- one segment from end to end ----------------------------------------------------------------


async def historical_read(setting: Setting) -> Sequence[Pair]:
    return await _historical(setting, is_cold=True)


async def historical_read_warm(setting: Setting) -> Sequence[Pair]:
    return await _historical(setting, is_cold=False)


async def _historical(setting: Setting, *, is_cold: bool) -> Sequence[Pair]:
    chunk = setting.megabytes_of(1024, 16) * MIB // CHUNKS
    size, folder = chunk * CHUNKS, setting.fresh("history")
    expected = await fill(folder, size, rolling_size=chunk)
    files = chunk_files(f"{folder}/lts", size)
    if not CHUNKS <= len(files) < CHUNKS + 4:  # the first chunk after an open may be short
        raise BenchmarkError(f"the segment has {len(files)} chunks, not {CHUNKS}")

    async with store_in(folder, config=SMALL_CACHE) as store:
        check([block async for block in read_segment(store, size, chunk)], expected)

    async def value() -> float:
        async with store_in(folder, config=SMALL_CACHE) as store:
            check_cache(store, size)
            prepare()
            begin = time.perf_counter()
            total = 0
            async for block in read_segment(store, size, chunk):
                total += len(block)
            seconds = time.perf_counter() - begin
            if total != size:
                raise BenchmarkError(f"the segment holds {total} bytes, not {size}")
            return size / seconds / 1e6

    async def reference() -> float:
        prepare()
        buffer, total = bytearray(chunk), 0
        begin = time.perf_counter()
        for file in files:
            with open(file, "rb", buffering=0) as stream:
                while count := stream.readinto(buffer):
                    total += count
        seconds = time.perf_counter() - begin
        if total != size:
            raise BenchmarkError(f"the chunk files hold {total} bytes, not {size}")
        return size / seconds / 1e6

    def prepare() -> None:
        for file in files if is_cold else ():
            forget_pages(file)

    return await alternate(setting, value, reference, 5)


def forget_pages(file: str) -> None:
    """Drop the file from the system's page cache; chunks are synced, so all of it can be dropped."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def no_fadvise() -> str:
    return (
        ""
        if hasattr(os, "posix_fadvise")
        else "this system cannot drop files from its page cache (posix_fadvise)"
    )


# --- a storage that takes its time --------------------------------------------------------------


async def parallel_read_20ms(setting: Setting) -> Sequence[Pair]:
    chunk = MIB // 4
    size = setting.size(2 * CHUNKS, CHUNKS // 2) * chunk
    async with _slow_segment(size, chunk) as (storage, content):

        async def value() -> float:
            begin = time.perf_counter()
            data = await storage.read(1, 0, size)
            seconds = time.perf_counter() - begin
            if data != content:
                raise BenchmarkError("what was read is not what was written")
            return size / seconds / 1e6

        async def reference() -> float:
            begin = time.perf_counter()
            for offset in range(0, size, chunk):
                if len(await storage.read(1, offset, chunk)) != chunk:
                    raise BenchmarkError(f"the chunk at {offset} came back short")
            return size / (time.perf_counter() - begin) / 1e6

        return await alternate(setting, value, reference, 5)


@asynccontextmanager
async def _slow_segment(size: int, chunk: int) -> AsyncIterator[tuple[ChunkedSegmentStorage, bytes]]:
    """Segment 1 in chunks in memory, behind the storage actor; each read request takes ``DELAY`` seconds
    more."""
    slow = FaultyChunkStorage(
        MemoryChunkStorage(MemoryChunkState()), every(Fault(FaultKind.DELAY, seconds=DELAY), "read")
    )
    actor = StorageActor(slow, StorageOptions(reads_max=WAYS), random.Random(1))
    client = StorageClient(actor)
    world = World(wall_clock=time.time, random=random.Random(1), new_id=lambda: uuid.uuid4().hex)
    storage = ChunkedSegmentStorage(
        client,
        MemoryMetadataStore(MemoryMetadataState()),
        container=0,
        epoch=1,
        world=world,
        garbage=NoGarbage(),
    )
    content = b"".join(payloads(chunk, size // chunk))
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        with storage.begin(1, create=True, rolling_size=chunk) as txn:
            await storage.write(txn, 0, [content], [])
            await txn.commit()
        yield storage, content
        actor.stop()


BENCHMARKS = (
    Benchmark(
        "historical_read",
        "a segment of 1 GiB in 64 chunks, not in the page cache",
        "Through the embedded store, in reads of a chunk's size; checksums are verified. Against `readinto` "
        "of one buffer over the same "
        "files. The system's page cache is emptied of these files before each side, and so is the store's.",
        "MB/s",
        0.8,
        historical_read,
        missing=no_fadvise,
    ),
    Benchmark(
        "historical_read_warm",
        "the same, all of it in the page cache",
        "As historical_read, but no byte comes from the disk: the reference copies memory into a buffer "
        "that it uses again and again, "
        "the store copies it into new bytes, verifies them, and leaves its thread for each window.",
        "MB/s",
        0.4,
        historical_read_warm,
    ),
    Benchmark(
        "parallel_read_20ms",
        "one read over 128 chunks of 256 KiB, 16 requests at a time",
        "Each request to the chunk storage takes 20 ms longer. Against reading the chunks one after the "
        "other from the same storage.",
        "MB/s",
        12.0,
        parallel_read_20ms,
    ),
)
