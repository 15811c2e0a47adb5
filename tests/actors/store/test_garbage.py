"""Garbage of one container, in virtual time: rules G1, G2, F2, J8 and J9. In the end, chunks on
storage are the chunks referenced."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

import tierlog
from support.container_world import (
    OPTIONS,
    ContainerWorld,
    assert_nothing_leaked,
    deletes,
    read_all,
    referenced_chunks,
    virtual_time,
)
from support.stores import make
from tierlog.journal.manifest.chain import element_name, journal_prefix
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

DATA = bytes(200_000)
"""Four chunks, which roll at 64 KiB."""
DOWN = Fault(FaultKind.BEFORE)


# --- garbage ------------------------------------------------------------------------------------


async def test_chunks_of_a_deleted_segment_are_deleted_after_the_cycle_and_the_delay() -> None:
    """F2, G2: not before the flush cycle that recorded the deletion, and then a minute later."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        chunks = world.chunk_names
        await owner.store.delete_segment("s")
        await anyio.sleep(20)
        assert (len(chunks), world.chunk_names) == (4, chunks)

        await owner.store.flush()
        await anyio.sleep(59)
        assert world.chunk_names == chunks
        await anyio.sleep(2)
        assert world.chunk_names == set()
        assert owner.container.statistics().collector.deleted == 4


async def test_f2_nothing_is_deleted_before_the_cycle_that_made_it_garbage_is_complete() -> None:
    """F2: the deletion is recorded, the delay is long over, but another segment keeps the cycle from its
    end."""
    writer = replace(OPTIONS.writer, segment_deadline=1_000.0)
    world = ContainerWorld(replace(OPTIONS, writer=writer))
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        chunks = world.chunk_names
        await owner.store.delete_segment("s")
        await make(owner.store, "slow", b"x")
        world.chunks.script = lambda call: (
            Fault(FaultKind.DELAY, seconds=500)
            if call.verb == "create_with_content" and call.name.startswith("containers/")
            else None
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(owner.store.flush)
            await anyio.sleep(400)
            assert not referenced_chunks(owner.container) & chunks
            assert world.chunk_names >= chunks

        await anyio.sleep(1)
        assert not world.chunk_names & chunks


async def test_truncated_chunks_go_and_the_one_the_start_lies_in_stays() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        await owner.store.truncate_segment("s", 100_000)
        await assert_nothing_leaked(world, owner)

        assert len(world.chunk_names) == 3
        await owner.store.truncate_segment("s", len(DATA))
        await assert_nothing_leaked(world, owner)
        assert world.chunk_names == set()


async def test_a_flush_that_failed_leaves_nothing() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA)
        made = 0

        def script(call: Call) -> Fault | None:
            nonlocal made
            made += call.verb == "create_with_content"
            return Fault(FaultKind.AFTER) if made == 3 else None

        world.chunks.script = script
        with pytest.raises(tierlog.OutcomeUnknown):
            await owner.store.flush()
        assert len(world.chunk_names) == 3
        world.chunks.script = None
        await assert_nothing_leaked(world, owner)
        assert await read_all(owner.store, "s") == DATA


async def test_a_failing_delete_is_retried_then_postponed_and_found_by_the_next_owner() -> None:
    """G2: one bad name holds nobody up, and is tried ever more rarely."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        bad = min(world.chunk_names)
        world.chunks.script = lambda call: DOWN if call.verb == "delete" and call.name == bad else None
        await owner.store.delete_segment("s")
        await owner.store.flush()
        await anyio.sleep(1000)

        statistics = owner.container.statistics().collector
        assert (statistics.deleted, statistics.retried, statistics.retry_later, statistics.queued) == (
            3,
            4,
            1,
            0,
        )
        assert world.chunk_names == {bad}

    world.chunks.script = None
    async with world.owner() as owner:
        await assert_nothing_leaked(world, owner)
        assert owner.container.statistics().collector.orphans_found >= 1


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("turns", [0, 3, 6, 10, 15, 20, 30, 50])
async def test_leftovers_of_a_crash_are_found_by_the_next_owner(turns: int, checkpoint: bool) -> None:
    """G1: a crash at any moment of a cycle with a delete, a truncation, a merge and new data in it."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in ("deleted", "truncated", "target"):
            await make(owner.store, name, DATA)
        await make(owner.store, "target#1", DATA, sealed=True, flushed=True)
        await owner.store.delete_segment("deleted")
        await owner.store.truncate_segment("truncated", 150_000)
        await owner.store.merge_segments("target", ["target#1"])
        await make(owner.store, "new", DATA)
        if checkpoint:
            await owner.checkpoint()
        async with anyio.create_task_group() as work:
            work.start_soon(owner.store.flush)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            work.cancel_scope.cancel()
        await owner.crash()

        owner = await world.start(tasks)
        await assert_nothing_leaked(world, owner)
        assert len(await read_all(owner.store, "target")) == 2 * len(DATA)
        assert len(await read_all(owner.store, "new")) == len(DATA)
        assert len(await read_all(owner.store, "truncated", 150_000)) == 50_000
        await owner.stop()


