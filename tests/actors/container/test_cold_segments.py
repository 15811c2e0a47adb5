"""Cold segments end to end: they leave memory, are read where they are, and are loaded when something changes
them (rules M4, M5)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from msgspec.structs import replace
from simulation.records import broken_records

from support.container_world import (
    OPTIONS,
    ContainerWorld,
    Owner,
    read_all,
    recorded_segments,
    virtual_time,
)
from support.live_segments import cold_images
from support.stores import make
from tierlog import AttributeUpdate, AttributeUpdateKind
from tierlog.actors.container import cold_segments, pipeline
from tierlog.actors.container.checkpoint import CheckpointOptions
from tierlog.actors.container.cold_segments import ColdSegments
from tierlog.actors.container.container import Container
from tierlog.actors.container.parked import ParkedOptions
from tierlog.actors.container.pipeline import PipelineOptions
from tierlog.actors.container.segment_rows import encode_image_row, image_key, load_of_row, name_key
from tierlog.actors.maintenance.defrag import defrag_segment
from tierlog.actors.read.read_ahead import ReadAhead
from tierlog.journal.log.contract import GroupInfo
from tierlog.journal.log.memory import _LogState
from tierlog.journal.operations.load_segment import LoadSegment
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    SegmentExists,
    SegmentNotFound,
    SegmentTruncated,
    StorageFull,
    Throttled,
    Unavailable,
)
from tierlog.storage_backends.chunks.memory import MemoryChunk
from tierlog.storage_backends.sorted_runs.lookup import find_row, find_rows
from tierlog.storage_backends.sorted_runs.reader import RunReader
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.table import TableView

pytestmark = [pytest.mark.anyio, virtual_time]

COLD = replace(OPTIONS, active_segments_max=1)
NAMES = [f"app/{number}" for number in range(10)]
GOLDEN = Path(__file__).parents[2] / "golden"


def load_of(row: Row) -> LoadSegment:
    load = load_of_row(row)
    assert load is not None
    return load


def is_cold(owner: Owner, name: str) -> bool:
    return owner.container.segments.in_memory(name) is None


@asynccontextmanager
async def cold_owner(world: ContainerWorld) -> AsyncIterator[Owner]:
    """Of ten segments, nine or ten of which are cold."""
    async with world.owner() as owner:
        for name in NAMES:
            await make(owner.store, name, name.encode())
        await owner.store.append(NAMES[0], b"!", writer_id="w", event_number=7)
        await go_cold(owner)
        assert len(cold_images(owner.container)) >= 9
        yield owner


async def go_cold(owner: Owner) -> None:
    await owner.store.flush()
    await anyio.sleep(1)
    await owner.store.append(NAMES[9], b"")  # a group, after which idle segments are looked for
    await anyio.sleep(1)


class Gate:
    """Lookups of cold segments wait until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = anyio.Event()
        self.lookups = 0
        look_up = ColdSegments.look_up

        async def wait(cold: ColdSegments, *arguments: Any) -> Any:
            self.lookups += bool(arguments[0])
            found = await look_up(cold, *arguments)
            await self.opened.wait()
            return found

        monkeypatch.setattr(ColdSegments, "look_up", wait)


async def test_m4_a_load_is_in_the_group_of_the_request_that_needs_it() -> None:
    """Two groups would be two syncs of the log, one after the other."""
    async with cold_owner(ContainerWorld(COLD)) as owner:
        log = owner.container.log
        for name in NAMES[:5]:
            groups, loaded = log.next_group, owner.container.statistics().loader.loaded
            await owner.store.append(name, b"?")
            assert owner.container.statistics().loader.loaded == loaded + 1
            assert log.next_group == groups + 1


async def test_m4_reads_infos_and_listings_of_cold_segments_load_nothing() -> None:
    async with cold_owner(ContainerWorld(COLD)) as owner:
        store, before = owner.store, set(owner.container.segments.by_id)
        appended = owner.log_bytes
        assert await store.list_segments("app/") == NAMES
        for name in NAMES[1:]:
            assert await read_all(store, name) == name.encode()
            assert (await store.segment_info(name)).length == len(name)
        assert await store.last_event_number(NAMES[0], "w") == 7
        assert set(owner.container.segments.by_id) == before
        assert owner.log_bytes == appended
        for call in (store.segment_info("no/such"), store.last_event_number("no/such", "w")):
            with pytest.raises(SegmentNotFound):
                await call


