"""Creating a backup: what is kept of a segment, and when there is a backup at all (rule S16)."""

from __future__ import annotations

import attrs
import pytest

from support.container_world import ContainerWorld, Owner
from support.legacy_layout import write_legacy
from tierlog import AttributeUpdate
from tierlog.actors.legacy_rolling.importing import import_segment
from tierlog.actors.maintenance.backup import (
    BackupOptions,
    BackupSource,
    create_backup,
    list_backups,
    read_object,
)
from tierlog.actors.maintenance.backup_objects import (
    Manifest,
    ReleasedFile,
    SegmentBackup,
    decode_segment,
    object_name,
)
from tierlog.storage_backends.base.errors import InvalidArgument, OutcomeUnknown, Unsupported
from tierlog.storage_backends.segments.records import ReleasedRecord
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, nth

pytestmark = pytest.mark.anyio

NAME = "app/events"
OPTIONS = BackupOptions("b", b"s" * 16, 1_700_000_000_000, upgraded=False)


@pytest.fixture
def world() -> ContainerWorld:
    return ContainerWorld()


async def backed_up(world: ContainerWorld, owner: Owner, options: BackupOptions = OPTIONS) -> Manifest:
    container = owner.container
    source = BackupSource(
        container.index, container.state.epoch, container.cold, container.metadata, container.storage
    )
    return await create_backup([source], world.chunks, options)


async def segment(world: ContainerWorld, number: int = 0) -> SegmentBackup:
    name = object_name("b", number)
    return decode_segment(await read_object(world.chunks, name), name)


async def test_a_flushed_segment_is_kept_whole(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME, rolling_size=4)
        await owner.store.append(NAME, b"0123456789", writer_id="w", event_number=7)
        await owner.store.update_attributes(NAME, [AttributeUpdate("colour", 3)])
        await owner.store.truncate_segment(NAME, 5)
        await owner.store.seal_segment(NAME)
        await owner.store.flush()
        manifest = await backed_up(world, owner)
        kept = await segment(world)

    assert (manifest.segments, manifest.chunks, manifest.bytes, manifest.unflushed, manifest.staged) == (
        1,
        2,
        6,
        0,
        0,
    )
    assert (manifest.store_id, manifest.epochs, len(manifest.objects)) == (b"s" * 16, (1,), 1)
    image = kept.image
    assert (image.name, image.length, image.start_offset, image.sealed, image.rolling_size) == (
        NAME,
        10,
        5,
        True,
        4,
    )
    assert (image.values, image.writers[0][1].last_event, image.expired) == ((("colour", 3),), 7, ())
    assert [(start, chunk.length) for start, chunk in kept.chunks] == [(4, 4), (8, 2)]
    assert await list_backups(world.chunks) == ["b"]


async def test_unflushed_bytes_are_counted_and_their_writers_are_not_trusted(
    world: ContainerWorld,
) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME)
        for number, writer in enumerate(("early", "last")):
            await owner.store.append(NAME, b"0123", writer_id=writer, event_number=number)
        await owner.store.flush()
        await owner.store.append(NAME, b"new", writer_id="late", event_number=1)
        await owner.store.seal_segment(NAME)
        manifest = await backed_up(world, owner)
        kept = await segment(world)

    assert (manifest.unflushed, kept.unflushed, kept.image.length, kept.image.sealed) == (3, 3, 8, False)
    assert [writer for writer, _ in kept.image.writers] == [b"early"]
    assert sorted(kept.image.expired) == [b"last", b"late"]


async def test_m20_writers_that_are_rows_are_kept(world: ContainerWorld) -> None:
    world.options = attrs.evolve(world.options, image_entries=2)
    writers = [f"w{number}" for number in range(10)]
    async with world.owner() as owner:
        await owner.store.create_segment(NAME)
        for writer in writers:
            await owner.store.append(NAME, b"0123", writer_id=writer, event_number=1)
        await owner.store.append(NAME, b"0123", writer_id="w0", event_number=2)
        await owner.store.expire_writers(NAME, writers[1:5])
        await owner.store.flush()
        await backed_up(world, owner)
        image = (await segment(world)).image

    assert {writer.decode(): state.last_event for writer, state in image.writers} == {
        "w0": 2,
        **dict.fromkeys(writers[5:], 1),
    }
    assert sorted(image.expired) == [writer.encode() for writer in writers[1:5]]


async def test_a_segment_that_was_never_flushed_is_kept_empty(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME, rolling_size=99)
        await owner.store.append(NAME, b"new")
        await backed_up(world, owner)
        kept = await segment(world)

    assert (kept.image.length, kept.image.rolling_size, kept.chunks, kept.unflushed) == (0, 99, (), 3)


async def test_a_store_with_a_table_is_refused(world: ContainerWorld) -> None:
    """A backup without the table's rows would look whole."""
    async with world.owner() as owner:
        await owner.store.create_segment(NAME)
        await owner.store.create_table("app/users")
        with pytest.raises(Unsupported, match="'app/users' is a table, and backups do not have"):
            await backed_up(world, owner)
        assert await list_backups(world.chunks) == []

        await owner.store.delete_segment("app/users")
        assert (await backed_up(world, owner)).segments == 1


async def test_staged_segments_are_left_out_and_counted(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME)
        await owner.store.begin_transaction(NAME, "t")
        await owner.store.stage_segment(NAME, "t", "part")
        await owner.store.flush()
        manifest = await backed_up(world, owner)

    assert (manifest.segments, manifest.staged) == (1, 1)


async def test_names_that_were_imported_are_kept(world: ContainerWorld) -> None:
    await world.chunks.open()
    await write_legacy(world.chunks, "app/old", b"x")
    async with world.owner() as owner:
        await import_segment(owner.container, "app/old")
        await owner.store.delete_segment("app/old")

        assert (await backed_up(world, owner)).imported == ("app/old",)


async def test_released_files_that_are_not_deleted_yet_are_recorded_rule_s19(
    world: ContainerWorld,
) -> None:
    await world.chunks.open()
    await write_legacy(world.chunks, "app/old", b"0123", b"45")
    async with world.owner() as owner:
        await import_segment(owner.container, "app/old")
        await owner.store.delete_segment("app/old")
        await owner.store.flush()

        records = ReleasedRecord("app/old$offset.0", 4), ReleasedRecord("app/old$offset.4", 2)
        assert (await backed_up(world, owner)).released == tuple(
            ReleasedFile(0, record) for record in records
        )


async def test_a_name_is_used_once(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        await backed_up(world, owner)
        with pytest.raises(InvalidArgument, match="already"):
            await backed_up(world, owner)


@pytest.mark.parametrize("call", range(1, 6))
async def test_without_a_manifest_there_is_no_backup_and_the_next_one_cleans_up(
    world: ContainerWorld, call: int
) -> None:
    async with world.owner() as owner:
        for number in range(4):
            await owner.store.create_segment(f"s{number}")
        await owner.store.flush()
        world.chunks.script = nth(call, Fault(FaultKind.LOST), "create_with_content")
        with pytest.raises(OutcomeUnknown):
            await backed_up(world, owner)
        assert await list_backups(world.chunks) == []

        world.chunks.script = None
        await owner.store.delete_segment("s0")
        manifest = await backed_up(world, owner)

    assert manifest.segments == 3
    assert {each.name for each in manifest.objects} == {
        name for name in world.memory.chunks if name.endswith(".segment")
    }
