"""Benchmarks of a boot from long-term storage: the log is lost, and no element of the journal was ever
deleted, because garbage collection was blocked. The elements lie in a folder, or in an object server whose
answers take 20 ms.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import anyio
import attrs

import tierlog
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, store_in
from benchmarks.s3 import BUCKET, missing, server, storage_at
from tierlog import StoreConfig
from tierlog.actors.settings.configuration import S3Config
from tierlog.actors.store.folder_opening import system_world
from tierlog.journal.manifest.chain import element_name, list_elements
from tierlog.journal.manifest.element import Element, position_of
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles

ELEMENTS = 10_000
LATENCY = 0.02
"""Seconds."""
IN_FLIGHT = 64
SEGMENT = "bench/boot"
_Place = AbstractAsyncContextManager[tuple[StoreConfig, ChunkStorage]]


async def boot(setting: Setting) -> Sequence[Pair]:
    return await _boot(setting, _in_folder)


async def boot_s3(setting: Setting) -> Sequence[Pair]:
    return await _boot(setting, _in_bucket)


async def _boot(setting: Setting, place: Callable[[str], _Place]) -> Sequence[Pair]:
    """Against a chain of two elements."""
    count = setting.size(ELEMENTS, 100)
    long, short = setting.fresh("long"), setting.fresh("short")
    async with place(long) as (long_config, chunks), place(short) as (short_config, _):
        for folder, config in (long, long_config), (short, short_config):
            async with store_in(folder, config=config) as store:
                await store.create_segment(SEGMENT)
                await store.flush()
        setting.progress(f"adding {count:,} elements")
        await _lengthen(chunks, count)
        return await alternate(
            setting, partial(_measure, long, long_config, count), partial(_measure, short, short_config), 3
        )


async def _lengthen(chunks: ChunkStorage, count: int) -> None:
    """Go on with the chain up to element ``count``."""
    newest = element_name(0, (await list_elements(chunks, 0))[-1])
    content = await chunks.read(newest, 0, (await chunks.info(newest)).length)
    element = Element.decode(content)
    limit = anyio.Semaphore(IN_FLIGHT)

    async def put(name: str, content: bytes) -> None:
        async with limit:
            await chunks.create_with_content(name, [content])

    async with anyio.create_task_group() as tasks:
        while element.n < count:
            element = attrs.evolve(element, n=element.n + 1, predecessor=position_of(content))
            content = element.encode()
            tasks.start_soon(put, element_name(0, element.n), content)


async def _measure(folder: str, config: StoreConfig, elements: int = 0) -> float:
    """Milliseconds from the opening to the first ack."""
    shutil.rmtree(f"{folder}/wal/0000")
    shutil.rmtree(f"{folder}/cache", ignore_errors=True)
    begin = time.perf_counter()
    async with tierlog.open_store(folder, containers=1, config=config, recover_from_lts=True) as store:
        await store.append(SEGMENT, b"first")
        seconds = time.perf_counter() - begin
        current = store.statistics().containers[0].current
        if current is None or current.journal.head <= elements:
            raise BenchmarkError(f"the chain was not found: {current and current.journal}")
    return seconds * 1000


@asynccontextmanager
async def _in_folder(folder: str) -> AsyncIterator[tuple[StoreConfig, ChunkStorage]]:
    chunks = FileSystemChunkStorage(LocalFiles(), f"{folder}/lts", system_world())
    await chunks.open()
    try:
        yield StoreConfig(), chunks
    finally:
        await chunks.close()


@asynccontextmanager
async def _in_bucket(folder: str) -> AsyncIterator[tuple[StoreConfig, ChunkStorage]]:
    with server(str(LATENCY)) as url:
        async with storage_at(url) as chunks:
            yield StoreConfig(chunks=f"s3://{BUCKET}/bench/", s3=S3Config(endpoint=url)), chunks


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
