"""What long-term storage alone names is there: rule G6. Virtual time."""

from __future__ import annotations

from contextlib import suppress

import anyio
import attrs
import pytest
from msgspec.structs import replace

from support.container_world import (
    MIB,
    OPTIONS,
    ContainerWorld,
    assert_nothing_leaked,
    read_all,
    referenced_chunks,
    virtual_time,
)
from support.stores import make
from tierlog import StorageFull
from tierlog.actors.store.lts_view import LtsContainer
from tierlog.storage_backends.base.files import Close, Open, Program, Size, Write
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.chunks.memory import MemoryChunk, MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.segments.records.chunk import CHUNK_PREFIX
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage

pytestmark = [pytest.mark.anyio, virtual_time]

DATA = bytes(200_000)
"""Four chunks, which roll at 64 KiB."""
NO_DELAY = replace(OPTIONS, collector=replace(OPTIONS.collector, delay=1.0))
"""Almost none, so that only elements hold up deletions."""


class StorageStates(FaultyChunkStorage):
    """Remembers what long-term storage had after each deletion of a chunk, and after each element."""

    def __init__(self, memory: MemoryChunkState) -> None:
        super().__init__(MemoryChunkStorage(memory))
        self._memory = memory
        self.states: list[dict[str, MemoryChunk]] = []

    async def delete(self, name: str) -> None:
        await super().delete(name)
        if name.startswith("containers/"):
            self.states.append(dict(self._memory.chunks))

    async def create_with_content(self, name: str, data: object) -> int:
        size = await super().create_with_content(name, data)  # type: ignore[arg-type]
        if "/journal/" in name:
            self.states.append(dict(self._memory.chunks))
        return size


def watched(world: ContainerWorld) -> StorageStates:
    world.chunks = StorageStates(world.memory)
    return world.chunks


async def missing_chunks(world: ContainerWorld, state: dict[str, MemoryChunk]) -> set[str]:
    """What the rows of the newest element name, and long-term storage lacks."""
    stored = MemoryChunkState()
    for name, chunk in state.items():
        stored.chunks[name] = chunk
    chunks = MemoryChunkStorage(stored)
    await chunks.open()
    snapshot = await LtsContainer(0, chunks, world.store_id).snapshot()
    named = await snapshot.metadata.scan(CHUNK_PREFIX)
    return {key.removeprefix(CHUNK_PREFIX) for key in named} - state.keys()


async def assert_complete(world: ContainerWorld, states: StorageStates) -> None:
    assert states.states
    for state in states.states:
        assert await missing_chunks(world, state) == set()


def runs_without_room(call: Call) -> Fault | None:
    return Fault(FaultKind.FULL) if call.verb == "create_with_content" and "/runs/" in call.name else None


@pytest.mark.parametrize("change", ["delete", "truncate", "truncate partly", "defrag"])
async def test_g6_what_the_newest_element_names_is_there_after_each_deletion(change: str) -> None:
    """Elements count that have no room for the rows (M12), and the chunks wait for one that has them."""
    world = ContainerWorld(NO_DELAY)
    states = watched(world)
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        for number in range(10):
            await make(owner.store, f"s#{number}", bytes(2_000), sealed=True, flushed=True)
            await owner.store.merge_segments("s", [f"s#{number}"])
        await owner.store.flush()
        states.script = runs_without_room
        match change:
            case "delete":
                await owner.store.delete_segment("s")
            case "truncate":
                await owner.store.truncate_segment("s", len(DATA) + 20_000)
            case "truncate partly":
                await owner.store.truncate_segment("s", 150_000)
            case "defrag":
                sid = (await owner.store.segment_info("s")).segment_id
                assert sid is not None
                await owner.container.storage.defrag(sid)
        await owner.store.flush()
        await anyio.sleep(200)
        assert owner.container.statistics().collector.unpublished > 0
        states.script = None
        await assert_nothing_leaked(world, owner)
    await assert_complete(world, states)


async def test_g6_the_deletions_of_an_idle_store_get_one_element() -> None:
    """Deferred work runs in cycles that have none. Then the store is quiet again (F5)."""
    options = replace(
        NO_DELAY,
        chunked=attrs.evolve(OPTIONS.chunked, maintenance_records=4),
        writer=replace(OPTIONS.writer, deferred_steps=1, deferred_pause=2.0),
    )
    world = ContainerWorld(options)
    states = watched(world)
    async with world.owner() as owner:
        for name in ("s", "t"):
            await make(owner.store, name, DATA * 8)
        await owner.store.flush()
        await owner.store.delete_segment("s")
        await owner.store.delete_segment("t")
        await anyio.sleep(200)
        assert world.chunk_names == set()
        assert owner.container.statistics().collector.unpublished == 0
        before = owner.container.state.sequence
        await anyio.sleep(3_600)
        assert owner.container.state.sequence == before
    await assert_complete(world, states)


