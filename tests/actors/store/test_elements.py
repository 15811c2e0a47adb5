"""The elements that an owner creates, in virtual time: cycles, proofs, unknown outcomes, crashes (J1-J11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from msgspec.structs import replace

from support.container_world import (
    MIB,
    OPTIONS,
    ContainerWorld,
    Owner,
    element_bytes,
    flush_more,
    read_all,
    refusal_of,
    virtual_time,
)
from support.stores import make
from support.table_runs import UNMERGED
from tierlog import StorageFull, StoreMismatch, Unavailable
from tierlog.journal.manifest.chain import element_name, read_chain
from tierlog.journal.manifest.element import Element, Kind, Position, position_of
from tierlog.journal.manifest.store_record import STORE_RECORD
from tierlog.storage_backends.base.chunk_storage import ChunkInfo
from tierlog.storage_backends.base.errors import OutcomeUnknown
from tierlog.storage_backends.chunks.memory import MemoryChunk
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


def put_foreign_element(world: ContainerWorld, owner: Owner, n: int) -> None:
    """Element ``n`` is, from now on, that of another history."""
    other = replace(owner.container.ownership.identity, owner=b"x" * 16)
    world.memory.chunks[element_name(0, n)] = MemoryChunk(bytearray(element_bytes(n, 7, other)))


async def owner_with_garbage(world: ContainerWorld, tasks: TaskGroup) -> Owner:
    """The chunks of a deleted segment wait to be deleted."""
    owner = await world.start(tasks)
    await make(owner.store, "s", DATA, flushed=True)
    await owner.store.delete_segment("s")
    await owner.store.flush()
    return owner


def elements_fail(kind: FaultKind) -> Callable[[Call], Fault | None]:
    return lambda call: (
        Fault(kind) if call.verb == "create_with_content" and "/journal/" in call.name else None
    )


async def test_each_full_flush_creates_one_element_with_its_cycle() -> None:
    """J2, J5."""
    world = ContainerWorld()
    async with world.owner() as owner:
        for cycle in (1, 2, 3):
            await make(owner.store, f"s{cycle}", b"abc", flushed=True)
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
        await make(owner.store, "s", DATA, flushed=True)
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
        assert owner.container.statistics().journal.unconfirmed_creations == 1

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


async def test_a_batch_of_deletions_creates_one_element_after_its_decision() -> None:
    """J9."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
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


async def test_an_owner_decodes_no_element_that_it_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a run list near its bound each time would take a step of 5 ms: cycles, proofs, which read the
    newest element, and merges."""
    decoded: list[Position] = []
    decode = Element.decode

    def counted(content: bytes) -> Element:
        decoded.append(position_of(content))
        return decode(content)

    monkeypatch.setattr(Element, "decode", staticmethod(counted))
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        for number in range(3):
            await make(owner.store, f"s/{number}", DATA, flushed=True)
        await owner.store.delete_segment("s/0")
        await owner.store.flush()
        await anyio.sleep(300)
        await owner.checkpoint()
        found = owner.container.statistics()
        assert (found.table.merges, found.journal.elements, decoded) == (1, 7, [])
    async with world.owner() as owner:
        assert len(decoded) > 1, "replay and opening do"


async def test_on_a_full_storage_deletions_wait_for_an_element() -> None:
    """J9: a copy that was opened without room for its element may need what is deleted."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        await owner.store.delete_segment("s")
        await owner.store.flush()
        chunks = world.chunk_names
        world.chunks.script = elements_fail(FaultKind.FULL)
        await anyio.sleep(1_000)
        assert world.chunk_names == chunks
        world.chunks.script = None
        await anyio.sleep(100)
        assert not world.chunk_names


async def test_a_storage_without_conditional_creation_is_refused() -> None:
    """J10."""
    world = ContainerWorld()
    world.chunks.script = lambda call: overwrite(world, call)
    refusal = await refusal_of(world)
    assert isinstance(refusal, StoreMismatch)
    assert "use a storage with conditional creation" in str(refusal)


async def test_a_storage_without_room_for_the_check_of_creations_gets_no_first_element() -> None:
    """J10: no earlier owner has made that check."""
    world = ContainerWorld()
    records = 0

    def script(call: Call) -> Fault | None:
        nonlocal records
        records += call.verb == "create_with_content" and call.name == STORE_RECORD
        return Fault(FaultKind.FULL) if records > 1 and call.name == STORE_RECORD else None

    world.chunks.script = script
    async with world.owner() as owner:
        assert records == 2
        assert creations(world) == []
        world.chunks.script = None
        await make(owner.store, "s", b"abc", flushed=True)


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
        await make(first.store, "s", b"abc", flushed=True)
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
        await make(owner.store, "s", b"abc", flushed=True)
        before = creations(world)
        for _ in range(3):
            await owner.store.flush()
        assert creations(world) == before
        await owner.store.seal_segment("s")
        await owner.store.flush()
        assert len(creations(world)) == len(before) + 1


