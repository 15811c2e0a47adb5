"""Garbage and claims of one container, in virtual time: rules G1, G2, F2 and W8. In the end, chunks on
storage are the chunks referenced."""

from __future__ import annotations

import anyio
import attrs
import pytest

import tierlog
from support.container_world import (
    OPTIONS,
    ContainerWorld,
    Owner,
    read_all,
    referenced_chunks,
    until,
    virtual_time,
)
from support.stores import make
from tierlog import StoreMismatch
from tierlog.actors.container.claims import claim_name, claim_prefix
from tierlog.actors.kernel.exits import first_leaf
from tierlog.journal.log.memory import MemoryLogService
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

DATA = bytes(200_000)
"""Four chunks, which roll at 64 KiB."""
DOWN = Fault(FaultKind.BEFORE)


def deletes(world: ContainerWorld) -> list[str]:
    return [call.name for call in world.chunks.calls if call.verb == "delete"]


async def assert_nothing_leaked(world: ContainerWorld, owner: Owner) -> None:
    await owner.store.flush()
    await anyio.sleep(500)
    assert world.chunk_names == referenced_chunks(owner.container)
    assert owner.container.statistics().collector.queued == 0


# --- garbage ------------------------------------------------------------------------------------


async def test_chunks_of_a_deleted_segment_are_deleted_after_the_cycle_and_the_delay() -> None:
    """F2, G2: not before the flush cycle that recorded the deletion, and then a minute later."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA)
        await owner.store.flush()
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
    writer = attrs.evolve(OPTIONS.writer, segment_deadline=1_000.0)
    world = ContainerWorld(attrs.evolve(OPTIONS, writer=writer))
    async with world.owner() as owner:
        await make(owner.store, "s", DATA)
        await owner.store.flush()
        chunks = world.chunk_names
        await owner.store.delete_segment("s")
        await make(owner.store, "slow", b"x")
        world.chunks.script = lambda call: (
            Fault(FaultKind.DELAY, seconds=500) if call.verb == "create_with_content" else None
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
        await make(owner.store, "s", DATA)
        await owner.store.flush()
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
        await make(owner.store, "s", DATA)
        await owner.store.flush()
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
        await make(owner.store, "target#1", DATA, sealed=True)
        await owner.store.flush()
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
            await make(owner.store, "s", b"first" * 20_000)
            await owner.store.flush()
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
        await make(zombie.store, "s", DATA)
        await zombie.store.flush()
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
    """G1: between the decision and the deletes the log grows by one fenced append."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA)
        await owner.store.flush()
        await owner.store.delete_segment("s")
        await owner.store.flush()
        groups = owner.container.log.next_group
        at_delete: list[int] = []

        def script(call: Call) -> Fault | None:
            if call.verb == "delete":
                at_delete.append(owner.container.log.next_group)
            return None

        world.chunks.script = script
        await anyio.sleep(100)
        assert at_delete == [groups + 1] * 4


async def test_claims_of_dead_owners_are_collected_and_the_newest_stays() -> None:
    world = ContainerWorld()
    for _ in range(4):
        async with world.owner() as owner:
            await owner.store.flush()
            await anyio.sleep(200)

    assert [name for name in world.memory.chunks if name.startswith(claim_prefix(0))] == [claim_name(0, 4)]


# --- claims -------------------------------------------------------------------------------------


def cloned(service: MemoryLogService) -> MemoryLogService:
    """A copy of the logs as they are now: what ``cp -r`` of a folder makes."""
    copy = MemoryLogService()
    copy._journals.update(
        {
            name: attrs.evolve(journal, groups=list(journal.groups))
            for name, journal in service._journals.items()
        }
    )
    return copy


async def refusal_of(world: ContainerWorld) -> BaseException | None:
    """Why an owner does not start."""
    try:
        async with world.owner():
            return None
    except Exception as error:  # noqa: BLE001 - the answer is what the tests are about
        return first_leaf(error)