async def test_g6_a_full_storage_frees_itself_although_no_cycle_is_complete() -> None:
    """The backlog of a full storage fails in every cycle, until what was deleted has made room."""
    world = ContainerWorld(NO_DELAY)
    states = watched(world)

    def full(call: Call) -> Fault | None:
        used = sum(name.startswith("containers/") for name in world.memory.chunks)
        grows = call.verb in ("create", "create_with_content", "write", "concat")
        is_users = not call.name.startswith("_system/")
        return Fault(FaultKind.FULL) if grows and is_users and used >= 8 else None

    async with world.owner() as owner:
        for name in ("deleted", "truncated"):
            await make(owner.store, name, DATA, flushed=True)
        states.script = full
        await make(owner.store, "waits", DATA * 2)
        with pytest.raises(StorageFull):
            await owner.store.flush()
        await owner.store.delete_segment("deleted")
        await owner.store.truncate_segment("truncated", len(DATA))
        await anyio.sleep(300)
        await owner.store.flush()
        assert await read_all(owner.store, "waits") == DATA * 2
        assert world.chunk_names == referenced_chunks(owner.container)
    await assert_complete(world, states)


@pytest.mark.parametrize("change", ["delete", "truncate"])
async def test_g6_a_full_disk_frees_itself(change: str) -> None:
    """S22: the runs' local copies are on the same disk as long-term storage, and neither has room left."""
    world = ContainerWorld(NO_DELAY)
    world.files.disk.capacity = 2 * MIB
    storage = FileSystemChunkStorage(world.files, "/lts", world.world, reserve_bytes=MIB // 4)
    world.chunks = FaultyChunkStorage(storage)
    async with world.owner() as owner:
        await make(owner.store, "old", DATA * 2, flushed=True)
        await make(owner.store, "new", b"")
        with pytest.raises(StorageFull):
            while True:
                await owner.store.append("new", DATA)
                await owner.store.flush()
        # Something else takes what is left.
        await world.files.run(fill_disk("/other"))
        assert world.files.disk.free() < 4096
        if change == "delete":
            await owner.store.delete_segment("old")
        else:
            await owner.store.truncate_segment("old", 2 * len(DATA))
        await anyio.sleep(600)
        await owner.store.flush()
        stored = [info.name async for info in storage.list("containers/")]
        assert set(stored) == referenced_chunks(owner.container)
        assert not set(await read_all(owner.store, "new")) - {0}


def fill_disk(path: str) -> Program[None]:
    handle = yield Open(path, write=True, create=True)
    for size in (64 << 10, 4 << 10):
        with suppress(OSError):
            while True:
                yield Write(handle, (yield Size(handle)), [bytes(size)])
    yield Close(handle)


def users_data_full(call: Call) -> Fault | None:
    """A quota for what users write: names below ``_system/`` have none (A15)."""
    grows = call.verb in ("create", "create_with_content", "write", "concat")
    return Fault(FaultKind.FULL) if grows and not call.name.startswith("_system/") else None


@pytest.mark.parametrize("change", ["defrag", "relocation"])
async def test_g6_on_a_full_storage_chunks_whose_bytes_are_still_needed_stay(change: str) -> None:
    """Their segment does not fit and is held back. Nothing of them was truncated, so it frees nothing."""
    options = replace(
        NO_DELAY,
        chunked=attrs.evolve(OPTIONS.chunked, defrag=attrs.evolve(OPTIONS.chunked.defrag, relocate_above=0)),
    )
    world = ContainerWorld(options)
    states = watched(world)
    async with world.owner() as owner:
        storage = owner.container.storage
        await make(owner.store, "s", DATA, flushed=True)
        for number in range(10):
            await make(owner.store, f"s#{number}", bytes(2_000), sealed=True, flushed=True)
            await owner.store.merge_segments("s", [f"s#{number}"])
        await owner.store.flush()
        if change == "defrag":
            sid = (await owner.store.segment_info("s")).segment_id
            assert sid is not None
            await storage.defrag(sid)
        else:
            states.script = runs_without_room
            await owner.store.truncate_segment("s", 60_000)
            await owner.store.flush()
            with anyio.fail_after(10):
                while not storage.statistics().chunks_relocated:
                    await anyio.sleep(0.01)
        states.script = users_data_full
        await owner.store.append("s", bytes(100_000))
        with pytest.raises(StorageFull):
            await owner.store.flush()
        await anyio.sleep(200)
        assert owner.container.statistics().collector.unpublished > 0
    await assert_complete(world, states)


@pytest.mark.parametrize("cache", [64 * MIB, 4096], ids=["in memory", "spilled"])
async def test_g6_a_truncation_makes_room_although_what_is_merged_below_it_does_not_fit(cache: int) -> None:
    """The flush of the target waits for that of the source, and is not tried. As the newest element is as of
    before the truncation, it names the deleted chunk."""
    world = ContainerWorld(replace(NO_DELAY, cache_bytes=cache))
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        flushed = set(world.chunk_names)
        world.chunks.script = users_data_full
        await make(owner.store, "s#0", bytes(20_000), sealed=True)
        await owner.store.merge_segments("s", ["s#0"])
        await owner.store.truncate_segment("s", len(DATA) + 20_000)
        with pytest.raises(StorageFull):
            await owner.store.flush()
        await anyio.sleep(200)
        assert flushed
        assert not flushed & set(world.chunk_names)


async def test_f7_on_a_full_storage_a_target_whose_spilled_bytes_hang_holds_up_no_deletion() -> None:
    """Its source finds no room, and its own bytes before that are under way."""
    world = ContainerWorld(replace(NO_DELAY, cache_bytes=4096))

    def full_or_hanging(call: Call) -> Fault | None:
        hangs = call.verb == "write" and not call.name.startswith("_system/")
        return Fault(FaultKind.DELAY, seconds=1_000) if hangs else users_data_full(call)

    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        kept = set(world.chunk_names)
        await make(owner.store, "deleted", DATA, flushed=True)
        world.chunks.script = full_or_hanging
        await make(owner.store, "s#0", bytes(2_000), sealed=True)
        await owner.store.append("s", bytes(2_000))
        await owner.store.merge_segments("s", ["s#0"])
        await owner.store.truncate_segment("s", len(DATA) + 2_000)
        await make(owner.store, "spills", bytes(100_000))
        with pytest.raises(StorageFull):
            await owner.store.flush()
        await owner.store.delete_segment("deleted")
        await anyio.sleep(100)
        assert set(world.chunk_names) == kept
        # It makes room for itself once its flush has ended.
        await anyio.sleep(2_000)
        assert not kept & set(world.chunk_names)


async def test_g6_a_truncation_makes_room_although_a_name_beside_it_belongs_to_data_that_does_not_fit() -> (
    None
):
    """A source's name was given again: the merge can be published only with the new segment of that name
    (F10), whose data has no room."""
    world = ContainerWorld(NO_DELAY)
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        flushed = set(world.chunk_names)
        await make(owner.store, "s#0", b"", sealed=True)
        await owner.store.merge_segments("s", ["s#0"])
        world.chunks.script = users_data_full
        await make(owner.store, "s#0", bytes(2_000))
        await owner.store.truncate_segment("s", len(DATA))
        with pytest.raises(StorageFull):
            await owner.store.flush()
        await anyio.sleep(200)
        assert flushed
        assert not flushed & set(world.chunk_names)


async def test_g6_on_a_full_storage_the_next_owner_too_deletes_what_a_truncation_dropped() -> None:
    """The segment's data does not fit, so no element has its truncation. Chunks that a defrag has replaced go
    once the truncation is past their bytes."""
    world = ContainerWorld(NO_DELAY)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", DATA, flushed=True)
        for number in range(10):
            await make(owner.store, f"s#{number}", bytes(2_000), sealed=True, flushed=True)
            await owner.store.merge_segments("s", [f"s#{number}"])
        await owner.store.flush()
        named = set(world.chunk_names)
        sid = (await owner.store.segment_info("s")).segment_id
        assert sid is not None
        await owner.container.storage.defrag(sid)
        world.chunks.script = users_data_full
        await owner.store.append("s", bytes(100_000))
        with pytest.raises(StorageFull):
            await owner.store.flush()
        await owner.store.truncate_segment("s", 70_000)
        with pytest.raises(StorageFull):
            await owner.store.flush()
        assert named <= world.chunk_names
        await owner.crash()

        owner = await world.start(tasks)
        await anyio.sleep(200)
        gone = named - world.chunk_names
        assert len(gone) == 1, "the others have bytes behind the start"
        assert await missing_chunks(world, dict(world.memory.chunks)) == gone
        await owner.store.truncate_segment("s", len(DATA) + 20_000)
        await anyio.sleep(200)
        assert world.chunk_names == referenced_chunks(owner.container) == set()
        assert await missing_chunks(world, dict(world.memory.chunks)) == named

        world.chunks.script = None
        await owner.store.flush()
        assert await missing_chunks(world, dict(world.memory.chunks)) == set()
        await owner.stop()


def elements_down(call: Call) -> Fault | None:
    is_put = call.verb == "create_with_content" and "/journal/" in call.name
    return Fault(FaultKind.BEFORE) if is_put else None


async def test_g6_the_next_owner_waits_for_its_own_element() -> None:
    """The dead one logged the removal of the records, and never published it."""
    world = ContainerWorld(NO_DELAY)
    states = watched(world)
    async with anyio.create_task_group() as tasks:
        first = await world.start(tasks)
        await make(first.store, "s", DATA, flushed=True)
        states.script = elements_down
        await first.store.delete_segment("s")
        await anyio.sleep(60)
        assert not referenced_chunks(first.container)
        assert len(world.chunk_names) == 4
        await first.crash()
        states.script = None
    async with world.owner() as owner:
        await anyio.sleep(200)
        assert world.chunk_names == set()
        assert owner.container.statistics().collector.deleted == 4
    await assert_complete(world, states)