@pytest.mark.parametrize("was_cold", [True, False])
async def test_m4_a_read_that_lasts_until_its_segment_is_cold_again_finds_it(
    was_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused as if the segment had been deleted."""
    name, reached, opened = NAMES[1], anyio.Event(), anyio.Event()
    read = ReadAhead.read

    async def wait(read_ahead: ReadAhead, *arguments: Any) -> Any:
        if not reached.is_set():
            reached.set()
            await opened.wait()
        return await read(read_ahead, *arguments)

    async with cold_owner(ContainerWorld(COLD)) as owner, anyio.create_task_group() as tasks:
        if not was_cold:
            await owner.store.update_attributes(name, [AttributeUpdate("a", 1)])

        async def read_slowly() -> None:
            with pytest.raises(SegmentTruncated) as refused:
                await owner.store.read(name, 0, 100)
            assert refused.value.start_offset == 5

        monkeypatch.setattr(ReadAhead, "read", wait)
        tasks.start_soon(read_slowly)
        await reached.wait()
        for start in (2, 5):
            await owner.store.truncate_segment(name, start)
            assert not is_cold(owner, name)
            await go_cold(owner)
            assert is_cold(owner, name)
        opened.set()


async def test_lookups_of_cold_segments_are_counted_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cold_owner(ContainerWorld(COLD)) as owner:
        before = owner.container.statistics().loader
        gate = Gate(monkeypatch)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(owner.store.append, NAMES[1], b"more")
            await anyio.sleep(2)
            gate.opened.set()
        after = owner.container.statistics().loader
        assert (after.loaded - before.loaded, after.lookups - before.lookups) == (1, 1)
        assert after.lookup_seconds - before.lookup_seconds == pytest.approx(2)


async def test_w6_a_cold_segment_that_exists_is_no_addition_to_a_full_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A repeated create was refused as if it took room."""
    async with cold_owner(ContainerWorld(COLD)) as owner:
        log = owner.container.log
        monkeypatch.setattr(log, "has_room", lambda size: False)
        monkeypatch.setattr(log, "room_error", lambda: StorageFull("no room"))
        before = owner.log_bytes
        assert is_cold(owner, NAMES[1])
        with pytest.raises(SegmentExists):
            await owner.store.create_segment(NAMES[1])
        await owner.store.create_segment(NAMES[1], exist_ok=True)
        with pytest.raises(StorageFull):
            await owner.store.create_segment("new")
        assert (is_cold(owner, NAMES[1]), owner.log_bytes) == (True, before)


async def test_w6_a_load_leaves_the_reserve_file_of_a_full_disk_to_deletes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deletes of segments with large images used the reserve up, which ended the container."""
    async with cold_owner(ContainerWorld(COLD)) as owner:
        log = owner.container.log
        names = [AttributeUpdate(f"{number:03d}" + "a" * 120, number) for number in range(1000)]
        await owner.store.update_attributes(NAMES[1], names)
        await go_cold(owner)
        monkeypatch.setattr(log, "has_room", lambda size: False)
        monkeypatch.setattr(log, "has_reserve", lambda size: size < 100_000)
        monkeypatch.setattr(log, "room_error", lambda: StorageFull("no room"))
        with pytest.raises(StorageFull):
            await owner.store.delete_segment(NAMES[1])
        assert is_cold(owner, NAMES[1])
        await owner.store.delete_segment(NAMES[2])
        monkeypatch.undo()
        await owner.store.delete_segment(NAMES[1])
        assert not {NAMES[1], NAMES[2]} & set(await owner.store.list_segments())


async def test_m4_every_change_of_a_cold_segment_loads_it() -> None:
    world = ContainerWorld(COLD)
    async with cold_owner(world) as owner:
        store = owner.store
        assert await store.append(NAMES[0], b"?", writer_id="w", event_number=7) == len(NAMES[0]), "a repeat"
        assert await store.append(NAMES[1], b"more") == len(NAMES[1])
        await store.update_attributes(NAMES[2], [AttributeUpdate("a", 1, AttributeUpdateKind.REPLACE)])
        await store.truncate_segment(NAMES[3], 2)
        await store.delete_segment(NAMES[4])
        await store.seal_segment(NAMES[5])
        assert await store.merge_segments(NAMES[6], [NAMES[5]]) == len(NAMES[6])
        with pytest.raises(SegmentExists):
            await store.create_segment(NAMES[7])
        await store.create_segment(NAMES[4])
        assert await store.list_segments() == [name for name in NAMES if name != NAMES[5]]
        await go_cold(owner)
        assert not list(broken_records(owner.container))
    async with world.owner() as owner:
        store = owner.store
        assert await read_all(store, NAMES[1]) == NAMES[1].encode() + b"more"
        assert (await store.segment_info(NAMES[2])).attributes == {"a": 1}
        assert (await store.segment_info(NAMES[3])).start_offset == 2
        assert (await store.segment_info(NAMES[4])).length == 0
        assert await read_all(store, NAMES[6]) == (NAMES[6] + NAMES[5]).encode()
        assert not list(broken_records(owner.container))


async def test_m4_replay_has_the_segments_in_memory_that_the_owner_had() -> None:
    world = ContainerWorld(COLD)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in NAMES:
            await make(owner.store, name, name.encode())
        await go_cold(owner)
        await owner.store.append(NAMES[3], b"more")
        await owner.checkpoint()
        await owner.store.append(NAMES[4], b"more")
        before = set(owner.container.segments.by_id)
        await owner.crash()
    world.chunks.script = None
    async with world.owner() as owner:
        assert before <= {*owner.container.segments.by_id, *cold_images(owner.container)}
        assert owner.container.segments.in_memory(NAMES[4]) is not None
        assert len(cold_images(owner.container)) >= 7
        assert await read_all(owner.store, NAMES[4]) == NAMES[4].encode() + b"more"


def in_memory(owner: Owner) -> set[str]:
    return set(owner.container.segments.names())


LEAN = replace(OPTIONS, checkpoint=CheckpointOptions(idle_segments=4))


async def test_m22_a_page_over_names_that_are_not_shown_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of removed and of staged segments."""
    monkeypatch.setattr(cold_segments, "PAGE_CONSIDERED_MAX", 30 * 2048)
    async with ContainerWorld().owner() as owner:
        store = owner.store
        for number in range(100):
            await store.create_segment(f"a{number:02}")
        for number in range(99):
            await store.delete_segment(f"a{number:02}")
        await store.begin_transaction("a99", "t")
        for number in range(40):
            await store.stage_segment("a99", "t", f"{number}")
        await store.create_segment("b")

        page = await store.page_of_segments()
        assert (page.names, page.token is None) == ([], False)
        assert await store.list_segments() == ["a99", "b"]


async def test_m5_a_checkpoint_unloads_idle_segments_that_did_not_change_since_the_one_before() -> None:
    """So that an opening restores what was used lately, however many segments there are."""
    world = ContainerWorld(LEAN)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in NAMES:
            await make(owner.store, name, name.encode())
        await owner.store.flush()
        await owner.checkpoint()
        assert in_memory(owner) == set(NAMES), "all of them are newer than the checkpoint before"
        await owner.store.append(NAMES[3], b"more")
        await owner.store.flush()
        await owner.store.append(NAMES[4], b"unflushed")
        await owner.checkpoint()
        assert in_memory(owner) == {NAMES[3], NAMES[4]}
        await owner.store.append(NAMES[5], b"more")
        before = set(owner.container.segments.by_id)
        await owner.crash()
    async with world.owner() as owner:
        assert set(owner.container.segments.by_id) == before
        assert await owner.store.list_segments() == NAMES
        for number, added in enumerate(["", "", "", "more", "unflushed", "more"]):
            assert await read_all(owner.store, NAMES[number]) == (NAMES[number] + added).encode()
        assert not list(broken_records(owner.container))


async def test_m5_a_few_idle_segments_stay_in_memory() -> None:
    async with ContainerWorld(LEAN).owner() as owner:
        for name in NAMES[:4]:
            await make(owner.store, name, name.encode())
        await owner.store.flush()
        await owner.checkpoint()
        await owner.checkpoint()
        assert in_memory(owner) == set(NAMES[:4])


async def test_m5_a_clean_close_leaves_a_log_without_idle_segments() -> None:
    """Also if little was logged. It writes one checkpoint, and the next close none."""
    world = ContainerWorld(LEAN)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in NAMES:
            await make(owner.store, name, name.encode())
        await owner.store.flush()
        await owner.stop()
        for checkpoints in (1, 0):
            assert owner.container.statistics().checkpoints.checkpoints == checkpoints
            owner = await world.start(tasks)
            assert in_memory(owner) == set()
            assert await read_all(owner.store, NAMES[3]) == NAMES[3].encode()
            await owner.stop()
        assert owner.container.statistics().checkpoints.checkpoints == 0


async def test_m5_segments_without_bytes_go_cold_without_a_record() -> None:
    """Creating many costs no commit for each. They are read, changed and deleted like all others."""
    world = ContainerWorld(COLD)
    async with world.owner() as owner:
        store = owner.store
        for name in NAMES:
            await store.create_segment(name)
        await store.update_attributes(NAMES[0], [AttributeUpdate("a", 1, AttributeUpdateKind.REPLACE)])
        await go_cold(owner)
        assert not recorded_segments(owner.container)
        assert len(cold_images(owner.container)) >= 9
        assert (await store.segment_info(NAMES[0])).attributes == {"a": 1}
        assert await read_all(store, NAMES[1]) == b""
        assert attrs.astuple(await defrag_segment(store, NAMES[1])) == (0, 0, 0)
        with pytest.raises(SegmentExists):
            await store.create_segment(NAMES[1])
        await store.delete_segment(NAMES[2])
        await store.seal_segment(NAMES[3])
        assert await store.merge_segments(NAMES[4], [NAMES[3]]) == 0
        await store.append(NAMES[5], b"x")
        await go_cold(owner)
        assert len(recorded_segments(owner.container)) == 1
        assert not list(broken_records(owner.container))
    async with world.owner() as owner:
        store = owner.store
        assert await store.list_segments() == [name for name in NAMES if name not in (NAMES[2], NAMES[3])]
        assert await read_all(store, NAMES[5]) == b"x"
        await store.append(NAMES[0], b"y")
        await owner.store.flush()
        assert len(recorded_segments(owner.container)) == 2
        assert not list(broken_records(owner.container))


async def test_w6_a_checkpoint_on_a_full_disk_unloads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must get by with the room that was found for it."""
    async with ContainerWorld(LEAN).owner() as owner:
        for name in NAMES:
            await make(owner.store, name, name.encode())
        await owner.store.flush()
        await owner.checkpoint()
        monkeypatch.setattr(type(owner.container.log), "has_room", lambda log, size: False)
        await owner.checkpoint()
        assert in_memory(owner) == set(NAMES)
        monkeypatch.undo()
        await owner.checkpoint()
        assert in_memory(owner) == set()


async def test_c4_nothing_overtakes_a_request_that_waits_for_a_cold_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A merge into a segment in memory waits for its source, and an append to the target behind it."""
    async with cold_owner(ContainerWorld(COLD)) as owner:
        store = owner.store
        await store.seal_segment(NAMES[1])
        await go_cold(owner)
        await store.append(NAMES[2], b"-")
        assert is_cold(owner, NAMES[1])
        assert not is_cold(owner, NAMES[2])
        gate, order = Gate(monkeypatch), []

        async def run(what: str, call: Awaitable[object]) -> None:
            order.append((what, await call))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, "merge", store.merge_segments(NAMES[2], [NAMES[1]]))
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(run, "append", store.append(NAMES[2], b"+"))
            tasks.start_soon(run, "other", store.append(NAMES[9], b"+"))
            await anyio.wait_all_tasks_blocked()
            assert "append" not in [what for what, _ in order]
            gate.opened.set()
        length = len(NAMES[2]) + 1
        assert dict(order)["merge"] == length
        assert dict(order)["append"] == length + len(NAMES[1])


