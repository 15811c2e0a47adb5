"""The benchmarks of the log in ledgers: its groups against bare entries of the same bytes, through the same
sidecar, on a BookKeeper of three bookies in one process. Run where Java and `tierlog bookkeeper install
--server` are."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import attrs

from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, payloads
from benchmarks.s3_log import rate
from tierlog.actors.store.folder_opening import system_world
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.storage_backends.base.errors import ConfigError
from tierlog.storage_backends.base.ledger_service import Ledger, Quorum
from tierlog.storage_backends.ledgers.installed import (
    CLIENT,
    COMPILER,
    SERVER,
    Installation,
    default_folder,
)
from tierlog.storage_backends.ledgers.sidecar import SidecarOptions, SidecarService

GROUP_BYTES, IN_FLIGHT = 200 << 10, 4
SMALL_BYTES = 1 << 10


@attrs.frozen(eq=False)
class Both:
    log: BookKeeperLog
    ledger: Ledger


@asynccontextmanager
async def _running(setting: Setting) -> AsyncIterator[Both]:
    scripts = str(Path(__file__).resolve().parents[1] / "scripts")
    sys.path.append(scripts)
    from local_bookkeeper import LocalBookKeeper

    installation = Installation(default_folder())
    with LocalBookKeeper(installation, Path(setting.fresh("bookkeeper")) / "data") as service:
        sidecar = SidecarService(installation.program(), SidecarOptions(servers=service.servers))
        async with anyio.create_task_group() as tasks:
            await tasks.start(sidecar.run)
            log = BookKeeperLog(sidecar, "/bench/log", bytes(16), system_world())
            await log.open()
            yield Both(log, await sidecar.create_ledger(Quorum(2, 2, 2), {}))
            await log.close()
            sidecar.close()
    sys.path.remove(scripts)


async def bookkeeper_log_append(setting: Setting) -> Sequence[Pair]:
    count, items = setting.size(400, 16), payloads(GROUP_BYTES, 16)
    async with _running(setting) as both:

        async def value() -> float:
            first = both.log.next_group
            figure = await rate(count, lambda number: both.log.append([items[number % 16]]), IN_FLIGHT)
            # Off the clock.
            for number in (first, first + count - 1):
                (found,) = await both.log.read_window(number)
                if len(found[1]) != GROUP_BYTES:
                    raise BenchmarkError(f"group {number} has {len(found[1])} bytes")
            return figure

        async def reference() -> float:
            return await rate(count, lambda number: both.ledger.append([[items[number % 16]]]), IN_FLIGHT)

        return await alternate(setting, value, reference)


async def bookkeeper_log_ack(setting: Setting) -> Sequence[Pair]:
    count, payload = setting.size(400, 20), bytes(SMALL_BYTES)
    async with _running(setting) as both:

        async def median(one: Callable[[], Awaitable[object]]) -> float:
            times = []
            for _ in range(count):
                begin = time.perf_counter()
                await one()
                times.append(time.perf_counter() - begin)
            return 1000 * statistics.median(times)

        return await alternate(
            setting,
            lambda: median(lambda: both.log.append([payload])),
            lambda: median(lambda: both.ledger.append([[payload]])),
        )


def missing() -> str:
    installation = Installation(default_folder())
    try:
        installation.program()
        installation.require([CLIENT, SERVER, COMPILER], "--server")
    except ConfigError as error:
        return str(error)
    return ""


_DETAIL = (
    "{what}, against bare entries of the same bytes in a ledger, through the same sidecar: ZooKeeper and "
    "three bookies in one process on loopback, two of which ack."
)
BENCHMARKS = (
    Benchmark(
        "bookkeeper_log_append",
        "groups of a log in ledgers",
        _DETAIL.format(what=f"Groups of 200 KiB, {IN_FLIGHT} in flight"),
        "groups/s",
        0.7,
        bookkeeper_log_append,
        missing=missing,
    ),
    Benchmark(
        "bookkeeper_log_ack",
        "ack of a log in ledgers",
        _DETAIL.format(what="The median time of an append of 1 KiB"),
        "ms",
        1.3,
        bookkeeper_log_ack,
        lower_is_better=True,
        missing=missing,
    ),
)
