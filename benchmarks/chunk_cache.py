"""Benchmarks of the local chunk cache: warm reads, and the reconciliation of a full cache at an opening."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import anyio
import attrs

import tierlog
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, store_in
from benchmarks.reading import BLOCK, SMALL_CACHE, check, check_cache, fill, read_segment
from tierlog.actors.container.cached_chunks import reconcile
from tierlog.actors.settings.configuration import ChunkCacheConfig
from tierlog.storage_backends.base.storage_statistics import ChunkCacheStatistics

CACHED = attrs.evolve(SMALL_CACHE, chunk_cache=ChunkCacheConfig(path="cache"))
"""The storage behind it is a folder: a warm read does not ask it, whatever it is."""


def cache_statistics(store: tierlog.SegmentStore) -> ChunkCacheStatistics:
    storage = store.statistics().storage
    if storage is None or storage.backend.cache is None:
        raise BenchmarkError("the store has no chunk cache")
    return storage.backend.cache


async def warm_read(setting: Setting) -> Sequence[Pair]:
    size = setting.size(192 << 20, 16 << 20)
    folder = setting.fresh("warm")
    expected = await fill(folder, size)

    async def read(config: tierlog.StoreConfig) -> float:
        async with store_in(folder, config=config) as store:
            check_cache(store, size)
            begin = time.perf_counter()
            blocks = [block async for block in read_segment(store, size, BLOCK)]
            seconds = time.perf_counter() - begin
            check(blocks, expected)
            if config is CACHED and (cache := cache_statistics(store)).misses:
                raise BenchmarkError(f"{cache.misses} reads were not served by the cache")
            return size / seconds / 1e6

    async with store_in(folder, config=CACHED) as store:
        blocks = [block async for block in read_segment(store, size, BLOCK)]
        check(blocks, expected)
    return await alternate(setting, lambda: read(CACHED), lambda: read(SMALL_CACHE), 15)


async def cache_reconcile(setting: Setting) -> Sequence[Pair]:
    count = setting.size(10_000, 200)
    folder = setting.fresh("reconcile")
    async with store_in(folder, config=CACHED) as store:
        await _fill_segments(store, count)

    cache_folder = f"{folder}/cache"
    files = sum(len(names) for _, _, names in os.walk(cache_folder))
    if files < count:
        raise BenchmarkError(f"the cache has {files} files, not {count}")

    async def value() -> float:
        async with store_in(folder, config=CACHED) as store:
            container = store.local_containers[0].active
            assert container is not None
            cache = container.options.chunk_cache
            assert cache is not None
            begin = time.perf_counter()
            await cache.open()
            await reconcile(cache, container.metadata, 0, container.state.epoch)
            seconds = time.perf_counter() - begin
            if cache_statistics(store).unlisted:
                raise BenchmarkError("a listed chunk was removed")
            return seconds

    async def reference() -> float:
        begin = time.perf_counter()
        found = 0
        for parent, _, names in os.walk(cache_folder):
            for name in names:
                os.stat(os.path.join(parent, name))
                found += 1
        if found < count:
            raise BenchmarkError(f"the cache has {found} files, not {count}")
        return time.perf_counter() - begin

    return await alternate(setting, value, reference, 5)


async def _fill_segments(store: tierlog.SegmentStore, count: int) -> None:
    """``count`` segments of one chunk each."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await store.create_segment(f"bench/{number}")
            await store.append(f"bench/{number}", b"x" * 100)

    async with anyio.create_task_group() as tasks:
        for _ in range(64):
            tasks.start_soon(work)
    await store.flush()


BENCHMARKS = (
    Benchmark(
        "warm_cache_read",
        "cached chunks, in blocks of 4 MiB",
        "The store is opened afresh with a tiny tail cache for each round, so that all bytes come from the "
        "chunk cache, whose files are in the system's page cache; both checksums are verified. Against the "
        "same reads without a cache, of chunks in local files.",
        "MB/s",
        0.8,
        warm_read,
    ),
    Benchmark(
        "cache_reconcile",
        "reconciling 10,000 cached files with the records",
        "Listing the cache, and looking up the record of each chunk. Against listing the same files. The "
        "store is open, and the records are in memory or in sorted runs.",
        "s",
        1.0,
        cache_reconcile,
        lower_is_better=True,
        goal_of="value",
    ),
)
