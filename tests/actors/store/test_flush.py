"""Flush cycles and checkpoints of one container, in virtual time: F1 to F5, C7, S7 and W5 as the container
keeps them."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import attrs
import pytest
from msgspec.structs import replace

import tierlog
from support.container_world import (
    MIB,
    OPTIONS,
    ContainerWorld,
    Owner,
    read_all,
    referenced_chunks,
    until,
    virtual_time,
)
from support.live_segments import cold_images
from support.stores import follow, make
from tierlog import AttributeUpdate, AttributeUpdateKind, Throttled
from tierlog.actors.container.admission import AdmissionOptions
from tierlog.actors.container.checkpoint import CheckpointOptions
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.journal.operations.cycle_complete import CycleComplete
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, Script

pytestmark = [pytest.mark.anyio, virtual_time]

DOWN = Fault(FaultKind.BEFORE)


def failing_for(sid: int) -> Script:
    """Every change of one segment's chunks fails."""

    def script(call: Call) -> Fault | None:
        return (
            DOWN if f"/{sid:016x}/" in call.name and call.verb in ("write", "create_with_content") else None
        )

    return script


async def flushed(owner: Owner, name: str) -> int:
    return (await owner.store.segment_info(name)).flushed_length


async def test_a_segment_is_flushed_when_it_is_large() -> None:
    async with ContainerWorld().owner() as owner:
        await make(owner.store, "large", bytes(MIB))
        await make(owner.store, "small", b"x")
        await anyio.sleep(1)

        assert (await flushed(owner, "large"), await flushed(owner, "small")) == (MIB, 0)


async def test_everything_is_flushed_when_it_is_old() -> None:
    async with ContainerWorld().owner() as owner:
        await make(owner.store, "s", b"x")
        await anyio.sleep(29)
        assert await flushed(owner, "s") == 0

        await anyio.sleep(2)
        assert await flushed(owner, "s") == 1


async def test_an_idle_container_is_quiet() -> None:
    """F5: after a complete cycle neither long-term storage nor the log is written; reads and refusals change
    nothing. Rule G5's later listings are left out."""
    world = ContainerWorld(replace(OPTIONS, collector=CollectorOptions(listings=(0.0,))))
    async with world.owner() as owner:
        await make(owner.store, "s", bytes(MIB))
        await make(owner.store, "gone", bytes(1000))
        await anyio.sleep(31)
        await owner.store.delete_segment("gone")
        await anyio.sleep(300)
        await owner.store.append("s", b"x")
        await owner.store.flush()
        calls, log, cycles = (
            len(world.chunks.calls),
            owner.log_bytes,
            owner.container.statistics().writer.cycles,
        )

        with pytest.raises(tierlog.SegmentExists):
            await owner.store.create_segment("s")
        await owner.store.segment_info("s")
        await anyio.sleep(100_000)
        assert (len(world.chunks.calls), owner.log_bytes, owner.container.statistics().writer.cycles) == (
            calls,
            log,
            cycles,
        )


async def test_flush_waits_for_a_cut_at_or_after_the_call() -> None:
    """A call during a cycle is answered by the next one."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"first")
        release = anyio.Event()
        seen: list[int] = []

        def script(call: Call) -> Fault | None:
            return (
                Fault(FaultKind.DELAY, seconds=0.5)
                if call.verb == "create_with_content" and not release.is_set()
                else None
            )

        world.chunks.script = script

        async def flush() -> None:
            await owner.store.flush()
            newest = owner.container.state.manifest.newest
            assert newest is not None
            seen.append(newest.progress.cycle)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flush)
            await anyio.sleep(0.1)
            await owner.store.append("s", b"second")
            tasks.start_soon(flush)
            release.set()

        assert seen == [1, 2]
        assert await flushed(owner, "s") == 11
        assert owner.container.state.cycle.cut > 0


async def test_a_cycle_is_recorded_with_its_cut() -> None:
    """F1: the record says up to which operation the cycle went, and recovery finds it."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"x")
        cut = owner.container.state.sequence
        await owner.store.flush()
        assert owner.container.state.cycle == CycleComplete(
            1, owner.container.state.cycle.cycle, cut, full=True
        )
        recorded = owner.container.state.cycle

    async with world.owner() as owner:
        assert owner.container.state.cycle == recorded


