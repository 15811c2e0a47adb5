"""Long-term storage full, away or slow: appends go on until the cache limit, the state has a cause, and all
of it ends by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import anyio
import attrs
import pytest
from simulation.file_layer import SimulatedDisk, SimulatedFiles

import tierlog
from support.container_world import read_all, virtual_time
from support.stores import config, make
from tierlog import SegmentStore, StorageFull, Throttled
from tierlog.actors.chunk_io.health import StorageHealth
from tierlog.actors.settings.configuration import (
    CacheConfig,
    GcConfig,
    StorageConfig,
    WalConfig,
    WriterConfig,
)
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, FaultyChunkStorage, every

pytestmark = pytest.mark.anyio

KIB, MIB = 1 << 10, 1 << 20
GROWTH = ("create", "create_with_content", "write", "concat")
SMALL = config(
    append_bytes_max=MIB,
    cache=CacheConfig(bytes=2 * MIB),
    wal=WalConfig(unflushed_max=4 * MIB),
    writer=WriterConfig(flush_bytes=256 * KIB, flush_age=5.0),
    gc=GcConfig(delay=10.0),
    storage=StorageConfig(safe_size=4 * MIB, safe_size_interval=10.0, probe_interval=5.0),
)
UNLIMITED = attrs.evolve(
    SMALL, wal=WalConfig(unflushed_max=8 * MIB), storage=attrs.evolve(SMALL.storage, safe_size=0)
)


@asynccontextmanager
async def opened(chunks: FaultyChunkStorage, settings: tierlog.StoreConfig) -> AsyncIterator[SegmentStore]:
    files = SimulatedFiles(SimulatedDisk(Random(1)))
    async with tierlog.open_store(
        "/data", containers=1, config=settings, storage=chunks, files=files
    ) as store:
        yield store


def health(store: SegmentStore) -> StorageHealth:
    storage = store.statistics().storage
    assert storage is not None
    return storage.health.state


async def fill(store: SegmentStore, name: str, error: type[tierlog.TierlogError]) -> int:
    """Append until it is refused with ``error``; returns how many bytes were acked."""
    acked = 0
    with anyio.fail_after(600):
        while True:
            try:
                await store.append(name, bytes(100 * KIB))
            except error:
                return acked
            acked += 100 * KIB


@virtual_time
async def test_a15_above_the_safe_size_writes_are_refused_and_what_frees_space_continues() -> None:
    chunks = FaultyChunkStorage(MemoryChunkStorage())
    async with opened(chunks, SMALL) as store:
        for name in ("old", "older", "cut", "s"):
            await make(store, name, bytes(1 * MIB))
        await store.flush()
        assert health(store) is StorageHealth.FULL

        acked = await fill(store, "s", StorageFull)
        assert acked >= 2 * MIB, "the log takes what long-term storage does not"
        with pytest.raises(StorageFull, match="its safe size is"):
            await store.append("s", bytes(100 * KIB))
        with pytest.raises(StorageFull):
            await store.flush()
        assert len(await read_all(store, "old")) == 1 * MIB
        assert len(await read_all(store, "s")) == 1 * MIB + acked
        await store.truncate_segment("cut", 1 * MIB)
        for name in ("old", "older"):
            await store.delete_segment(name)

        # Nobody does anything more: garbage is collected, the space is measured, the flush goes through.
        await anyio.sleep(300)
        assert health(store) is StorageHealth.OK
        assert (await store.segment_info("s")).flushed_length == 1 * MIB + acked
        assert await store.append("s", b"more") == 1 * MIB + acked


@virtual_time
async def test_a_backend_without_room_is_full_until_something_can_be_written_again() -> None:
    chunks = FaultyChunkStorage(MemoryChunkStorage())
    async with opened(chunks, UNLIMITED) as store:
        await make(store, "s", b"first", flushed=True)
        chunks.script = every(Fault(FaultKind.FULL), *GROWTH)
        await store.append("s", bytes(400 * KIB))
        with pytest.raises(StorageFull):
            await store.flush()
        assert health(store) is StorageHealth.FULL
        await fill(store, "s", StorageFull)

        chunks.script = None
        await anyio.sleep(60)
        assert health(store) is StorageHealth.OK
        info = await store.segment_info("s")
        assert info.flushed_length == info.length
        await store.append("s", b"more")


@virtual_time
async def test_a_store_opens_on_a_full_backend_so_that_segments_can_be_deleted() -> None:
    chunks = FaultyChunkStorage(MemoryChunkStorage())
    files = SimulatedFiles(SimulatedDisk(Random(1)))
    async with tierlog.open_store(
        "/data", containers=1, config=UNLIMITED, storage=chunks, files=files
    ) as store:
        await make(store, "old", b"old")
        await make(store, "s", b"first", flushed=True)

    chunks.script = every(Fault(FaultKind.FULL), *GROWTH)
    async with tierlog.open_store("/data", config=UNLIMITED, storage=chunks, files=files) as store:
        assert await read_all(store, "s") == b"first"
        assert await store.append("s", b"more") == 5
        await store.delete_segment("old")
        assert health(store) is StorageHealth.FULL
        chunks.script = None
        await anyio.sleep(60)
        assert health(store) is StorageHealth.OK
        assert (await store.segment_info("s")).flushed_length == 9


@virtual_time
async def test_s7_appends_continue_up_to_the_limit_of_unflushed_bytes_while_long_term_storage_is_down() -> (
    None
):
    chunks = FaultyChunkStorage(MemoryChunkStorage(), every(Fault(FaultKind.BEFORE), *GROWTH))
    async with opened(chunks, UNLIMITED) as store:
        await make(store, "s", bytes(400 * KIB))
        await anyio.sleep(120)
        assert health(store) is StorageHealth.UNREACHABLE
        storage = store.statistics().storage
        assert storage is not None
        assert "cannot be reached" in storage.health.cause

        acked = 400 * KIB + await fill(store, "s", Throttled)
        assert acked > 4 * MIB
        assert len(await read_all(store, "s")) == acked

        chunks.script = None
        await anyio.sleep(120)
        assert health(store) is StorageHealth.OK
        assert (await store.segment_info("s")).flushed_length == acked
        assert await store.append("s", b"more") == acked


@virtual_time
async def test_s7_where_the_journal_cannot_be_listed_long_term_storage_is_tried_once_in_each_interval() -> (
    None
):
    """As where a file replaces `lts/`: cycles fail before they write. One followed the other after a second,
    and each went through all segments."""
    chunks = FaultyChunkStorage(MemoryChunkStorage())
    async with opened(chunks, UNLIMITED) as store:
        await make(store, "s", b"first", flushed=True)
        chunks.script = every(Fault(FaultKind.BEFORE), "list")
        chunks.calls.clear()
        for _ in range(100):
            await store.append("s", b"more")
            await anyio.sleep(1)
        lists = [call for call in chunks.calls if call.verb == "list"]
        # 20 intervals, and each list has three attempts.
        assert 30 < len(lists) < 75


@virtual_time
async def test_j11_an_opening_waits_for_a_journal_that_does_not_answer_for_seconds_only() -> None:
    """It waited until a read's deadline, which is 30 seconds by default."""
    back = anyio.Event()
    chunks = FaultyChunkStorage(MemoryChunkStorage(), hang=back.wait)
    files = SimulatedFiles(SimulatedDisk(Random(1)))
    async with tierlog.open_store("/data", containers=4, storage=chunks, files=files) as store:
        await make(store, "s", b"first", flushed=True)

    chunks.script = every(Fault(FaultKind.HANG))
    begin = anyio.current_time()
    async with tierlog.open_store("/data", storage=chunks, files=files) as store:
        assert await store.append("s", b"more") == 5
        assert anyio.current_time() - begin < 6
        chunks.script = None
        back.set()
        await store.flush()
        assert await read_all(store, "s") == b"firstmore"


