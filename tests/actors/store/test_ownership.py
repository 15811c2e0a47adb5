"""One container whose long-term storage is down, not mounted, empty, or put back, in virtual time (rules J3,
J6 and J7)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from msgspec.structs import replace

import tierlog
from support.container_world import (
    MIB,
    OPTIONS,
    ContainerWorld,
    Owner,
    cloned,
    create_element,
    read_all,
    reason_of,
    referenced_chunks,
    refusal_of,
    until,
    virtual_time,
)
from support.stores import make
from tierlog import DataCorruption, StorageFull, StoreMismatch, Unavailable
from tierlog.actors.container.claims import LAST_EPOCH
from tierlog.actors.container.owner import Identity
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.folder.fingerprint import Fingerprint
from tierlog.actors.kernel.exits import ExitKind, exit_kind_of
from tierlog.journal.manifest.chain import element_name
from tierlog.journal.manifest.element import NUMBER_MAX
from tierlog.journal.manifest.store_record import STORE_RECORD
from tierlog.storage_backends.base.chunk_storage import ChunkInfo
from tierlog.storage_backends.base.errors import ClaimOutdated, TierlogError
from tierlog.storage_backends.base.ids import EPOCH_MAX
from tierlog.storage_backends.chunks.memory import MemoryChunk
from tierlog.storage_backends.segments.records.unconfirmed import Reason
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

DATA = bytes(200_000)
"""Four chunks, which roll at 64 KiB."""
DOWN = Fault(FaultKind.BEFORE)


def takes_no_writes(call: Call) -> Fault | None:
    return DOWN if call.verb == "create_with_content" else None


async def test_with_nothing_writable_at_open_the_claim_comes_before_the_first_write() -> None:
    world = ContainerWorld()
    world.chunks.script = takes_no_writes
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        assert await owner.store.read("s", 0, 10) == b"abc"
        await anyio.sleep(100)
        assert not world.memory.chunks
        world.chunks.script = None
        del world.chunks.calls[:]
        await owner.store.flush()
        created = [call.name for call in world.chunks.calls if call.verb == "create_with_content"]

        assert created[:3] == [STORE_RECORD, STORE_RECORD, element_name(0, 1)]
        assert [name for name in created if name.startswith("containers/")] == created[3:4]


async def test_a_copy_that_opened_while_long_term_storage_was_down_stops_before_its_first_write() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
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


async def test_nothing_is_flushed_to_empty_storage_that_had_chunks() -> None:
    """W8: a mount that is missing at the opening. Bytes flushed there would be lost with the log's groups."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", DATA, flushed=True)
    mounted = dict(world.memory.chunks)
    world.memory.chunks.clear()

    async with world.owner() as owner:
        await owner.store.append("s", b"more")
        with pytest.raises(Unavailable, match="long-term storage is empty.*[Mm]ount it"):
            await owner.store.flush()
        assert not world.memory.chunks, "neither a chunk nor a claim"

        world.memory.chunks.update(mounted)
        await owner.store.flush()
        assert await read_all(owner.store, "s") == DATA + b"more"


async def test_nothing_is_flushed_to_empty_storage_that_had_a_claim() -> None:
    """W8: the log refers to no chunk, because nothing was ever flushed; but its first owner saw the storage
    that is now unmounted. Owners between open without it too."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
    mounted = dict(world.memory.chunks)
    world.memory.chunks.clear()
    async with world.owner():
        pass

    async with world.owner() as owner:
        with pytest.raises(Unavailable, match="long-term storage is empty.*Mount it.*adopt"):
            await owner.store.flush()
        assert not world.memory.chunks, "neither a chunk nor a claim"

        world.memory.chunks.update(mounted)
        await owner.store.flush()
        assert await read_all(owner.store, "s") == b"abc"


async def test_adopting_is_advised_only_where_it_helps() -> None:
    """J6: the log refers to chunks, so storage without elements is lost or not mounted, adopted or not."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
    world.memory.chunks.clear()
    for options in (OPTIONS, replace(OPTIONS, adopt=True)):
        async with world.owner(options) as owner:
            with pytest.raises(Unavailable, match="restore a backup") as refused:
                await owner.store.flush()
            assert "adopt" not in str(refused.value)


