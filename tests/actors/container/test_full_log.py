"""What elements and checkpoints take of a full disk's reserve (rule W6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import attrs
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner, virtual_time
from support.stores import make
from tierlog import AttributeUpdate
from tierlog.actors.container.checkpoint import CheckpointOptions
from tierlog.actors.store.store import SegmentStore
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.journal.manifest.chain import element_name
from tierlog.storage_backends.base.errors import OutcomeUnknown, StorageFull, Unavailable
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

UNMERGED = replace(OPTIONS, merge_fan_out=1000)
DELETES = 10


async def add_runs(owner: Owner, count: int) -> None:
    """Runs whose entries take 1 KB each."""
    await make(owner.store, "s", b"x")
    for number in range(count):
        key = f"z:{number:03d}" + "k" * 1000
        await owner.container.metadata.commit({key: 0}, {key: b"v"})
        await owner.store.append("s", b"x")
        await owner.store.flush()


@asynccontextmanager
async def full(runs: int) -> AsyncIterator[tuple[ContainerWorld, Owner]]:
    """An owner whose log has only its reserve."""
    world = ContainerWorld(UNMERGED)
    log = LocalLog(world.files, "/wal", b"l" * 16, LocalLogOptions(), owner=b"o" * 16)
    async with world.owner(log=log) as owner:
        for number in range(DELETES):
            await make(owner.store, f"e/{number}", b"y")
        await add_runs(owner, runs)
        await anyio.sleep(300)
        world.files.disk.capacity = world.files.disk.used()
        await log.check_space()
        assert not log.has_room(0)
        yield world, owner


async def test_w6_what_a_flush_takes_of_the_reserve_does_not_depend_on_the_runs() -> None:
    """The operator who deletes to make room ended the container: each of its elements had all runs."""
    taken = []
    for runs in (1, 40):
        async with full(runs) as (_, owner):
            before = owner.log_bytes
            for number in range(DELETES):
                await owner.store.delete_segment(f"e/{number}")
                await owner.store.flush()
                await anyio.sleep(70)
            taken.append(owner.log_bytes - before)
            assert owner.container.state.manifest.runs.size > 1000 * runs
    assert abs(taken[1] - taken[0]) < 500 * DELETES


async def test_w6_no_checkpoint_uses_up_the_reserve_while_no_file_can_leave_the_log() -> None:
    async with full(1) as (_, owner):
        before = owner.container.statistics().checkpoints.checkpoints
        await owner.store.delete_segment("e/0")
        await owner.store.flush()
        await anyio.sleep(70)
        assert owner.container.statistics().checkpoints.checkpoints == before


async def test_w6_the_room_for_a_checkpoint_counts_the_elements_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with full(40) as (_, owner):
        checkpointer, log = owner.container._components.checkpointer, owner.container.log
        asked: list[int] = []

        def has_reserve(size: int) -> bool:
            asked.append(size)
            return True

        monkeypatch.setattr(log, "has_reserve", has_reserve)
        assert await checkpointer.has_room()
        before = owner.log_bytes
        await checkpointer.checkpoint()
        assert asked[-1] >= owner.log_bytes - before > 40_000

        # The one that follows many brief owners.
        counted = attrs.evolve(log.statistics(), files=100)
        monkeypatch.setattr(log, "statistics", lambda: counted)
        assert checkpointer.is_due()
        assert asked[-1] > (1 << 20) + 40_000


@pytest.mark.parametrize(
    "add",
    [
        lambda store: store.create_segment("new"),
        lambda store: store.update_attributes("s", [AttributeUpdate("a", 1)]),
        lambda store: store.begin_transaction("s", "t2"),
        lambda store: store.stage_segment("s", "t1", "part"),
        lambda store: store.abort_transaction("s", "t2"),
        lambda store: store.expire_writers("s", ["w"]),
    ],
    ids=["create", "attributes", "begin", "stage", "abort", "expire"],
)
async def test_w6_what_would_stay_in_the_log_is_refused_on_a_full_disk(
    add: Callable[[SegmentStore], Awaitable[object]],
) -> None:
    """Clients that created segments used up the reserve, which ended the container; to delete some of them
    ended the next one."""
    async with full(1) as (world, owner):
        disk, log = world.files.disk, owner.container.log
        disk.capacity = None
        await log.check_space()
        await owner.store.begin_transaction("s", "t1")
        disk.capacity = disk.used()
        await log.check_space()
        before = owner.log_bytes
        with pytest.raises(StorageFull):
            await add(owner.store)
        assert owner.log_bytes == before

        # Nothing new, or what makes room.
        await owner.store.create_segment("s", exist_ok=True)
        await owner.store.begin_transaction("s", "t1")
        for _ in range(2):
            await owner.store.abort_transaction("s", "t1")
        await owner.store.seal_segment("e/0")
        await owner.store.truncate_segment("s", 1)
        await owner.store.delete_segment("e/1")
        await owner.store.flush()

        disk.capacity = None
        await anyio.sleep(2)  # which a call looks for once a second
        await owner.store.create_segment("new")


@pytest.mark.parametrize("took_effect", [False, True])
async def test_j3_the_next_owner_creates_an_element_that_was_logged_as_a_change(took_effect: bool) -> None:
    """With the same bytes, out of the log or of a checkpoint."""
    world = ContainerWorld(UNMERGED)

    def unanswered(call: Call) -> Fault | None:
        is_element = call.verb == "create_with_content" and call.name.startswith(element_name(0, 0)[:-16])
        return Fault(FaultKind.AFTER if took_effect else FaultKind.LOST) if is_element else None

    for with_checkpoint in (False, True):
        async with anyio.create_task_group() as tasks:
            owner = await world.start(tasks)
            if not with_checkpoint:
                await add_runs(owner, 3)
            world.chunks.script = unanswered
            await owner.store.append("s", b"more")
            with pytest.raises(OutcomeUnknown):
                await owner.store.flush()
            intent = owner.container.state.manifest.intent
            assert intent is not None
            if with_checkpoint:
                await owner.checkpoint()
            await owner.crash()
        world.chunks.script = None
        assert intent is not None
        async with world.owner() as owner:
            assert bytes(world.memory.chunks[element_name(0, intent.position.n)].data) == intent.content
            assert len(owner.container.state.manifest.runs) >= 3


async def test_w6_a_checkpoint_logs_nothing_again_that_does_not_fit_into_the_reserve() -> None:
    """A segment that cannot be flushed keeps old files. To log its bytes again ended the owner on a full disk
    and every later one."""
    limits = CheckpointOptions(wal_bytes=1 << 40, pinned_groups_bytes=100_000)
    world = ContainerWorld(replace(UNMERGED, checkpoint=limits))
    sizes = LocalLogOptions(file_size=64 << 10, reserve=256 << 10, allocation_step=64 << 10)
    log = LocalLog(world.files, "/wal", b"l" * 16, sizes, owner=b"o" * 16)
    async with world.owner(log=log) as owner:
        await make(owner.store, "stuck", bytes(400_000))
        sid = (await owner.store.segment_info("stuck")).segment_id
        world.chunks.script = lambda call: Fault(FaultKind.BEFORE) if f"/{sid:016x}/" in call.name else None
        for number in range(10):
            await make(owner.store, f"e/{number}", bytes(100_000))
        with pytest.raises(Unavailable):
            await owner.store.flush()
        world.files.disk.capacity = world.files.disk.used()
        await log.check_space()
        assert not log.has_room(0)

        await owner.store.delete_segment("e/0")
        with pytest.raises(Unavailable):
            await owner.store.flush()
        await anyio.sleep(70)
        assert owner.error is None
        assert owner.container.statistics().checkpoints.checkpoints > 0

        # There is room again: now its bytes keep nothing else in the log.
        world.files.disk.capacity = None
        await log.check_space()
        await owner.checkpoint()
        assert owner.container.statistics().checkpoints.relogged_bytes == 400_000
        assert log.statistics().retained_bytes < 600_000
