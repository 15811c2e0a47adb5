"""Benchmarks of garbage collection: how long a client waits for the deletion of a segment with very many
chunks, and how many chunks are deleted in a second.

The chunks are one byte each. Their records are committed, and their files made, without the flushes that
would have made them, which would take most of the time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import attrs

import tierlog
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, store_in
from tierlog.actors.container.container import Container
from tierlog.actors.settings.configuration import GcConfig, WriterConfig
from tierlog.storage_backends.segments.chain import Chain
from tierlog.storage_backends.segments.records import ChunkRecord, Record

CHUNKS = 100_000
DELETED = 10_000
SEGMENT = "bench/garbage"
ROLLING_SIZE = 1 << 20
_SPACING = 64 << 20
_COMMITTED = 2_000
"""Records in one commit."""
_POLL = 0.01
PATIENT = tierlog.StoreConfig(writer=WriterConfig(flush_age=3600.0))
"""No flush comes between: it would write the chunks that are only recorded."""
EAGER = attrs.evolve(PATIENT, gc=GcConfig(delay=0.0))


async def delete_of_many_chunks(setting: Setting) -> Sequence[Pair]:
    """Against the deletion of a segment with one chunk."""
    count = setting.size(CHUNKS, 500)

    async def measure(chunks: int) -> float:
        async with store_in(setting.fresh("delete"), config=PATIENT) as store:
            await make_chunks(store, chunks)
            begin = time.perf_counter()
            await store.delete_segment(SEGMENT)
            return (time.perf_counter() - begin) * 1000

    async def value() -> float:
        return await measure(count)

    async def reference() -> float:
        return await measure(1)

    return await alternate(setting, value, reference, 3)


async def deletions(setting: Setting) -> Sequence[Pair]:
    """Against unlinking as many files in one thread, and one sync of their folder."""
    count = setting.size(DELETED, 300)

    async def value() -> float:
        folder = setting.fresh("gc")
        async with store_in(folder, config=EAGER) as store:
            names = await make_chunks(store, count)
            paths = [Path(folder, "lts", name) for name in names]
            await anyio.to_thread.run_sync(make_files, paths)
            await store.delete_segment(SEGMENT)
            await store.flush()
            while not (first := _deleted(store)):
                await anyio.sleep(_POLL)
            begin = time.perf_counter()
            while _deleted(store) < count:
                await anyio.sleep(_POLL)
            seconds = time.perf_counter() - begin
            if any(path.exists() for path in paths):
                raise BenchmarkError("a chunk is left")
            return (count - first) / seconds

    async def reference() -> float:
        folder = setting.fresh("unlink")
        paths = [Path(folder, f"{number:032x}") for number in range(count)]
        await anyio.to_thread.run_sync(make_files, paths)
        return count / await anyio.to_thread.run_sync(_unlink, paths)

    return await alternate(setting, value, reference, 3)


async def make_chunks(store: tierlog.SegmentStore, chunks: int) -> list[str]:
    """A segment of that many chunks, whose files are not there; returns their names."""
    await store.create_segment(SEGMENT)
    await store.append(SEGMENT, bytes(chunks))
    sid = (await store.segment_info(SEGMENT)).segment_id
    if sid is None:
        raise BenchmarkError("the segment has no id")

    async def commit(container: Container) -> list[str]:
        epoch = container.state.epoch
        names = [
            f"containers/0000/{sid:016x}/{epoch:016x}-{number:016x}-{number:032x}" for number in range(chunks)
        ]
        linked = tuple(
            (number, ChunkRecord(name, 1, packed_crcs=bytes(4))) for number, name in enumerate(names)
        )
        records: list[Record] = Chain(chunks, 0, False, ROLLING_SIZE, linked).records(sid, epoch, _SPACING)
        # The segment's record first: a flush that comes between then has nothing to write.
        records.sort(key=lambda record: isinstance(record, ChunkRecord))
        for start in range(0, len(records), _COMMITTED):
            part = records[start : start + _COMMITTED]
            await container.metadata.commit(
                {record.key: 0 for record in part}, {record.key: record.encode() for record in part}
            )
        return names

    names = await store.on_container(0, commit)
    found = await store.segment_info(SEGMENT)
    if found.flushed_length != chunks:
        raise BenchmarkError(f"the segment has {found.flushed_length} bytes in chunks, not {chunks}")
    return names


def make_files(paths: Sequence[Path]) -> None:
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    for path in paths:
        path.write_bytes(b"x")


def _deleted(store: tierlog.SegmentStore) -> int:
    current = store.statistics().containers[0].current
    return 0 if current is None else current.collector.deleted


def _unlink(paths: Sequence[Path]) -> float:
    begin = time.perf_counter()
    for path in paths:
        path.unlink()
    descriptor = os.open(paths[0].parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return time.perf_counter() - begin


BENCHMARKS = (
    Benchmark(
        "gc_delete",
        "delete a segment of 100,000 chunks",
        "From the call of delete_segment to its return; the chunks are deleted in the background. Against a "
        "segment of one chunk.",
        "ms",
        20,
        delete_of_many_chunks,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "gc_deletions",
        "chunks of a deleted segment, deleted by garbage collection",
        "From the first of 10,000 files that is gone to the last, with proofs of ownership and synced "
        "folders, without a delay. Against unlinking files in one thread, with one sync.",
        "chunks/s",
        2_000,
        deletions,
        goal_of="value",
    ),
)