async def test_appends_continue_while_long_term_storage_is_down_and_are_flushed_when_it_is_back() -> None:
    """S7: nothing feeds itself meanwhile: the log grows by the client's bytes only, and in the end nothing is
    leaked."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"before;", flushed=True)
        world.chunks.script = lambda call: DOWN
        await owner.store.append("s", b"meanwhile;")
        log = owner.log_bytes
        await anyio.sleep(300)
        with pytest.raises(tierlog.Unavailable):
            await owner.store.flush()

        assert owner.log_bytes == log
        assert await owner.store.append("s", b"still;") == 17
        assert (await owner.store.read("s", 7, 100)).startswith(b"meanwhile;")
        world.chunks.script = None
        await anyio.sleep(60)
        assert await flushed(owner, "s") == 23
        assert await read_all(owner.store, "s") == b"before;meanwhile;still;"
        await anyio.sleep(300)
        assert world.chunk_names == referenced_chunks(owner.container)


async def test_a_poisoned_segment_stalls_nobody_else() -> None:
    """F4: the others are flushed, deleted and collected; the poisoned one recovers when its fault is over."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "bad", b"x" * 1000)
        await make(owner.store, "good", b"y" * 1000)
        world.chunks.script = failing_for((await owner.store.segment_info("bad")).segment_id)
        with pytest.raises(tierlog.Unavailable):
            await owner.store.flush()

        assert (await flushed(owner, "bad"), await flushed(owner, "good")) == (0, 1000)
        assert owner.container.statistics().writer.failing_segments == 1
        await owner.store.delete_segment("good")
        await anyio.sleep(300)
        assert world.chunk_names == set()
        world.chunks.script = None
        await owner.store.flush()
        assert await flushed(owner, "bad") == 1000


