"""Holes of a whole store that belong to no single verb: a full disk, half-written folders, poison operations,
a million tiny appends."""

from __future__ import annotations

import gc
import tracemalloc
from random import Random

import anyio
import pytest
from simulation.file_layer import Fault, SimulatedDisk, SimulatedFiles

import tierlog
from support.container_world import ContainerWorld, Owner, read_all, virtual_time
from support.crash_world import after, image_at
from support.patience import scaled
from support.stores import CONFIG, KIB, config, make
from tierlog import DataCorruption, SegmentNotFound, StorageFull, StoreMismatch, TierlogError
from tierlog.actors.container.local_container import LocalContainer
from tierlog.actors.kernel.supervision import RestartPolicy
from tierlog.actors.settings.configuration import CacheConfig, CheckpointConfig, WalConfig, WriterConfig
from tierlog.journal.operations.append import Append
from tierlog.journal.operations.operation import encode_operation
from tierlog.storage_backends.base.files import IoCall, Write
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage

pytestmark = pytest.mark.anyio

MIB = 1 << 20


# --- a full disk --------------------------------------------------------------------------------

TIGHT = config(
    wal=WalConfig(file_size=16 * MIB, reserve=256 * KIB, low_water=2 * MIB),
    cache=CacheConfig(bytes=256 * MIB),
    checkpoint=CheckpointConfig(wal_bytes=128 * MIB),
    writer=WriterConfig(flush_bytes=128 * MIB, flush_age=3600.0, rolling_size=16 * MIB),
)


class CountingFiles(SimulatedFiles):
    """A process that counts the bytes it writes to logs."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk, self._note)
        self.log_writes = 0

    def _note(self, index: int, call: IoCall) -> Fault | None:
        self.log_writes += isinstance(call, Write) and call.handle.path.endswith(".wal")
        return None


async def fill(store: tierlog.SegmentStore, name: str) -> int:
    """Append until no byte is accepted any more, even after the disk's free space was measured again.
    Returns how many were acked."""
    acked, size, before = 0, 256 * KIB, -1
    while acked > before:
        before, size = acked, 256 * KIB
        while size:
            try:
                await store.append(name, bytes(size))
            except StorageFull:
                size //= 2
            else:
                acked += size
        await anyio.sleep(60)

    return acked


@virtual_time
async def test_a_full_disk_refuses_appends_before_any_write_and_everything_else_continues() -> None:
    """W6: reads, truncates, deletes and flushes live on the reserve; what they free lets appends resume;
    nothing acked is lost."""
    disk = SimulatedDisk(Random(1), capacity=48 * MIB)
    chunks = MemoryChunkStorage()
    files = CountingFiles(disk)
    async with tierlog.open_store("/data", containers=1, config=TIGHT, storage=chunks, files=files) as store:
        await make(store, "old", b"old" * 1000)
        await make(store, "s")
        await make(store, "new")
        acked = await fill(store, "s")
        assert acked > 16 * MIB
        writes = files.log_writes
        for _ in range(10):
            with pytest.raises(StorageFull):
                await store.append("s", b"x")
            with pytest.raises(StorageFull):
                await store.append_many("s", [b"x"], writer_id="w", first_event_number=0)
            with pytest.raises(StorageFull):
                await store.create_segment("newer")
        assert files.log_writes == writes
        assert store.statistics().containers[0].restarts == 0

        assert await store.read("old", 0, 3) == b"old"
        await store.truncate_segment("s", 100)
        await store.seal_segment("old")
        await store.delete_segment("old")
        await store.flush()
        assert (await store.segment_info("s")).flushed_length == acked

        # What was flushed leaves the log, without anybody's help.
        with anyio.fail_after(600):
            while await refused(store):
                await anyio.sleep(1)
        await store.create_segment("newer")
        assert await store.append("new", b"more") == 1
        assert store.statistics().containers[0].restarts == 0

    assert StorageFull.retryable
    async with tierlog.open_store("/data", config=TIGHT, storage=chunks, files=SimulatedFiles(disk)) as store:
        assert await store.list_segments() == ["new", "newer", "s"]
        assert await read_all(store, "s", 100) == bytes(acked - 100)
        assert await read_all(store, "new") == b"xmore"


async def refused(store: tierlog.SegmentStore) -> bool:
    try:
        await store.append("new", b"x")
    except StorageFull:
        return True

    return False


@virtual_time
async def test_appends_resume_when_another_process_frees_space() -> None:
    disk = SimulatedDisk(Random(1), capacity=48 * MIB)
    async with tierlog.open_store(
        "/data", containers=1, config=TIGHT, storage=MemoryChunkStorage(), files=SimulatedFiles(disk)
    ) as store:
        await make(store, "s")
        acked = await fill(store, "s")
        disk.capacity = 96 * MIB
        await anyio.sleep(60)

        assert await store.append("s", b"x") == acked


# --- a folder being made ------------------------------------------------------------------------


@virtual_time
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.extended)])
async def test_a_power_loss_during_the_creation_of_a_folder_leaves_all_of_it_or_nothing(step: int) -> None:
    """The identity is written under another name, synced, linked; and a log that was begun is a log."""
    disk, images = SimulatedDisk(Random(0)), []

    def on_call(now: int, call: IoCall) -> Fault | None:
        images.append(image_at(disk, call, Random(now)))
        return None

    files = SimulatedFiles(disk, on_call)
    async with tierlog.open_store("/data", containers=1, config=CONFIG, files=files) as store:
        await store.create_segment("s")
        made = len(images)
    assert made > 30
    for number, image in list(enumerate(images[:made]))[::step]:
        survivors = SimulatedFiles(after(image, "random", Random(number)))
        async with tierlog.open_store("/data", containers=1, config=CONFIG, files=survivors) as store:
            names = await store.list_segments()
            assert names in ([], ["s"])
            if not names:
                await store.create_segment("s")
            assert await store.append("s", b"x", expected_offset=0) == 0


# --- poison -------------------------------------------------------------------------------------


async def planted(world: ContainerWorld, *parts: bytes) -> None:
    """A group at the log's end that nobody's pipeline wrote."""
    log = world.logs.log("c0")
    await log.open()
    await log.append(parts)
    await log.close()


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (b"\xfe\0\0\0\0", StoreMismatch),
        (b"\x01\0\0\0\x02ab", DataCorruption),
        (encode_operation(Append(1 << 32 | 1, 77, b"x", b"", 0, 0)), DataCorruption),
        (encode_operation(Append(12345, 0, b"x", b"", 0, 0)), DataCorruption),
    ],
    ids=["unknown type", "cut short", "wrong offset", "no such segment"],
)
async def test_a_poison_operation_stops_the_container_as_corrupt_and_is_named(
    operation: bytes, error: type[TierlogError]
) -> None:
    """No restart loop, nothing written: a doctor finds the log as it was."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        sequence = owner.container.state.sequence
    await planted(world, (sequence + 1).to_bytes(8, "big"), operation)
    before = list(world.logs.log("c0")._state.groups)
    starts = 0

    def make_container() -> object:
        nonlocal starts
        starts += 1
        return world.make().container

    host = LocalContainer(0, make_container, RestartPolicy(), Random(0), 1.0)  # type: ignore[arg-type]
    await host.run()
    assert starts == 1
    assert host.statistics().state == "corrupt"
    for _ in range(2):
        with pytest.raises(error, match=f"group {before[-1].info.number}"):
            await host.call(lambda container: container.read("s", 0, 1))

    after = world.logs.log("c0")._state.groups
    assert [(group.info.number, group.payload) for group in after] == [
        (group.info.number, group.payload) for group in before
    ]


