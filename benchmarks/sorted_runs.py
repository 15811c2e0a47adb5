"""Benchmarks of sorted runs: encoding, lookups, merges, and the memory of a table of a million rows.

The rows are like those of a container's metadata: keys of 18 bytes that begin alike, values of 60. SQLite is
the reference, in the same process, with the same rows.
"""

from __future__ import annotations

import random
import sqlite3
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial

import anyio

from benchmarks.appends import Load
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, payloads, store_in
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.sorted_runs import merge_helper
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.storage_backends.sorted_runs.compaction_policy import next_merge
from tierlog.storage_backends.sorted_runs.encoder import RunEncoder
from tierlog.storage_backends.sorted_runs.local_copies import LocalCopies
from tierlog.storage_backends.sorted_runs.lookup import find_row, find_rows
from tierlog.storage_backends.sorted_runs.merge import MergeOrder
from tierlog.storage_backends.sorted_runs.reader import RunReader, StoredRuns
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.table import Table

ROWS = 1_000_000
RUNS = 10
LOOKUPS = 20_000
CYCLES = 2_000
SEGMENT = "bench/appends"
CACHE = 32 << 20
VALUE = bytes(range(60))
_CREATE = "CREATE TABLE rows (key BLOB PRIMARY KEY, version INTEGER, value BLOB) WITHOUT ROWID"
_INSERT = "INSERT INTO rows VALUES (?, ?, ?)"
_SELECT = "SELECT version, value FROM rows WHERE key = ?"


def _key(number: int) -> bytes:
    return b"g/%016x" % number


def _rows(start: int, count: int, step: int = 1) -> list[Row]:
    return [Row(_key(start + number * step), number + 1, VALUE) for number in range(count)]


async def encode(setting: Setting) -> Sequence[Pair]:
    rows = _rows(0, setting.size(200_000, 2000))

    async def value() -> float:
        begin = time.thread_time()
        encoder = RunEncoder("runs/1")
        for row in rows:
            encoder.add(row)
        run = encoder.finish()
        seconds = time.thread_time() - begin
        if run.summary.rows != len(rows) or sum(map(len, encoder.take())) != run.length:
            raise BenchmarkError("rows are missing from the run")
        return len(rows) / seconds

    async def reference() -> float:
        with closing(sqlite3.connect(":memory:")) as database:
            database.execute(_CREATE)
            begin = time.thread_time()
            with database:
                database.executemany(_INSERT, rows)
            return len(rows) / (time.thread_time() - begin)

    return await alternate(setting, value, reference, 5)


