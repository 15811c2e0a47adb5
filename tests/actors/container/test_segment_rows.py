"""Names and images of segments as rows of the system table (rule M13)."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from simulation.records import broken_records

from support.container_world import ContainerWorld, Owner, read_all, virtual_time
from support.sorted_runs import rows_of_run
from support.table_rows import fail_runs, records_of
from support.table_runs import NAMES, UNMERGED, fill
from tierlog import AttributeUpdate, AttributeUpdateKind
from tierlog.actors.container.segment_rows import (
    NO_RECORD,
    encode_image_row,
    image_key,
    load_of_row,
)
from tierlog.journal.log.contract import GroupInfo
from tierlog.journal.log.memory import _LogState
from tierlog.journal.operations.load_segment import LoadSegment
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunk
from tierlog.storage_backends.sorted_runs.rows import Row

pytestmark = [pytest.mark.anyio, virtual_time]

EARLIER = Path(__file__).parents[2] / "golden" / "container_without_segment_rows.json"


def keys_of_newest_run(world: ContainerWorld, owner: Owner) -> list[str]:
    run = owner.container.state.table.runs.runs[0]
    return [row.key.decode() for row in rows_of_run(run, bytes(world.memory.chunks[run.name].data))]


def image_row(owner: Owner, name: str) -> str:
    sid = owner.container.segments.sid_of(name)
    assert sid is not None
    return image_key(sid).decode()


async def test_m13_a_cycle_publishes_the_images_that_changed_and_the_names_that_are_new() -> None:
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        await fill(owner, *NAMES)
        assert not list(broken_records(owner.container))
        first = keys_of_newest_run(world, owner)
        assert {f"n:{name}" for name in NAMES} <= set(first)
        assert {image_row(owner, name) for name in NAMES} <= set(first)

        await owner.store.append(NAMES[3], b"more")
        await owner.store.update_attributes(NAMES[4], [AttributeUpdate("a", 1, AttributeUpdateKind.REPLACE)])
        await owner.store.flush()
        second = [key for key in keys_of_newest_run(world, owner) if key[:2] in ("g:", "n:")]
        assert second == sorted(image_row(owner, NAMES[number]) for number in (3, 4))
        assert not list(broken_records(owner.container))


async def test_m13_what_is_deleted_or_merged_leaves_tombstones() -> None:
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        await fill(owner, "a", "b", "c")
        gone = {"n:b", "n:c", image_row(owner, "b"), image_row(owner, "c")}
        await owner.store.delete_segment("b")
        await owner.store.seal_segment("c")
        await owner.store.merge_segments("a", ["c"])
        await owner.store.flush()
        await owner.store.append("a", b"more")
        await owner.store.flush()
        assert not gone & records_of(owner.container).keys()
        assert not list(broken_records(owner.container))


async def test_m13_images_of_a_run_that_failed_are_published_by_the_next_cycle() -> None:
    world = ContainerWorld(UNMERGED)
    async with world.owner() as owner:
        await fill(owner, *NAMES)
        await owner.store.append(NAMES[0], b"more")
        world.chunks.script = fail_runs
        with pytest.raises(Unavailable):
            await owner.store.flush()
        world.chunks.script = None
        await owner.store.append(NAMES[1], b"more")
        await owner.store.flush()
        state = owner.container.state
        assert image_row(owner, NAMES[1]) in keys_of_newest_run(world, owner)
        assert image_row(owner, NAMES[0]) in records_of(owner.container)
        assert not state.segments.unpublished
        assert not list(broken_records(owner.container))


async def test_m13_after_an_opening_only_images_that_changed_are_published() -> None:
    world = ContainerWorld(UNMERGED)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await fill(owner, *NAMES)
        await owner.checkpoint()
        await owner.store.append(NAMES[1], b"more")
        await owner.store.flush()
        await owner.crash()
    async with world.owner() as owner:
        await owner.store.append(NAMES[0], b"more")
        await owner.store.flush()
        published = [key for key in keys_of_newest_run(world, owner) if key.startswith("g:")]
        assert published == [image_row(owner, NAMES[0])]
        assert not list(broken_records(owner.container))


async def test_m13_a_folder_whose_runs_have_no_segments_is_brought_over_by_a_flush() -> None:
    """Log and objects are those of the version before: its newest run is newer than its checkpoint."""
    world = ContainerWorld(UNMERGED)
    golden = json.loads(EARLIER.read_text())
    journal = world.logs._states["c0"] = _LogState(golden["epoch"])
    for *info, payload in golden["groups"]:
        journal.add(GroupInfo(*info), bytes.fromhex(payload))
    for name, content in golden["objects"].items():
        world.memory.chunks[name] = MemoryChunk(bytearray.fromhex(content))
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await anyio.sleep(1)  # the local copies are fetched
        assert not list(broken_records(owner.container))
        await owner.checkpoint()  # what no run has is in the checkpoint
        await owner.crash()
    for _ in range(2):
        async with world.owner() as owner:
            assert sorted(await owner.store.list_segments()) == ["app/a", "app/b", "app/c"]
            assert await read_all(owner.store, "app/a") == b"first " * 50 + b"after the checkpoint"
            assert await read_all(owner.store, "app/c") == b"third and unflushed"
            await owner.store.flush()
            runs = owner.container.state.table.runs
            assert runs.schema
            assert not owner.container.segments.unpublished
            assert not list(broken_records(owner.container))


async def test_m13_the_row_of_an_image_has_the_record_too() -> None:
    """So that a segment is loaded with one block less (rule M4)."""
    image = encode_image_row(b"image", 7, b"record")
    assert image == bytes.fromhex("0000000000000007 00000006 7265636f7264 696d616765")
    assert load_of_row(Row(b"g:1", 9, image)) == LoadSegment(9, b"image", 7, b"record")
    assert load_of_row(Row(b"g:1", 9, encode_image_row(b"image", *NO_RECORD))) == LoadSegment(
        9, b"image", *NO_RECORD
    )
    assert load_of_row(Row(b"g:1", 9, None)) is None
    assert load_of_row(None) is None
    for cut in range(18):
        with pytest.raises(DecodeError):
            load_of_row(Row(b"g:1", 9, image[:cut]))