async def test_c4_a_read_behind_a_request_that_waits_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a segment in memory. It was asked again and again."""
    async with cold_owner(ContainerWorld(COLD)) as owner:
        store = owner.store
        await store.append(NAMES[2], b"-")
        await store.seal_segment(NAMES[1])
        await go_cold(owner)
        await store.append(NAMES[2], b"-")
        gate, asked, lengths = Gate(monkeypatch), 0, []
        find_durable = Container.find_durable

        async def count(container: Container, *arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            return await find_durable(container, *arguments)

        monkeypatch.setattr(Container, "find_durable", count)

        async def read() -> None:
            lengths.append((await store.segment_info(NAMES[2])).length)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.merge_segments, NAMES[2], [NAMES[1]])
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(read)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert not lengths
            gate.opened.set()
        assert lengths == [len(NAMES[2]) + 2 + len(NAMES[1])]
        assert asked == 0


async def test_m4_many_that_wait_are_loaded_and_decided_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_LOADED_BYTES", 1)
    monkeypatch.setattr(pipeline, "_STEP", 2)
    async with cold_owner(ContainerWorld(COLD)) as owner:
        gate = Gate(monkeypatch)
        lengths: dict[str, int | None] = {}

        async def append(name: str, data: bytes) -> None:
            lengths[f"{name}{data!r}"] = await owner.store.append(name, data)

        async with anyio.create_task_group() as tasks:
            for data in (b"1", b"2", b"3"):
                for name in NAMES[:8]:
                    tasks.start_soon(append, name, data)
                await anyio.wait_all_tasks_blocked()
            assert not lengths
            gate.opened.set()
        assert [lengths[f"{name}{data!r}"] for name in NAMES[1:8] for data in (b"1", b"2", b"3")] == [
            len(name) + more for name in NAMES[1:8] for more in range(3)
        ]
        assert not list(broken_records(owner.container))


async def test_m4_requests_beyond_the_budget_are_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ContainerWorld(replace(COLD, parked=ParkedOptions(count=2)))
    async with cold_owner(world) as owner:
        gate = Gate(monkeypatch)
        offsets: dict[bytes, int | None] = {}

        async def append(data: bytes) -> None:
            offsets[data] = await owner.store.append(NAMES[1], data)

        async with anyio.create_task_group() as tasks:
            for data in (b"1", b"2"):
                tasks.start_soon(append, data)
                await anyio.wait_all_tasks_blocked()
            with pytest.raises(Throttled):
                await owner.store.append(NAMES[2], b"x")
            gate.opened.set()
        assert offsets == {b"1": len(NAMES[1]), b"2": len(NAMES[1]) + 1}
        assert gate.lookups == 1, "both waited for one"
        await owner.store.append(NAMES[2], b"x")


def damage_rows(monkeypatch: pytest.MonkeyPatch, *damaged: Row | bytes) -> None:
    """The runs have these rows, behind right checksums; a key stands for a row that they lost."""

    async def find_damaged(view: TableView, reader: RunReader, keys: Iterable[bytes]) -> dict[bytes, Row]:
        found = await find_rows(view, reader, keys)
        for row in damaged:
            if isinstance(row, bytes):
                found.pop(row, None)
            elif row.key in found:
                found[row.key] = row
        return found

    monkeypatch.setattr(cold_segments, "find_rows", find_damaged)


async def id_of(owner: Owner, name: str) -> int:
    sid = await owner.container.cold.sid_of(name)
    assert sid is not None
    return sid


@pytest.mark.parametrize("damage", ["zeros", "record", "of another segment", "name of another", "no image"])
async def test_m4_a_malformed_row_fails_the_requests_for_its_segment_only(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load was logged before it was decoded: it ended the container, and each successor's attempt too."""
    name, other = NAMES[1], NAMES[2]
    async with cold_owner(ContainerWorld(COLD)) as owner:
        store, sid, other_sid = owner.store, await id_of(owner, name), await id_of(owner, other)
        key, version = image_key(sid), owner.container.state.sequence
        with owner.container.state.table.view() as view:
            row = await find_row(view, owner.container.runs, image_key(other_sid))
        assert row is not None
        rows: dict[str, Row | bytes] = {
            "zeros": Row(key, version, bytes(40)),
            "record": Row(key, version, encode_image_row(load_of(row).image, 7, b"\xff")),
            "of another segment": Row(key, version, row.value),
            "name of another": Row(name_key(name), version, other_sid.to_bytes(8, "big")),
            "no image": key,
        }
        damage_rows(monkeypatch, rows[damage])

        for call in (
            partial(store.append, name, b"x"),
            partial(store.segment_info, name),
            partial(store.delete_segment, name),
        ):
            with pytest.raises(DataCorruption) as refused:
                await call()
            assert refused.value.file.startswith("row ")
            assert len(refused.value.file) < 80
        assert await store.append(other, b"x") == len(other)
        assert (await store.segment_info(other)).name == other