@pytest.mark.parametrize("name", [STORE_RECORD, element_name(0, 3)])
async def test_a_damaged_system_object_refuses_writes_to_long_term_storage_only(name: str) -> None:
    """J11: opening and reading need none. Once the object is repaired, the owner goes on."""
    world = ContainerWorld()
    async with world.owner() as owner:
        for part in (b"abc", b"def"):
            await (make(owner.store, "s", part) if part == b"abc" else owner.store.append("s", part))
            await owner.store.flush()
    whole = bytes(world.memory.chunks[name].data)
    world.memory.chunks[name].data[-1] ^= 1
    names = world.chunk_names
    async with world.owner() as owner:
        assert await read_all(owner.store, "s") == b"abcdef"
        await owner.store.append("s", b"ghi")
        with pytest.raises(DataCorruption) as refused:
            await owner.store.flush()
        assert (refused.value.file, refused.value.offset) == (name, 0)
        await anyio.sleep(1_000)
        assert world.chunk_names == names
        assert await read_all(owner.store, "s") == b"abcdefghi"
        world.memory.chunks[name].data[:] = whole
        await owner.store.flush()
        assert (await owner.store.segment_info("s")).flushed_length == 9


async def test_nothing_is_flushed_to_storage_that_is_unmounted_while_the_store_is_open() -> None:
    """J6: the owner's own element is missing there."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        mounted = dict(world.memory.chunks)
        world.memory.chunks.clear()
        with pytest.raises(Unavailable, match="long-term storage is empty.*Mount it"):
            await owner.store.flush()
        assert not world.memory.chunks

        world.memory.chunks.update(mounted)
        await owner.store.flush()
        assert await read_all(owner.store, "s") == b"abc"


async def test_storage_that_was_emptied_on_purpose_is_used_again_once_it_is_adopted() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
    world.memory.chunks.clear()

    for options in (replace(OPTIONS, adopt=True), OPTIONS):
        async with world.owner(options) as owner:
            await owner.store.flush()
            assert world.chunk_names == referenced_chunks(owner.container)


async def test_empty_storage_is_claimed_if_no_owner_has_created_an_element_there() -> None:
    """J3: the first owner ended between the record of its element and the element."""
    world = ContainerWorld()
    world.chunks.script = lambda call: DOWN if call.verb == "create_with_content" else None
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        assert owner.container.state.manifest.head is None
    world.chunks.script = None

    async with world.owner() as owner:
        await owner.store.flush()
        assert world.chunk_names == referenced_chunks(owner.container)


async def test_an_adoption_while_long_term_storage_was_down_claims_above_the_other_folder() -> None:
    """W8: below it the other folder would take the claim for one of its own dead owners, and collect."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
    original, copy = world.logs, cloned(world.logs)
    for data in (b"2", b"3", b"4"):
        async with world.owner() as owner:
            await owner.store.append("s", data)
            await owner.store.flush()
            await anyio.sleep(200)

    adopting = replace(OPTIONS, adopt=True)
    world.logs, world.chunks.script = copy, lambda call: DOWN
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks, adopting)
        await owner.store.append("s", b"adopted")
        world.chunks.script = None
        with pytest.raises(tierlog.Unavailable):
            await owner.store.flush()
        await owner.ended.wait()
        assert exit_kind_of(owner.error or AssertionError()) is ExitKind.FAILED, "it opens again"
    async with world.owner(adopting) as adopted:
        await adopted.store.flush()
        chunks = world.chunk_names

    world.logs = original
    assert isinstance(await refusal_of(world), StoreMismatch)
    world.logs = copy
    assert world.chunk_names == chunks
    async with world.owner() as adopted:
        assert await read_all(adopted.store, "s") == b"abcadopted"


async def test_j6_a_refusal_changes_nothing_that_stays() -> None:
    """Epochs above the foreign one, which may be the last that ids have room for."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
        epoch, identity = owner.container.state.epoch, owner.container.ownership.identity
    await create_element(world, 9, EPOCH_MAX, identity)
    assert isinstance(await refusal_of(world), StoreMismatch)

    await world.chunks.inner.delete(element_name(0, 9))
    async with world.owner() as owner:
        assert owner.container.state.epoch == epoch + 2
        await make(owner.store, "t", b"abc", flushed=True)


async def test_a_refusal_shows_the_other_owners_location_without_control_characters() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
        identity = owner.container.ownership.identity
    hostile = replace(identity, folder=Fingerprint(bytes(16), "\x1b[2Jevil\nhost:/wal"))
    await create_element(world, 9, 9, hostile)
    refusal = str(await refusal_of(world))
    assert refusal.isprintable()
    assert r"by \x1b[2Jevil\nhost:/wal" in refusal
    async with world.owner(replace(OPTIONS, adopt=True)) as owner:
        record = owner.container.confirmation.unconfirmed
        assert record is not None
        assert record.explanation.isprintable()


@pytest.mark.parametrize(
    ("n", "epoch"), [(9, EPOCH_MAX), (9, 1 << 31), (9, LAST_EPOCH), (NUMBER_MAX, 9), (LAST_EPOCH, 9)]
)
async def test_j6_nobody_goes_on_above_numbers_near_their_end(n: int, epoch: int) -> None:
    """They are no owner's: whoever adopted such an element could create no segment, or no element, later."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
        identity = owner.container.ownership.identity
    await create_element(world, n, epoch, identity)
    async with world.owner(replace(OPTIONS, adopt=True)) as owner:
        await owner.store.append("s", b"d")
        assert await read_all(owner.store, "s") == b"abcd"
        with pytest.raises(DataCorruption) as caught:
            await owner.store.flush()
        assert caught.value.file == element_name(0, n)

    await world.chunks.inner.delete(element_name(0, n))
    async with world.owner() as owner:
        await make(owner.store, "t", b"abc", flushed=True)
        assert await read_all(owner.store, "s") == b"abcd"


