"""Merges of the runs of a container's system table, and fetches of their local copies: what they leave, and
what happens where there is no room (rules M2, M6, M7, M11, J7)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from msgspec.structs import force_setattr, replace
from simulation.disk import BLOCK
from simulation.file_layer import Fail, SimulatedFiles

from support.container_world import (
    MIB,
    OPTIONS,
    ContainerWorld,
    Owner,
    read_all,
    until,
    virtual_time,
)
from support.table_rows import RUNS, fail_merged_runs, fill_up, simulated_runs
from support.table_runs import NAMES, UNMERGED, check, files_of_runs, fill, known_files, runs_in, runs_of
from tierlog import ABSENT, TableConflict
from tierlog.journal.manifest.chain import read_chain
from tierlog.journal.manifest.element import Kind
from tierlog.storage_backends.base.files import IoCall, Rename, Sync, SyncFolder, Write
from tierlog.storage_backends.sorted_runs import compaction_policy
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.storage_backends.sorted_runs.local_copies import LocalCopies
from tierlog.storage_backends.sorted_runs.merge import MergeOrder
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_files import path_of
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]


@pytest.mark.parametrize("failing", [Write, Sync, Rename, SyncFolder])
async def test_m6_a_merge_that_the_disk_fails_leaves_no_file(failing: type[IoCall]) -> None:
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    is_merging = False

    def fail(index: int, call: IoCall) -> Fail | None:
        return Fail(OSError(errno.ENOSPC, "scripted")) if is_merging and type(call) is failing else None

    world.files = SimulatedFiles(world.files.disk, fail, interleave=False)
    async with world.owner() as owner:
        merge = owner.container.disk.runs.merge

        async def merge_on_a_full_disk(order: MergeOrder) -> list[RunEntry]:
            nonlocal is_merging
            is_merging = True
            try:
                return await merge(order)
            finally:
                is_merging = False

        force_setattr(owner.container.disk.runs, "merge", merge_on_a_full_disk)
        for name in NAMES[:3]:
            await fill(owner, name)
        await anyio.sleep(100)
        assert len(runs_of(owner)) == 3
        assert files_of_runs(world, owner) == known_files(owner)


async def test_m7_a_merge_waits_until_the_log_keeps_its_room(caplog: pytest.LogCaptureFixture) -> None:
    """W6: twice the low water beside what it may write. One warning says so."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    world.runs = replace(simulated_runs(world.files, "/runs"), low_water=MIB)
    async with world.owner() as owner:
        for name in NAMES[:2]:
            await fill(owner, name)
        world.files.disk.capacity = world.files.disk.used() + 2 * MIB + BLOCK
        await fill(owner, NAMES[2])
        await anyio.sleep(300)
        assert len(runs_of(owner)) == 3
        assert files_of_runs(world, owner) == known_files(owner)
        world.files.disk.capacity = world.files.disk.used() + 2 * MIB + 4 * BLOCK
        await anyio.sleep(300)
        assert len(runs_of(owner)) == 1
        await check(owner, *NAMES[:3])
    assert sum("sorted runs needs" in record.getMessage() for record in caplog.records) == 1