async def test_of_a_folder_and_its_copy_only_the_newest_opens() -> None:
    """W8: the copy was opened, so its claim is above everything the original ever had; ``adopt`` goes on in
    spite of it."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await owner.store.flush()
    original, world.logs = world.logs, cloned(world.logs)
    async with world.owner() as copy:
        await copy.store.append("s", b"in the copy")
        await copy.store.flush()
    world.logs = original

    refusal = await refusal_of(world)
    assert isinstance(refusal, StoreMismatch)
    assert "adopt" in str(refusal)
    async with world.owner(attrs.evolve(OPTIONS, adopt=True)) as adopted:
        assert adopted.container.state.epoch > 2
        assert await read_all(adopted.store, "s") == b"abc"
    assert await refusal_of(world) is None


async def test_a_copied_folder_opened_during_an_outage_deletes_nothing_of_the_original() -> None:
    """G1, W8: it has no claim yet, and to its records the chunks of the original's later owners are garbage
    of dead ones."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await owner.store.flush()
    original, copy = world.logs, cloned(world.logs)
    for data in (b"2", b"3", b"4"):
        async with world.owner() as owner:
            await owner.store.append("s", data)
            await owner.store.flush()
    chunks = world.chunk_names

    world.logs, world.chunks.script = copy, lambda call: DOWN
    for _ in range(2):
        async with world.owner() as owner:
            pass
    async with world.owner() as owner:
        assert owner.container.state.epoch == 4
        world.chunks.script = None
        await owner.store.flush()
        await anyio.sleep(500)
        assert isinstance(owner.error, StoreMismatch)

    world.logs = original
    assert world.chunk_names == chunks
    async with world.owner() as owner:
        assert await read_all(owner.store, "s") == b"abc234"


async def test_another_stores_chunks_are_not_taken_for_our_own() -> None:
    world = ContainerWorld()
    async with world.owner():
        pass
    world.logs, world.store_id = MemoryLogService(), bytes(15) + b"t"

    assert isinstance(await refusal_of(world), StoreMismatch)


async def test_a_taken_claim_raises_the_epoch() -> None:
    """Two openers that saw the same claims: the second finds the name taken and goes above it."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        rival = cloned(world.logs)
        ours, world.logs = world.logs, rival
        release = anyio.Event()

        def script(call: Call) -> Fault | None:
            return (
                Fault(FaultKind.DELAY, seconds=5)
                if call.verb == "create_with_content" and not release.is_set()
                else None
            )

        world.chunks.script = script
        started: list[Owner] = []

        async def start_slowly() -> None:
            started.append(await world.start(tasks))

        tasks.start_soon(start_slowly)
        await until(lambda: any(call.verb == "create_with_content" for call in world.chunks.calls))
        release.set()
        world.logs = ours
        async with world.owner() as fast:
            assert fast.container.state.epoch == 1
            await until_started(started)
            assert started[0].container.state.epoch == 2
        await started[0].stop()


async def until_started(started: list[Owner]) -> None:
    while not started:
        await anyio.sleep(1)


async def test_with_long_term_storage_down_at_open_the_claim_comes_before_the_first_write() -> None:
    world = ContainerWorld()
    world.chunks.script = lambda call: DOWN
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        assert await owner.store.read("s", 0, 10) == b"abc"
        await anyio.sleep(100)
        assert not world.memory.chunks
        world.chunks.script = None
        del world.chunks.calls[:]
        await owner.store.flush()
        created = [call.name for call in world.chunks.calls if call.verb == "create_with_content"]

        assert created[0] == claim_name(0, 1)
        assert len(created) == 2


async def test_a_copied_folder_opened_during_an_outage_stops_before_its_first_write() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await owner.store.flush()
    original, world.logs = world.logs, cloned(world.logs)
    async with world.owner() as copy:
        await copy.store.flush()
    world.logs = original
    world.chunks.script = lambda call: DOWN
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await owner.store.append("s", b"d")
        chunks = world.chunk_names
        world.chunks.script = None
        with pytest.raises(tierlog.Unavailable):
            await owner.store.flush()
        await owner.ended.wait()

        assert isinstance(owner.error, StoreMismatch)
        assert world.chunk_names == chunks
