"""Benchmarks of chunk metadata: the cost of one commit, and of finding an offset in a segment of very many
chunks.

Both workloads use the record store in memory, without a disk and without chunk I/O, through one instance of
chunked storage. Time is the thread's processor time: nothing here waits, so other programs do not count.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence

from benchmarks.harness import Benchmark, BenchmarkError, NoGarbage, Pair, Setting, alternate, quantile
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.segments.chain import Chain
from tierlog.storage_backends.segments.layout import Layout
from tierlog.storage_backends.segments.memory_store import MemoryMetadataStore
from tierlog.storage_backends.segments.records import ChunkRecord, Record
from tierlog.storage_backends.segments.storage import ChunkedSegmentStorage

SID = 1
CHUNK = 4 << 20
CHUNKS = 100_000
SEEKS = 2000
COMMITS = 20_000
SPACING = 64 << 20


def _storage(store: MemoryMetadataStore) -> ChunkedSegmentStorage:
    world = World(wall_clock=time.time, random=random.Random(1), new_id=lambda: uuid.uuid4().hex)
    return ChunkedSegmentStorage(
        MemoryChunkStorage(), store, container=0, epoch=1, world=world, garbage=NoGarbage()
    )


def _name(number: int) -> str:
    return f"containers/0000/{SID:016x}/{1:016x}-{number * CHUNK:016x}-{number:032x}"


def _chunk(number: int, length: int) -> ChunkRecord:
    return ChunkRecord(_name(number), length, packed_crcs=bytes(4 * -(-length // (1 << 20))))


async def _segment(chunks: int, length: int) -> tuple[MemoryMetadataStore, int]:
    """The records of a segment with that many chunks, and its length."""
    linked = tuple((number * length, _chunk(number, length)) for number in range(chunks))
    records: list[Record] = Chain(chunks * length, 0, False, 1 << 30, linked).records(SID, 1, SPACING)
    store = MemoryMetadataStore()
    await store.commit(
        {record.key: 0 for record in records}, {record.key: record.encode() for record in records}
    )
    return store, chunks * length


async def metadata_commit(setting: Setting) -> Sequence[Pair]:
    count = setting.size(COMMITS, 200)

    async def value() -> float:
        store, length = await _segment(1, CHUNK)
        storage = _storage(store)
        added = [_chunk(number, CHUNK) for number in range(count + 1)]
        begin = time.thread_time()
        for chunk in added[1:]:
            with storage.begin(SID) as txn:
                async with txn.operation():
                    segment = await txn.segment()
                    txn.link(await txn.metadata.chunk(segment.last_chunk), chunk.name)
                    txn.metadata.put(chunk)
                    txn.grow_index(chunk.name, length, length, length + CHUNK)
                    length += CHUNK
                    txn.update(
                        segment,
                        length=length,
                        last_chunk=chunk.name,
                        last_chunk_start=length - CHUNK,
                        chunk_count=segment.chunk_count + 1,
                    )
                await txn.commit()
        seconds = time.thread_time() - begin
        if (await storage.info(SID)).chunk_count != count + 1 or len(await storage.chunks(SID)) != count + 1:
            raise BenchmarkError("a chunk that was committed is not there")
        return count / seconds

    async def reference() -> float:
        """The record store alone, with prepared values of those sizes."""
        store = MemoryMetadataStore()
        values = [bytes(2 * len(_name(0)) + 60), bytes(2 * len(_name(0)) + 30), bytes(2 * len(_name(0)) + 60)]
        versions = {f"{place}:{_name(0)}": 0 for place in range(2)}
        begin = time.thread_time()
        for number in range(count):
            keys = [*versions, f"n:{number}"]
            version = await store.commit({**versions, keys[2]: 0}, dict(zip(keys, values, strict=True)))
            versions = dict.fromkeys(versions, version)
        return count / (time.thread_time() - begin)

    return await alternate(setting, value, reference, 5)


async def seek(setting: Setting) -> Sequence[Pair]:
    return await _seek(setting, CHUNK)


async def seek_tiny(setting: Setting) -> Sequence[Pair]:
    return await _seek(setting, 100)


async def _seek(setting: Setting, chunk: int) -> Sequence[Pair]:
    """The 99th percentile over random offsets, against looking up one record by its key."""
    count = setting.size(CHUNKS, 1000)
    store, length = await _segment(count, chunk)
    storage = _storage(store)
    layouts = storage._context.layouts
    await (await layouts.open(SID)).locate(length - chunk - 1)  # the layout is loaded
    dice = random.Random(7)

    async def value() -> float:
        times: list[float] = []
        for _ in range(setting.size(SEEKS, 50)):
            offset = dice.randrange(length)
            begin = time.thread_time()
            layout: Layout = await layouts.open(SID)
            start, found = await layout.locate(offset)
            times.append(time.thread_time() - begin)
            if not start <= offset < start + found.length:
                raise BenchmarkError(f"offset {offset} is not in the chunk that was found")
            layouts.trim()
        return quantile(times, 0.99) * 1e3

    async def reference() -> float:
        times: list[float] = []
        for _ in range(setting.size(SEEKS, 50)):
            key = _chunk(dice.randrange(count), chunk).key
            begin = time.thread_time()
            if await store.get(key) is None:
                raise BenchmarkError("a record is missing")
            times.append(time.thread_time() - begin)
        return quantile(times, 0.99) * 1e3

    return await alternate(setting, value, reference, 5)


_BOUNDED = "The index in memory is bounded, as in a store. Against getting one record by its key."

BENCHMARKS = (
    Benchmark(
        "metadata_commit",
        "transactions that add one chunk, one after the other",
        "In memory, without chunk I/O: a transaction reads the segment's and the last chunk's record, adds "
        "one, and commits. Against the "
        "record store alone, with values made before.",
        "commits/s",
        20_000,
        metadata_commit,
        goal_of="value",
    ),
    Benchmark(
        "seek",
        "any offset of a segment of 100,000 chunks, 99th percentile",
        f"Chunks of 4 MiB, found by the block index. {_BOUNDED}",
        "ms",
        5.0,
        seek,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "seek_tiny",
        "the same with chunks of 100 bytes",
        f"Too small for records of the block index; the sparse index in memory finds them. {_BOUNDED}",
        "ms",
        5.0,
        seek_tiny,
        lower_is_better=True,
        goal_of="value",
    ),
)