async def test_orphans_are_listed_later_when_long_term_storage_is_down_at_open() -> None:
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", DATA)
        world.chunks.script = lambda call: (
            Fault(FaultKind.AFTER) if call.verb == "create_with_content" else None
        )
        with pytest.raises(tierlog.OutcomeUnknown):
            await owner.store.flush()
        await owner.crash()
        orphans = world.chunk_names
        world.chunks.script = lambda call: DOWN
        owner = await world.start(tasks)
        assert await read_all(owner.store, "s") == DATA
        await anyio.sleep(100)
        world.chunks.script = None
        await assert_nothing_leaked(world, owner)

        assert orphans
        assert not orphans & world.chunk_names
        await owner.stop()


async def test_a_deleted_segments_garbage_is_not_its_namesakes() -> None:
    """C2: delete and create of one name while the flush and the collection of the first life are pending; and
    again after reopening."""
    world = ContainerWorld()
    for _ in range(3):
        async with world.owner() as owner:
            if "s" in await owner.store.list_segments():
                await owner.store.delete_segment("s")
            await make(owner.store, "s", b"first" * 20_000, flushed=True)
            await owner.store.delete_segment("s")
            await make(owner.store, "s", b"second" * 20_000)
            async with anyio.create_task_group() as work:
                work.start_soon(owner.store.flush)
                await anyio.lowlevel.checkpoint()
                await owner.store.delete_segment("s")
                await make(owner.store, "s", b"third" * 20_000)
            await owner.store.truncate_segment("s", 70_000)
            await assert_nothing_leaked(world, owner)
            assert await read_all(owner.store, "s", 70_000) == b"third" * 6_000

    async with world.owner() as owner:
        assert await read_all(owner.store, "s", 70_000) == b"third" * 6_000


async def test_a_zombie_deletes_nothing() -> None:
    """G1: it decided before it was fenced, its delay ends afterwards: the barrier does not become durable, so
    nothing goes."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        zombie = await world.start(tasks)
        await make(zombie.store, "s", DATA, flushed=True)
        await zombie.store.delete_segment("s")
        await zombie.store.flush()
        await anyio.sleep(30)
        assert zombie.container.statistics().collector.queued == 4
        chunks = world.chunk_names

        # The next owner never comes so far as to collect anything itself.
        await world.logs.log("c0").open()
        await anyio.sleep(1000)
        assert world.chunk_names == chunks
        assert deletes(world) == []
        assert isinstance(zombie.error, tierlog.NotOwner)


async def test_a_barrier_is_durable_before_the_first_delete() -> None:
    """G1, J9: between the decision and the deletes the log grows by an element and a barrier."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        await owner.store.delete_segment("s")
        await owner.store.flush()
        groups = owner.container.log.next_group
        at_delete: list[int] = []

        def script(call: Call) -> Fault | None:
            if call.verb == "delete" and call.name.startswith("containers/"):
                at_delete.append(owner.container.log.next_group)
            return None

        world.chunks.script = script
        await anyio.sleep(100)
        assert at_delete == [groups + 3] * 4, "an element, its confirmation, the barrier"


async def test_of_each_chain_the_newest_two_elements_stay() -> None:
    """J8."""
    world = ContainerWorld()
    for _ in range(4):
        async with world.owner() as owner:
            await owner.store.flush()
            await anyio.sleep(200)

    left = [name for name in world.memory.chunks if name.startswith(journal_prefix(0))]
    assert left == [element_name(0, 7), element_name(0, 8)]
