"""Every cache and queue of a container is filled while long-term storage stands still, then storage answers
again: the container comes back by itself, has what it acknowledged, and answers every call (rules A1, C6,
C10, M4, M5, M12).

The limits are small, so that everything is full after some hundred calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from msgspec.structs import replace

from support.container_world import (
    OPTIONS,
    ContainerWorld,
    Owner,
    read_all,
    referenced_chunks,
    virtual_time,
)
from support.drained import TICK, drain
from support.patience import scaled
from support.stores import make
from support.table_rows import fill_up
from tierlog.actors.container.admission import AdmissionOptions
from tierlog.actors.container.parked import ParkedOptions
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.actors.kernel.mailbox import LaneBounds, MailboxOptions
from tierlog.actors.read.read_ahead import ReadAheadBudget
from tierlog.storage_backends.base.errors import StorageFull, Throttled, TierlogError, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage

pytestmark = pytest.mark.anyio

KIB = 1 << 10
ROW_BYTES = 30_000
HARD_BYTES = 64 * KIB
PARKED = 3
FROZEN = 10
"""Memtables that wait for their run, at most (rule M12)."""
TIGHT = replace(
    OPTIONS,
    cache_bytes=16 * KIB,
    flush_bytes=4 * KIB,
    admission=AdmissionOptions(
        soft_bytes=HARD_BYTES // 2,
        hard_bytes=HARD_BYTES,
        segment_bytes=HARD_BYTES // 2,
        row_bytes=ROW_BYTES,
        delay_max=0.01,
        publish_interval=0.02,
    ),
    active_segments_max=2,
    mailbox=MailboxOptions(normal=LaneBounds(4, 8 * KIB), internal=LaneBounds(2, 4 * KIB)),
    parked=ParkedOptions(count=PARKED, size_bytes=16 * KIB),
    writer=WriterOptions(flush_age=0.02, concurrent_segments=2, error_pause=0.02, segment_deadline=0.05),
    collector=CollectorOptions(
        delay=0.0,
        attempts=2,
        batch=2,
        names_max=4,
        listings=(0.0, 0.2),
        retry_pause=0.02,
        retry_pause_max=0.05,
    ),
    read_ahead_budget=ReadAheadBudget(limit_bytes=8 * KIB, fetches_max=1),
    merge_fan_out=2,
)
GROWTH = ("create", "create_with_content", "write", "concat")
COLD = [f"cold/{number}" for number in range(10)]
BIG = bytes(range(256)) * 256


class Standstill(FaultyChunkStorage):
    """Calls begin only while it ``goes_on``; those that wait take effect late."""

    def __init__(self, inner: MemoryChunkStorage) -> None:
        super().__init__(inner)
        self.goes_on = anyio.Event()
        self.goes_on.set()

    async def _call(self, verb: str, name: str, act: Callable[[], Awaitable[Any]], *rest: Any) -> Any:
        async def once_it_goes_on() -> Any:
            await self.goes_on.wait()
            return await act()

        return await super()._call(verb, name, once_it_goes_on, *rest)


def refuse_growth(call: Call) -> Fault | None:
    return Fault(FaultKind.FULL) if call.verb in GROWTH else None


def refuse_all(call: Call) -> Fault | None:
    return Fault(FaultKind.BEFORE)


@attrs.frozen
class Trouble:
    """What is wrong with long-term storage, and which limits it makes a container reach."""

    script: Callable[[Call], Fault | None] | None
    """None: calls hang."""
    reaches: frozenset[str]


HANGING = Trouble(None, frozenset({"mailbox", "unflushed", "rows", "parked"}))
FULL = Trouble(refuse_growth, frozenset({"mailbox", "unflushed", "rows"}))
DOWN = Trouble(refuse_all, frozenset({"mailbox", "unflushed", "rows"}))
NO_ROOM_FOR_RUNS = Trouble(fill_up, frozenset({"mailbox", "rows", "frozen"}))


@attrs.define(eq=False)
class Pressure:
    """Clients of one container, each of which goes on until it is refused."""

    world: ContainerWorld
    owner: Owner
    acked: dict[str, bytes] = attrs.field(factory=dict)
    gone: set[str] = attrs.field(factory=set)
    reached: set[str] = attrs.field(factory=set)
    unanswered: int = 0
    is_over: bool = False
    """Storage answers again."""

    async def call(self, verb: Awaitable[Any]) -> bool:
        """Whether it succeeds. A refusal has no effect, and says which limit it is about."""
        self.unanswered += 1
        try:
            await verb
        except (Throttled, StorageFull) as error:
            message = str(error)
            for limit, words in (
                ("rows", "of records wait"),
                ("unflushed", "unflushed bytes"),
                ("unflushed", "wait to be flushed"),
                ("parked", "not in memory"),
            ):
                if words in message:
                    self.reached.add(limit)
            return False
        except Unavailable:
            return False
        else:
            return True
        finally:
            self.unanswered -= 1

    async def append(self, name: str, data: bytes) -> bool:
        if await self.call(self.owner.store.append(name, data)):
            self.acked[name] = self.acked.get(name, b"") + data
            return True
        return False

    async def fill_the_mailbox(self) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(self.append, f"hot/{number % 2}", b"x" * 100)

    async def append_until_refused(self) -> None:
        number = 0
        while "unflushed" not in self.reached:
            number += 1
            await self.append("hot/0", b"%06d" % number * 200)
            await anyio.lowlevel.checkpoint()

    async def create_until_refused(self) -> None:
        number = 0
        while "rows" not in self.reached:
            number += 1
            name = f"new/{number}"
            if await self.call(self.owner.store.create_segment(name)):
                self.acked[name] = b""
                await self.append(name, b"")
            await anyio.sleep(0)

    async def change_until_memtables_wait(self) -> None:
        while not self.owner.container.state.table.frozen:
            await self.append("hot/1", b"y")
            await anyio.sleep(0.001)
        self.reached.add("frozen")

    async def seal(self, name: str) -> None:
        await self.call(self.owner.store.seal_segment(name))

    async def read_all_of_a_large_one(self) -> None:
        with suppress(Unavailable):
            assert await read_all(self.owner.store, "big") == BIG

    async def delete(self, name: str) -> None:
        if await self.call(self.owner.store.delete_segment(name)):
            self.gone.add(name)

    async def flush(self) -> None:
        await self.call(self.owner.store.flush())

    async def watch(self) -> None:
        while True:
            statistics = self.owner.container.statistics()
            if statistics.mailbox.normal.waiting:
                self.reached.add("mailbox")
            # Some requests may have passed each gate before it was closed. Commits of flushes pass it.
            if not self.is_over:
                assert statistics.table.row_bytes < 2 * ROW_BYTES
            assert self.owner.container.cache.unflushed_bytes < 2 * HARD_BYTES
            assert len(self.owner.container.state.table.frozen) <= FROZEN
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def idle_owner(world: ContainerWorld) -> AsyncIterator[Owner]:
    """Ten segments and their chunks are in long-term storage, most of them cold."""
    async with world.owner() as owner:
        await owner.store.create_segment("big")
        for start in range(0, len(BIG), 16 * KIB):
            await owner.store.append("big", BIG[start : start + 16 * KIB])
            await owner.store.flush()
        for name in ("hot/0", "hot/1", *COLD):
            await make(owner.store, name, name.encode() * 100)
        await owner.store.flush()
        with anyio.fail_after(scaled(30)):
            while len(owner.container.segments.by_id) > 3:
                await owner.store.append("hot/0", b"")  # a group, after which idle segments are looked for
                await anyio.sleep(0.001)
        yield owner


def forget_runs(world: ContainerWorld) -> None:
    """Lookups of cold segments need long-term storage."""
    for path in world.files.disk.files_below("/"):
        world.files.disk.unlink(path)
    world.options.table_cache.clear()


async def wait_until_it_takes_appends(pressure: Pressure) -> None:
    while not await pressure.append("hot/0", b"after"):
        assert pressure.owner.error is None
        await anyio.sleep(0.01)


async def wait_until_nothing_is_left(world: ContainerWorld, owner: Owner) -> None:
    while world.chunk_names != referenced_chunks(owner.container):
        with suppress(Throttled):  # until its rows are published
            await owner.store.append("hot/1", b"")
        await owner.store.flush()
        await anyio.sleep(0.01)


async def press(pressure: Pressure, trouble: Trouble, release: Callable[[], None]) -> None:
    """Returns once the limits were reached, storage answers again, and every call was answered."""
    async with anyio.create_task_group() as watching:
        watching.start_soon(pressure.watch)
        async with anyio.create_task_group() as clients:
            await pressure.fill_the_mailbox()
            for name in COLD[:3]:
                clients.start_soon(pressure.delete, name)
            for _ in range(3):
                clients.start_soon(pressure.read_all_of_a_large_one)
                clients.start_soon(pressure.flush)
            if "frozen" in trouble.reaches:
                await pressure.change_until_memtables_wait()
            if "unflushed" in trouble.reaches:
                await pressure.append_until_refused()
            await pressure.create_until_refused()
            if "parked" in trouble.reaches:
                forget_runs(pressure.world)
                for name in COLD[3:]:
                    clients.start_soon(pressure.seal, name)
            while not pressure.reached >= trouble.reaches:
                await anyio.sleep(0.001)
            pressure.is_over = True
            release()
        assert not pressure.unanswered
        await wait_until_it_takes_appends(pressure)
        watching.cancel_scope.cancel()


@pytest.mark.parametrize(
    "trouble",
    [HANGING, FULL, DOWN, NO_ROOM_FOR_RUNS],
    ids=["hanging", "full", "down", "no-room-for-runs"],
)
async def test_a_container_with_full_caches_and_queues_comes_back_by_itself(
    trouble: Trouble,
) -> None:
    """Nobody flushes it, and no call is left without an answer."""
    world = ContainerWorld(replace(TIGHT, table_cache=BlockCache(2 * KIB)))
    world.chunks = chunks = Standstill(MemoryChunkStorage(world.memory))
    with anyio.fail_after(scaled(50)):
        async with idle_owner(world) as owner:
            contents = {name: name.encode() * 100 for name in ("hot/0", "hot/1", *COLD)}
            pressure = Pressure(world, owner)
            chunks.script = trouble.script
            if trouble.script is None:
                chunks.goes_on = anyio.Event()

            def release() -> None:
                chunks.script = None
                chunks.goes_on.set()

            await press(pressure, trouble, release)
            assert pressure.reached >= trouble.reaches
            for name, data in contents.items():
                if name not in pressure.gone:
                    assert await read_all(owner.store, name) == data + pressure.acked.pop(name, b"")
            for name, data in pressure.acked.items():
                assert await read_all(owner.store, name) == data
            await wait_until_nothing_is_left(world, owner)
        async with world.owner() as owner:
            for name in pressure.gone:
                with pytest.raises(TierlogError):
                    await owner.store.segment_info(name)
            assert await read_all(owner.store, "big") == BIG
            await owner.store.flush()


# --- what relieves pressure is exempt from it ---------------------------------------------------


@virtual_time
@pytest.mark.parametrize("hangs", [False, True], ids=["down", "hangs"])
async def test_an_opening_waits_for_nothing_that_waits_for_the_opening(hangs: bool) -> None:
    """pravega/pravega#5963: an owner ends with all its limits reached. Its successor begins with the same
    unflushed bytes and rows, and long-term storage still does not answer: it opens, creates its element once
    storage answers, and flushes all of it, which its own limits do not hold up."""
    world = ContainerWorld(replace(TIGHT, active_segments_max=1000))
    world.chunks = chunks = Standstill(MemoryChunkStorage(world.memory))
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "hot/0", flushed=True)
        chunks.script = refuse_all
        pressure = Pressure(world, owner)
        await pressure.append_until_refused()
        await pressure.create_until_refused()
        await owner.crash()

        if hangs:
            chunks.goes_on = anyio.Event()
        successor = await world.start(tasks)
        for name, data in pressure.acked.items():
            assert await read_all(successor.store, name) == data
        assert successor.container.state.table.memory >= ROW_BYTES
        with pytest.raises(Throttled):
            await successor.store.append("hot/0", b"x")
        await successor.checkpoint()
        chunks.script = None
        chunks.goes_on.set()
        await wait_until_it_takes_appends(Pressure(world, successor))
        await successor.store.flush()
        assert (await successor.store.segment_info("hot/0")).flushed_length > 0
        await successor.stop()


@virtual_time
async def test_commits_of_a_flush_pass_the_limit_of_rows_that_they_lower() -> None:
    """pravega/pravega#6139: each commit adds rows to the table that is over its limit already."""
    admission = attrs.evolve(OPTIONS.admission, row_bytes=1)
    world = ContainerWorld(replace(OPTIONS, admission=admission, merge_fan_out=2))
    async with world.owner() as owner:
        for number in range(5):
            await owner.store.create_segment(f"s/{number}")
            assert owner.container.state.table.memory > 1
            with pytest.raises(Throttled):
                await owner.store.append(f"s/{number}", b"x")
            await owner.store.flush()
            assert owner.container.state.table.memory == 0
            await owner.store.append(f"s/{number}", bytes(200_000))
            world.chunks.script = fill_up
            await owner.store.flush()
            assert owner.container.state.table.memory > 1, "of the flush, and no run has room"
            with pytest.raises(Throttled):
                await owner.store.append(f"s/{number}", b"x")
            await owner.store.truncate_segment(f"s/{number}", 100_000)
            await owner.store.seal_segment(f"s/{number}")
            world.chunks.script = None
            await owner.store.flush()
            assert owner.container.state.table.memory == 0


