"""Claims of one container, in virtual time: copies, adoption, late owners, and what may be deleted meanwhile
(rules W8, G1, G4 and G5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from simulation.file_layer import SimulatedFiles

import tierlog
from support.container_world import (
    ELSEWHERE,
    OPTIONS,
    ContainerWorld,
    Owner,
    as_copy,
    assert_nothing_leaked,
    cloned,
    create_element,
    deletes,
    read_all,
    reason_of,
    refusal_of,
    until,
    virtual_time,
)
from support.live_segments import cold_images
from support.stores import make
from support.table_rows import simulated_runs
from support.table_runs import UNMERGED
from tierlog import OutcomeUnknown, StoreMismatch, Unavailable
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.manifest.chain import element_name, runs_prefix
from tierlog.storage_backends.segments.records.unconfirmed import Reason
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

DATA = bytes(200_000)
"""Four chunks, which roll at 64 KiB."""
DOWN = Fault(FaultKind.BEFORE)


def listings_of_chunks_fail(call: Call) -> Fault | None:
    return DOWN if call.verb == "list" and call.name == "containers/0000/" else None


async def test_of_a_folder_and_its_copy_only_the_newest_opens() -> None:
    """W8: the copy was opened, so its claim is above everything the original ever had; ``adopt`` goes on in
    spite of it."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
    original, world.logs = world.logs, cloned(world.logs)
    async with world.owner() as copy:
        await copy.store.append("s", b"in the copy")
        await copy.store.flush()
    world.logs = original

    refusal = await refusal_of(world)
    assert isinstance(refusal, StoreMismatch)
    assert "adopt" in str(refusal)
    async with world.owner(replace(OPTIONS, adopt=True)) as adopted:
        assert adopted.container.state.epoch > 2
        assert await read_all(adopted.store, "s") == b"abc"
    assert await refusal_of(world) is None


async def test_a_copied_folder_opened_during_an_outage_deletes_nothing_of_the_original() -> None:
    """J6, J9: it has no element yet, and to its records the chunks of the original's later owners are garbage
    of dead ones."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
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
        await owner.store.append("s", b"5")
        with pytest.raises(tierlog.Unavailable):
            await owner.store.flush()
        await owner.ended.wait()
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


async def test_of_a_folder_and_its_copy_that_open_at_once_one_is_refused() -> None:
    """W8: both saw the same claims, and the slower one finds the name taken."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        ours, world.logs = world.logs, cloned(world.logs)
        refusals: list[BaseException | None] = []

        async def refused() -> None:
            refusals.append(await refusal_of(world))

        world.chunks.script = lambda call: (
            Fault(FaultKind.DELAY, seconds=5) if call.verb == "create_with_content" else None
        )
        tasks.start_soon(refused)
        await until(lambda: any(call.verb == "create_with_content" for call in world.chunks.calls))
        world.logs, world.chunks.script = ours, None
        async with world.owner():
            await anyio.sleep(10)

    assert isinstance(refusals[0], StoreMismatch)


# --- copies that share long-term storage --------------------------------------------------------