async def publish_and_lose_the_local_copies(count: int) -> ContainerWorld:
    world = ContainerWorld(UNMERGED)
    world.runs = replace(simulated_runs(world.files, "/runs"), low_water=MIB)
    async with world.owner() as owner:
        for name in NAMES[:count]:
            await fill(owner, name)
    for path in world.files.disk.files_below(world.runs.path):
        world.files.disk.unlink(path)
    world.chunks.calls.clear()
    return world


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were read whole. Lookups read parts of them besides."""
    read_whole, names = LocalCopies._read_whole, []

    async def noted(self: LocalCopies, run: RunEntry) -> list[bytes]:
        names.append(run.name)
        return await read_whole(self, run)

    monkeypatch.setattr(LocalCopies, "_read_whole", noted)
    return names


async def test_m6_a_run_is_not_fetched_where_the_log_would_lose_its_room(fetches: list[str]) -> None:
    """W6: nothing would remove the copies, so appends were refused for good. Reads use long-term storage."""
    world = await publish_and_lose_the_local_copies(3)
    disk = world.files.disk
    disk.capacity = disk.used() + 2 * MIB + 100
    async with world.owner() as owner:
        await anyio.sleep(3600)
        assert not fetches
        assert owner.container.copies.statistics().copies == 0
        assert disk.free() >= 2 * MIB
        assert await read_all(owner.store, NAMES[0]) == NAMES[0].encode() * 10

        disk.capacity = disk.used() + 3 * MIB
        await anyio.sleep(3600)
        assert owner.container.copies.statistics().copies == 3


async def test_m6_a_damaged_run_is_fetched_less_and_less_often(fetches: list[str]) -> None:
    """A run may have 128 MiB: at two a minute that was 370 GB a day. Cycles do not repeat it sooner."""
    world = await publish_and_lose_the_local_copies(1)
    [name] = runs_in(world)
    world.memory.chunks[name].data[0] ^= 1
    async with world.owner() as owner:
        for number in range(60):
            await fill(owner, f"more/{number}")
            await anyio.sleep(60)
        assert 5 <= len(fetches) <= 8
        await anyio.sleep(10 * 3600)
        assert 15 <= len(fetches) <= 18


async def test_m7_runs_are_merged_and_the_old_ones_collected_once_no_element_names_them() -> None:
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        for name in NAMES[:3]:
            await fill(owner, name)
        old = runs_of(owner)
        await anyio.sleep(1)
        assert len(runs_of(owner)) == 1
        chain = await read_chain(world.chunks, 0)
        assert chain.newest is not None
        assert chain.newest.kind is Kind.COMPACTED
        assert set(old) < set(runs_in(world))
        assert owner.container.copies.statistics().copies == 1
        await check(owner, *NAMES[:3])

        await anyio.sleep(600)
        assert set(old) < set(runs_in(world)), "the element before the newest names them"
        await fill(owner, "later")
        await anyio.sleep(600)
        assert runs_in(world) == runs_of(owner)
        await check(owner, *NAMES[:3], "later")


async def test_m15_conditional_updates_lose_nothing_while_runs_are_published_and_merged() -> None:
    """Counters, one of which is removed at each tenth step: then it is expected to be absent. The merges
    include the oldest run, so they drop its tombstones."""
    options = replace(OPTIONS, merge_fan_out=2, table_cache=BlockCache(0))
    async with ContainerWorld(options).owner() as owner:
        await owner.store.create_table("counters")
        table = owner.store.table("counters")
        added = {b"kept": 0, b"removed": 0}

        async def add(key: bytes) -> None:
            while added[key] < 25:
                row = await table.get(key)
                version = ABSENT if row is None else row.version
                try:
                    if row is not None and key == b"removed" and int(row.value) % 10 == 9:
                        await table.remove(key, expected_version=version)
                    else:
                        value = 0 if row is None else int(row.value)
                        await table.put(key, b"%d" % (value + 1), expected_version=version)
                except TableConflict:
                    continue
                added[key] += 1

        async def publish(stopped: anyio.Event) -> None:
            while not stopped.is_set():
                await owner.store.flush()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish, stopped := anyio.Event())
            async with anyio.create_task_group() as writers:
                for key in [*added] * 2:
                    writers.start_soon(add, key)
            stopped.set()
        assert owner.container.statistics().table.merges > 2
        expected = {b"kept": added[b"kept"], b"removed": added[b"removed"] % 10}
        found = {row.key: row.value async for row in table.items()}
        assert found == {key: b"%d" % value for key, value in expected.items() if value}


async def test_m6_local_copies_stay_until_the_element_of_their_merge_counts() -> None:
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        for name in NAMES[:3]:
            world.chunks.script = None if name != NAMES[2] else _fail_elements_of_merges(owner)
            await fill(owner, name)
        await anyio.sleep(5)
        copies, old = owner.container.copies.statistics(), owner.container.state.table.runs
        assert (len(old), len(owner.container.state.manifest.intended_runs)) == (3, 1)
        assert copies.copies == 4, "those that count, and the one that an element may name"
        assert all(world.files.disk.exists(path_of(owner.container.disk.runs.path, run)) for run in old)
        await check(owner, *NAMES[:3])

        world.chunks.script = None
        await anyio.sleep(60)
        assert len(runs_of(owner)) == owner.container.copies.statistics().copies == 1
        await check(owner, *NAMES[:3])


async def test_m6_the_inputs_of_a_merge_that_a_later_owner_completes_leave_the_disk() -> None:
    """It was recorded before the crash, so the next owner creates its element."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in NAMES[:3]:
            world.chunks.script = None if name != NAMES[2] else _fail_elements_of_merges(owner)
            await fill(owner, name)
        await anyio.sleep(5)
        assert len(owner.container.state.manifest.intended_runs) == 1
        await owner.crash()
    world.chunks.script = None
    async with world.owner() as owner:
        await until(lambda: len(runs_of(owner)) == 1)
        await fill(owner, "later")
        await anyio.sleep(600)
        assert files_of_runs(world, owner) == known_files(owner)
        assert runs_in(world) == runs_of(owner)
        await check(owner, *NAMES[:3], "later")


