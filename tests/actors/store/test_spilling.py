"""Rule C10: unflushed bytes that do not fit into the cache stay in the log, and are read, flushed, merged and
recovered from there. In virtual time."""

from __future__ import annotations

from random import Random

import anyio
import pytest
from msgspec.structs import replace
from simulation.file_layer import SimulatedDisk, SimulatedFiles

from support.container_world import MIB, OPTIONS, ContainerWorld, Owner, read_all, virtual_time
from support.stores import make
from tierlog import DataCorruption
from tierlog.actors.container.admission import AdmissionOptions
from tierlog.actors.container.checkpoint import CheckpointOptions
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

CACHE = 128 << 10
DATA = (bytes(range(251)) * CACHE)[: 10 * CACHE]
SMALL = replace(
    OPTIONS,
    cache_bytes=CACHE,
    admission=AdmissionOptions(soft_bytes=32 * MIB, hard_bytes=48 * MIB, segment_bytes=16 * MIB),
    checkpoint=CheckpointOptions(wal_bytes=256 << 10),
)
DOWN = Fault(FaultKind.BEFORE)


async def append_all(owner: Owner, name: str, data: bytes = DATA, step: int = 10_000) -> None:
    """Append in groups of their own; memory never exceeds its limit."""
    await make(owner.store, name)
    for start in range(0, len(data), step):
        await owner.store.append(name, data[start : start + step])
        assert owner.container.cache.statistics().total_bytes <= CACHE


async def test_appends_go_on_while_long_term_storage_is_down() -> None:
    """Ten times the cache is acked, read, and flushed when long-term storage is back."""
    world = ContainerWorld(SMALL)
    async with world.owner() as owner:
        world.chunks.script = lambda call: DOWN
        await append_all(owner, "s")
        await anyio.sleep(100)

        statistics = owner.container.statistics()
        assert statistics.cache.unflushed_bytes == len(DATA)
        assert statistics.cache.pinned_bytes <= CACHE
        assert statistics.admission.delayed == 0
        assert await read_all(owner.store, "s") == DATA
        assert await owner.store.read("s", 5, 10) == DATA[5:15], "from the log"
        assert await owner.store.read("s", len(DATA) - 9, 100) == DATA[-9:], "from the cache"
        assert owner.container.statistics().unflushed.windows_read > 0

        world.chunks.script = None
        await owner.store.flush()
        statistics = owner.container.statistics()
        assert (statistics.cache.unflushed_bytes, statistics.cache.pinned_bytes) == (0, 0)
        assert statistics.cache.total_bytes <= CACHE
        assert await read_all(owner.store, "s") == DATA


async def test_an_outage_does_not_log_its_backlog_again() -> None:
    """F4: checkpoints go on meanwhile."""
    world = ContainerWorld(replace(SMALL, checkpoint=CheckpointOptions(256 << 10, 256 << 10)))
    async with world.owner() as owner:
        world.chunks.script = lambda call: DOWN
        await append_all(owner, "s")

        statistics = owner.container.statistics()
        assert statistics.checkpoints.checkpoints > 2
        assert statistics.checkpoints.relogged_bytes == 0


async def test_spilled_bytes_survive_a_crash_and_recovery_spills_again() -> None:
    world = ContainerWorld(SMALL)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        world.chunks.script = lambda call: DOWN
        await append_all(owner, "s")
        await owner.crash()

        owner = await world.start(tasks)
        statistics = owner.container.statistics().cache
        assert statistics.unflushed_bytes == len(DATA)
        assert statistics.total_bytes <= CACHE
        assert await read_all(owner.store, "s") == DATA
        await owner.store.append("s", b"more")
        world.chunks.script = None
        await owner.store.flush()
        await owner.crash()

        owner = await world.start(tasks)
        assert owner.container.cache.unflushed_bytes == 0
        assert await read_all(owner.store, "s") == DATA + b"more"
        await owner.stop()


async def test_spilled_segments_are_merged_truncated_and_deleted() -> None:
    world = ContainerWorld(SMALL)
    async with world.owner() as owner:
        store = owner.store
        world.chunks.script = lambda call: DOWN
        await append_all(owner, "target", DATA[:400_000])
        await append_all(owner, "source", DATA[: 2 * CACHE])
        await append_all(owner, "deleted", DATA[: 2 * CACHE])
        await store.seal_segment("source")
        await store.merge_segments("target", ["source"])
        await store.append("target", b"behind")
        await store.truncate_segment("target", 300_000)
        await store.delete_segment("deleted")
        expected = DATA[300_000:400_000] + DATA[: 2 * CACHE] + b"behind"

        assert owner.container.cache.unflushed_bytes == 400_000 + 2 * CACHE + len(b"behind")
        assert await read_all(store, "target", 300_000) == expected
        world.chunks.script = None
        await store.flush()
        assert owner.container.cache.unflushed_bytes == 0
        assert await read_all(store, "target", 300_000) == expected