async def test_a_refused_copy_is_refused_again() -> None:
    """W8: each attempt raises the register, which is no proof that a claim is of this log's past."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
    backup = cloned(world.logs)
    for data in (b"d", b"e"):
        async with world.owner() as owner:
            await owner.store.append("s", data)
            await owner.store.flush()
    chunks = world.chunk_names

    world.logs = backup
    for _ in range(5):
        assert isinstance(await refusal_of(world), StoreMismatch)
    assert world.chunk_names == chunks


@pytest.mark.parametrize("verb", ["append", "delete"])
async def test_an_original_whose_copy_was_opened_flushes_nothing_more_and_keeps_what_it_acked(
    verb: str,
) -> None:
    """W8: the copy may collect what the original flushes; in the original's log it is safe."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        original = await world.start(tasks)
        await make(original.store, "s", DATA)
        await make(original.store, "kept", b"abc", flushed=True)
        chunks = world.chunk_names
        async with as_copy(world) as copy:
            if verb == "delete":
                await original.store.delete_segment("s")
            else:
                await original.store.append("kept", b"def")
            with pytest.raises(tierlog.Unavailable):
                await original.store.flush()
            await original.ended.wait()
            assert isinstance(original.error, StoreMismatch)
            assert "by there:/copy/wal" in str(original.error)

            assert deletes(world) == []
            assert world.chunk_names == chunks
            assert await read_all(copy.store, "s") == DATA

        assert isinstance(await refusal_of(world), StoreMismatch)
        async with world.owner(replace(OPTIONS, adopt=True)) as adopted:
            assert await read_all(adopted.store, "kept") == (b"abc" if verb == "delete" else b"abcdef")


async def test_a_batch_of_deletions_meets_the_element_of_a_copy() -> None:
    """J9: nothing is flushed between the copy's element and the batch."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        original = await world.start(tasks)
        await make(original.store, "s", DATA, flushed=True)
        await original.store.delete_segment("s")
        await original.store.flush()
        await anyio.sleep(30)
        chunks = world.chunk_names
        async with as_copy(world):
            await anyio.sleep(60)
            assert isinstance(original.error, StoreMismatch)
            assert deletes(world) == []
            assert world.chunk_names == chunks


async def test_a_copy_deletes_nothing_that_its_original_flushed_for_24_hours() -> None:
    """G4: its fingerprint differs from the last element's, so it was moved, or it is a copy."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        original = await world.start(tasks)
        await make(original.store, "s", b"abc", flushed=True)
        taken = cloned(world.logs)
        await original.store.append("s", DATA)
        await flush_without_element(world, original)
        flushed = world.chunk_names
        await original.stop()

        async with as_copy(world, taken) as copy:
            assert reason_of(copy) is Reason.MOVED
            assert copy.container.statistics().collector.unconfirmed == 1
            await copy.store.append("s", b"d")
            await copy.store.flush()
            await anyio.sleep(86_000)
            assert world.chunk_names > flushed

            await anyio.sleep(1_000)
            assert reason_of(copy) is Reason.RESTORED, "the original flushed more than this log has"
            assert world.chunk_names > flushed

            await copy.container.confirmation.confirm()
            await copy.store.flush()
            await assert_nothing_leaked(world, copy)


async def flush_without_element(world: ContainerWorld, owner: Owner) -> None:
    """Flush to chunks, but not to the end: no element says so."""
    world.chunks.script = lambda call: (
        DOWN if call.verb == "create_with_content" and "/journal/" in call.name else None
    )
    before = stored_bytes(world)
    with pytest.raises(Unavailable):
        await owner.store.flush()
    world.chunks.script = None
    assert stored_bytes(world) > before


def stored_bytes(world: ContainerWorld) -> int:
    return sum(len(world.memory.chunks[name].data) for name in world.chunk_names)


async def restored_in_place(
    tasks: anyio.abc.TaskGroup, work: Callable[[Owner], Awaitable[object]]
) -> tuple[ContainerWorld, set[str]]:
    """A folder whose log was saved while its owner lived and put back after ``work``, a crash at the end of a
    flush; and the chunks in long-term storage."""
    world = ContainerWorld()
    owner = await world.start(tasks)
    await make(owner.store, "s", b"abc", flushed=True)
    backup = cloned(world.logs)
    await work(owner)
    await flush_without_element(world, owner)
    await owner.crash()
    world.logs = backup
    return world, world.chunk_names


async def append_more(owner: Owner) -> None:
    await owner.store.append("s", DATA)


async def grow_a_chunk(owner: Owner) -> None:
    """The chunk is longer than its record in the restored log says, and there is no other one."""
    await owner.store.append("s", b"newer")


