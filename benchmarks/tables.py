"""Benchmarks of tables: puts in batches, against SQLite and SlateDB."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import anyio
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

    async def reference() -> float:
        return await anyio.to_thread.run_sync(_insert, f"{setting.fresh('sqlite')}/rows.db", batches)

    return await alternate(setting, lambda: _put(setting.fresh("table"), batches), reference, 5)


async def put_beside_slatedb(setting: Setting) -> Sequence[Pair]:
    batches = _batches(setting.size(PUTS, 1_000))

    async def reference() -> float:
        # Its binding is for asyncio, whatever the store runs on.
        call = partial(anyio.run, _put_into_slatedb, setting.fresh("slatedb"), batches)
        return await anyio.to_thread.run_sync(call)

    return await alternate(setting, lambda: _put(setting.fresh("table"), batches), reference, 5)


async def _put(folder: str, batches: Sequence[dict[bytes, bytes]]) -> float:
    async with store_in(folder) as store:
        await store.create_table(TABLE)
        table = store.table(TABLE)
        begin = time.perf_counter()
        for batch in batches:
            await table.put_many(batch)
        seconds = time.perf_counter() - begin
        found = await table.get_many(batches[-1])
        _check([row and row.value for row in found], batches)
    return sum(map(len, batches)) / seconds


def _check(found: Sequence[bytes | None], batches: Sequence[dict[bytes, bytes]]) -> None:
    if list(found) != list(batches[-1].values()):
        raise BenchmarkError("a row that was put is not there")


def _missing_slatedb() -> str:
    return "" if find_spec("slatedb") else "SlateDB is not installed: the extra `bench` has it"


async def _put_into_slatedb(folder: str, batches: Sequence[dict[bytes, bytes]]) -> float:
    slatedb: Any = import_module("slatedb.uniffi")
    settings = slatedb.Settings.default()
    # A batch waits for the next flush of its log: by default those are 100 ms apart.
    settings.set("flush_interval", '"1ms"')
    builder = slatedb.DbBuilder(folder.lstrip("/"), slatedb.ObjectStore.resolve("file:///"))
    builder.with_settings(settings)
    database = await builder.build()
    try:
        begin = time.perf_counter()
        for batch in batches:
            rows = slatedb.WriteBatch()
            for key, value in batch.items():
                rows.put(key, value)
            await (await database.write(rows)).await_durable()
        seconds = time.perf_counter() - begin
        _check([await database.get(key) for key in batches[-1]], batches)
    finally:
        await database.shutdown()
    return sum(map(len, batches)) / seconds


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
    Benchmark(
        "table_put_slatedb",
        "the same puts, against SlateDB",
        "As table_put. SlateDB has a local folder as its object store, where it syncs no file to disk; it "
        "flushes its log every millisecond, and each batch waits until it calls it durable.",
        "puts/s",
        1.0,
        put_beside_slatedb,
        missing=_missing_slatedb,
    ),
)