@pytest.mark.parametrize("adopt", [False, True])
async def test_a_claim_above_that_came_while_this_one_was_made_ends_the_ownership(adopt: bool) -> None:
    """W8: the list before the claim did not have it yet."""
    world = ContainerWorld()
    world.chunks.script = takes_no_writes
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks, replace(OPTIONS, adopt=adopt))
        await make(owner.store, "s", b"abc")
        other = replace(owner.container.ownership.identity, owner=b"x" * 16)
        world.chunks.script = lambda call: (
            Fault(FaultKind.DELAY, seconds=5) if call.name == element_name(0, 1) else None
        )
        del world.chunks.calls[:]
        tasks.start_soon(create_element_once_called, world, other)
        with pytest.raises(tierlog.Unavailable):
            await owner.store.flush()
        await owner.ended.wait()
        assert isinstance(owner.error, ClaimOutdated if adopt else StoreMismatch)
        assert not world.chunk_names


async def create_element_once_called(world: ContainerWorld, other: Identity) -> None:
    await until(lambda: any(call.name == element_name(0, 1) for call in world.chunks.calls))
    await create_element(world, 2, 9, other)


async def test_long_term_storage_that_was_put_back_is_refused_until_it_is_adopted() -> None:
    """J6: an earlier state of it lacks chunks that the log refers to."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
        earlier = dict(world.memory.chunks)
        await owner.store.append("s", DATA)
        await owner.store.flush()
    newest = dict(world.memory.chunks)
    world.memory.chunks.clear()
    world.memory.chunks.update(earlier)

    refusal = await refusal_of(world)
    assert isinstance(refusal, StoreMismatch)
    assert "put back to an earlier state" in str(refusal)
    assert set(world.memory.chunks) == set(earlier)
    world.memory.chunks.update(newest)
    assert await refusal_of(world) is None
    world.memory.chunks.clear()
    world.memory.chunks.update(earlier)
    for options in (replace(OPTIONS, adopt=True), OPTIONS):
        async with world.owner(options) as owner:
            assert reason_of(owner) is Reason.ADOPTED
            await owner.store.append("s", b"d")
            await owner.store.flush()


async def test_j4_an_element_that_is_created_after_storage_was_put_back_does_not_count() -> None:
    """It counted, so what had been flushed before was gone, and no later check showed it."""
    world = ContainerWorld()
    newest: dict[str, MemoryChunk] = {}
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", b"abc", flushed=True)
        earlier = dict(world.memory.chunks)
        await owner.store.append("s", b"def")
        await owner.store.flush()

        def put_back(call: Call) -> None:
            if call.verb == "create_with_content" and call.name == element_name(0, 4):
                newest.update(world.memory.chunks)
                world.memory.chunks.clear()
                world.memory.chunks.update(earlier)

        world.chunks.script = put_back
        await owner.store.append("s", b"ghi")
        with pytest.raises(Unavailable):
            await owner.store.flush()
        await owner.ended.wait()
        assert isinstance(owner.error, StoreMismatch)
    world.chunks.script = None
    assert "put back to an earlier state" in str(await refusal_of(world))
    assert set(world.memory.chunks) == {*earlier, element_name(0, 4)}
    world.memory.chunks.update(newest)
    async with world.owner() as owner:
        assert await read_all(owner.store, "s") == b"abcdefghi"


async def test_j4_an_operator_adopts_a_folder_whose_element_was_created_after_storage_was_put_back() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
        head = element_name(0, 2)

        def lose_the_head(call: Call) -> None:
            if call.verb == "create_with_content" and call.name == element_name(0, 3):
                world.memory.chunks.pop(head, None)

        world.chunks.script = lose_the_head
        await owner.store.append("s", b"def")
        with pytest.raises((Unavailable, StoreMismatch)):
            await owner.store.flush()
        await owner.crash()
    world.chunks.script = None
    assert isinstance(await refusal_of(world), StoreMismatch)
    for options in (replace(OPTIONS, adopt=True), OPTIONS):
        async with world.owner(options) as owner:
            assert reason_of(owner) is Reason.ADOPTED
            await owner.store.append("s", b"d")
            await owner.store.flush()


async def test_a_listing_that_lacks_an_element_is_no_proof_that_storage_was_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J6: the element is there."""
    world = ContainerWorld()
    inner, hidden = world.chunks.list, set[str]()

    async def inconsistent(prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        async for info in inner(prefix, after):
            if info.name not in hidden:
                yield info

    monkeypatch.setattr(world.chunks, "list", inconsistent)
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
        await owner.store.append("s", b"def")
        hidden.add(element_name(0, 2))
        with pytest.raises(Unavailable, match="a listing or a read did not return it"):
            await owner.store.flush()
        hidden.clear()
        await owner.store.flush()


def checks(world: ContainerWorld) -> int:
    """How often the chain was listed."""
    return sum(call.verb == "list" and "/journal/" in call.name for call in world.chunks.calls)


async def append_and_flush_by_size(owner: Owner, name: str) -> None:
    """Flush a segment because of its size, without a call of ``flush``."""
    await owner.store.append(name, bytes(MIB))
    while (info := await owner.store.segment_info(name)).flushed_length < info.length:
        await anyio.sleep(0.01)


async def test_cycles_by_size_check_the_chain_once_a_second() -> None:
    """J7: they follow each other as fast as bytes come; full ones check each time."""
    world = ContainerWorld(replace(OPTIONS, flush_bytes=MIB))
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
        await anyio.sleep(2)
        world.chunks.calls.clear()
        for _ in range(5):
            await append_and_flush_by_size(owner, "s")
        assert checks(world) == 1
        await anyio.sleep(1)
        await append_and_flush_by_size(owner, "s")
        assert checks(world) == 2
        await owner.store.append("s", b"def")
        await owner.store.flush()
        assert checks(world) == 4, "before the flush, and behind the creation of its element (J4)"


async def test_a_cycle_by_size_finds_a_foreign_element_before_it_writes() -> None:
    """J7: if the last check is a second old."""
    world = ContainerWorld(replace(OPTIONS, flush_bytes=MIB))
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "s", b"abc", flushed=True)
        await append_and_flush_by_size(owner, "s")
        await create_element(world, 3, 9, replace(owner.container.ownership.identity, owner=b"c" * 16))
        await anyio.sleep(1)
        before = {name: bytes(chunk.data) for name, chunk in world.memory.chunks.items()}
        await owner.store.append("s", bytes(MIB))
        await owner.ended.wait()
        assert isinstance(owner.error, StoreMismatch)
        assert before == {name: bytes(chunk.data) for name, chunk in world.memory.chunks.items()}