def _fail_elements_of_merges(owner: Owner) -> Callable[[Call], Fault | None]:
    def script(call: Call) -> Fault | None:
        intent = owner.container.state.manifest.intent
        is_merge = intent is not None and intent.element.kind is Kind.COMPACTED
        is_element = call.verb == "create_with_content" and "/journal/" in call.name
        return Fault(FaultKind.BEFORE) if is_merge and is_element else None

    return script


async def test_m11_a_merge_that_is_not_recorded_loses_nothing_and_comes_again() -> None:
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        for name in NAMES[:2]:
            await fill(owner, name)

        world.chunks.script = fail_merged_runs
        await fill(owner, NAMES[2])
        await anyio.sleep(5)
        assert len(runs_of(owner)) == 3
        assert owner.container.copies.statistics().copies == 4, "the merged run waits"
        await check(owner, *NAMES[:3])
        world.chunks.script = None
        await anyio.sleep(60)
        assert len(runs_of(owner)) == 1
        await check(owner, *NAMES[:3])


async def test_m11_a_merge_that_counts_by_another_element_is_not_applied_again() -> None:
    """Its element was recorded and not created; a flush creates it before the merge is tried again."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        for name in NAMES[:2]:
            await fill(owner, name)
        merged = 0

        def script(call: Call) -> Fault | None:
            """The element that follows the first merged run cannot be created."""
            nonlocal merged
            merged += fail_merged_runs(call) is not None
            is_element = call.verb == "create_with_content" and "/journal/" in call.name
            return Fault(FaultKind.BEFORE) if is_element and merged == 1 else None

        world.chunks.script = script
        await fill(owner, NAMES[2])
        await anyio.sleep(5)
        world.chunks.script = None
        await fill(owner, "later")
        await anyio.sleep(60)
        assert merged == 1
        assert len(runs_of(owner)) == 2
        await check(owner, *NAMES[:3], "later")
        await fill(owner, "last")
        await anyio.sleep(600)
        assert set(runs_of(owner)) <= set(runs_in(world))
        assert len(owner.container.state.table.runs) == owner.container.copies.statistics().copies
        await check(owner, *NAMES[:3], "later", "last")


def count_merges(owner: Owner) -> list[str]:
    """The names of the merges that were made, also those that never count."""
    merge, names = owner.container.disk.runs.merge, list[str]()

    async def noted(order: MergeOrder) -> list[RunEntry]:
        names.append(order.name)
        return await merge(order)

    force_setattr(owner.container.disk.runs, "merge", noted)
    return names


async def merge_without_room(world: ContainerWorld, owner: Owner) -> list[str]:
    """A merge into three runs, of which long-term storage has room for one. Returns the merges made."""
    merges = count_merges(owner)

    def script(call: Call) -> Fault | None:
        return fill_up(call) if call.name.endswith(("-0001", "-0002")) else None

    world.chunks.script = script
    for number in range(3):
        keys = [f"z:{number}/{row}" for row in range(3)]
        await owner.container.metadata.commit(dict.fromkeys(keys, 0), dict.fromkeys(keys, bytes(3000)))
        await fill(owner, NAMES[number])
    await anyio.sleep(3600)
    return merges


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_policy, "RUN_BYTES_MAX", 10_000)


@pytest.mark.usefixtures("small_runs")
async def test_m7_a_merge_that_long_term_storage_has_no_room_for_is_made_once() -> None:
    """Made again each time it wrote 80 GB, and filled the storage with runs under other names."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        [name] = await merge_without_room(world, owner)
        assert len(runs_of(owner)) == 3
        assert files_of_runs(world, owner) > known_files(owner)
        puts = [
            call.name
            for call in world.chunks.calls
            if call.verb == "create_with_content" and name in call.name
        ]
        assert puts[:2] == [f"{name}-0000", f"{name}-0001"]
        assert {*puts[1:]} == {f"{name}-0001"}, "those that were put are not put again"
        assert 5 <= len(puts) <= 10
        assert runs_in(world) == sorted([*runs_of(owner), f"{name}-0000"])

        world.chunks.script = None
        await anyio.sleep(3600)
        assert runs_of(owner) == [f"{name}-000{number}" for number in range(3)]
        assert files_of_runs(world, owner) == known_files(owner)
        await check(owner, *NAMES[:3])
        await fill(owner, "later")
        await anyio.sleep(600)
        assert runs_in(world) == runs_of(owner)
        assert owner.container.statistics().table.merges == 1


