"""Benchmarks of recovering a store from its long-term storage alone, and of verifying that both agree."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio.to_thread

from benchmarks.garbage import PATIENT, make_chunks, make_files
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, store_in
from benchmarks.history import forget_pages, no_fadvise
from benchmarks.reading import chunk_files, fill, read_files
from benchmarks.segments import many_segments, open_segments
from benchmarks.starting import run_program
from tierlog.actors.maintenance.verify import StoreVerification, verify_store
from tierlog.actors.store.read_only import open_reader

_RECOVER = """\
import contextlib, io, runpy, sys

try:
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_module("tierlog", run_name="__main__", alter_sys=True)
except SystemExit as end:
    if end.code:
        raise
with open("/proc/self/status", encoding="ascii") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""
"""Runs the command and prints the most memory that it had, in KiB. The usage that the kernel reports to the
parent is at least the parent's own at the start."""
SEGMENTS = 100_000
CHUNKS = 20_000


# --- recovery -----------------------------------------------------------------------------------


async def recovery_seconds(setting: Setting) -> Sequence[Pair]:
    """Against opening the store with its log."""
    count = _segments(setting)

    async def value() -> float:
        return (await _recover(setting, count))[0]

    async def reference() -> float:
        return float((await open_segments(setting, count))["seconds"])

    return await alternate(setting, value, reference, 3)


async def recovery_memory(setting: Setting) -> Sequence[Pair]:
    count = _segments(setting)
    await _recover(setting, count)  # Afterwards the bytecode is cached: to compile takes memory too.
    _, most = await _recover(setting, count)
    return [Pair(most / 1e6, float((await open_segments(setting, count))["memory"]) / 1e6)]


def _segments(setting: Setting) -> int:
    return setting.segments or setting.size(SEGMENTS, 1_500)


async def _recover(setting: Setting, count: int) -> tuple[float, int]:
    """The seconds that the command takes, and the most bytes of memory that its process had."""
    store = await many_segments(setting, count)
    folder = Path(setting.fresh("recovery"))
    shutil.copytree(f"{store}/lts", folder / "lts")
    try:
        seconds, most = await anyio.to_thread.run_sync(partial(_run_recovery, setting, folder))
        async with store_in(str(folder)) as recovered:
            found = len(await recovered.list_segments())
            if found != count:
                raise BenchmarkError(f"{found} of {count} segments were recovered")
    finally:
        shutil.rmtree(folder)
    return seconds, most


def _run_recovery(setting: Setting, folder: Path) -> tuple[float, int]:
    begin = time.perf_counter()
    memory = run_program(setting.folder, _RECOVER, "recover", "--from-lts", "--data", str(folder), "--json")
    return time.perf_counter() - begin, int(memory) * 1024


# --- verification -------------------------------------------------------------------------------


async def verify_listing(setting: Setting) -> Sequence[Pair]:
    count, folder = setting.size(CHUNKS, 300), setting.fresh("verify")
    async with store_in(folder, config=PATIENT) as store:
        paths = [Path(folder, "lts", name) for name in await make_chunks(store, count)]
        await anyio.to_thread.run_sync(make_files, paths)

    async def value() -> float:
        begin = time.perf_counter()
        found = await _verify(folder, deep=False)
        seconds = time.perf_counter() - begin
        if not found.sound or found.chunks.chunks != count:
            raise BenchmarkError(f"{found.chunks.chunks} of {count} chunks were verified: {found.problems}")
        return count / seconds

    async def reference() -> float:
        begin = time.perf_counter()
        found = sum(path.stat().st_size for path in paths)
        if found != count:
            raise BenchmarkError(f"the chunks have {found} bytes, not {count}")
        return count / (time.perf_counter() - begin)

    return await alternate(setting, value, reference, 5)


async def verify_deep(setting: Setting) -> Sequence[Pair]:
    size, folder = setting.size(192 << 20, 16 << 20), setting.fresh("deep")
    await fill(folder, size)
    paths = chunk_files(f"{folder}/lts", size)

    def forget_all() -> None:
        for path in paths:
            forget_pages(path)

    async def value() -> float:
        forget_all()
        begin = time.perf_counter()
        found = await _verify(folder, deep=True)
        seconds = time.perf_counter() - begin
        if not found.sound or found.chunks.bytes != size:
            raise BenchmarkError(f"{found.chunks.bytes} of {size} bytes were verified: {found.problems}")
        return size / seconds / 1e6

    async def reference() -> float:
        forget_all()
        return await read_files(paths, size, keep=False)

    return await alternate(setting, value, reference, 5)


async def _verify(folder: str, *, deep: bool) -> StoreVerification:
    async with open_reader(folder) as view:
        return await verify_store(view, deep=deep)


BENCHMARKS = (
    Benchmark(
        "lts_recovery",
        "recovery of 100,000 segments from long-term storage alone",
        "`tierlog recover --from-lts`, in a process of its own, of a container with as many segments as "
        "--segments says (default 100,000), without bytes. Against opening the same store with its log.",
        "s",
        5,
        recovery_seconds,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "lts_recovery_memory",
        "the most memory that this recovery has",
        "Of the whole process. Against an open store with as many segments.",
        "MB",
        1.5,
        recovery_memory,
        lower_is_better=True,
    ),
    Benchmark(
        "verify_listing",
        "`tierlog verify`, without reading the chunks",
        "20,000 chunks of one segment, in a folder. Against the sizes of as many files, in one thread.",
        "chunks/s",
        10_000,
        verify_listing,
        goal_of="value",
    ),
    Benchmark(
        "verify_deep",
        "`tierlog verify --deep`",
        "Chunks of one segment, not in the page cache, with all checksums. Against reading the same files in "
        "a worker thread, without checks.",
        "MB/s",
        0.7,
        verify_deep,
        missing=no_fadvise,
    ),
)