async def _table(setting: Setting, rows: int) -> tuple[Table, RunReader, LocalCopies]:
    """A table of ``rows`` rows in ten runs that lie on the local disk, each over the whole range of keys."""
    chunks = MemoryChunkStorage()
    copies = LocalCopies(LocalFiles(), setting.fresh("runs"), StoredRuns(chunks))
    await copies.open(())
    entries = []
    for number in range(RUNS):
        encoder = RunEncoder(f"runs/{number}")
        for row in _rows(number, rows // RUNS, RUNS):
            encoder.add(row)
        run = RunEntry.of(encoder.finish(), number + 1, number + 1)
        await copies.add(run, encoder.take())
        entries.append(run)
    return Table(RunList(entries)), RunReader(copies, BlockCache(CACHE)), copies


async def lookup(setting: Setting) -> Sequence[Pair]:
    count = setting.size(ROWS, 2000)
    table, reader, _ = await _table(setting, count)
    for run in table.runs:
        await reader.tail(run)
    dice = random.Random(7)
    # Lookups favour a part of the keys that fits into the cache, as those of a store do.
    keys = [_key(dice.randrange(count // 10)) for _ in range(setting.size(LOOKUPS, 100))]

    async def value() -> float:
        with table.view() as view:
            begin = time.thread_time()
            for key in keys:
                if await find_row(view, reader, key) is None:
                    raise BenchmarkError("a row is missing")
            return len(keys) / (time.thread_time() - begin)

    path = f"{setting.fresh('sqlite')}/rows.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA cache_size = -{CACHE >> 10}")
        database.execute(_CREATE)
        with database:
            database.executemany(_INSERT, _rows(0, count))

        async def reference() -> float:
            begin = time.thread_time()
            for key in keys:
                if database.execute(_SELECT, (key,)).fetchone() is None:
                    raise BenchmarkError("a row is missing from SQLite")
            return len(keys) / (time.thread_time() - begin)

        return await alternate(setting, value, reference, 5)


async def _merge(table: Table, copies: LocalCopies, files: LocalFiles) -> None:
    order = MergeOrder(copies.folder, [[run] for run in table.runs], 0, "merged")
    runs = await merge_helper.merge(order, files)
    if sum(run.summary.rows for run in runs) != sum(run.summary.rows for run in table.runs):
        raise BenchmarkError("a merge has lost rows")


async def merge_beside(setting: Setting) -> Sequence[Pair]:
    """Wake-ups of a task of the same loop."""
    files = LocalFiles()
    table, _, copies = await _table(setting, setting.size(ROWS // 4, 2000))
    seconds = setting.size(3, 1) / 3

    async def merge_once() -> None:
        await _merge(table, copies, files)

    async def wait() -> None:
        await anyio.sleep(seconds)

    async def wake_ups(act: Callable[[], Awaitable[None]]) -> float:
        count = 0

        async def wake_up() -> None:
            nonlocal count
            while True:
                await anyio.sleep(0.001)
                count += 1

        begin = time.perf_counter()
        async with anyio.create_task_group() as group:
            group.start_soon(wake_up)
            await act()
            group.cancel_scope.cancel()
        return count / (time.perf_counter() - begin)

    return await alternate(setting, partial(wake_ups, merge_once), partial(wake_ups, wait), 5)


async def appends_beside(setting: Setting) -> Sequence[Pair]:
    """Merges follow each other as long as the appends take."""
    files = LocalFiles()
    table, _, copies = await _table(setting, setting.size(ROWS // 4, 2000))
    load = Load(256, setting.size(40_960, 512), payloads(1024))

    async with store_in(setting.fresh("store")) as store:
        await store.create_segment(SEGMENT)

        async def append_all() -> float:
            seconds, _ = await load.drive(partial(store.append, SEGMENT))
            return load.total / seconds

        async def merge_on() -> None:
            while True:
                await _merge(table, copies, files)

        async def value() -> float:
            async with anyio.create_task_group() as group:
                group.start_soon(merge_on)
                rate = await append_all()
                group.cancel_scope.cancel()
            return rate

        return await alternate(setting, value, append_all, 5)


async def amplification(setting: Setting) -> Sequence[Pair]:
    """Runs are rows and encoded lengths, without files: only the policy decides what is written."""
    dice = random.Random(7)
    held: dict[RunEntry, dict[bytes, Row]] = {}
    runs = RunList()
    published = merged = new = 0
    for cycle in range(1, setting.size(CYCLES, 100) + 1):
        numbers = [dice.randrange(new + 1) for _ in range(50)] + list(range(new, new + 50))
        new += 50
        rows = {key: Row(key, cycle, VALUE) for key in map(_key, numbers)}
        run = _encoded(rows, cycle, cycle)
        held[run] = rows
        published += run.length
        runs = runs.published([run], 0)
        while (merge := next_merge(runs)) is not None:
            rows = {}
            for run in reversed(merge.runs):  # the newest last
                rows |= held.pop(run)
            run = _encoded(rows, merge.runs[-1].first_cycle, merge.runs[0].last_cycle)
            held[run] = rows
            merged += run.length
            runs = merge.applied_to(runs, [run])
    if len(set[bytes]().union(*held.values())) != new:
        raise BenchmarkError("rows are missing from the merged runs")

    return [Pair((published + merged) / 1e6, published / 1e6)]


def _encoded(rows: dict[bytes, Row], first_cycle: int, last_cycle: int) -> RunEntry:
    encoder = RunEncoder(f"runs/{first_cycle}-{last_cycle}")
    for key in sorted(rows):
        encoder.add(rows[key])
    return RunEntry.of(encoder.finish(), first_cycle, last_cycle)


async def memory(setting: Setting) -> Sequence[Pair]:
    count = setting.size(ROWS, 2000)
    table, _, copies = await _table(setting, count)
    dice = random.Random(7)

    async def value() -> float:
        fresh = RunReader(copies, BlockCache(CACHE))
        tracemalloc.start()
        try:
            with table.view() as view:
                for _ in range(count // 200):
                    await find_rows(view, fresh, (_key(dice.randrange(count)) for _ in range(20)))
            return tracemalloc.get_traced_memory()[0] / 1e6
        finally:
            tracemalloc.stop()

    async def reference() -> float:
        tracemalloc.start()
        try:
            rows = {row.key: (row.version, bytes(bytearray(VALUE))) for row in _rows(0, count)}
            if len(rows) != count:
                raise BenchmarkError("rows are missing from the dict")
            return tracemalloc.get_traced_memory()[0] / 1e6
        finally:
            tracemalloc.stop()

    return await alternate(setting, value, reference, 1)


BENCHMARKS = (
    Benchmark(
        "sorted_run_encode",
        "rows encoded as a sorted run, one after the other",
        "Keys of 18 bytes, values of 60, in order, in memory. Against inserting the same rows into a table "
        "of SQLite in memory, in one transaction. Processor time of the thread.",
        "rows/s",
        0.2,
        encode,
    ),
    Benchmark(
        "sorted_run_lookup",
        "lookups in a table of 1,000,000 rows in ten runs",
        "Random keys of a tenth of the table, each found in one of ten runs that all cover it, from the "
        "local disk through a cache of 32 MiB. Against SQLite with the same rows in a file and the same size "
        "of cache. Processor time of the thread.",
        "lookups/s",
        0.1,
        lookup,
    ),
    Benchmark(
        "sorted_run_merge",
        "turns of the event loop beside a merge of ten runs",
        "Wake-ups a second of a task that sleeps for a millisecond, while a helper process merges 250,000 "
        "rows. Against the same task alone.",
        "wake-ups/s",
        0.85,
        merge_beside,
    ),
    Benchmark(
        "sorted_run_appends",
        "appends of 1 KiB beside merges of ten runs",
        "256 in flight to one segment, while a helper process merges 250,000 rows over and over. Against the "
        "same appends alone.",
        "appends/s",
        0.85,
        appends_beside,
    ),
    Benchmark(
        "sorted_run_amplification",
        "bytes written for a table of 2,000 cycles, each of 100 rows",
        "Half of the rows of a cycle are new, the others have keys of earlier ones. Encoded in memory, by "
        "cycles and by the merges that are due after them. Against the bytes that the cycles write.",
        "MB",
        5.0,
        amplification,
        lower_is_better=True,
    ),
    Benchmark(
        "sorted_run_memory",
        "memory of a table of 1,000,000 rows with a full cache of 32 MiB",
        "Python's memory for tails and blocks after 100,000 random lookups. Against a dict with the same "
        "rows.",
        "MB",
        100.0,
        memory,
        lower_is_better=True,
        goal_of="value",
    ),
)
