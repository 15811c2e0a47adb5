"""Benchmarks of tables: puts in batches, against SQLite."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing

import anyio.to_thread

from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, store_in

TABLE = "bench/rows"
BATCH = 100
PUTS = 30_000


def _batches(count: int) -> list[dict[bytes, bytes]]:
    """Keys of 20 bytes in random order, each once, with values of 100 bytes."""
    numbers = list(range(count))
    random.Random(7).shuffle(numbers)
    values = [os.urandom(100) for _ in range(64)]
    return [
        {b"key-%016x" % number: values[number % 64] for number in numbers[start : start + BATCH]}
        for start in range(0, count, BATCH)
    ]


async def put(setting: Setting) -> Sequence[Pair]:
    batches = _batches(setting.size(PUTS, 1_000))
    count = sum(map(len, batches))

    async def value() -> float:
        async with store_in(setting.fresh("table")) as store:
            await store.create_table(TABLE)
            table = store.table(TABLE)
            begin = time.perf_counter()
            for batch in batches:
                await table.put_many(batch)
            seconds = time.perf_counter() - begin
            found = await table.get_many(batches[-1])
            if [row and row.value for row in found] != list(batches[-1].values()):
                raise BenchmarkError("a row that was put is not there")
        return count / seconds

    async def reference() -> float:
        return await anyio.to_thread.run_sync(_insert, f"{setting.fresh('sqlite')}/rows.db", batches)

    return await alternate(setting, value, reference, 5)


def _insert(path: str, batches: Sequence[dict[bytes, bytes]]) -> float:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE rows (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        begin = time.perf_counter()
        for batch in batches:
            with database:
                database.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", batch.items())
        return sum(map(len, batches)) / (time.perf_counter() - begin)


BENCHMARKS = (
    Benchmark(
        "table_put",
        "puts into a table in batches of 100, one after the other",
        "30,000 new keys of 20 bytes with values of 100, in random order; each batch is acked when it is "
        "durable. Against SQLite (WAL mode, FULL sync), with a transaction for each batch.",
        "puts/s",
        15_000,
        put,
        goal_of="value",
    ),
)
