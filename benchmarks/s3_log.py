"""The benchmark of the log in a bucket: its groups against bare conditional puts of the same bytes, one at a
time, with the same server as in ``s3``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, payloads
from benchmarks.s3 import BUCKET, Bare, missing, server
from tierlog.actors.store.opening import system_world

GROUP_BYTES = 64 << 10


async def _rate(count: int, one: Callable[[int], Awaitable[object]]) -> float:
    """How many a second, one after the other."""
    begin = time.perf_counter()
    for number in range(count):
        await one(number)
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
            figure = await _rate(count, lambda number: owner.append([items[number % 16]]))
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
                return await _rate(count, lambda number: bare.put(f"{prefix}{number}", items[number % 16]))

            try:
                return await alternate(setting, value, lambda: bare.run(put_all))
            finally:
                await objects.close()


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
)
