"""Folders that share a long-term storage without room for an element: neither deletes what the other
needs, and what one acknowledges is kept (rules G4, J9)."""

from __future__ import annotations

from copy import deepcopy

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import (
    ELSEWHERE,
    OPTIONS,
    ContainerWorld,
    as_copy,
    cloned,
    deletes,
    read_all,
    reason_of,
    virtual_time,
)
from support.stores import make
from tierlog import StorageFull
from tierlog.journal.manifest.chain import element_name
from tierlog.storage_backends.segments.records.unconfirmed import Reason
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, every

pytestmark = [pytest.mark.anyio, virtual_time]

DATA = bytes(200_000)
"""Four chunks, which roll at 64 KiB."""
FULL = every(Fault(FaultKind.FULL), "create", "create_with_content", "write")


def elements_without_room(call: Call) -> Fault | None:
    return Fault(FaultKind.FULL) if call.verb == "create_with_content" and "/journal/" in call.name else None


async def test_a_copy_of_a_log_with_a_recorded_element_is_unconfirmed_without_an_own_one() -> None:
    """G4, J9: there is no room for the element, and the log of the original has newer chunks."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        original = await world.start(tasks)
        await make(original.store, "s", b"abc")
        await make(original.store, "t", b"abc", flushed=True)
        world.chunks.script = elements_without_room
        await original.store.append("s", b"1")
        with pytest.raises(StorageFull):
            await original.store.flush()
        assert original.container.state.manifest.intent is not None
        taken = cloned(world.logs)
        await original.store.append("s", DATA)
        with pytest.raises(StorageFull):
            await original.store.flush()
        await original.checkpoint()
        chunks = world.chunk_names

        world.chunks.script = FULL
        async with as_copy(world, taken) as copy:
            assert reason_of(copy) is Reason.MOVED
            await copy.store.delete_segment("t")
            with pytest.raises(StorageFull):
                await copy.store.flush()
            await anyio.sleep(400)
            assert world.chunk_names == chunks
        await original.crash()
        async with world.owner() as again:
            assert await read_all(again.store, "s") == b"abc1" + DATA


async def test_an_original_deletes_nothing_that_a_copy_without_an_element_needs() -> None:
    """J9: the copy serves, and acknowledges, without room for an element."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        original = await world.start(tasks)
        await make(original.store, "s", DATA, flushed=True)
        world.chunks.script = FULL
        logs = cloned(world.logs)
        async with as_copy(world, logs) as copy:
            await copy.store.append("s", b"by the copy")
            await original.store.delete_segment("s")
            with pytest.raises(StorageFull):
                await original.store.flush()
            await anyio.sleep(200)
            assert deletes(world) == []
            world.chunks.script = None
            await original.crash()
            await copy.store.flush()
            await copy.checkpoint()
        world.logs, world.folder = logs, ELSEWHERE
        async with world.owner() as again:
            assert await read_all(again.store, "s") == DATA + b"by the copy"


async def test_an_element_recorded_before_a_decision_is_no_proof_for_it() -> None:
    """J9: a copy of the log since then knows it, and is not refused because of it."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        first = await world.start(tasks)
        await make(first.store, "s", DATA, flushed=True)
        await first.crash()
        world.chunks.script = FULL
        owner = await world.start(tasks)
        recorded = owner.container.state.manifest.intent
        assert recorded is not None
        name = element_name(0, recorded.position.n)
        world.chunks.script = lambda call: None if call.name == name else FULL(call)
        with pytest.raises(StorageFull):
            await owner.container.ownership.prove_anew()
        assert owner.container.state.manifest.head == recorded
        await owner.crash()


async def test_a_copy_that_is_adopted_after_it_was_found_moved_waits_for_an_operator() -> None:
    """G4: the 24 hours that end a move end nothing else."""
    world = ContainerWorld()
    async with world.owner() as original:
        await make(original.store, "s", b"abc", flushed=True)
    before, taken = deepcopy(world.memory.chunks), cloned(world.logs)
    async with world.owner() as original:
        await make(original.store, "t", DATA, flushed=True)
    after, world.memory.chunks = world.memory.chunks, before
    world.logs, world.folder, world.chunks.script = taken, ELSEWHERE, elements_without_room
    for _ in range(2):  # above the original's epoch
        async with world.owner():
            pass
    async with world.owner(replace(OPTIONS, adopt=True)) as copy:
        assert reason_of(copy) is Reason.MOVED
        # The original goes on, before the copy has an element.
        world.memory.chunks, world.chunks.script = after, None
        await anyio.sleep(3_600)
        await copy.store.append("s", b"d")
        await copy.store.flush()
        assert reason_of(copy) is Reason.ADOPTED

        await anyio.sleep(200_000)
        assert reason_of(copy) is Reason.ADOPTED
        assert {name for name in after if name.startswith("containers/")} <= world.chunk_names
