"""Benchmarks of sessions: what a call costs both processes in CPU time, what they carry, how soon a tail has
what was appended, and what the idle ones take. The reference of most is the same client over plain HTTP, in
turns with it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import anyio
import anyio.to_thread

import tierlog
from benchmarks.appends import Load
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, payloads
from benchmarks.service import SEGMENTS, line_of, program, start, together

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


def _rate(in_flight: int, count: int) -> Callable[[int], Work]:
    data = payloads(1024)

    def of(_: int) -> Work:
        async def measure(client: tierlog.Client) -> float:
            seconds, _ = await Load(in_flight, count, data).drive(lambda item: client.append(SEGMENT, item))
            return count / seconds

        return measure

    return of


async def append_256(setting: Setting) -> Sequence[Pair]:
    return await _both(setting, _rate(256, setting.size(51_200, 1024)))


async def two_clients(setting: Setting) -> Sequence[Pair]:
    """Appends a second of two processes, and of one."""
    count = setting.size(51_200, 1024)
    async with program("store", setting.fresh("session")) as url, tierlog.connect(url) as client:
        for name in SEGMENTS:
            await client.create_segment(name)

        def rate(clients: int) -> Callable[[], Awaitable[float]]:
            async def measure() -> float:
                return await together("load", url, clients, count, 1024, 256) / 1024 * 1e6

            return measure

        return await alternate(setting, rate(2), rate(1), 5)


async def batches(setting: Setting) -> Sequence[Pair]:
    """Events a second in batches of 200, by a session, and embedded."""
    items = payloads(1024)
    made = [[items[(index * 7 + number) % len(items)] for number in range(200)] for index in range(8)]
    load = Load(4, setting.size(400, 8), made)

    def rate(store: tierlog.Client | tierlog.SegmentStore) -> Callable[[], Awaitable[float]]:
        async def measure() -> float:
            seconds, _ = await load.drive(lambda batch: store.append_many(SEGMENT, batch))
            await store.flush()
            return load.total * 200 / seconds

        return measure

    async with (
        program("store", setting.fresh("session")) as url,
        tierlog.connect(url) as client,
        tierlog.open_store(setting.fresh("embedded"), containers=4) as store,
    ):
        for each in (client, store):
            await each.create_segment(SEGMENT)
        return await alternate(setting, rate(client), rate(store), 5)


async def read(setting: Setting) -> Sequence[Pair]:
    """MB/s of flushed bytes, 4 MiB after 4 MiB."""
    size, piece = setting.size(128 << 20, 8 << 20), 4 << 20
    blocks = payloads(piece, 4)

    async def measure(client: tierlog.Client) -> float:
        if not (await client.segment_info(SEGMENT)).length:
            for number in range(size // piece):
                await client.append(SEGMENT, blocks[number % 4])
            await client.flush()
        begin, position = time.perf_counter(), 0
        while position < size:
            data = await client.read(SEGMENT, position, piece)
            if data != blocks[position // piece % 4][position % piece :][: len(data)]:
                raise BenchmarkError(f"other bytes at {position} than were written")
            position += len(data)
        return size / 1e6 / (time.perf_counter() - begin)

    return await _both(setting, lambda pid: measure)


async def beside_tails(setting: Setting) -> Sequence[Pair]:
    """Milliseconds of an append, p50: with 1,000 idle tails in its session, and without."""
    tails, count = setting.size(1000, 20), setting.size(500, 20)
    async with (
        program("store", setting.fresh("session")) as url,
        tierlog.connect(url) as client,
        tierlog.connect(url) as busy,
    ):
        for name in (SEGMENT, "bench/idle"):
            await client.create_segment(name)

        async def follow() -> None:
            async for _ in busy.tail("bench/idle"):
                pass

        def latency(of: tierlog.Client) -> Callable[[], Awaitable[float]]:
            async def measure() -> float:
                found = []
                for _ in range(count):
                    begin = time.perf_counter()
                    await of.append(SEGMENT, bytes(100))
                    found.append(time.perf_counter() - begin)
                return statistics.median(found) * 1e3

            return measure

        async with anyio.create_task_group() as tasks:
            for number in range(tails):
                tasks.start_soon(follow)
                if number % 50 == 49:
                    await anyio.sleep(0.1)
            while busy.statistics().in_flight < tails:
                await anyio.sleep(0.05)
            pairs = await alternate(setting, latency(busy), latency(client), 5)
            tasks.cancel_scope.cancel()
        return pairs


async def _idle(setting: Setting) -> tuple[float, float, float]:
    """KiB: of a tail with its task, of such a task alone, of a session."""
    count = setting.size(400, 50)
    async with program("idle", setting.fresh("idle"), str(count)) as line:
        tail, task, session = (float(number) / 1024 for number in line.split())
        return tail, task, session


async def idle_tail(setting: Setting) -> Sequence[Pair]:
    tail, task, _ = await _idle(setting)
    return [Pair(tail - task, task)]


async def idle_session(setting: Setting) -> Sequence[Pair]:
    _, task, session = await _idle(setting)
    return [Pair(session, task)]


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
    Benchmark(
        "session_append_256",
        "appends of 1 KiB in a session, 256 in flight, one client",
        f"One await for each append; the client puts them together. {_REFERENCE}",
        "appends/s",
        30_000,
        append_256,
        goal_of="value",
    ),
    Benchmark(
        "session_two_clients",
        "appends of 1 KiB in sessions, 256 in flight in each of two processes",
        "Each to a segment of its own, on one server. Reference: one such process.",
        "appends/s",
        1.5,
        two_clients,
    ),
    Benchmark(
        "session_append_batches",
        "batches of 200 x 1 KiB in a session, 4 in flight",
        "append_many through one client. Reference: append_many of an embedded store.",
        "events/s",
        0.7,
        batches,
    ),
    Benchmark(
        "session_read",
        "reads of 4 MiB from long-term storage in a session",
        f"One after the other, each compared with what was written. {_REFERENCE}",
        "MB/s",
        2.0,
        read,
    ),
    Benchmark(
        "session_read_rate",
        "the same, by its goal in MB/s",
        f"As session_read. {_REFERENCE}",
        "MB/s",
        600,
        read,
        goal_of="value",
    ),
    Benchmark(
        "session_beside_tails",
        "an append in a session with 1,000 idle tails, p50",
        "The tails follow another segment. Reference: the same in a session without tails.",
        "ms",
        1.2,
        beside_tails,
        lower_is_better=True,
    ),
    Benchmark(
        "session_idle_tail",
        "memory of an idle tail in a session, client and server",
        "Of 400 at the end of one segment, as Python counts it, less what the reader's own task takes. "
        "Reference: such a task, which waits in a generator of its own.",
        "KiB",
        4,
        idle_tail,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "session_idle",
        "memory of an idle session, with the sockets of both sides",
        "Of 400, as Python counts it. Reference: a task that waits in an asynchronous generator.",
        "KiB",
        64,
        idle_session,
        lower_is_better=True,
        goal_of="value",
    ),
)