@pytest.mark.usefixtures("small_runs")
async def test_m7_merged_runs_that_wait_are_given_up_where_the_log_needs_their_room() -> None:
    """W6."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    world.runs = replace(simulated_runs(world.files, "/runs"), low_water=MIB)
    async with world.owner() as owner:
        merges = await merge_without_room(world, owner)
        world.files.disk.capacity = world.files.disk.used() + MIB
        await anyio.sleep(60)
        assert files_of_runs(world, owner) == known_files(owner), "long before the next attempt"
        await anyio.sleep(7200)
        assert len(merges) == 1, "a merge has no room either"

        world.files.disk.capacity = world.chunks.script = None
        await anyio.sleep(7200)
        assert len(merges) == 2
        assert {run.rpartition("-")[0] for run in runs_of(owner)} == {merges[1]}
        await check(owner, *NAMES[:3])


@pytest.mark.usefixtures("small_runs")
async def test_m2_merged_runs_that_may_not_be_durable_get_other_names() -> None:
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        merges = count_merges(owner)

        def script(call: Call) -> Fault | None:
            is_first = call.verb == "create_with_content" and call.name.endswith("-0000") and len(merges) == 1
            return Fault(FaultKind.AFTER) if is_first else None

        world.chunks.script = script
        for name in NAMES[:3]:
            await fill(owner, name)
        await anyio.sleep(60)
        assert runs_of(owner) == [f"{merges[1]}-0000"]
        assert files_of_runs(world, owner) == known_files(owner)
        await check(owner, *NAMES[:3])


async def test_m7_a_damaged_run_keeps_no_other_runs_from_being_merged() -> None:
    """The run list would be full one day, and appends refused."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        for name in NAMES[:3]:
            await owner.container.metadata.commit({f"z:{name}": 0}, {f"z:{name}": bytes(5000)})
            await fill(owner, name)
        await until(lambda: len(runs_of(owner)) == 1)
        [damaged] = owner.container.state.table.runs
        folder = owner.container.disk.runs.path
    world.files.disk.unlink(path_of(folder, damaged))
    world.memory.chunks[damaged.name].data[0] ^= 1
    async with world.owner() as owner:
        for name in NAMES[3:6]:
            await fill(owner, name)
            await anyio.sleep(1)
        assert len(runs_of(owner)) == 2
        assert damaged.name in runs_of(owner)
        assert owner.container.statistics().table.merges == 1


@pytest.mark.parametrize("is_local", [False, True])
async def test_m7_a_damaged_run_among_the_newest_keeps_no_other_runs_from_being_merged(
    is_local: bool,
) -> None:
    """It would be part of each merge that is due, and none would be made. ``is_local``: its local copy is
    damaged too, so that the merge finds it and no fetch."""
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        for name in NAMES[:2]:
            await fill(owner, name)
        damaged = owner.container.state.table.runs.runs[1]
        path = path_of(owner.container.disk.runs.path, damaged)
    if is_local:
        world.files.disk.find(path).write(0, b"damage")
    else:
        world.files.disk.unlink(path)
    world.memory.chunks[damaged.name].data[0] ^= 1
    async with world.owner(replace(OPTIONS, merge_fan_out=3)) as owner:
        for number in range(12):
            await owner.container.metadata.commit({f"z:{number}": 0}, {f"z:{number}": b"v"})
            await fill(owner, f"more/{number}")
        await anyio.sleep(7200)
        assert damaged.name in runs_of(owner)
        assert len(runs_of(owner)) <= 6
        assert await owner.container.metadata.get("z:1")