async def create_another(owner: Owner) -> None:
    await make(owner.store, "t", b"abc")


@pytest.mark.parametrize("work", [append_more, grow_a_chunk, create_another])
async def test_a_log_put_back_in_place_deletes_nothing_that_was_flushed_after_the_backup(
    work: Callable[[Owner], Awaitable[object]],
) -> None:
    """G4: no element is foreign and the folder is the same, but chunks reach beyond what the log knows."""
    async with anyio.create_task_group() as tasks:
        world, chunks = await restored_in_place(tasks, work)
        async with world.owner() as owner:
            await owner.store.append("s", bytes(300_000))
            await owner.store.flush()
            await anyio.sleep(200_000)
            assert reason_of(owner) is Reason.RESTORED
            assert world.chunk_names > chunks
        async with world.owner() as owner:
            await owner.container.confirmation.confirm()
        async with world.owner() as owner:
            await owner.store.flush()
            await anyio.sleep(200)
            assert reason_of(owner) is None
            await assert_nothing_leaked(world, owner)


async def test_a_log_put_back_in_place_is_refused_if_it_lacks_an_element() -> None:
    """J6: the same folder, and the same epoch."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", b"abc")
        backup = cloned(world.logs)
        await owner.store.flush()
        await owner.crash()
    world.logs = backup
    chunks = world.chunk_names
    for _ in range(3):
        assert isinstance(await refusal_of(world), StoreMismatch)
    async with world.owner(replace(OPTIONS, adopt=True)) as owner:
        await owner.store.flush()
        await anyio.sleep(1_000)
        assert reason_of(owner) is Reason.ADOPTED
        assert world.chunk_names > chunks


async def test_a_restored_log_is_noticed_after_many_brief_owners() -> None:
    """G4: chunks of all earlier owners are compared with the log."""
    world = ContainerWorld()
    for _ in range(12):
        async with world.owner():
            pass
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", b"abc")
        backup = cloned(world.logs)
        await owner.store.append("s", DATA)
        await flush_without_element(world, owner)
        await owner.crash()
        world.logs = backup
        async with world.owner() as owner:
            await owner.store.flush()
            await anyio.sleep(1_000)
            assert reason_of(owner) is Reason.RESTORED


@pytest.mark.parametrize("verb", ["append", "delete"])
async def test_a_listing_that_an_outage_delays_finds_a_restored_log_by_its_evicted_segments(
    verb: str,
) -> None:
    """G4: the segment had left memory when the owner recovered, and changes before the listing works."""
    options = replace(OPTIONS, active_segments_max=1)
    world = ContainerWorld(options)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in ("s", "t", "u"):
            await make(owner.store, name, b"abc")
        await owner.store.flush()
        await owner.checkpoint()
        backup = cloned(world.logs)
        await owner.store.append("s", DATA)
        await flush_without_element(world, owner)
        await owner.crash()
    newer, world.logs = world.chunk_names, backup
    world.chunks.script = listings_of_chunks_fail
    async with world.owner() as owner:
        assert len(cold_images(owner.container)) >= 2
        if verb == "append":
            await owner.store.append("s", bytes(300_000))
        else:
            await owner.store.delete_segment("s")
        await owner.store.flush()
        world.chunks.script = None
        await owner.store.append("t", b"d")
        await owner.store.flush()
        await anyio.sleep(1_000)
        assert reason_of(owner) is Reason.RESTORED
        assert world.chunk_names >= newer


async def test_a_listing_that_an_outage_delays_finds_a_restored_log_by_segments_that_it_never_had() -> None:
    """G4: segments that are created before the listing works have higher ids."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", b"abc", flushed=True)
        backup = cloned(world.logs)
        await make(owner.store, "newer", b"abc")
        await flush_without_element(world, owner)
        await owner.crash()
    newer, world.logs = world.chunk_names, backup
    world.chunks.script = listings_of_chunks_fail
    async with world.owner() as owner:
        await make(owner.store, "t", b"abc", flushed=True)
        world.chunks.script = None
        await owner.store.append("t", b"d")
        await owner.store.flush()
        await anyio.sleep(1_000)
        assert reason_of(owner) is Reason.RESTORED
        assert world.chunk_names >= newer


