"""The benchmarks of the log in a bucket, alone and in an embedded store: its groups against bare conditional
puts of the same bytes, one at a time, with the same server as in ``s3``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import anyio

from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, payloads
from benchmarks.s3 import BUCKET, Bare, missing, server
from tierlog import SegmentStore, StoreConfig, open_store
from tierlog.actors.settings.configuration import ChunkCacheConfig, S3Config, S3LogConfig, WriterConfig
from tierlog.actors.store.folder_opening import system_world

GROUP_BYTES = 64 << 10
APPEND_BYTES, IN_FLIGHT = 1 << 10, 256
LATENCY = 0.02
"""Seconds, as of a bucket in the same region."""


async def rate(count: int, one: Callable[[int], Awaitable[object]], at_once: int = 1) -> float:
    """How many a second."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await one(number)

    begin = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(some)
    return count / (time.perf_counter() - begin)


async def s3_log_append(setting: Setting) -> Sequence[Pair]:
    from tierlog.journal.log.s3_layout import S3LogOptions
    from tierlog.journal.log.s3_log import S3Log
    from tierlog.storage_backends.chunks.s3_location import S3Location
    from tierlog.storage_backends.chunks.s3_objects import S3Objects
    from tierlog.storage_backends.chunks.s3_requests import S3Options

    count, items, rounds = setting.size(400, 16), payloads(GROUP_BYTES, 16), itertools.count()
    with server() as url:
        objects = S3Objects(S3Location(BUCKET, "bench/"), S3Options(endpoint=url))
        await objects.open()

        async def value() -> float:
            def log() -> S3Log:
                return S3Log(objects, "log/", bytes(16), system_world(), S3LogOptions(pace=0.0))

            owner = log()
            first = (await owner.open()).next_group
            figure = await rate(count, lambda number: owner.append([items[number % 16]]))
            # Off the clock: the next owner reads them all.
            later = log()
            await later.open()
            async with aclosing(later.read(first)) as groups:
                found = [bytes(payload) async for _, payload in groups]
            if found != [items[number % 16] for number in range(count)]:
                raise BenchmarkError(f"{len(found)} groups were read after {count} appends, or other ones")
            return figure

        async with Bare(url).running() as bare:

            async def put_all() -> float:
                prefix = f"bare/{next(rounds)}/"
                return await rate(count, lambda number: bare.put(f"{prefix}{number}", items[number % 16]))

            try:
                return await alternate(setting, value, lambda: bare.run(put_all))
            finally:
                await objects.close()


async def s3_store_append(setting: Setting) -> Sequence[Pair]:
    count, payload = setting.size(4_000, 1_000), bytes(APPEND_BYTES)
    with server(str(LATENCY)) as url:
        config = StoreConfig(
            s3=S3Config(endpoint=url),
            s3_log=S3LogConfig(pace=0.0),
            chunk_cache=ChunkCacheConfig(path=f"{setting.folder}/cache"),
            # The log alone is measured.
            writer=WriterConfig(flush_bytes=1 << 30, flush_age=3600.0),
        )
        async with (
            open_store(f"s3://{BUCKET}/store", containers=1, config=config) as store,
            Bare(url).running() as bare,
        ):
            await store.create_segment("s")
            rounds, in_group = itertools.count(), float(IN_FLIGHT)

            async def value() -> float:
                nonlocal in_group
                groups = _groups(store)
                figure = await rate(count, lambda _: store.append("s", payload), IN_FLIGHT)
                in_group = count / (_groups(store) - groups)
                return figure

            async def put_all() -> float:
                prefix, body = f"bare/{next(rounds)}/", bytes(int(in_group * APPEND_BYTES))
                puts = max(8, round(count / in_group))
                return in_group * await rate(puts, lambda number: bare.put(f"{prefix}{number}", body))

            return await alternate(setting, value, lambda: bare.run(put_all))


def _groups(store: SegmentStore) -> int:
    current = store.statistics().containers[0].current
    assert current is not None
    return current.log.appended_groups


BENCHMARKS = (
    Benchmark(
        "s3_log_append",
        "groups of a log in a bucket",
        "Appends of groups of 64 KiB to the log, one at a time and without a pace, against bare aiobotocore "
        "that puts the same bytes conditionally at the same server: in memory, in a process of its own, on "
        "loopback without TLS.",
        "groups/s",
        0.8,
        s3_log_append,
        missing=missing,
    ),
    Benchmark(
        "s3_store_append",
        "appends to a store in a bucket",
        f"Appends of 1 KiB, {IN_FLIGHT} in flight, to an embedded store in a bucket, without a pace, against "
        f"bare conditional puts, one at a time, times the appends that the store had in a group. The server "
        f"is as above, and waits {LATENCY * 1000:g} ms before each answer.",
        "appends/s",
        0.8,
        s3_store_append,
        missing=missing,
    ),
)
