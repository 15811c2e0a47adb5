"""Benchmarks of a container with very many segments: creating them, opening it, its memory and its
checkpoint, and appends to segments that have left memory.

Two stores are made once and serve all of these benchmarks: one with ``--segments`` segments, and one with
1,000, the reference. Both end with the same tail of the log. A process of its own opens them for each figure.
Fewer than 25,000 segments may stay in memory, so that most are cold at small sizes too.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

import tierlog
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, quantile, store_in
from benchmarks.segments_process import DATA, name_of, statistics_of
from tierlog.actors.settings.configuration import CheckpointConfig, SegmentsConfig

SEGMENTS = 10_000
FEW = 1_000
BATCH = 1_000
APPENDS = 400
TAIL = 2_000
"""Appends in the log since its last checkpoint."""
_PER_FLUSH = 50_000


def _active_max(setting: Setting) -> int:
    return min(25_000, max(FEW, _count(setting) // 10))


def _count(setting: Setting) -> int:
    return setting.segments or setting.size(SEGMENTS, 1_500)


async def create(setting: Setting) -> Sequence[Pair]:
    count = setting.size(20_000, 200)

    async def value() -> float:
        async with store_in(setting.fresh("create")) as store:
            begin = time.perf_counter()
            await _create(store, 0, count)
            seconds = time.perf_counter() - begin
            if len(await store.list_segments()) != count:
                raise BenchmarkError("a segment that was created is not there")
        return count / seconds

    async def reference() -> float:
        return await anyio.to_thread.run_sync(_insert, f"{setting.fresh('sqlite')}/names.db", count)

    return await alternate(setting, value, reference, 5)


def _insert(path: str, count: int) -> float:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE segments (name TEXT PRIMARY KEY, id INTEGER) WITHOUT ROWID")
        begin = time.perf_counter()
        for start in range(0, count, BATCH):
            with database:
                names = ((name_of(number), number) for number in range(start, min(start + BATCH, count)))
                database.executemany("INSERT INTO segments VALUES (?, ?)", names)
        return count / (time.perf_counter() - begin)


async def _create(store: tierlog.SegmentStore, first: int, end: int) -> None:
    for start in range(first, end, BATCH):
        async with anyio.create_task_group() as tasks:
            for number in range(start, min(start + BATCH, end)):
                tasks.start_soon(store.create_segment, name_of(number))


# --- two stores, opened by processes of their own -----------------------------------------------


async def many_segments(setting: Setting, count: int) -> str:
    """A store with ``count`` segments, made by the first benchmark that needs it."""
    folder = setting.shared(f"segments-{count}")
    if os.path.exists(folder):
        return folder

    making = f"{folder}-unfinished"
    # Checkpoints of short logs too, so that an opening does not replay the creations.
    config = tierlog.StoreConfig(
        segments=SegmentsConfig(active_max=_active_max(setting)),
        checkpoint=CheckpointConfig(wal_bytes=1 << 20),
    )
    async with store_in(making, config=config) as store:
        for start in range(0, count, _PER_FLUSH):
            setting.progress(f"creating {count:,} segments: {start:,}")
            await _create(store, start, min(start + _PER_FLUSH, count))
            await store.flush()
        await _wait_for_unloading(store, setting)
        await _log_checkpoint(store)
    async with store_in(making) as store:
        for _ in range(TAIL // BATCH):
            async with anyio.create_task_group() as tasks:
                for _ in range(BATCH):
                    tasks.start_soon(store.append, name_of(0), DATA)
    os.rename(making, folder)
    return folder


async def _wait_for_unloading(store: tierlog.SegmentStore, setting: Setting) -> None:
    with anyio.move_on_after(60):
        while statistics_of(store).active_segments > _active_max(setting):
            await store.append(name_of(0), DATA)  # what is logged makes the container look for idle ones
            await anyio.sleep(0.05)


async def _log_checkpoint(store: tierlog.SegmentStore) -> None:
    """Append until a checkpoint is written: the one before has creations after it, which openings would
    replay."""
    before = statistics_of(store).checkpoints.checkpoints
    with anyio.fail_after(120):
        while statistics_of(store).checkpoints.checkpoints == before:
            await store.append(name_of(0), bytes(256 << 10))
    await store.flush()


async def open_segments(setting: Setting, count: int, appends: int = 0) -> dict[str, Any]:
    folder = await many_segments(setting, count)
    arguments = map(str, (folder, count, _active_max(setting), appends, setting.backend))
    command = [sys.executable, str(Path(__file__).with_name("segments_process.py")), *arguments]
    run = partial(subprocess.run, command, capture_output=True, text=True, check=False)
    done = await anyio.to_thread.run_sync(run)
    if done.returncode:
        raise BenchmarkError(f"the measured process ended with {done.returncode}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    if found["segments"] != count:
        raise BenchmarkError(f"the store has {found['segments']} segments, not {count}")
    return found


async def open_many(setting: Setting) -> Sequence[Pair]:
    async def measure(count: int) -> float:
        return float((await open_segments(setting, count))["seconds"]) * 1000

    return await alternate(
        setting, partial(measure, _count(setting)), partial(measure, min(FEW, _count(setting))), 5
    )


async def memory(setting: Setting) -> Sequence[Pair]:
    return await _compare(setting, "memory")


async def checkpoint(setting: Setting) -> Sequence[Pair]:
    return await _compare(setting, "checkpoint_bytes")


async def _compare(setting: Setting, what: str) -> Sequence[Pair]:
    """A number of megabytes, which does not depend on the time."""
    few, many = [
        await open_segments(setting, count) for count in (min(FEW, _count(setting)), _count(setting))
    ]
    return [Pair(many[what] / 1e6, few[what] / 1e6)]


async def cold_append(setting: Setting) -> Sequence[Pair]:
    found = await _cold(setting)
    return [Pair(quantile(found["cold"], 0.99) * 1000, quantile(found["warm"], 0.99) * 1000)]


async def cold_reads(setting: Setting) -> Sequence[Pair]:
    """The reference is one read for each."""
    found = await _cold(setting)
    return [Pair(max(found["reads"], 1) / len(found["cold"]), 1)]


async def _cold(setting: Setting) -> dict[str, Any]:
    found = await open_segments(setting, _count(setting), setting.size(APPENDS, 20))
    if not found["cold"]:
        raise BenchmarkError("no segment was cold")
    return found


_STORES = (
    "Of a container with as many segments as --segments says (default 10,000), without bytes but for one of "
    "them, and 2,000 appends in the log since its last checkpoint."
)
BENCHMARKS = (
    Benchmark(
        "segments_create",
        "segments created in batches of 1,000",
        "20,000 segments, each acked when it is durable. Against inserting the same names into SQLite (WAL "
        "mode, FULL sync), 1,000 in a transaction.",
        "segments/s",
        5_000,
        create,
        goal_of="value",
    ),
    Benchmark(
        "segments_open",
        "open to the first ack with very many segments",
        f"{_STORES} Against 1,000 segments and the same tail. In fresh processes that have imported tierlog.",
        "ms",
        1.5,
        open_many,
        lower_is_better=True,
    ),
    Benchmark(
        "segments_memory",
        "resident memory with very many segments",
        f"{_STORES} The whole process after its first ack, against one with 1,000 segments.",
        "MB",
        250,
        memory,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "segments_checkpoint",
        "the checkpoint of an idle container with very many segments",
        f"{_STORES} Against 1,000 segments.",
        "MB",
        20,
        checkpoint,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "segments_cold_append",
        "the first append to a segment that left memory, p99",
        f"{_STORES} One after the other, from the local disk. Against the append after it, which finds the "
        "segment in memory.",
        "ms",
        20,
        cold_append,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "segments_cold_reads",
        "reads of runs for such an append",
        "Their mean, with those of tails, which are read once. Against one read.",
        "reads",
        2,
        cold_reads,
        lower_is_better=True,
        goal_of="value",
    ),
)