async def test_a_listing_of_storage_that_is_not_mounted_does_not_hide_a_restored_log() -> None:
    """G4, G5: the first listing is due while the mount is missing, and would be empty."""
    async with anyio.create_task_group() as tasks:
        world, chunks = await restored_in_place(tasks, append_more)
        mounted = dict(world.memory.chunks)
        world.memory.chunks.clear()
        async with world.owner() as owner:
            await anyio.sleep(10)
            world.memory.chunks.update(mounted)
            await owner.store.append("s", bytes(300_000))
            await owner.store.flush()
            await anyio.sleep(200_000)
            assert reason_of(owner) is Reason.RESTORED
            assert world.chunk_names > chunks


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_chunks_of_deleted_segments_are_no_proof_of_a_restored_log(checkpoint: bool) -> None:
    """G4: the newest segment is gone, and a checkpoint took its creation out of the log; another was flushed
    by a cycle that did not commit."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in ("s", "t"):
            await make(owner.store, name, DATA)
        await owner.store.flush()
        await owner.store.delete_segment("t")
        await owner.store.flush()
        if checkpoint:
            await owner.checkpoint()
        await owner.store.append("s", DATA)
        logged = len(world.chunk_names)
        flushing = anyio.CancelScope()

        async def flush() -> None:
            with flushing:
                await owner.store.flush()

        tasks.start_soon(flush)
        await until(lambda: len(world.chunk_names) > logged)
        flushing.cancel()
        await owner.crash()
        async with world.owner() as owner:
            await owner.store.flush()
            await assert_nothing_leaked(world, owner)
            assert reason_of(owner) is None


async def test_a_chunk_of_a_source_that_its_target_grew_is_no_proof_of_a_restored_log() -> None:
    """G4: its owner crashed before it committed the splice, and a successor dropped it before a listing."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", b"abc")
        await make(owner.store, "t", flushed=True)
        await owner.store.seal_segment("s")
        await owner.store.merge_segments("t", ["s"])
        await owner.store.append("t", b"def")
        before = stored_bytes(world)
        world.chunks.script = lambda call: Fault(FaultKind.AFTER) if call.verb == "write" else None
        with pytest.raises(OutcomeUnknown):
            await owner.store.flush()
        assert stored_bytes(world) == before + 3
        await owner.crash()
        world.chunks.script = listings_of_chunks_fail
        async with world.owner() as owner:
            await owner.store.flush()
            await owner.store.truncate_segment("t", 6)
            await owner.store.flush()
            world.chunks.script = None
            await owner.store.append("t", b"g")
            await owner.store.flush()
            await anyio.sleep(1_000)
            assert reason_of(owner) is None
            await assert_nothing_leaked(world, owner)


async def test_the_24_hours_begin_again_with_each_ownership() -> None:
    """G4, C8. The last claim has the new fingerprint by then; that the folder was moved is in the log."""
    world = ContainerWorld()
    async with world.owner():
        pass
    world.folder = ELSEWHERE
    for _ in range(3):
        async with world.owner() as owner:
            await anyio.sleep(80_000)
            assert reason_of(owner) is Reason.MOVED
    async with world.owner() as owner:
        await anyio.sleep(87_000)
        assert reason_of(owner) is None
    async with world.owner() as owner:
        assert reason_of(owner) is None


async def test_a_moved_folder_that_claims_late_deletes_nothing_either() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        await owner.store.delete_segment("s")
        await owner.store.flush()
    chunks = world.chunk_names
    world.folder, world.chunks.script = ELSEWHERE, lambda call: DOWN
    async with world.owner() as owner:
        world.chunks.script = None
        await make(owner.store, "t", b"abc", flushed=True)
        await anyio.sleep(1_000)
        assert reason_of(owner) is Reason.MOVED
        assert world.chunk_names > chunks


