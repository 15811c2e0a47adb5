"""Benchmarks of sessions: what a call costs both processes in CPU time, and how soon a tail has what was
appended. The reference of each is the same client over plain HTTP, in turns with it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import anyio
import anyio.to_thread

import tierlog
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, payloads
from benchmarks.service import line_of, start

SEGMENT = "bench/session"
Work = Callable[[tierlog.Client], Awaitable[float]]


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _both(setting: Setting, work: Callable[[int], Work]) -> Sequence[Pair]:
    """``work(pid)`` over a session, and over plain HTTP. ``pid``: the server's."""
    with start("store", setting.fresh("session")) as server:
        try:
            url = await anyio.to_thread.run_sync(line_of, server)
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(tierlog.connect(url))
                plain = await stack.enter_async_context(tierlog.connect(url, sessions=False))
                await client.create_segment(SEGMENT)
                measure = work(server.pid)
                return await alternate(setting, lambda: measure(client), lambda: measure(plain), 5)
        finally:
            server.communicate()


def _append_cpu(in_flight: int, count: int) -> Callable[[int], Work]:
    """Microseconds of CPU time of both processes for each append."""
    data = payloads(1024)

    def of(pid: int) -> Work:
        async def measure(client: tierlog.Client) -> float:
            async def append() -> None:
                for number in range(count // in_flight):
                    await client.append(SEGMENT, data[number % len(data)])

            begin = time.process_time() + _cpu_seconds(pid)
            async with anyio.create_task_group() as tasks:
                for _ in range(in_flight):
                    tasks.start_soon(append)
            used = time.process_time() + _cpu_seconds(pid) - begin
            return max(used, 1e-6) / (count // in_flight * in_flight) * 1e6

        return measure

    return of


async def append_cpu(setting: Setting) -> Sequence[Pair]:
    return await _both(setting, _append_cpu(1, setting.size(3000, 50)))


async def append_cpu_256(setting: Setting) -> Sequence[Pair]:
    return await _both(setting, _append_cpu(256, setting.size(51_200, 1024)))


async def tail_latency(setting: Setting) -> Sequence[Pair]:
    """Milliseconds from the call of an append to its block at a tail of the same client, p50."""
    count, size = setting.size(500, 20), 100

    async def measure(client: tierlog.Client) -> float:
        offset = (await client.segment_info(SEGMENT)).length
        begun: list[float] = []
        taken: list[float] = []

        async def follow() -> None:
            received = 0
            async for block in client.tail(SEGMENT, offset):
                received += len(block)
                while len(taken) < received // size:
                    taken.append(time.perf_counter())
                if len(taken) == count:
                    return

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for _ in range(count):
                begun.append(time.perf_counter())
                await client.append(SEGMENT, bytes(size))
                await anyio.sleep(0.002)  # a new block each, as from a producer that is not in a hurry
        if len(taken) != len(begun):
            raise BenchmarkError(f"{len(taken)} of {len(begun)} appends came")
        return statistics.median(end - start for start, end in zip(begun, taken, strict=True)) * 1e3

    return await _both(setting, lambda pid: measure)


_REFERENCE = "Reference: the same client over plain HTTP."
BENCHMARKS = (
    Benchmark(
        "session_append_cpu",
        "CPU time of an append of 1 KiB in a session, one in flight",
        f"Client and server together, store and disk included. {_REFERENCE}",
        "us",
        500,
        append_cpu,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "session_append_256_cpu",
        "CPU time of an append of 1 KiB in a session, 256 in flight",
        f"Client and server together, store and disk included. {_REFERENCE}",
        "us",
        40,
        append_cpu_256,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "session_tail",
        "from an append to its block at a tail in the same session, p50",
        f"One producer, one consumer, one append at a time. {_REFERENCE}",
        "ms",
        1.5,
        tail_latency,
        lower_is_better=True,
        goal_of="value",
    ),
)