# --- accounting ---------------------------------------------------------------------------------


@pytest.mark.one_loop
async def test_tiny_appends_cost_about_their_bytes() -> None:
    """C9: adjacent small appends coalesce, one behind the other and side by side; nothing is kept for each of
    them."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await owner.store.create_segment("s")
        await append_tiny(owner, 0)  # what is made once is made now
        await forget_log(world)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for first in range(250, 2_750, 250):
            await append_tiny(owner, first)
        await forget_log(world)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()

        statistics = owner.container.statistics().cache
        assert statistics.pinned_bytes == 5_511
        assert statistics.total_bytes < 6_500, "charged: a block, and appends not joined yet"
        assert grown < 25 * 5_000


async def append_tiny(owner: Owner, first: int) -> None:
    """Appends of a byte: 250 by a writer, one behind the other, 250 side by side, and one more."""
    for number in range(first, first + 250):
        await owner.store.append("s", b"x", writer_id="w", event_number=number)
    async with anyio.create_task_group() as tasks:
        for _ in range(250):
            tasks.start_soon(owner.store.append, "s", b"y")
    await owner.store.append("s", b"z")


async def forget_log(world: ContainerWorld) -> None:
    """The memory log keeps every group; a real one keeps it on disk."""
    log = world.logs.log("c0")._state
    log.groups = log.groups[-1:]


@pytest.mark.one_loop
async def test_a_full_mailbox_does_not_block_what_drains_it() -> None:
    """C6: thousands of appends wait for room while a flush commits metadata in its own lane."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", bytes(100_000))
        async with anyio.create_task_group() as tasks:
            for _ in range(6_000):
                tasks.start_soon(owner.store.append, "s", bytes(2_000))
            with anyio.fail_after(scaled(30)):
                await owner.store.flush()

        assert (await owner.store.segment_info("s")).length == 100_000 + 6_000 * 2_000


async def test_a_tail_of_a_deleted_segment_never_continues_in_a_new_segment_of_that_name() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")

        async def follow() -> None:
            with pytest.raises(SegmentNotFound):
                async for block in owner.store.tail("s", 3):
                    raise AssertionError(block)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            await owner.store.delete_segment("s")
            await make(owner.store, "s", b"next life")
