"""Benchmarks of a boot from long-term storage: the log is lost, and no element of the journal was ever
deleted, because garbage collection was blocked. The elements lie in a folder, or in an object server whose
answers take 20 ms.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import attrs

import tierlog
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, store_in
from benchmarks.s3 import missing, server, storage_at
from tierlog.journal.manifest.chain import element_name, journal_prefix
from tierlog.journal.manifest.element import Element, position_of
from tierlog.storage_backends.base.chunk_storage import ChunkStorage

ELEMENTS = 10_000
LATENCY = 0.02
"""Seconds."""
SEGMENT = "bench/boot"
_Storage = AbstractAsyncContextManager[ChunkStorage | None]


async def boot(setting: Setting) -> Sequence[Pair]:
    return await _boot(setting, _no_server)


async def boot_s3(setting: Setting) -> Sequence[Pair]:
    return await _boot(setting, _object_server)


async def _boot(setting: Setting, serve: Callable[[str], _Storage]) -> Sequence[Pair]:
    """Against a chain of two elements."""
    count = setting.size(ELEMENTS, 100)
    long, short = setting.fresh("long"), setting.fresh("short")
    for folder in long, short:
        async with store_in(folder) as store:
            await store.create_segment(SEGMENT)
            await store.flush()
    _lengthen(f"{long}/lts/", count)
    async with serve(f"{long}/lts") as of_long, serve(f"{short}/lts") as of_short:
        return await alternate(
            setting, partial(_measure, long, of_long, count), partial(_measure, short, of_short), 3
        )


def _lengthen(storage: str, count: int) -> None:
    """Go on with the chain in a folder up to element ``count``."""
    newest = max(os.listdir(storage + journal_prefix(0)))
    with open(storage + journal_prefix(0) + newest, "rb") as stream:
        content = stream.read()
    element = Element.decode(content)
    while element.n < count:
        element = attrs.evolve(element, n=element.n + 1, predecessor=position_of(content))
        content = element.encode()
        with open(storage + element_name(0, element.n), "xb") as stream:
            stream.write(content)


async def _measure(folder: str, storage: ChunkStorage | None, elements: int = 0) -> float:
    """Milliseconds from the opening to the first ack."""
    shutil.rmtree(f"{folder}/wal/0000")
    begin = time.perf_counter()
    async with tierlog.open_store(folder, containers=1, storage=storage, adopt=True) as store:
        await store.create_segment(SEGMENT)
        await store.append(SEGMENT, b"first")
        seconds = time.perf_counter() - begin
        current = store.statistics().containers[0].current
        if current is None or current.journal.head <= elements:
            raise BenchmarkError(f"the chain was not found: {current and current.journal}")
    return seconds * 1000


@asynccontextmanager
async def _no_server(folder: str) -> AsyncIterator[None]:
    """The store's own folder."""
    yield None


@asynccontextmanager
async def _object_server(folder: str) -> AsyncIterator[ChunkStorage]:
    with server(str(LATENCY), folder) as url:
        async with storage_at(url) as storage:
            yield storage


_DETAIL = (
    "Open to the first ack of a container without its log, whose journal has 10,000 elements{where}. Against "
    "a journal of two elements."
)
BENCHMARKS = (
    Benchmark(
        "chain_boot",
        "open without the log, with 10,000 elements in the journal",
        _DETAIL.format(where=" in a folder"),
        "ms",
        2_000,
        boot,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "chain_boot_s3",
        "the same in S3, with 20 ms a request",
        _DETAIL.format(where=" in an object server whose answers take 20 ms each"),
        "ms",
        5_000,
        boot_s3,
        lower_is_better=True,
        goal_of="value",
        missing=missing,
    ),
)