async def test_a_container_with_a_log_from_before_its_chunks_keeps_each_until_it_is_confirmed() -> None:
    """G4: adopting it must not delete the store's chunks."""
    world = ContainerWorld()
    async with world.owner() as owner:
        old = cloned(world.logs)
        await make(owner.store, "s", DATA, flushed=True)
    chunks = world.chunk_names
    runs = {name for name in world.memory.chunks if name.startswith(runs_prefix(0))}
    assert runs

    world.logs = old
    assert isinstance(await refusal_of(world), StoreMismatch)
    async with world.owner(replace(OPTIONS, adopt=True)) as owner:
        assert reason_of(owner) is Reason.ADOPTED
        assert not owner.container.state.table.runs.runs, "they are not used: the log has no segments"
        await make(owner.store, "t", DATA, flushed=True)
        await owner.store.delete_segment("t")
        await owner.store.flush()
        await anyio.sleep(200_000)
        assert world.chunk_names > chunks

    for _ in range(2):
        async with world.owner() as owner:
            await owner.store.flush()
            await anyio.sleep(1_000)
            assert reason_of(owner) is Reason.ADOPTED
            assert world.chunk_names > chunks
            assert runs < set(world.memory.chunks)
    async with world.owner() as owner:
        await owner.container.confirmation.confirm()
        await owner.store.flush()
        await assert_nothing_leaked(world, owner)
        assert world.chunk_names == set()
        assert not runs & set(world.memory.chunks)
    async with world.owner() as owner:
        assert reason_of(owner) is None


async def with_merged_runs(world: ContainerWorld) -> MemoryLogService:
    """A copy of the log. The original has merged and collected the runs that it names."""
    async with world.owner() as owner:
        for name in ("s", "t"):
            await make(owner.store, name, b"abc", flushed=True)
            await anyio.sleep(1)
        copy, runs = cloned(world.logs), {run.name for run in owner.container.state.table.runs}
        for name in ("u", "v", "w", "x"):
            await make(owner.store, name, b"abc", flushed=True)
            await anyio.sleep(100)
    assert runs
    assert not runs & set(world.memory.chunks)
    return copy


@pytest.mark.parametrize("is_adopted", [False, True])
async def test_a_copy_without_its_folder_of_runs_is_refused_as_any_other(is_adopted: bool) -> None:
    """J6: its records cannot be read, which must not delay the refusal until after an ack."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=2, table_cache=BlockCache(0)))
    world.logs = await with_merged_runs(world)
    world.folder, world.runs = ELSEWHERE, simulated_runs(world.files, "/runs-elsewhere")
    if is_adopted:
        async with world.owner(replace(world.options, adopt=True)) as owner:
            assert reason_of(owner) is Reason.ADOPTED
        return

    refusal = await refusal_of(world, world.options)
    assert isinstance(refusal, StoreMismatch)
    assert "the folder is a copy or an old backup" in str(refusal)


async def test_runs_that_another_history_deleted_are_put_again_from_their_local_copies() -> None:
    """M6: no other copy was left, until they were merged one day."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=2))
    async with world.owner() as owner:
        for name in ("s", "t"):
            await make(owner.store, name, b"abc", flushed=True)
            await anyio.sleep(1)
        copy, disk, runs = cloned(world.logs), world.files.disk.copy(), set(owner.container.state.table.runs)
        for name in ("u", "v", "w", "x"):
            await make(owner.store, name, b"abc", flushed=True)
            await anyio.sleep(100)
    names = {run.name for run in runs}
    assert not names & set(world.memory.chunks)

    world.logs, world.folder = copy, ELSEWHERE
    world.files = SimulatedFiles(disk, interleave=False)
    async with world.owner(replace(UNMERGED, adopt=True)) as owner:
        await anyio.sleep(60)
        assert names <= set(world.memory.chunks)
    for path in disk.files_below("/"):
        disk.unlink(path)
    async with world.owner(replace(UNMERGED, adopt=True)) as owner:
        assert await read_all(owner.store, "s") == b"abc"
        await owner.store.append("s", b"def")
        await owner.store.flush()