@virtual_time
async def test_m12_aborts_of_what_never_began_are_refused_while_rows_cannot_be_published() -> None:
    """Each is remembered, so they are rows without a bound. An abort of an open transaction goes on."""
    admission = attrs.evolve(OPTIONS.admission, row_bytes=ROW_BYTES)
    world = ContainerWorld(replace(OPTIONS, admission=admission))
    async with world.owner() as owner:
        await owner.store.create_segment("s")
        await owner.store.begin_transaction("s", "open")
        world.chunks.script = refuse_all
        with pytest.raises(Throttled, match="bytes of records"):
            for number in range(ROW_BYTES):
                await owner.store.abort_transaction("s", f"never-{number}", "r" * 900)
        assert owner.container.state.table.memory < 2 * ROW_BYTES
        await owner.store.abort_transaction("s", "open")
        await owner.store.abort_transaction("s", "never-0")
        world.chunks.script = None
        await owner.store.flush()
        await owner.store.abort_transaction("s", "never")


@virtual_time
async def test_what_the_table_deletes_of_itself_changes_no_row_of_it() -> None:
    """pravega/pravega#6306: runs that were merged are deleted. If that were recorded in the table, each merge
    would make rows, and each cycle a merge."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=2, collector=CollectorOptions(delay=1)))
    async with world.owner() as owner:
        await owner.store.create_segment(TICK)
        for number in range(9):
            await make(owner.store, f"s/{number}", b"abc", flushed=True)
            await anyio.sleep(1)
        await drain(world, owner)
        statistics = owner.container.statistics()
        assert statistics.table.merges > 2
        assert statistics.collector.deleted > 4
        assert statistics.table.rows == 0
        logged = owner.log_bytes
        await anyio.sleep(10_000)
        assert owner.container.statistics().table.rows == 0
        assert owner.log_bytes == logged


@virtual_time
async def test_a_long_outage_makes_no_garbage_and_no_work() -> None:
    """pravega/pravega#6467: each attempt of a flush that fails would track a chunk, log that, and make the
    next flush due."""
    world = ContainerWorld()
    async with world.owner() as owner:
        for name in (TICK, "s"):
            await make(owner.store, name, b"abc", flushed=True)
        await anyio.sleep(1_000)
        world.chunks.script = refuse_all
        await owner.store.append("s", b"def")
        await anyio.sleep(60)
        logged, names = owner.log_bytes, set(world.memory.chunks)
        await anyio.sleep(1_200)
        assert owner.log_bytes - logged < KIB
        assert set(world.memory.chunks) == names
        assert owner.container.statistics().collector.queued < 10
        world.chunks.script = None
        await anyio.sleep(200)
        assert (await owner.store.segment_info("s")).flushed_length == 6
        await drain(world, owner, pause=100)
