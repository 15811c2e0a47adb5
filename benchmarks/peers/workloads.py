"""What every peer has to do, and how large it is. Durations are given, and what is done in them is counted:
the fast and the slow get the same time."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Literal

import anyio
import attrs

from benchmarks.harness import BenchmarkError, payloads
from benchmarks.peers.applications import SparkPeer
from benchmarks.peers.contract import BATCH, EVENT_BYTES, HISTORY, STREAMS, Kind, Peer
from benchmarks.spark import missing as spark_missing

ITEMS = payloads(EVENT_BYTES)


@attrs.frozen
class Sizes:
    seconds: float
    """Of a measurement of appends."""
    deliveries: int
    history: int
    """Events that are read."""
    restart: int
    """Events that are there at a restart."""
    rows: int
    """Of a batch that Spark writes or reads."""
    batches: int
    """Micro-batches of which the median is taken."""


FULL = Sizes(1.0, 200, 65_536, 500_000, 2_000_000, 12)
QUICK = Sizes(0.05, 5, 2_000, 2_000, 20_000, 3)


@attrs.frozen
class Workload:
    name: str
    title: str
    unit: str
    measure: Callable[[Any, Sizes], Awaitable[float]] | None
    """What it gets is opened as ``way`` says. None: it restarts the peer."""
    lower_is_better: bool = False
    way: Literal["client", "restarts", "spark"] = "client"

    def is_for(self, kind: Kind) -> bool:
        return (kind.spark if self.way == "spark" else kind.open) is not None

    def missing(self) -> str:
        """Why it cannot be measured here; empty if it can."""
        return spark_missing() if self.way == "spark" else ""

    def is_better(self, one: float, other: float) -> bool:
        return one < other if self.lower_is_better else one > other


async def _appends(
    peer: Peer, seconds: float, in_flight: int, append: Callable[[int, int], Awaitable[int]]
) -> float:
    """Acked events a second. ``append`` gets the number of the writer and that of its call, and returns how
    many events were acked."""
    before, acked = await peer.count(), 0
    begin = time.perf_counter()

    async def write(writer: int) -> None:
        nonlocal acked
        for number in itertools.count():
            done = await append(writer, number)
            acked += done
            if time.perf_counter() - begin > seconds:
                return

    async with anyio.create_task_group() as tasks:
        for writer in range(in_flight):
            tasks.start_soon(write, writer)
    elapsed = time.perf_counter() - begin
    found = await peer.count() - before
    if found != acked:
        raise BenchmarkError(f"it has {found} more events, and acked {acked}")
    await peer.settle()
    return acked / elapsed


async def _one_by_one(peer: Peer, sizes: Sizes) -> float:
    took: list[float] = []

    async def append(writer: int, number: int) -> int:
        begin = time.perf_counter()
        await peer.append(0, ITEMS[number % len(ITEMS)])
        took.append(time.perf_counter() - begin)
        return 1

    await _appends(peer, sizes.seconds, 1, append)
    return statistics.median(took) * 1e3


async def _many(peer: Peer, sizes: Sizes) -> float:
    async def append(writer: int, number: int) -> int:
        await peer.append(0, ITEMS[(writer + number) % len(ITEMS)])
        return 1

    return await _appends(peer, sizes.seconds, 256, append)


async def _batches(peer: Peer, sizes: Sizes) -> float:
    async def append(writer: int, number: int) -> int:
        await peer.append_many(0, [ITEMS[(number + each) % len(ITEMS)] for each in range(BATCH)])
        return BATCH

    return await _appends(peer, sizes.seconds, 4, append)


async def _streams(peer: Peer, sizes: Sizes) -> float:
    async def append(writer: int, number: int) -> int:
        await peer.append(writer % STREAMS, ITEMS[(writer + number) % len(ITEMS)])
        return 1

    return await _appends(peer, sizes.seconds, 8 * STREAMS, append)


async def _delivery(peer: Peer, sizes: Sizes) -> float:
    """One after the other, so that each event is delivered alone."""
    begun: list[float] = []
    taken: list[float] = []

    async def consume() -> None:
        async with peer.follow(0) as events, aclosing(events):
            ready.set()
            async for event in events:
                taken.append(time.perf_counter())
                if event != ITEMS[(len(taken) - 1) % len(ITEMS)]:
                    raise BenchmarkError("another event was delivered than the one that was appended")
                if len(taken) == sizes.deliveries:
                    return

    ready = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        await ready.wait()
        for number in range(sizes.deliveries):
            begun.append(time.perf_counter())
            await peer.append(0, ITEMS[number % len(ITEMS)])
            await anyio.sleep(0.002)  # a producer that is not in a hurry
    return statistics.median(end - start for start, end in zip(begun, taken, strict=True)) * 1e3


async def _history(peer: Peer, sizes: Sizes) -> float:
    events = size = 0
    begin = time.perf_counter()
    async for block in peer.read(HISTORY, sizes.history):
        events += len(block)
        size += sum(map(len, block))
    elapsed = time.perf_counter() - begin
    if (events, size) != (sizes.history, sizes.history * EVENT_BYTES):
        raise BenchmarkError(f"{events} events of {size} bytes were read instead of {sizes.history}")
    return size / 1e6 / elapsed


async def _spark_writes(peer: SparkPeer, sizes: Sizes) -> float:
    return sizes.rows / await peer.write(sizes.rows)


async def _spark_reads(peer: SparkPeer, sizes: Sizes) -> float:
    return sizes.rows / await peer.read(sizes.rows)


async def _spark_batches(peer: SparkPeer, sizes: Sizes) -> float:
    return await peer.batches(sizes.batches)


WORKLOADS = (
    Workload("one", "one append in flight, p50", "ms", _one_by_one, lower_is_better=True),
    Workload("many", "256 appends in flight", "events/s", _many),
    Workload("batches", f"batches of {BATCH}, 4 in flight", "events/s", _batches),
    Workload("streams", f"{STREAMS} streams, 8 appends in flight each", "events/s", _streams),
    Workload("delivery", "producer to consumer, p50", "ms", _delivery, lower_is_better=True),
    Workload("history", "historical read", "MB/s", _history),
    Workload(
        "restart", "restart to first ack, 500,000 events", "s", None, lower_is_better=True, way="restarts"
    ),
    Workload("spark-write", "Spark writes 2 million rows", "rows/s", _spark_writes, way="spark"),
    Workload("spark-read", "Spark reads 2 million rows", "rows/s", _spark_reads, way="spark"),
    Workload("spark-batch", "micro-batch of 1,000 rows", "ms", _spark_batches, True, "spark"),
)
