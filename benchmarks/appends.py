"""Benchmarks of appends: many in flight, in batches, large, one after the other, and over many segments.

The store has the default configuration, with one container. Flushes start by themselves during a measurement
(every 4 MiB of a segment, at most ten times a second) and use their share of both cores; the rest is flushed
between two rounds, outside of the measurement."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import attrs

import tierlog
from benchmarks.ceiling import GroupCommit, bare_log, sqlite_queue
from benchmarks.harness import (
    Benchmark,
    BenchmarkError,
    Measure,
    Pair,
    Setting,
    Written,
    alternate,
    payloads,
    quantile,
    store_in,
    verify,
    verify_length,
)
from tierlog.actors.settings.configuration import WriterConfig

SEGMENT = "bench/appends"
Append = Callable[[Any], Awaitable[int | None]]


@attrs.frozen
class Load:
    """``in_flight`` writers append ``count`` items in all, each waiting for the ack before the next one."""

    in_flight: int
    count: int
    items: Sequence[Any]

    @property
    def total(self) -> int:
        return self.count // self.in_flight * self.in_flight

    async def drive(self, append: Append) -> tuple[float, list[tuple[int, Any]]]:
        """The seconds, and the last append of each writer."""
        each, items, mask = self.count // self.in_flight, self.items, len(self.items)
        last: list[tuple[int, Any]] = []

        async def writer(index: int) -> None:
            offset: int | None = None
            item = None
            for number in range(each):
                item = items[(index + number) % mask]
                offset = await append(item)
            if offset is None:
                raise BenchmarkError("an append was acked without an offset")
            last.append((offset, item))

        begin = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for index in range(self.in_flight):
                tasks.start_soon(writer, index)

        return time.perf_counter() - begin, last


class AppendRounds:
    """Rounds of one load on a store with one segment, against the bare loop."""

    def __init__(
        self, setting: Setting, store: tierlog.SegmentStore, load: Load, size: int, scale: float
    ) -> None:
        """``size``: bytes of one item; ``scale``: the weight of one item in the figure."""
        self._folder = setting.folder
        self._store = store
        self._load = load
        self._size = size
        self._scale = scale
        self._expected = 0
        self.samples: list[Written] = []

    async def value(self) -> float:
        store, load = self._store, self._load
        many = type(load.items[0]) is list
        append: Append = (
            (lambda item: store.append_many(SEGMENT, item))
            if many
            else (lambda item: store.append(SEGMENT, item))
        )
        seconds, last = await load.drive(append)
        self._expected += load.total * self._size
        self.samples = [Written(SEGMENT, offset, _joined(item)) for offset, item in last[:16]]
        await verify_length(store, SEGMENT, self._expected)
        await verify(store, self.samples)
        await store.flush()
        return load.total * self._scale / seconds

    async def ceiling(self) -> float:
        load = attrs.evolve(self._load, items=[_joined(item) for item in self._load.items])
        async with bare_log(self._folder, load.total, self._size) as log:
            return await self._measure(load, log)

    async def sqlite(self) -> float:
        async with sqlite_queue(self._folder) as queue:
            return await self._measure(self._load, queue)

    async def _measure(self, load: Load, reference: GroupCommit) -> float:
        seconds, last = await load.drive(reference.append)
        reference.check(load.total, self._size, *last[-1])
        return load.total * self._scale / seconds


def _joined(item: bytes | list[bytes]) -> bytes:
    return b"".join(item) if isinstance(item, list) else item


async def _against_ceiling(setting: Setting, load: Load, size: int, scale: float) -> Sequence[Pair]:
    return await _against(setting, load, size, scale, lambda rounds: rounds.ceiling)


async def _against(
    setting: Setting, load: Load, size: int, scale: float, reference: Callable[[AppendRounds], Measure]
) -> Sequence[Pair]:
    folder = setting.fresh("appends")
    async with store_in(folder) as store:
        await store.create_segment(SEGMENT)
        rounds = AppendRounds(setting, store, load, size, scale)
        pairs = await alternate(setting, rounds.value, reference(rounds))

    async with store_in(folder) as store:
        await verify(store, rounds.samples)

    return pairs


def _load_1k(setting: Setting) -> Load:
    return Load(256, setting.size(25_600, 512), payloads(1024))


async def append_1k(setting: Setting) -> Sequence[Pair]:
    return await _against_ceiling(setting, _load_1k(setting), 1024, 1)


async def append_1k_sqlite(setting: Setting) -> Sequence[Pair]:
    return await _against(setting, _load_1k(setting), 1024, 1, lambda rounds: rounds.sqlite)


async def append_1k_64(setting: Setting) -> Sequence[Pair]:
    return await _against_ceiling(setting, Load(64, setting.size(19_200, 256), payloads(1024)), 1024, 1)


async def append_many(setting: Setting) -> Sequence[Pair]:
    items = payloads(1024)
    batches = [[items[(index * 7 + number) % len(items)] for number in range(200)] for index in range(8)]
    return await _against_ceiling(setting, Load(4, setting.size(300, 8), batches), 200 * 1024, 200)


async def append_256k(setting: Setting) -> Sequence[Pair]:
    return await _against_ceiling(
        setting, Load(16, setting.size(240, 32), payloads(256 << 10, 16)), 256 << 10, 0.262144
    )


async def sequential(setting: Setting) -> Sequence[Pair]:
    """Rounds of append latencies, one append at a time."""
    count, items = setting.size(300, 20), payloads(1024)
    folder = setting.fresh("sequential")

    async def p50(append: Append) -> tuple[float, tuple[int, bytes]]:
        latencies = []
        offset: int | None = None
        for number in range(count):
            begin = time.perf_counter()
            offset = await append(items[number % len(items)])
            latencies.append(time.perf_counter() - begin)
        assert offset is not None
        return quantile(latencies, 0.5) * 1000, (offset, items[(count - 1) % len(items)])

    async with store_in(folder) as store:
        await store.create_segment(SEGMENT)

        async def value() -> float:
            figure, (offset, data) = await p50(lambda item: store.append(SEGMENT, item))
            await verify(store, [Written(SEGMENT, offset, data)])
            return figure

        async def reference() -> float:
            async with bare_log(setting.folder, count, 1024) as log:
                figure, last = await p50(log.append)
                log.check(count, 1024, *last)
            return figure

        return await alternate(setting, value, reference, 9)


async def segments_1000(setting: Setting) -> Sequence[Pair]:
    """The same load on one segment, and on a thousand segments of the same container."""
    return await _spread(
        setting, setting.size(1000, 50), Load(256, setting.size(20_480, 512), payloads(1024)), 6
    )


async def segments_at_once(setting: Setting) -> Sequence[Pair]:
    """As many appends in flight as there are segments."""
    # With the one segment as many as stay in memory by default.
    count = min(setting.segments or setting.size(5000, 50), 24_999)
    return await _spread(setting, count, Load(count, 4 * count, payloads(100)), 3, 3_600.0)


async def _spread(
    setting: Setting, segments: int, load: Load, rounds: int, flush_age: float = WriterConfig().flush_age
) -> Sequence[Pair]:
    """A load in turns on one segment, and on ``segments`` of the same container."""
    names = [f"bench/many-{number:05d}" for number in range(segments)]
    size = len(load.items[0])
    config = tierlog.StoreConfig(writer=WriterConfig(flush_age=flush_age))
    async with store_in(setting.fresh("segments"), config=config) as store:
        await _create(store, [SEGMENT, *names])
        position = 0

        def spread(item: bytes) -> Awaitable[int | None]:
            nonlocal position
            position += 1
            return store.append(names[position % len(names)], item)

        def measure(append: Append, segments: list[str]) -> Measure:
            async def rate() -> float:
                before = await _total(store, segments)
                seconds, _ = await load.drive(append)
                if await _total(store, segments) - before != load.total * size:
                    raise BenchmarkError("the segments did not grow by what was acked")
                return load.total / seconds

            return rate

        return await alternate(
            setting,
            measure(spread, names),
            measure(lambda item: store.append(SEGMENT, item), [SEGMENT]),
            rounds,
        )


async def _create(store: tierlog.SegmentStore, names: Sequence[str]) -> None:
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(store.create_segment, name)


async def _total(store: tierlog.SegmentStore, names: Sequence[str]) -> int:
    return sum([(await store.segment_info(name)).length for name in names])


_FLUSH = (
    "Flush cycles run in the background as by default; what a round leaves unflushed is flushed off "
    "the clock."
)
_CEILING = (
    "the bare loop: frame, CRC32C, one event per append, one pwritev and one fdatasync per group in "
    "a worker thread"
)

BENCHMARKS = (
    Benchmark(
        "append_1k",
        "appends of 1 KiB, 256 in flight",
        f"One segment of one container, against {_CEILING}. {_FLUSH}",
        "appends/s",
        0.65,
        append_1k,
    ),
    Benchmark(
        "append_1k_sqlite",
        "appends of 1 KiB, 256 in flight, against SQLite",
        "As append_1k, against a table of SQLite (WAL, synchronous = FULL) with a queue in front: the "
        "appends that wait during a commit are the next transaction.",
        "appends/s",
        1.0,
        append_1k_sqlite,
    ),
    Benchmark(
        "append_1k_64",
        "appends of 1 KiB, 64 in flight",
        "As append_1k, with smaller groups.",
        "appends/s",
        0.5,
        append_1k_64,
    ),
    Benchmark(
        "append_many",
        "batches of 200 x 1 KiB, 4 in flight",
        f"append_many, against the bare loop with one frame and one event per batch, joined before the "
        f"clock starts. {_FLUSH}",
        "events/s",
        0.6,
        append_many,
    ),
    Benchmark(
        "append_256k",
        "appends of 256 KiB, 16 in flight",
        f"Against {_CEILING}. {_FLUSH}",
        "MB/s",
        0.8,
        append_256k,
    ),
    Benchmark(
        "sequential",
        "one writer, 1 KiB, p50 latency",
        "Each append waits for the one before, against the bare loop's p50 with one writer.",
        "ms",
        1.5,
        sequential,
        lower_is_better=True,
    ),
    Benchmark(
        "segments_1000",
        "appends of 1 KiB over 1,000 segments, 256 in flight",
        "Against the same load on one segment of the same container. The one segment is flushed as it "
        "grows, the many are not yet due.",
        "appends/s",
        0.85,
        segments_1000,
    ),
    Benchmark(
        "segments_at_once",
        "appends of 100 bytes, one in flight for each of 5,000 segments",
        "Or of as many segments as --segments says, up to 24,999: with the one of the reference as many as "
        "stay in memory by default. Against as many appends in flight to one segment of the same container. "
        "Too young and too small to be flushed.",
        "appends/s",
        0.7,
        segments_at_once,
    ),
)