async def test_m6_a_run_that_is_missing_keeps_no_other_runs_from_being_fetched() -> None:
    world = await publish_and_lose_the_local_copies(4)
    del world.memory.chunks[runs_in(world)[-1]]
    async with world.owner() as owner:
        await anyio.sleep(60)
        assert owner.container.copies.statistics().copies == 3


async def test_w6_a_merge_has_room_beside_the_inputs_that_are_fetched_for_it() -> None:
    world = ContainerWorld(UNMERGED)
    world.runs = replace(simulated_runs(world.files, "/runs"), low_water=MIB)
    async with world.owner() as owner:
        for name in NAMES[:2]:
            await add_large_record(owner, name)
    disk = world.files.disk
    for path in disk.files_below(world.runs.path):
        disk.unlink(path)
    disk.capacity = disk.used() + 2 * MIB
    async with world.owner(replace(OPTIONS, merge_fan_out=3)) as owner:
        await anyio.sleep(300)
        # For the inputs or for what they become. Fetches pause for longer than the merge waits.
        disk.capacity = disk.used() + 2 * MIB + 5 * LARGE
        await add_large_record(owner, NAMES[2])
        await anyio.sleep(1)
        assert disk.free() >= 2 * MIB
        assert len(runs_of(owner)) == 3

        disk.capacity = disk.used() + 2 * MIB + 6 * LARGE
        await anyio.sleep(3600)
        assert disk.free() >= 2 * MIB
        assert len(runs_of(owner)) == 1


LARGE = 300_000


async def add_large_record(owner: Owner, name: str) -> None:
    await owner.container.metadata.commit({f"z:{name}": 0}, {f"z:{name}": bytes(LARGE)})
    await fill(owner, name)


async def test_m7_merges_go_on_soon_after_an_outage() -> None:
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        merges = count_merges(owner)
        for name in NAMES[:2]:
            await fill(owner, name)
        world.chunks.script = fail_merged_runs
        await fill(owner, NAMES[2])
        await anyio.sleep(34_000)
        assert len(runs_of(owner)) == 3
        world.chunks.script = None
        await anyio.sleep(300)
        assert len(runs_of(owner)) == len(merges) == 1


@pytest.mark.parametrize("slow", ["merge", "cycle"])
async def test_j7_the_chain_is_checked_before_a_run_is_put_late(slow: str) -> None:
    """A merge, and the local copies of a cycle, may take as long as they like."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        for name in NAMES[:2]:
            await fill(owner, name)
        done: list[int] = []

        work: Any = owner.container.disk.runs.merge if slow == "merge" else owner.container.copies.add

        async def slowly(*arguments: object) -> object:
            found = await work(*arguments)
            await anyio.sleep(600)
            done.append(len(world.chunks.calls))
            return found

        if slow == "merge":
            force_setattr(owner.container.disk.runs, "merge", slowly)
        else:
            object.__setattr__(owner.container.copies, "add", slowly)
        await fill(owner, NAMES[2])
        await anyio.sleep(700)
        calls = world.chunks.calls[done[0] :]
        put = next(at for at, call in enumerate(calls) if call.verb == "create_with_content")
        assert calls[put].name.startswith(RUNS)
        assert any(call.verb == "list" and "/journal/" in call.name for call in calls[:put])


async def test_m11_merged_runs_wait_for_the_end_of_a_cycle_and_not_for_elements_alone() -> None:
    """F2."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        for name in NAMES[:3]:
            await fill(owner, name)
        old = set(runs_of(owner))
        await until(lambda: len(runs_of(owner)) == 1)
        for _ in range(3):
            await owner.container.ownership.prove_anew()
        assert not set(owner.container.state.manifest.runs_among(list(old)))
        await anyio.sleep(600)
        assert old < set(runs_in(world))

        await fill(owner, "later")
        await anyio.sleep(600)
        assert runs_in(world) == runs_of(owner)
