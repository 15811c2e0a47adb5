"""The runs of a container's system table: when rows are released, what a crash leaves, which runs are garbage
(rules M8, M10 to M12)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from simulation.disk import BLOCK
from simulation.records import broken_records

from support.container_world import (
    ELSEWHERE,
    MIB,
    OPTIONS,
    ContainerWorld,
    Owner,
    read_all,
    referenced_chunks,
    until,
    virtual_time,
)
from support.table_rows import RUNS, fail_runs, fill_up, lose_the_answers_of_runs, records_of
from support.table_runs import NAMES, UNMERGED, check, files_of_runs, fill, known_files, runs_in, runs_of
from tierlog import AttributeUpdate, AttributeUpdateKind
from tierlog.actors.container import table_runs
from tierlog.actors.container.recovery import RecoveryReport
from tierlog.journal.log.contract import GroupInfo
from tierlog.journal.log.memory import _LogState
from tierlog.journal.manifest.chain import read_chain
from tierlog.journal.manifest.element import Kind
from tierlog.storage_backends.base.errors import OutcomeUnknown, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunk
from tierlog.storage_backends.sorted_runs.put import encode_run
from tierlog.storage_backends.sorted_runs.run_files import path_of
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, every

pytestmark = [pytest.mark.anyio, virtual_time]

EARLIER = Path(__file__).parents[2] / "golden" / "container_without_tables.json"


async def test_m10_a_full_cycle_publishes_its_rows_and_releases_them() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await fill(owner, *NAMES)

        table = owner.container.state.table
        assert (table.rows, len(table.runs)) == (0, 1)
        assert runs_in(world) == runs_of(owner)
        assert table.runs.records_to == max(version for version, _ in records_of(owner.container).values())
        await check(owner, *NAMES)


async def test_m10_a_cycle_without_dirty_rows_publishes_no_run() -> None:
    """F5: and an idle store is quiet."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await fill(owner, *NAMES)
        before = owner.container.state.manifest.highest_cycle
        await owner.store.flush()
        assert owner.container.state.manifest.highest_cycle == before
        assert len(runs_in(world)) == 1
        calls = len(world.chunks.calls)
        await anyio.sleep(600)
        assert len(world.chunks.calls) == calls


async def test_m8_a_checkpoint_has_the_dirty_rows_and_the_resident_ones() -> None:
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await fill(owner, *NAMES)
        await owner.checkpoint()
        segments = len(owner.container.state.resident)
        await owner.crash()
    async with world.owner() as owner:
        assert isinstance(owner.container._recovery, RecoveryReport)
        assert owner.container.state.table.rows == 0
        assert len(owner.container.state.resident) == segments == len(NAMES)
        await check(owner, *NAMES)

        await owner.store.append(NAMES[0], b"")
        await owner.store.delete_segment(NAMES[0])
        await owner.checkpoint()  # with dirty tombstones once the deletion is flushed
        await check(owner, *NAMES[1:])


