"""The elements that an owner creates, in virtual time: cycles, proofs, unknown outcomes, crashes (J1-J11)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

from support.container_world import ContainerWorld, Owner, read_all, refusal_of, virtual_time
from support.stores import make
from tierlog import StoreMismatch, Unavailable
from tierlog.journal.manifest.chain import element_name, read_chain
from tierlog.journal.manifest.element import Element, Kind
from tierlog.storage_backends.base.errors import OutcomeUnknown
from tierlog.storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, every

pytestmark = [pytest.mark.anyio, virtual_time]

DATA = bytes(200_000)
"""Four chunks, which roll at 64 KiB."""


def creations(world: ContainerWorld) -> list[str]:
    return [
        call.name
        for call in world.chunks.calls
        if call.verb == "create_with_content" and "/journal/" in call.name
    ]


def newest_of(owner: Owner) -> Element:
    newest = owner.container.state.manifest.newest
    assert newest is not None
    return newest


def elements_fail(kind: FaultKind) -> Callable[[Call], Fault | None]:
    return lambda call: (
        Fault(kind) if call.verb == "create_with_content" and "/journal/" in call.name else None
    )


async def test_each_full_flush_creates_one_element_with_its_cycle() -> None:
    """J2, J5."""
    world = ContainerWorld()
    async with world.owner() as owner:
        for cycle in (1, 2, 3):
            await make(owner.store, f"s{cycle}", b"abc")
            await owner.store.flush()
            newest = newest_of(owner)
            assert (newest.n, newest.kind, newest.progress.cycle) == (cycle + 1, Kind.CYCLE_COMPLETE, cycle)
            assert newest.progress.highest_cycle == cycle
            assert newest.progress.newest_segment == owner.container.state.newest_segment
            assert 0 < newest.progress.cut <= newest.progress.highest_version
    async with world.owner() as owner:
        newest = newest_of(owner)
        assert (newest.n, newest.kind, newest.progress.cycle) == (5, Kind.OPEN, 3)


async def test_an_idle_store_creates_nothing() -> None:
    """F5: nor does one whose garbage is collected."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA)
        await owner.store.flush()
        await owner.store.delete_segment("s")
        await owner.store.flush()
        await anyio.sleep(1_000)
        assert not world.chunk_names
        del world.chunks.calls[:]
        logged = owner.log_bytes
        await anyio.sleep(200_000)
        assert creations(world) == []
        assert owner.log_bytes == logged


@pytest.mark.parametrize("kind", [FaultKind.BEFORE, FaultKind.AFTER, FaultKind.LOST])
async def test_an_element_of_unknown_outcome_is_asked_for_again_with_the_same_bytes(kind: FaultKind) -> None:
    """J5: the flush fails, and the next one first settles the element that was recorded."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        world.chunks.script = elements_fail(kind)
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await owner.store.flush()
        intent = owner.container.state.manifest.intent
        assert intent is not None
        assert owner.container.statistics().manifest.unconfirmed_creations == 1

        world.chunks.script = None
        await owner.store.flush()
        assert bytes(world.memory.chunks[element_name(0, 2)].data) == intent.content
        assert owner.container.state.manifest.intent is None
        assert newest_of(owner).progress.cycle >= 1


async def test_after_an_outage_the_element_of_the_last_flush_is_created_without_a_call() -> None:
    """J5: a full cycle stays due, and an attempt that makes no progress is not logged."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        world.chunks.script = elements_fail(FaultKind.BEFORE)
        with pytest.raises(Unavailable):
            await owner.store.flush()
        logged = owner.log_bytes
        await anyio.sleep(100)
        assert owner.log_bytes == logged
        world.chunks.script = None
        await anyio.sleep(100)
        assert newest_of(owner).progress.cycle == 1
        assert owner.container.state.manifest.intent is None


@pytest.mark.parametrize("kind", [FaultKind.BEFORE, FaultKind.LOST])
async def test_the_next_owner_settles_the_element_that_a_dead_one_recorded(kind: FaultKind) -> None:
    """J3, J5: whether its creation took effect or not."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", b"abc")
        world.chunks.script = elements_fail(kind)
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await owner.store.flush()
        intent = owner.container.state.manifest.intent
        await owner.crash()
        assert intent is not None
        world.chunks.script = None
        del world.chunks.calls[:]
        async with world.owner() as owner:
            assert creations(world)[0] == element_name(0, 2), "what can be read may not be durable"
            assert bytes(world.memory.chunks[element_name(0, 2)].data) == intent.content
            assert (newest_of(owner).n, newest_of(owner).kind) == (3, Kind.OPEN)
            assert newest_of(owner).progress.cycle == 1


@pytest.mark.parametrize("turns", range(0, 90, 3))
async def test_an_owner_that_ends_anywhere_in_a_flush_leaves_a_chain_that_goes_on(turns: int) -> None:
    """J3, J5: between intent, creation and confirmation, and after a checkpoint (J11)."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", b"abc")
        if turns % 2:
            await owner.checkpoint()
        flushing = anyio.CancelScope()

        async def flush() -> None:
            with flushing, suppress(Unavailable):
                await owner.store.flush()

        tasks.start_soon(flush)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        flushing.cancel()
        await owner.crash()
        for _ in range(2):
            async with world.owner() as owner:
                assert await read_all(owner.store, "s") == b"abc"
                await owner.store.flush()
    report = await read_chain(world.chunks, 0)
    assert len(report.elements) == 2
    assert report.problems == ()