async def test_f4_the_bytes_of_a_failing_segment_are_relogged_and_the_log_is_truncated() -> None:
    world = ContainerWorld(
        replace(OPTIONS, checkpoint=CheckpointOptions(wal_bytes=MIB, pinned_groups_bytes=2 * MIB))
    )
    data = bytes(number % 251 for number in range(10_000))
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "bad", data)
        await make(owner.store, "good")
        world.chunks.script = failing_for((await owner.store.segment_info("bad")).segment_id)
        for number in range(40):
            await owner.store.append("good", bytes((number,)) * (MIB // 4))
            await anyio.sleep(2)

        statistics = owner.container.statistics()
        assert statistics.checkpoints.relogged_bytes >= len(data)
        assert statistics.log.retained_bytes < 6 * MIB < owner.log_bytes
        assert await read_all(owner.store, "bad") == data
        await owner.crash()
        owner = await world.start(tasks)
        assert await read_all(owner.store, "bad") == data
        world.chunks.script = None
        await owner.store.flush()
        assert await read_all(owner.store, "bad") == data
        await owner.stop()


async def test_a_poisoned_segment_alone_is_refused_above_its_cap() -> None:
    world = ContainerWorld(replace(OPTIONS, admission=attrs.evolve(OPTIONS.admission, segment_bytes=1000)))
    async with world.owner() as owner:
        await make(owner.store, "bad", bytes(1001))
        await make(owner.store, "good")
        world.chunks.script = failing_for((await owner.store.segment_info("bad")).segment_id)
        with pytest.raises(tierlog.Unavailable):
            await owner.store.flush()

        with pytest.raises(Throttled, match="bad"):
            await owner.store.append("bad", b"x")
        assert await owner.store.append("good", bytes(5000)) == 0
        world.chunks.script = None
        await anyio.sleep(5)
        assert await owner.store.append("bad", b"x") == 1001


async def test_appends_wait_and_are_refused_before_the_mailbox_never_in_it() -> None:
    """C6: memory is full of unflushed bytes; what relieves it still gets through."""
    limits = AdmissionOptions(soft_bytes=100_000, hard_bytes=200_000, segment_bytes=MIB, delay_max=2)
    world = ContainerWorld(replace(OPTIONS, admission=limits))
    async with world.owner() as owner:
        world.chunks.script = lambda call: DOWN
        await make(owner.store, "s", bytes(150_000))
        before = anyio.current_time()
        await owner.store.append("s", bytes(60_000))
        assert 0.9 < anyio.current_time() - before < 2
        with pytest.raises(Throttled) as caught:
            await owner.store.append("s", b"x")
        assert caught.value.retryable

        world.chunks.script = None
        await owner.store.flush()
        assert owner.container.cache.pinned_bytes == 0
        assert await owner.store.append("s", b"x") == 210_000
        assert owner.container.statistics().admission.throttled == 1


async def test_memory_full_of_many_small_segments_makes_a_cycle_due() -> None:
    """None of them is due by size or age, but together they hold up everybody."""
    limits = AdmissionOptions(soft_bytes=100_000, hard_bytes=200_000, segment_bytes=MIB, delay_max=2)
    async with ContainerWorld(replace(OPTIONS, admission=limits)).owner() as owner:
        before = anyio.current_time()
        for number in range(50):
            await make(owner.store, f"s{number}", bytes(10_000))

        assert anyio.current_time() - before < 1
        assert owner.container.statistics().admission.throttled == 0


# --- checkpoints --------------------------------------------------------------------------------


async def test_the_log_is_truncated_once_a_checkpoint_follows_a_flush() -> None:
    """W5: only what neither the checkpoint nor long-term storage holds is kept."""
    world = ContainerWorld(replace(OPTIONS, checkpoint=CheckpointOptions(wal_bytes=MIB)))
    async with world.owner() as owner:
        await make(owner.store, "s")
        for _ in range(20):
            await owner.store.append("s", bytes(MIB // 2))
            await anyio.sleep(1)

        statistics = owner.container.statistics()
        assert statistics.checkpoints.checkpoints >= 5
        assert statistics.log.retained_bytes < 4 * MIB

    async with world.owner() as owner:
        assert owner.container.statistics().recovery.checkpoint_sequence > 0
        assert len(await read_all(owner.store, "s")) == 10 * MIB


async def test_a_checkpoint_travels_in_parts_between_appends_and_counts_nothing_twice() -> None:
    """C7: while 1,000 segments are written out, accumulates, appends, creates and deletes go on; after a
    crash each counts once."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        names = [f"s{number:04d}" for number in range(1000)]
        for name in names:
            await owner.store.create_segment(name)
        add = AttributeUpdate("n", 1, AttributeUpdateKind.ACCUMULATE)
        done = anyio.Event()
        counts = dict.fromkeys(names, 0)
        groups = owner.container.log.next_group

        async def checkpoint() -> None:
            await owner.checkpoint()
            done.set()

        async with anyio.create_task_group() as work:
            work.start_soon(checkpoint)
            while not done.is_set():
                for name in (names[0], names[500], names[999]):
                    await owner.store.update_attributes(name, [add])
                    await owner.store.append(name, b"x")
                    counts[name] += 1
            await owner.store.delete_segment(names[1])
            del counts[names[1]]

        assert counts[names[0]] >= 2
        assert owner.container.log.next_group - groups > 6
        await owner.crash()
        owner = await world.start(tasks)
        assert owner.container.statistics().recovery.checkpoint_sequence > 0
        assert await owner.store.list_segments() == sorted(counts)
        for name, count in counts.items():
            info = await owner.store.segment_info(name)
            assert (info.length, info.attributes.get("n", 0)) == (count, count)
        await owner.stop()


@pytest.mark.parametrize("turns", [*range(1, 12), 15, 20, 30])
async def test_a_checkpoint_that_a_crash_cut_short_does_not_exist(turns: int) -> None:
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", b"abc")
        for _ in range(2):
            async with anyio.create_task_group() as work:
                work.start_soon(owner.checkpoint)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                await owner.store.update_attributes(
                    "s", [AttributeUpdate("n", 1, AttributeUpdateKind.ACCUMULATE)]
                )
                await owner.store.append("s", b"d")
                work.cancel_scope.cancel()
            await owner.crash()
            owner = await world.start(tasks)

        info = await owner.store.segment_info("s")
        assert (await read_all(owner.store, "s"), info.attributes) == (b"abcdd", {"n": 2})
        await owner.stop()


# --- answers ------------------------------------------------------------------------------------


async def test_c1_an_answer_waits_until_its_dependencies_are_durable() -> None:
    """C1: duplicates, refusals and queries wait for the group they depend on; if it fails, none of them was
    said."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        store = owner.store
        await store.create_segment("s")
        calls: list[Callable[[], object]] = [
            lambda: store.append("s", b"x", writer_id="w", event_number=1),
            lambda: store.append("s", b"x", writer_id="w", event_number=1),
            lambda: store.append("s", b"x", expected_offset=0),
            lambda: store.update_attributes("s", [AttributeUpdate("a", 1, AttributeUpdateKind.NONE)]),
            lambda: store.update_attributes("s", [AttributeUpdate("a", 1, AttributeUpdateKind.NONE)]),
            lambda: store.seal_segment("s"),
            lambda: store.append("s", b"y"),
            lambda: store.segment_info("s"),
            store.list_segments,
            lambda: store.create_segment("s"),
            lambda: store.last_event_number("s", "w"),
            lambda: store.delete_segment("s"),
            lambda: store.read("s", 0, 1),
            lambda: store.segment_info("s"),
        ]
        answers: list[object] = []

        async def note(call: Callable[[], object]) -> None:
            try:
                answers.append(await call())  # type: ignore[misc]
            except tierlog.TierlogError as error:
                answers.append(type(error))

        async with (
            anyio.create_task_group() as work,
            world.owner(),
        ):  # fences the first: its group cannot become durable
            for call in calls:
                work.start_soon(note, call)
            await owner.ended.wait()

        assert set(answers) <= {tierlog.OutcomeUnknown, tierlog.Unavailable, tierlog.NotOwner}
        assert tierlog.OutcomeUnknown in answers
        async with world.owner() as heir:
            assert (await heir.store.segment_info("s")).length == 0


async def test_a_write_of_unknown_outcome_is_not_repeated_but_followed_by_a_new_chunk() -> None:
    """S3: bytes that may have arrived are never written twice nor read; the chunk that holds them takes no
    more."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"first;", flushed=True)
        await owner.store.append("s", b"second;")
        world.chunks.script = lambda call: Fault(FaultKind.PARTIAL, keep=3) if call.verb == "write" else None
        with pytest.raises(tierlog.OutcomeUnknown):
            await owner.store.flush()
        writes = [call for call in world.chunks.calls if call.verb == "write"]
        assert len(writes) == 1

        await owner.store.flush()
        assert len([call for call in world.chunks.calls if call.verb == "write"]) == 1
        assert len(referenced_chunks(owner.container)) == 2
        owner.container.cache._limit = 0
        owner.container.cache.evict()
        assert await read_all(owner.store, "s") == b"first;second;"


async def test_a_cycle_interrupted_by_a_crash_is_not_the_newest_complete_one() -> None:
    """F1: a later owner finds the newest complete cycle; what the broken one committed is neither lost nor
    doubled."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "a", b"a", flushed=True)
        complete = owner.container.state.cycle
        await make(owner.store, "b", b"b")
        await owner.store.append("a", b"a")
        world.chunks.script = lambda call: Fault(FaultKind.HANG) if call.verb == "write" else None
        async with anyio.create_task_group() as work:
            work.start_soon(owner.store.flush)
            await until(lambda: any(call.verb == "write" for call in world.chunks.calls))
            work.cancel_scope.cancel()
        await owner.crash()
        world.chunks.script = None
        owner = await world.start(tasks)

        assert owner.container.state.cycle == complete
        await owner.store.flush()
        assert [await read_all(owner.store, name) for name in ("a", "b")] == [b"aa", b"b"]
        assert owner.container.state.cycle.epoch == 2
        await owner.stop()


async def test_the_next_operations_of_an_evicted_segment_keep_their_order() -> None:
    """C4: an idle segment is brought back inside the step that needs it, so nothing of it can be
    overtaken."""
    world = ContainerWorld(replace(OPTIONS, active_segments_max=1))
    async with world.owner() as owner:
        for number in range(20):
            await make(owner.store, f"s{number}", b"0")
        await owner.store.flush()
        await owner.store.append("s19", b"1")
        assert len(cold_images(owner.container)) >= 15
        offsets: list[int | None] = []

        async def append(number: int) -> None:
            offsets.append(await owner.store.append("s0", b"x", writer_id="w", event_number=number))

        async with anyio.create_task_group() as work:
            for number in range(5):
                work.start_soon(append, number)
                await anyio.lowlevel.checkpoint()

        assert sorted(offset for offset in offsets if offset is not None) == [1, 2, 3, 4, 5]
        assert await read_all(owner.store, "s0") == b"0xxxxx"


async def test_tails_that_were_given_up_keep_no_segment_in_memory() -> None:
    """C4. Of two that wait for one segment, the first that leaves takes nothing from the other."""
    world = ContainerWorld(replace(OPTIONS, active_segments_max=1))
    async with world.owner() as owner, anyio.create_task_group() as tasks:
        for number in range(20):
            await make(owner.store, f"s{number}", b"x")
        tasks.start_soon(owner.container.waiters.wait_beyond, "s0", 1)
        for number in range(20):
            with anyio.move_on_after(1):
                await owner.container.waiters.wait_beyond(f"s{number}", 1)
        for _ in range(3):
            await owner.store.append("s19", b"y")
            await owner.store.flush()
            await anyio.sleep(100)

        assert len(cold_images(owner.container)) >= 15
        await owner.store.append("s0", b"y")


async def test_a_tail_survives_the_eviction_of_its_segment() -> None:
    world = ContainerWorld(replace(OPTIONS, active_segments_max=1))
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        for number in range(10):
            await make(owner.store, f"t{number}", b"x")
        await owner.store.flush()
        seen: list[bytes] = []

        async with anyio.create_task_group() as work:
            work.start_soon(follow, owner.store, "s", seen)
            await anyio.wait_all_tasks_blocked()
            await owner.store.truncate_segment("s", 1)
            await owner.store.flush()
            await owner.store.append("t0", b"x")
            await owner.store.append("s", b"d")
            await owner.store.seal_segment("s")

        assert b"".join(seen) == b"abcd"