async def test_a_folder_whose_records_cannot_be_read_is_not_adopted_over_empty_storage() -> None:
    """J6: nobody knows whether a chunk is lost."""
    world = ContainerWorld(replace(OPTIONS, table_cache=BlockCache(0)))
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
    world.runs = simulated_runs(world.files, "/runs-lost")
    world.memory.chunks.clear()
    async with world.owner(replace(world.options, adopt=True)) as owner:
        with pytest.raises(Unavailable, match="long-term storage is empty"):
            await owner.store.flush()


async def test_adopting_does_not_take_the_chunks_of_another_store() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
    stored = set(world.memory.chunks)
    world.logs, world.store_id = MemoryLogService(), bytes(15) + b"t"

    for _ in range(2):
        refusal = await refusal_of(world, replace(OPTIONS, adopt=True))
        assert isinstance(refusal, StoreMismatch)
        assert "adopting is for copies of the same store only" in str(refusal)
    assert set(world.memory.chunks) == stored


@pytest.mark.parametrize("turns", range(0, 60, 4))
async def test_an_adoption_that_ends_anywhere_leaves_the_container_refused_or_unconfirmed(turns: int) -> None:
    """G4: the record that it is unconfirmed is durable before the claim."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA)
    backup = cloned(world.logs)
    async with world.owner() as owner:
        await owner.store.flush()
    chunks = world.chunk_names

    world.logs = backup
    async with anyio.create_task_group() as tasks:
        owner = world.make(replace(OPTIONS, adopt=True))
        tasks.start_soon(owner.run)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        await owner.crash()

    refusal = await refusal_of(world)
    if refusal is None:
        async with world.owner() as owner:
            assert reason_of(owner) is Reason.ADOPTED
            await make(owner.store, "t", b"abc", flushed=True)
            await anyio.sleep(1_000)
    else:
        assert isinstance(refusal, StoreMismatch)
    assert world.chunk_names >= chunks


async def test_an_element_of_a_dead_owner_that_comes_late_stops_nobody() -> None:
    """J8: its number is below those that count, and the next opening deletes it."""
    world = ContainerWorld()
    async with world.owner():
        pass
    async with world.owner() as owner:
        late = owner.container.ownership.identity
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
        await create_element(world, 2, 2, late)
        await owner.store.flush()
    assert await refusal_of(world) is None
    assert element_name(0, 2) not in world.memory.chunks


# --- late puts of dead owners -------------------------------------------------------------------


async def test_a_chunk_that_a_zombie_makes_after_the_listing_goes_within_the_ownership() -> None:
    """G5."""
    world = ContainerWorld()
    async with world.owner() as zombie:
        await make(zombie.store, "s", b"abc", flushed=True)
        late = zombie.container.storage._context.new_chunk_name(1, 0)
    async with world.owner() as owner:
        await anyio.sleep(100)
        await world.chunks.create_with_content(late, [b"late"])
        await anyio.sleep(700)
        assert late in world.chunk_names
        await anyio.sleep(500)
        assert late not in world.chunk_names
        assert await read_all(owner.store, "s") == b"abc"


async def test_an_idle_container_lists_its_chunks_three_times_at_most() -> None:
    """G5, F5."""
    world = ContainerWorld()
    async with world.owner():
        await anyio.sleep(1_000_000)
        listed = [call.name for call in world.chunks.calls if call.verb == "list"]
        assert listed.count("containers/0000/") == 3