async def test_j7_a_flush_that_takes_long_finds_a_copy_of_its_folder() -> None:
    """The proof at the begin of the cycle covered a flush of any length. No cycle is published meanwhile."""
    world = ContainerWorld(replace(OPTIONS, writer=WriterOptions(flush_age=1000, error_pause=1)))
    async with world.owner() as owner:
        await owner.store.create_segment("slow")
        world.chunks.script = lambda call: (
            Fault(FaultKind.DELAY, seconds=1.0) if call.verb == "create_with_content" else None
        )
        began = anyio.current_time()
        for _ in range(2):
            await owner.store.append("slow", bytes(4 * MIB))
        await anyio.sleep(1)
        copy = replace(owner.container.ownership.identity, owner=b"c" * 16)
        await create_element(world, 2, 9, copy)
        await anyio.sleep(68)
        assert isinstance(owner.error, StoreMismatch)
        assert 60 < anyio.current_time() - began < 70, "before the second write, after 64 chunks"


# --- an element whose record is not durable yet --------------------------------------------------


async def claim(owner: Owner, seconds: float, raised: list[Exception]) -> None:
    """Claim long-term storage as an import does for its caller, who has a time limit."""
    with anyio.move_on_after(seconds):
        try:
            await owner.container.claim_storage()
        except TierlogError as error:
            raised.append(error)