async def test_m8_dirty_tombstones_are_in_checkpoints() -> None:
    """Without them a record that a run has would come back."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await fill(owner, *NAMES)
        world.chunks.script = fail_runs
        await owner.store.delete_segment(NAMES[0])
        with pytest.raises(Unavailable):
            await owner.store.flush()
        assert owner.container.state.table.rows
        await owner.checkpoint()
        before = records_of(owner.container)
        await owner.crash()
    world.chunks.script = None
    async with world.owner() as owner:
        assert records_of(owner.container) == before
        await owner.store.flush()
        await check(owner, *NAMES[1:])


async def test_m8_a_folder_of_an_earlier_version_is_brought_over_by_a_flush() -> None:
    """Its checkpoint has all records; further ones were committed after it. The log and the objects are those
    that the version before tables wrote."""
    world = ContainerWorld()
    golden = json.loads(EARLIER.read_text())
    journal = world.logs._states["c0"] = _LogState(golden["epoch"])
    for *info, payload in golden["groups"]:
        journal.add(GroupInfo(*info), bytes.fromhex(payload))
    for name, content in golden["objects"].items():
        world.memory.chunks[name] = MemoryChunk(bytearray.fromhex(content))

    async def check_all(owner: Owner) -> None:
        first = b"first " * 50 + b"after the checkpoint"
        assert await read_all(owner.store, "app/a", 60) == first[60:]
        assert await read_all(owner.store, "app/b") == b"second " * 50 + b"part " * 20
        assert await read_all(owner.store, "app/c") == b"third and unflushed"
        assert sorted(await owner.store.list_segments()) == ["app/a", "app/b", "app/c"]
        assert not list(broken_records(owner.container))

    async with world.owner() as owner:
        table = owner.container.state.table
        assert (len(table.runs), table.rows) == (0, len(records_of(owner.container)))
        await check_all(owner)
        await owner.store.flush()
        assert (len(table.runs), table.rows) == (1, 0)
        await check_all(owner)
        before = records_of(owner.container)
    async with world.owner() as owner:
        assert owner.container.state.table.rows == 0
        assert records_of(owner.container) == before
        await check_all(owner)
        await owner.store.append("app/a", b"more")
        await owner.store.flush()
        await anyio.sleep(600)
        assert world.chunk_names == referenced_chunks(owner.container)


async def test_m10_replay_drops_what_the_element_in_the_log_has_made_clean() -> None:
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await fill(owner, *NAMES)
        await fill(owner, "later")
        before = records_of(owner.container)
        await owner.crash()
    async with world.owner() as owner:
        assert owner.container.state.table.rows == 0
        assert records_of(owner.container) == before
        await check(owner, *NAMES, "later")


@pytest.mark.parametrize("script", [fail_runs, lose_the_answers_of_runs])
async def test_m10_a_failed_publication_keeps_the_rows_and_the_next_one_has_all_of_them(
    script: Callable[[Call], Fault | None],
) -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        world.chunks.script = script
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await fill(owner, *NAMES)
        assert owner.container.state.table.rows
        await check(owner, *NAMES)
        assert owner.container.copies.statistics().copies == 0

        world.chunks.script = None
        await fill(owner, "later")
        assert (owner.container.state.table.rows, len(runs_of(owner))) == (0, 2)
        await check(owner, *NAMES, "later")
        await anyio.sleep(600)
        assert runs_in(world) == runs_of(owner)


async def test_m12_without_room_for_a_run_a_cycle_completes_and_a_later_one_publishes_its_rows() -> None:
    """Its rows are in the log and in memory. So a full storage does not keep the chain from going on. What is
    deleted waits for its rows (G6)."""
    world = ContainerWorld()
    async with world.owner() as owner:
        world.chunks.script = fill_up
        for name in NAMES:
            await fill(owner, name)
        chain = await read_chain(world.chunks, 0)
        assert chain.newest is not None
        assert (chain.newest.kind, chain.newest.runs) == (Kind.CYCLE_COMPLETE, RunList())
        table = owner.container.state.table
        assert table.rows
        assert 1 < len(table.frozen) <= 10, "a lookup asks few memtables"
        assert owner.container.statistics().table.unpublished == len(NAMES)
        assert owner.container.copies.statistics().copies == 0
        await check(owner, *NAMES)
        await owner.store.delete_segment(NAMES[0])
        await owner.store.flush()
        await anyio.sleep(600)
        assert len(world.chunk_names) == len(NAMES)

        world.chunks.script = None
        await fill(owner, "later")
        assert (table.rows, len(runs_of(owner))) == (0, 1)
        await check(owner, *NAMES[1:], "later")
        await anyio.sleep(600)
        assert runs_in(world) == runs_of(owner)
        before = records_of(owner.container)
    async with world.owner() as owner:
        assert records_of(owner.container) == before


async def test_m6_a_run_without_room_on_the_local_disk_is_put_and_copied_later() -> None:
    """Else a full disk with both tiers on it could not be freed (G6)."""
    world = ContainerWorld(UNMERGED)
    disk = world.files.disk
    async with world.owner() as owner:
        disk.capacity = disk.used()
        for name in NAMES:
            await fill(owner, name)
        assert len(runs_of(owner)) == len(NAMES)
        assert (owner.container.state.table.rows, owner.container.copies.statistics().copies) == (0, 0)
        await owner.store.delete_segment(NAMES[0])
        await owner.store.flush()
        await anyio.sleep(600)
        assert len(world.chunk_names) == len(NAMES) - 1

        disk.capacity = None
        await anyio.sleep(3600)
        assert owner.container.copies.statistics().copies == len(runs_of(owner))
        await check(owner, *NAMES[1:])


async def test_m12_after_many_failures_a_cycle_publishes_the_rows_after_them_too() -> None:
    """M10: ``flush`` has returned then, and nothing makes another cycle due."""
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        table = owner.container.state.table
        world.chunks.script = fail_runs
        for name in NAMES:
            with pytest.raises(Unavailable):
                await fill(owner, name)
        assert len(table.frozen) == 2, "those of the first cycle, which is published next"
        world.chunks.script = None
        await fill(owner, "later")
        assert (table.rows, len(runs_of(owner))) == (0, 2)
        await check(owner, *NAMES, "later")


async def test_m12_a_flush_publishes_what_had_no_room_though_nothing_has_changed_since() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        world.chunks.script = fill_up
        await fill(owner, *NAMES)
        assert owner.container.state.table.rows
        world.chunks.script = None
        await owner.store.flush()
        assert (owner.container.state.table.rows, len(runs_of(owner))) == (0, 1)
        world.chunks.calls.clear()
        await owner.store.flush()
        assert not world.chunks.calls


async def test_m12_a_flush_publishes_images_that_had_no_room_though_no_row_waits() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await fill(owner, *NAMES)
        world.chunks.script = fill_up
        await owner.store.update_attributes(NAMES[0], [AttributeUpdate("a", 1, AttributeUpdateKind.REPLACE)])
        await owner.store.flush()
        state = owner.container.state
        segment = state.segments.in_memory(NAMES[0])
        assert segment is not None
        assert segment.touched > state.clean_images_to
        world.chunks.script = None
        await owner.store.flush()
        assert segment.touched <= state.clean_images_to


async def test_m10_of_several_runs_of_a_cycle_all_are_published_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_runs, "encode_run", partial(encode_run, run_bytes_max=1))
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        left = 3

        def script(call: Call) -> Fault | None:
            nonlocal left
            left -= fill_up(call) is not None
            return fill_up(call) if left < 0 else None

        world.chunks.script = script
        await fill(owner, *NAMES)
        assert (runs_of(owner), len(runs_in(world))) == ([], 3)
        await check(owner, *NAMES)
        world.chunks.script = None
        await fill(owner, "later")
        assert len(runs_of(owner)) > len(NAMES)
        assert owner.container.state.table.rows == 0
        await anyio.sleep(600)
        assert runs_in(world) == runs_of(owner)
        await check(owner, *NAMES, "later")


async def test_m6_a_run_that_the_disk_has_no_room_for_leaves_no_file() -> None:
    """With the tail of each failed attempt the disk would stay full."""
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        await fill(owner, NAMES[0])
        world.files.disk.capacity = world.files.disk.used() + BLOCK
        for attempt in range(3):
            await fill(owner, *(f"more/{attempt}/{number:02d}" for number in range(20)))
        assert owner.container.copies.statistics().copies == 1
        assert files_of_runs(world, owner) <= known_files(owner)
        world.files.disk.capacity = None
        await fill(owner, "last")
        assert files_of_runs(world, owner) <= known_files(owner)
        assert owner.container.state.table.rows == 0


@pytest.mark.parametrize("verb", ["create_with_content", "delete"])
@pytest.mark.parametrize("at", range(6))
async def test_m10_a_crash_at_any_call_of_a_publication_or_a_merge_loses_nothing(verb: str, at: int) -> None:
    """At each creation and deletion in long-term storage, in four cycles and the merge of three runs."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        left = at

        def script(call: Call) -> None:
            nonlocal left
            if call.verb == verb and call.name.startswith("_system/containers/"):
                left -= 1
                if left < 0:
                    owner.scope.cancel()

        world.chunks.script = script
        done: list[str] = []
        for name in NAMES[:4]:
            with anyio.CancelScope():
                try:
                    await fill(owner, name)
                except Exception:  # noqa: BLE001 - the owner is gone
                    break
            done.append(name)
        await anyio.sleep(5)
        await owner.crash()
    world.chunks.script = None
    async with world.owner() as owner:
        await check(owner, *done)
        await fill(owner, *NAMES[8:])
        await check(owner, *done, *NAMES[8:])
        await anyio.sleep(1)
        await fill(owner, "later")
        await anyio.sleep(600)
        elements = [each.element for each in (await read_chain(world.chunks, 0)).elements]
        named = {run.name for each in elements for run in each.runs}
        assert set(runs_of(owner)) <= set(runs_in(world)) <= named