async def test_a_hundred_openings_leave_two_elements() -> None:
    """J8."""
    world = ContainerWorld()
    for _ in range(100):
        async with world.owner():
            pass
    report = await read_chain(world.chunks, 0)
    assert [each.element.n for each in report.elements] == [100, 99]
    assert report.problems == ()


async def flush_more(owner: Owner, times: int = 1) -> None:
    for _ in range(times):
        await owner.store.append("s", b"x")
        await owner.store.flush()


async def test_elements_that_could_not_be_deleted_are_deleted_little_by_little() -> None:
    """J8."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        await flush_more(owner, 100)
        assert len((await read_chain(world.chunks, 0)).elements) == 101
        world.chunks.script = None
        for left in (38, 2):
            await flush_more(owner)
            assert len((await read_chain(world.chunks, 0)).elements) == left


async def test_an_unconfirmed_container_keeps_what_others_created_until_it_is_confirmed() -> None:
    """J8: it deletes its own elements, so that they do not add up. Once it is confirmed, the others go
    without a call and without another element."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await flush_more(owner)
        await owner.container.confirmation.mark(UnconfirmedRecord(Reason.RESTORED))
    async with world.owner() as owner:
        await flush_more(owner, 20)
        assert [each.element.n for each in (await read_chain(world.chunks, 0)).elements] == [23, 22, 2, 1]
        await owner.container.confirmation.confirm()
        await anyio.sleep(1)
        assert [each.element.n for each in (await read_chain(world.chunks, 0)).elements] == [23, 22]


async def test_a_batch_of_deletions_creates_one_element_after_its_decision() -> None:
    """J9."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA)
        await owner.store.flush()
        await owner.store.delete_segment("s")
        await owner.store.flush()
        await anyio.sleep(30)
        del world.chunks.calls[:]
        await anyio.sleep(60)
        assert creations(world) == [element_name(0, 4)]
        assert newest_of(owner).kind is Kind.PROOF
        assert newest_of(owner).progress.cycle == 2
        order = [call.name for call in world.chunks.calls if call.verb in ("create_with_content", "delete")]
        assert order[0] == element_name(0, 4)
        assert not world.chunk_names


async def test_on_a_full_storage_deletions_need_no_element() -> None:
    """J9: they make room; where there is none for an element, no copy can create one either."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA)
        await owner.store.flush()
        await owner.store.delete_segment("s")
        await owner.store.flush()
        world.chunks.script = elements_fail(FaultKind.FULL)
        await anyio.sleep(100)
        assert not world.chunk_names
        world.chunks.script = None
        await make(owner.store, "t", b"abc")
        await owner.store.flush()


async def test_a_storage_without_conditional_creation_is_refused() -> None:
    """J10."""
    world = ContainerWorld()
    world.chunks.script = lambda call: overwrite(world, call)
    refusal = await refusal_of(world)
    assert isinstance(refusal, StoreMismatch)
    assert "needs conditional creation" in str(refusal)


def overwrite(world: ContainerWorld, call: Call) -> None:
    if call.verb == "create_with_content":
        world.memory.chunks.pop(call.name, None)


async def test_an_owner_that_goes_on_until_it_is_fenced_makes_no_refusal_of_its_successor() -> None:
    """J6: the successor reads the chain before it opens the log; the owner before creates an element between
    the two."""
    world = ContainerWorld()
    reading = anyio.Event()

    def slow(call: Call) -> Fault | None:
        if call.verb != "read" or "/journal/" not in call.name or reading.is_set():
            return None
        reading.set()
        return Fault(FaultKind.DELAY, seconds=5)

    async with world.owner() as first:
        await make(first.store, "s", b"abc")
        await first.store.flush()
        await first.store.append("s", b"def")
        world.chunks.script = slow
        async with anyio.create_task_group() as tasks:
            second: list[Owner] = []

            async def succeed() -> None:
                second.append(await world.start(tasks))

            tasks.start_soon(succeed)
            await reading.wait()
            await first.store.flush()
            await first.ended.wait()
            while not second:
                await anyio.sleep(1)
            assert newest_of(second[0]).epoch == second[0].container.state.epoch
            assert await read_all(second[0].store, "s") == b"abcdef"
            second[0].container.stop()


async def test_flushing_a_clean_container_again_creates_nothing() -> None:
    """F5: what an element would say, the newest one says."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await owner.store.flush()
        before = creations(world)
        for _ in range(3):
            await owner.store.flush()
        assert creations(world) == before
        await owner.store.seal_segment("s")
        await owner.store.flush()
        assert len(creations(world)) == len(before) + 1