async def test_m4_a_request_larger_than_the_budget_waits_alone() -> None:
    world = ContainerWorld(replace(COLD, parked=ParkedOptions(size_bytes=10_000)))
    async with cold_owner(world) as owner:
        assert await owner.store.append(NAMES[1], bytes(100_000)) == len(NAMES[1])


async def test_m4_nothing_is_loaded_while_the_group_that_waits_for_the_log_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the loads of many requests, during one slow write, make a group that is too large for the log."""
    monkeypatch.setattr("tierlog.actors.container.loader._BATCH", 1)
    world = ContainerWorld(replace(COLD, pipeline=PipelineOptions(group_bytes=1000)))
    async with cold_owner(world) as owner:
        gate, held, container = Gate(monkeypatch), anyio.Event(), owner.container
        log, append = container.log, container.log.append

        async def slow(*arguments: Any, **options: Any) -> Any:
            await held.wait()
            return await append(*arguments, **options)

        monkeypatch.setattr(log, "append", slow)
        async with anyio.create_task_group() as tasks:
            for name in NAMES[1:]:
                tasks.start_soon(owner.store.append, name, bytes(300))
            await anyio.wait_all_tasks_blocked()
            gate.opened.set()
            await anyio.wait_all_tasks_blocked()
            assert 0 < container.statistics().loader.loaded < len(NAMES) - 2
            held.set()
        for name in NAMES[1:]:
            assert (await owner.store.segment_info(name)).length == len(name) + 300


async def test_m4_what_cannot_be_read_is_unavailable_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cold_owner(ContainerWorld(COLD)) as owner:
        look_up = ColdSegments.look_up

        async def fail(cold: ColdSegments, *arguments: Any) -> Any:
            raise Unavailable("long-term storage does not answer")

        monkeypatch.setattr(ColdSegments, "look_up", fail)
        began = anyio.current_time()
        for call in (owner.store.append(NAMES[1], b"x"), owner.store.segment_info(NAMES[1])):
            with pytest.raises(Unavailable):
                await call
        assert anyio.current_time() == began
        monkeypatch.setattr(ColdSegments, "look_up", look_up)
        assert await owner.store.append(NAMES[1], b"x") == len(NAMES[1])


async def test_m4_a_segment_that_changed_during_its_lookup_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader's lookup is under way while the segment is loaded, changed, published and unloaded."""
    async with cold_owner(ContainerWorld(COLD)) as owner:
        gate = Gate(monkeypatch)
        async with anyio.create_task_group() as tasks:
            infos: list[int] = []

            async def read() -> None:
                infos.append((await owner.store.segment_info(NAMES[1])).length)

            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            opened, gate.opened = gate.opened, anyio.Event()
            gate.opened.set()
            await owner.store.append(NAMES[1], b"more")
            await go_cold(owner)
            opened.set()
        assert infos == [len(NAMES[1]) + 4] or is_cold(owner, NAMES[1])
        assert (await owner.store.segment_info(NAMES[1])).length == len(NAMES[1]) + 4