def slow_down(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each append to the log take 10 seconds."""
    append = owner.container.log.append

    async def slow(*arguments: Any, **options: Any) -> Any:
        await anyio.sleep(10)
        return await append(*arguments, **options)

    monkeypatch.setattr(owner.container.log, "append", slow)


def elements(world: ContainerWorld) -> list[str]:
    return sorted(name for name in world.memory.chunks if "/journal/" in name)


async def world_with_an_element() -> ContainerWorld:
    """Its long-term storage is down."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc", flushed=True)
    world.chunks.script = lambda call: DOWN
    return world


async def owner_without_a_claim(world: ContainerWorld, tasks: TaskGroup) -> Owner:
    """It opened while long-term storage was down, which now answers."""
    owner = await world.start(tasks)
    await anyio.sleep(1)  # the container's own tasks have tried, and claim nothing meanwhile
    world.chunks.script = None
    return owner


async def test_a_cancelled_claim_lets_nobody_create_its_element_before_the_record_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J3: the crash loses the record, so an element of it would be foreign to the next owner."""
    world = await world_with_an_element()
    before = elements(world)
    async with anyio.create_task_group() as tasks:
        owner = await owner_without_a_claim(world, tasks)
        slow_down(owner, monkeypatch)
        raised: list[Exception] = []
        for seconds in (1, 60):
            tasks.start_soon(claim, owner, seconds, raised)
        await anyio.sleep(5)
        assert elements(world) == before
        await owner.crash()

    assert raised
    assert elements(world) == before
    async with world.owner() as owner:
        assert await read_all(owner.store, "s") == b"abc"


def appends_fail(monkeypatch: pytest.MonkeyPatch, owner: Owner, *, after: float) -> None:
    """Each append to the log fails after so many seconds."""

    async def failing(*arguments: Any, **options: Any) -> Any:
        await anyio.sleep(after)
        raise StorageFull("the log has no room")

    monkeypatch.setattr(owner.container.log, "append", failing)


async def test_a_claim_whose_record_the_log_refuses_lets_nobody_create_its_element(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J3."""
    world = await world_with_an_element()
    before = elements(world)
    async with anyio.create_task_group() as tasks:
        owner = await owner_without_a_claim(world, tasks)
        appends_fail(monkeypatch, owner, after=1)
        raised: list[Exception] = []
        for _ in range(2):
            tasks.start_soon(claim, owner, 60, raised)
        await owner.ended.wait()

    assert len(raised) == 2
    assert elements(world) == before
    async with world.owner() as owner:
        assert await read_all(owner.store, "s") == b"abc"


async def test_a_container_whose_log_fails_ends_although_a_claim_waits_for_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A4: the pipeline ends before it took the record, which is waited for shielded."""
    world = await world_with_an_element()
    async with anyio.create_task_group() as tasks:
        owner = await owner_without_a_claim(world, tasks)
        appends_fail(monkeypatch, owner, after=5)
        raised: list[Exception] = []
        for size in (1, 5 * MIB):  # one is being written, and the next group is full
            tasks.start_soon(append, owner, size, raised)
            await anyio.sleep(0.1)
        tasks.start_soon(claim, owner, 600, raised)
        tasks.start_soon(claim, owner, 600, raised)
        with anyio.fail_after(60):
            await owner.ended.wait()
    assert sorted(type(error).__name__ for error in raised) == 2 * ["OutcomeUnknown"] + 2 * ["Unavailable"]


async def append(owner: Owner, size: int, raised: list[Exception]) -> None:
    try:
        await owner.store.append("s", bytes(size))
    except TierlogError as error:
        raised.append(error)


async def test_a_claim_that_is_cancelled_while_its_element_is_counted_counts_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J5: a second ``ElementCreated`` of the same element would end the ownership."""
    world = await world_with_an_element()
    async with anyio.create_task_group() as tasks, world.owner() as owner:

        async def fill_the_pipeline() -> None:
            slow_down(owner, monkeypatch)
            for size in (1, 5 * MIB):  # one is being written, and the next group is full
                tasks.start_soon(owner.store.append, "s", bytes(size))
                await anyio.sleep(0.1)

        def script(call: Call) -> Fault | None:
            if call.name != element_name(0, 3) or call.verb != "create_with_content":
                return None

            tasks.start_soon(fill_the_pipeline)
            return Fault(FaultKind.DELAY, seconds=1)

        await anyio.sleep(1)
        world.chunks.script = script
        raised: list[Exception] = []
        for seconds in (2, 600):
            tasks.start_soon(claim, owner, seconds, raised)
        await anyio.sleep(100)
        assert not raised
        assert not owner.ended.is_set()