@virtual_time
async def test_a_call_that_does_not_return_is_reported_as_slow() -> None:
    back = anyio.Event()
    hanging = iter([Fault(FaultKind.HANG)])
    chunks = FaultyChunkStorage(MemoryChunkStorage(), hang=back.wait)
    async with opened(
        chunks, attrs.evolve(UNLIMITED, storage=attrs.evolve(UNLIMITED.storage, write_deadline=10.0))
    ) as store:
        await make(store, "s", b"x")
        chunks.script = lambda call: next(hanging, None) if call.verb in GROWTH else None
        with pytest.raises(tierlog.OutcomeUnknown):
            await store.flush()
        assert health(store) is StorageHealth.SLOW
        assert await store.append("s", b"y") == 1

        back.set()
        await anyio.sleep(60)
        assert health(store) is StorageHealth.OK
        assert (await store.segment_info("s")).flushed_length == 2


@virtual_time
async def test_a15_a_truncation_makes_room_also_where_the_segment_has_bytes_that_do_not_fit() -> None:
    """F1: the data in front of a truncation would need the room that the truncation makes."""
    chunks = FaultyChunkStorage(MemoryChunkStorage())
    async with opened(chunks, SMALL) as store:
        await store.create_segment("s", rolling_size=1 * MIB)
        for _ in range(4):
            await store.append("s", bytes(1 * MIB))
        await store.flush()
        await store.append("s", bytes(100 * KIB))
        assert health(store) is StorageHealth.FULL
        with pytest.raises(StorageFull):
            await store.flush()

        await store.truncate_segment("s", 3 * MIB)
        await anyio.sleep(300)
        assert health(store) is StorageHealth.OK
        info = await store.segment_info("s")
        assert (info.start_offset, info.flushed_length) == (3 * MIB, 4 * MIB + 100 * KIB)


@virtual_time
@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.extended)])
async def test_s7_an_outage_with_many_unflushed_segments_costs_a_few_calls_and_log_lines(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With the real breaker. Without the rule, 5,000 segments caused 10,000 warnings in 15 s."""
    chunks = FaultyChunkStorage(MemoryChunkStorage())
    async with opened(chunks, UNLIMITED) as store:
        names = [f"s{number}" for number in range(count)]
        for name in names:
            await make(store, name, b"x")
        chunks.script = every(Fault(FaultKind.BEFORE), *GROWTH)
        caplog.clear()
        before = len(chunks.calls)
        await anyio.sleep(120)

        assert len(chunks.calls) - before < 120
        assert len(caplog.records) < 10
        chunks.script = None
        await anyio.sleep(30)
        assert health(store) is StorageHealth.OK
        assert (await store.segment_info(names[-1])).flushed_length == 1