async def test_m4_a_stopping_container_answers_requests_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cold_owner(ContainerWorld(COLD)) as owner:
        Gate(monkeypatch)
        errors: list[BaseException] = []

        async def append() -> None:
            try:
                await owner.store.append(NAMES[1], b"x")
            except Unavailable as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            await anyio.wait_all_tasks_blocked()
            await owner.stop()
        assert len(errors) == 1


@pytest.mark.parametrize("golden", ["container_without_tables", "container_without_segment_rows"])
async def test_m5_a_folder_of_an_earlier_version_goes_cold(golden: str) -> None:
    world = ContainerWorld(COLD)
    kept = json.loads((GOLDEN / f"{golden}.json").read_text())
    journal = world.logs._states["c0"] = _LogState(kept["epoch"])
    for *info, payload in kept["groups"]:
        journal.add(GroupInfo(*info), bytes.fromhex(payload))
    for name, content in kept["objects"].items():
        world.memory.chunks[name] = MemoryChunk(bytearray.fromhex(content))

    contents: dict[str, bytes] = {}
    for _ in range(3):
        async with world.owner() as owner:
            for name in await owner.store.list_segments():
                found = await read_all(owner.store, name, (await owner.store.segment_info(name)).start_offset)
                assert contents.setdefault(name, found) == found
            await owner.store.create_segment("new", exist_ok=True)
            await owner.store.flush()
            await anyio.sleep(1)
            await owner.store.append("new", b"")
            await owner.store.flush()
            await anyio.sleep(1)
            await owner.store.append("new", b"")
            await anyio.sleep(1)
            assert {"app/a", "app/b", "app/c"} <= {*contents}
            assert cold_images(owner.container)
            assert not list(broken_records(owner.container))
        contents.pop("new", None)