# --- long-term storage that is slow, full or inconsistent ----------------------------------------


async def test_an_element_whose_creation_takes_long_delays_no_flush() -> None:
    """F7, J5: other segments are flushed meanwhile; the callers of flush wait for the element."""
    world = ContainerWorld(replace(OPTIONS, flush_bytes=MIB // 4))
    async with world.owner() as owner, anyio.create_task_group() as tasks:
        await make(owner.store, "s", b"abc")
        await make(owner.store, "t", b"abc", flushed=True)
        world.chunks.script = lambda call: (
            Fault(FaultKind.DELAY, seconds=50)
            if call.verb == "create_with_content" and "/journal/" in call.name
            else None
        )
        answered: list[float] = []

        async def flush() -> None:
            await owner.store.flush()
            answered.append(anyio.current_time())

        begin = anyio.current_time()
        await owner.store.append("s", b"def")
        tasks.start_soon(flush)
        await anyio.sleep(1)
        for number in range(1, 9):
            await owner.store.append("t", bytes(MIB))
            await anyio.sleep(4)
            assert (await owner.store.segment_info("t")).flushed_length >= number * MIB
        assert answered == []
        await anyio.sleep(100)
        assert [round(at - begin) for at in answered] == [50]


async def test_a_flush_during_a_creation_is_answered_by_an_element_with_its_own_cut() -> None:
    """J5: the one under way says less."""
    world = ContainerWorld()
    async with world.owner() as owner, anyio.create_task_group() as tasks:
        await make(owner.store, "s", b"abc")
        world.chunks.script = lambda call: (
            Fault(FaultKind.DELAY, seconds=20) if call.verb == "create_with_content" else None
        )
        tasks.start_soon(owner.store.flush)
        await anyio.sleep(50)
        for write in (owner.store.append("s", b"def"), owner.store.seal_segment("s")):
            tasks.start_soon(owner.store.flush)
            await anyio.sleep(1)
            await write
            sequence = owner.container.state.client_sequence
            await owner.store.flush()
            assert newest_of(owner).progress.cut >= sequence


async def test_storage_that_has_an_element_and_does_not_show_it_is_no_endless_loop() -> None:
    """J4: listings and reads must have what was created before."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        name = element_name(0, 2)

        def script(call: Call) -> None:
            if call.name != name:
                return

            if call.verb == "create_with_content":
                world.memory.chunks[name] = MemoryChunk(bytearray(b"another attempt"))
            else:
                world.memory.chunks.pop(name, None)

        world.chunks.script = script
        with pytest.raises(Unavailable, match=f"{name}, but a listing or a read did not return it"):
            await owner.store.flush()
        assert 2 <= len(creations(world)) <= 10
        world.chunks.script = None
        await owner.store.flush()
        assert newest_of(owner).n == 2


async def test_a_creation_under_a_number_that_another_history_deleted_does_not_count() -> None:
    """J4: the other one created elements 3 to 5 and deleted element 3 while this creation was on its way."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", b"abc", flushed=True)

        def script(call: Call) -> None:
            if call.verb == "create_with_content" and call.name == element_name(0, 3):
                for n in (4, 5):
                    put_foreign_element(world, owner, n)

        world.chunks.script = script
        await owner.store.append("s", b"def")
        with pytest.raises(Unavailable):
            await owner.store.flush()
        await owner.ended.wait()
        assert isinstance(owner.error, StoreMismatch)
        assert newest_of(owner).n == 2


async def test_a_batch_of_deletions_reads_the_newest_element_again() -> None:
    """J9: long-term storage was put back below a running owner, and a copy created elements up to the same
    number."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await owner_with_garbage(world, tasks)
        chunks = world.chunk_names
        put_foreign_element(world, owner, 3)
        await anyio.sleep(100)
        assert isinstance(owner.error, StoreMismatch)
        assert world.chunk_names == chunks


async def test_deletions_that_are_tried_again_read_the_newest_element_again() -> None:
    """J9: they had their element, and long-term storage was put back since."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await owner_with_garbage(world, tasks)
        world.chunks.script = lambda call: (
            Fault(FaultKind.BEFORE) if call.verb == "delete" and call.name.startswith("containers/") else None
        )
        await anyio.sleep(65)
        proof, chunks = newest_of(owner), world.chunk_names
        assert proof.kind is Kind.PROOF
        put_foreign_element(world, owner, proof.n)
        world.chunks.script = None
        await anyio.sleep(300)
        assert isinstance(owner.error, StoreMismatch)
        assert world.chunk_names == chunks


async def delete_on_full_storage(
    world: ContainerWorld, script: Callable[[Call], Fault | None], deleted: bool
) -> None:
    """Fill long-term storage, open the store again, and delete what is in it. Without room for elements that
    waits for some."""
    async with world.owner() as owner:
        await make(owner.store, "s", DATA)
        await make(owner.store, "t", DATA)
        await owner.store.truncate_segment("t", 150_000)
        await owner.store.flush()
        await owner.store.append("t", b"abc")
    world.chunks.script = script
    async with world.owner() as owner:
        await owner.store.delete_segment("s")
        with pytest.raises(StorageFull):
            await owner.store.flush()
        await anyio.sleep(1_000)
        assert (not garbage_of(world)) == deleted
        world.chunks.script = None
        await owner.store.flush()
        await anyio.sleep(1_000)
        assert not garbage_of(world)
        assert await read_all(owner.store, "t", 150_000) == bytes(50_000) + b"abc"


def garbage_of(world: ContainerWorld) -> list[str]:
    return [name for name in world.chunk_names if "0000000100000001/" in name]


async def test_after_a_restart_on_full_storage_deletions_go_on_once_there_is_room() -> None:
    """J9: for the `Open` and a `Proof`, which nothing replaces."""
    full = every(Fault(FaultKind.FULL), "create", "create_with_content", "write")
    await delete_on_full_storage(ContainerWorld(), full, deleted=False)


async def test_on_full_storage_the_element_before_the_head_makes_room_for_the_next_one() -> None:
    """J9: so a restart claims, and its deletions are proven as ever."""
    room = 0

    def script(call: Call) -> Fault | None:
        nonlocal room
        room += call.verb == "delete"
        if call.verb not in ("create", "create_with_content", "write") or "/runs/" in call.name:
            return None
        if "/journal/" not in call.name or not room:
            return Fault(FaultKind.FULL)
        room -= 1
        return None

    await delete_on_full_storage(ContainerWorld(), script, deleted=True)


# --- what it costs -------------------------------------------------------------------------------


def requests(world: ContainerWorld) -> dict[str, int]:
    """Requests to long-term storage since the last call, by what they concern."""
    counts: Counter[str] = Counter()
    for call in world.chunks.calls:
        kinds = {"containers/": "chunks", "_system/store": "store"}
        kind = next((kinds[start] for start in kinds if call.name.startswith(start)), "")
        kind = "element" if "/journal/" in call.name else "runs" if "/runs/" in call.name else kind
        counts[kind] += 1
    world.chunks.calls.clear()
    return dict(counts)


async def test_an_opening_takes_twelve_requests_and_a_flush_takes_six() -> None:
    """J7, J8, M6: an opening lists the chain, reads the newest element, creates one, lists what is above it,
    deletes one, and checks the chain again, which reads, before it lists chunks and runs; and which runs are
    missing. A flush checks the chain, puts a run, creates, lists, and deletes."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
    world.chunks.calls.clear()
    async with world.owner() as owner:
        await anyio.sleep(1)
        assert requests(world) == {"element": 7, "store": 2, "chunks": 1, "runs": 2}
        await owner.store.append("s", b"def")
        await owner.store.flush()
        assert requests(world) == {"element": 4, "chunks": 1, "runs": 1}
        await owner.store.flush()
        assert requests(world) == {}


async def test_checks_list_the_chain_from_the_newest_element_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """J7: however many elements could not be deleted."""
    world = ContainerWorld(UNMERGED)
    listed: list[str] = []
    inner = world.chunks.list

    async def counted(prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        async for info in inner(prefix, after):
            listed.append(info.name)
            yield info

    monkeypatch.setattr(world.chunks, "list", counted)
    world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await flush_more(owner, 50)
        listed.clear()
        await flush_more(owner)
        assert listed == [element_name(0, n) for n in (51, 51, 52)], "before and after a creation"


async def test_a_chunk_that_cannot_be_deleted_costs_no_further_elements() -> None:
    """J9: the first attempt was proven; later ones only check the chain."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        await owner.store.delete_segment("s")
        await owner.store.flush()
        await anyio.sleep(100)
        assert newest_of(owner).kind is Kind.PROOF
        proven = newest_of(owner).n
        await anyio.sleep(86_400)
        assert newest_of(owner).n == proven
        world.chunks.script = None
        await anyio.sleep(3_600)
        assert not world.chunk_names
        assert newest_of(owner).n == proven