async def test_m6_without_long_term_storage_records_are_read_and_committed() -> None:
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await fill(owner, *NAMES)
        await owner.crash()
    async with world.owner() as owner:
        await until(lambda: owner.container.copies.statistics().copies == 1)
        world.chunks.script = every(
            Fault(FaultKind.BEFORE), "read", "list", "create_with_content", "create", "write"
        )
        owner.container.options.table_cache.clear()
        key = next(key for key in records_of(owner.container) if key.startswith("c:"))
        found = await owner.container.metadata.get(key)
        assert found is not None
        await owner.container.metadata.commit({key: found[0]}, {key: found[1]})
        world.chunks.script = None


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
async def test_m6_a_local_copy_that_is_lost_or_damaged_is_fetched_again(damage: str) -> None:
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await fill(owner, *NAMES)
        [run] = owner.container.state.table.runs
        await owner.crash()
    path = path_of(owner.container.disk.runs.path, run)
    content = world.files.disk.content(path)
    if damage == "gone":
        world.files.disk.unlink(path)
    else:
        world.files.disk.replace(
            path, content[:-9] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:]
        )
    async with world.owner(replace(OPTIONS, cache_bytes=MIB)) as owner:
        owner.container.options.table_cache.clear()
        keys = await owner.container.metadata.scan("c:")
        assert len(keys) == len(NAMES)
        await until(lambda: world.files.disk.exists(path) and world.files.disk.content(path) == content)
        await check(owner, *NAMES)


