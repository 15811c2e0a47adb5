"""Old elements and their deletion, in virtual time (rule J8)."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import MIB, OPTIONS, ContainerWorld, flush_more, virtual_time
from support.stores import make
from support.table_runs import UNMERGED
from tierlog.actors.folder.fingerprint import Fingerprint
from tierlog.journal.manifest.chain import element_name, read_chain
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, every

pytestmark = [pytest.mark.anyio, virtual_time]


async def test_a_hundred_openings_leave_two_elements() -> None:
    """J8."""
    world = ContainerWorld()
    for _ in range(100):
        async with world.owner():
            pass
    report = await read_chain(world.chunks, 0)
    assert [each.element.n for each in report.elements] == [100, 99]
    assert report.problems == ()


async def test_elements_that_could_not_be_deleted_are_deleted_little_by_little() -> None:
    """J8."""
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        await flush_more(owner, 70)
        assert len((await read_chain(world.chunks, 0)).elements) == 71
        world.chunks.script = None
        for left in (40, 9, 2):
            await flush_more(owner)
            assert len((await read_chain(world.chunks, 0)).elements) == left


async def moved_world() -> ContainerWorld:
    """Its two elements were created from another folder."""
    world = ContainerWorld(UNMERGED)
    own, world.folder = world.folder, Fingerprint(b"o" * 16, "there:/data/wal")
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await flush_more(owner)
    world.folder = own
    return world


async def test_an_unconfirmed_container_keeps_what_others_created_until_it_is_confirmed() -> None:
    """J8: it deletes its own elements, so that they do not add up. Once it is confirmed, the others go
    without a call and without another element."""
    world = await moved_world()
    async with world.owner() as owner:
        await flush_more(owner, 20)
        assert [each.element.n for each in (await read_chain(world.chunks, 0)).elements] == [23, 22, 2, 1]
        await owner.container.confirmation.confirm()
        await anyio.sleep(1)
        assert [each.element.n for each in (await read_chain(world.chunks, 0)).elements] == [23, 22]


async def test_openings_of_an_unconfirmed_container_do_not_add_up() -> None:
    """J8: earlier owners in the same folder created them. Those of another folder stay."""
    world = await moved_world()
    for _ in range(13):
        async with world.owner() as owner:
            assert owner.container.confirmation.unconfirmed is not None
    assert [each.element.n for each in (await read_chain(world.chunks, 0)).elements] == [15, 14, 2, 1]


async def test_an_element_that_a_dead_owner_created_late_is_deleted_within_the_ownership() -> None:
    """J8: behind the second listing for late chunks."""
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await flush_more(owner, 3)
        late = world.memory.chunks[element_name(0, 3)]
        await flush_more(owner)
        world.memory.chunks[element_name(0, 2)] = late
        await anyio.sleep(1_000)
        assert sorted(name for name in world.memory.chunks if "/journal/" in name) == [
            element_name(0, n) for n in (4, 5)
        ]


async def test_deletions_of_old_elements_that_hang_delay_no_flush() -> None:
    """F7, J8: a check before a flush deletes nothing, and an element waits a second for deletions."""
    world = ContainerWorld(replace(OPTIONS, flush_bytes=MIB // 4))
    async with world.owner() as owner:
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        await make(owner.store, "s", b"abc")
        await flush_more(owner, 4)
        world.chunks.script = every(Fault(FaultKind.DELAY, seconds=1_000), "delete")
        for number in range(1, 4):
            begin = anyio.current_time()
            await owner.store.append("s", bytes(MIB))
            await anyio.sleep(0.5)
            assert (await owner.store.segment_info("s")).flushed_length >= number * MIB
            await flush_more(owner)
            assert anyio.current_time() - begin < 2


async def test_an_opening_does_not_wait_for_deletions_of_old_elements_that_hang() -> None:
    """J8: it waits a second. They are tried again after a pause: calls that hang keep their slots."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await flush_more(owner)
    world.chunks.script = every(Fault(FaultKind.DELAY, seconds=1_000), "delete")
    begin = anyio.current_time()
    async with world.owner() as owner:
        assert anyio.current_time() - begin < 2
        await flush_more(owner, 5)
        assert len([call for call in world.chunks.calls if call.verb == "delete"]) == 1
        world.chunks.script = None
        await anyio.sleep(60)
        await flush_more(owner)
        assert len((await read_chain(world.chunks, 0)).elements) == 2


async def test_an_opening_hardly_waits_for_deletions_of_many_old_elements() -> None:
    """J8: a failover waits for them. In a bucket each takes 20 ms or more."""
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        await flush_more(owner, 70)
    world.chunks.script = every(Fault(FaultKind.DELAY, seconds=0.03), "delete")
    begin = anyio.current_time()
    async with world.owner():
        assert anyio.current_time() - begin < 0.3
        assert len((await read_chain(world.chunks, 0)).elements) == 40


async def test_on_a_full_storage_deletions_that_take_too_long_make_room_for_an_element_all_the_same() -> None:
    """J8, J9: the room of those that were deleted in time is enough."""
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        await flush_more(owner, 20)
        full = len(world.memory.chunks)

        def script(call: Call) -> Fault | None:
            if call.verb == "delete":
                return Fault(FaultKind.DELAY, seconds=0.4)
            is_refused = call.verb == "create_with_content" and len(world.memory.chunks) >= full
            return Fault(FaultKind.FULL) if is_refused and "/journal/" in call.name else None

        world.chunks.script = script
        await flush_more(owner)
        assert owner.container.statistics().journal.unconfirmed_creations == 0
