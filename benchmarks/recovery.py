"""The benchmark of recovery: how fast a container's state is recovered from its log.

The log is written directly into the folder, with the store's operations and log but without its pipeline:
half a million acks would take longer than the recovery. Each round opens a copy of its own, because an open
store starts to flush, and the next recovery would have less to do."""

from __future__ import annotations

import gc
import os
import shutil
import struct
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import (
    Benchmark,
    BenchmarkError,
    Pair,
    Setting,
    Written,
    alternate,
    payloads,
    store_in,
    verify,
)
from tierlog.actors.folder.identity import read_identity
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.actors.store.opening import log_options
from tierlog.journal.group_payload import PayloadBuilder, decode_group
from tierlog.journal.log.local import LocalLog
from tierlog.journal.operations.append import Append
from tierlog.journal.operations.create_segment import CreateSegment
from tierlog.storage_backends.files.local import LocalFiles

SIZE = 100
PER_GROUP = 2000
SEGMENTS = tuple(f"bench/recovery-{number}" for number in range(10))
WRITER = b"benchmark-writer"

_OP = struct.Struct(">BI")
_HEAD = struct.Struct(">QQB")
_EVENTS = struct.Struct(">qI")


async def recovery(setting: Setting) -> Sequence[Pair]:
    count = setting.size(500_000, 4_000)
    original = setting.fresh("recovery")
    setting.progress("writing the log")
    logged, groups, samples = await _build(original, count)

    async def value() -> float:
        folder = f"{setting.folder}/recovery-copy"
        shutil.copytree(original, folder)
        try:
            return count / await _time_open(folder, logged, samples)
        finally:
            shutil.rmtree(folder)

    async def reference() -> float:
        begin = time.perf_counter()
        operations = sum(len(_decode_plainly(memoryview(group))) for group in groups)
        seconds = time.perf_counter() - begin
        if operations != count:
            raise BenchmarkError(f"the reference decoded {operations} of {count} operations")

        return count / seconds

    return await alternate(setting, value, reference, 4)


async def _time_open(folder: str, logged: int, samples: Sequence[Written]) -> float:
    """Seconds from the call of ``open_store`` to a store that answers, with ``logged`` operations."""
    gc.collect()
    begin = time.perf_counter()
    async with store_in(folder) as store:
        seconds = time.perf_counter() - begin
        current = store.statistics().containers[0].current
        if current is None or current.recovery.operations != logged:
            raise BenchmarkError(
                f"{logged} operations are in the log, recovery reports {current and current.recovery}"
            )

        await verify(store, samples)
        return seconds


async def _build(folder: str, count: int) -> tuple[int, list[bytes], list[Written]]:
    """Write a log of ``count`` appends; returns how many operations it holds, the payloads of the groups with
    appends, and some of the appends."""
    async with store_in(folder) as store:
        for name in SEGMENTS:
            await store.create_segment(name)

    files = LocalFiles()
    wal = f"{os.path.abspath(folder)}/wal"
    identity = await files.run(read_identity(wal))
    if identity is None:
        raise BenchmarkError(f"{wal} holds no identity after a store was open there")

    log = LocalLog(files, f"{wal}/0000", identity.container_log_id(0), log_options(StoreConfig()))
    opened = await log.open()
    sequence, sids = await _segments(log)
    if len(sids) != len(SEGMENTS):
        raise BenchmarkError(f"the log of {len(SEGMENTS)} fresh segments creates {len(sids)}: {opened}")

    return sequence + count, *await _append_all(log, count, sequence, sids)


async def _segments(log: LocalLog) -> tuple[int, list[int]]:
    """The sequence number of the newest operation, and the segment ids in the order of creation."""
    sequence, sids = 0, []
    async for _, payload in log.read():
        first, operations = decode_group(payload)
        sequence = first + len(operations) - 1
        sids += [op.sid for op in operations if type(op) is CreateSegment]

    return sequence, sids


async def _append_all(
    log: LocalLog, count: int, sequence: int, sids: Sequence[int]
) -> tuple[list[bytes], list[Written]]:
    """Every second append has a writer id and an event number."""
    blocks = payloads(SIZE)
    groups: list[bytes] = []
    samples: list[Written] = []
    for begin in range(0, count, PER_GROUP):
        payload = PayloadBuilder(sequence + begin + 1)
        for number in range(begin, min(begin + PER_GROUP, count)):
            turn, segment = divmod(number, len(sids))
            events = (WRITER, turn // 2, 1) if turn % 2 else (b"", 0, 0)
            payload.add(Append(sids[segment], turn * SIZE, blocks[number % len(blocks)], *events))
        turn, segment = divmod(begin, len(sids))
        samples.append(Written(SEGMENTS[segment], turn * SIZE, blocks[begin % len(blocks)]))
        groups.append(b"".join(payload.parts))
        await log.append([groups[-1]])

    await log.close()
    return groups, samples[-8:]


def _decode_plainly(view: memoryview) -> list[tuple[Any, ...]]:
    """Decode the same bytes into tuples, with ``struct`` alone."""
    operations: list[tuple[Any, ...]] = []
    position, end = 8, len(view)
    while position < end:
        _, size = _OP.unpack_from(view, position)
        position += 5
        stop = position + size
        sid, offset, writer_size = _HEAD.unpack_from(view, position)
        position += 17
        if writer_size:
            writer = bytes(view[position : position + writer_size])
            position += writer_size
            first, count = _EVENTS.unpack_from(view, position)
            position += 12
            operations.append((sid, offset, view[position:stop], writer, first, count))
        else:
            operations.append((sid, offset, view[position:stop], b"", 0, 0))
        position = stop

    return operations


BENCHMARKS = (
    Benchmark(
        "recovery",
        "replay of 100-byte appends at open",
        "From open_store to a store that answers: reading and checking the log, decoding, applying, "
        "caching. Every second append carries "
        "an event number. Against decoding the same operations in memory with struct alone.",
        "ops/s",
        250_000,
        recovery,
        goal_of="value",
    ),
)