async def lose_the_objects_of_runs(count: int) -> ContainerWorld:
    """A folder that was moved, and a long-term storage that was put back without its runs."""
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        for name in NAMES[:count]:
            await fill(owner, name)
    for name in runs_in(world):
        del world.memory.chunks[name]
    world.chunks.calls.clear()
    world.folder = ELSEWHERE
    return world


async def test_m6_runs_that_long_term_storage_lacks_are_put_again_after_the_container_was_confirmed() -> None:
    """The next checkpoint takes their rows out of the log: the local copies were all that there was."""
    world = await lose_the_objects_of_runs(3)
    async with world.owner() as owner:
        world.chunks.script = fail_runs
        await anyio.sleep(1)
        await owner.container.confirm()
        assert owner.container.confirmation.unconfirmed is None
        assert runs_in(world) == []
        world.chunks.script = None
        await anyio.sleep(100)
        assert runs_in(world) == runs_of(owner)
    for name in runs_in(world):
        del world.memory.chunks[name]
    async with world.owner() as owner:
        await anyio.sleep(1)
        assert runs_in(world) == runs_of(owner)
        await check(owner, *NAMES[:3])


async def test_m6_to_confirm_a_container_puts_the_runs_that_long_term_storage_lacks_first() -> None:
    """An operator opens it for no longer than that."""
    world = await lose_the_objects_of_runs(3)
    async with world.owner() as owner:
        await owner.container.confirm()
        assert runs_in(world) == runs_of(owner)


@pytest.mark.parametrize("damaged", range(3))
async def test_m6_a_damaged_local_copy_keeps_no_other_run_from_being_put_again(
    damaged: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = await lose_the_objects_of_runs(3)
    copies = [path for path in world.files.disk.files_below("/") if path.endswith(".run")]
    content = bytearray(world.files.disk.content(copies[damaged]))
    content[20] ^= 1
    world.files.disk.replace(copies[damaged], bytes(content))
    async with world.owner() as owner:
        await anyio.sleep(100)
        [lost] = set(runs_of(owner)).difference(runs_in(world))
        warnings = [line for line in caplog.messages if "merge_or_fetch_failed" in line]
        assert [lost in line for line in warnings] == [True]
        await anyio.sleep(10 * 3600)
        lists = [call for call in world.chunks.calls if (call.verb, call.name) == ("list", RUNS)]
        assert len(lists) == 2, "one, and another once it is proven that the chain is there"


async def test_m11_runs_of_an_element_that_may_exist_are_not_garbage_after_a_recovery() -> None:
    """Until this owner's first element counts, nobody knows what the one before the head names."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await fill(owner, *NAMES)
        await owner.checkpoint()
        await owner.crash()
        world.chunks.script = every(Fault(FaultKind.BEFORE), "list")
        owner = await world.start(tasks)
        unknown = f"{RUNS}{1:016x}-{9:016x}-id"
        assert owner.container.state.manifest.runs_among([unknown]) == [unknown]
        world.chunks.script = None
        await owner.container.ownership.ensure()
        assert not owner.container.state.manifest.runs_among([unknown])
        await owner.crash()


async def test_m6_an_opening_that_is_overtaken_leaves_the_copies_of_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ContainerWorld()
    opens, gate, waiting = table_runs.TableRuns.open, anyio.Event(), anyio.Event()

    async def wait_once(self: table_runs.TableRuns) -> None:
        if not waiting.is_set():
            waiting.set()
            await gate.wait()
        await opens(self)

    monkeypatch.setattr(table_runs.TableRuns, "open", wait_once)
    async with anyio.create_task_group() as tasks:
        overtaken = world.make()
        await world.chunks.open()
        tasks.start_soon(overtaken.run)
        await waiting.wait()
        async with world.owner() as owner:
            await fill(owner, *NAMES)
            gate.set()
            await overtaken.ended.wait()
            assert overtaken.error is not None
            assert files_of_runs(world, owner) == known_files(owner)
            await check(owner, *NAMES)