async def test_spilled_bytes_that_are_logged_again_are_read_where_they_are_now() -> None:
    """F4: the old groups are truncated."""
    world = ContainerWorld(replace(SMALL, checkpoint=CheckpointOptions(64 << 10, 64 << 10)))
    async with world.owner() as owner:
        await make(owner.store, "good")
        await append_all(owner, "bad", DATA[: 2 * CACHE])
        sid = (await owner.store.segment_info("bad")).segment_id
        world.chunks.script = lambda call: DOWN if f"/{sid:016x}/" in call.name else None
        for _ in range(30):
            await owner.store.append("good", DATA[: 64 << 10])
            await anyio.sleep(31)

        statistics = owner.container.statistics()
        assert statistics.checkpoints.relogged_bytes >= 2 * CACHE
        assert statistics.log.retained_bytes < 3 * MIB
        assert await read_all(owner.store, "bad") == DATA[: 2 * CACHE]


async def test_readers_beside_flushes_and_checkpoints_never_miss_a_byte() -> None:
    world = ContainerWorld(replace(SMALL, checkpoint=CheckpointOptions(64 << 10, 64 << 10)))
    async with world.owner() as owner, anyio.create_task_group() as tasks:
        await make(owner.store, "s")

        async def read_on(start: int) -> None:
            position = start
            while position < len(DATA):
                block = await owner.store.read("s", position, 7_000)
                assert block == DATA[position : position + len(block)]
                position += len(block)
                await anyio.sleep(0.01)

        world.chunks.script = lambda call: DOWN
        await owner.store.append("s", DATA[: len(DATA) // 2])
        for start in range(0, len(DATA), len(DATA) // 6):
            tasks.start_soon(read_on, start)
        for start in range(len(DATA) // 2, len(DATA), 10_000):
            await owner.store.append("s", DATA[start : start + 10_000])
            await anyio.sleep(0.1)
            if start > 3 * len(DATA) // 4:
                world.chunks.script = None
                await owner.store.flush()


async def test_damage_of_the_log_under_spilled_bytes_is_reported_with_file_and_offset() -> None:
    """W10, C10: the rest is read, and the owner goes on."""
    world, disk = ContainerWorld(SMALL), SimulatedDisk(Random(1))
    log = LocalLog(SimulatedFiles(disk), "/wal", b"l" * 16, LocalLogOptions(file_size=64 << 10))
    async with world.owner(log=log) as owner:
        world.chunks.script = lambda call: DOWN
        await append_all(owner, "s")
        [first, *_] = sorted(name for name in disk.folder("/wal").names if name.endswith(".wal"))
        whole = disk.content(f"/wal/{first}")
        at = whole.index(DATA[20_000:20_100])
        disk.replace(f"/wal/{first}", whole[:at] + b"!" + whole[at + 1 :])

        with pytest.raises(DataCorruption) as damage:
            await read_all(owner.store, "s")
        assert damage.value.file == f"/wal/{first}"
        assert at - 10_200 < damage.value.offset < at
        assert await owner.store.read("s", 400_000, 100) == DATA[400_000:400_100]
        disk.replace(f"/wal/{first}", whole)
        world.chunks.script = None
        await owner.store.flush()
        assert await read_all(owner.store, "s") == DATA


async def test_a_log_in_files_is_recovered_and_read_where_a_crash_left_it() -> None:
    world, disk = ContainerWorld(SMALL), SimulatedDisk(Random(1))

    def make_log() -> LocalLog:
        return LocalLog(SimulatedFiles(disk), "/wal", b"l" * 16, LocalLogOptions(file_size=64 << 10))

    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks, log=make_log())
        world.chunks.script = lambda call: DOWN
        await append_all(owner, "s", DATA[: 5 * CACHE])
        for end in range(6 * CACHE, len(DATA) + 1, CACHE):
            await owner.crash()
            owner = await world.start(tasks, log=make_log())
            assert owner.container.cache.statistics().total_bytes <= CACHE
            assert await read_all(owner.store, "s") == DATA[: end - CACHE]
            await owner.store.append("s", DATA[end - CACHE : end])
        world.chunks.script = None
        await owner.store.flush()
        assert await read_all(owner.store, "s") == DATA
        await owner.stop()
