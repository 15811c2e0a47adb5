"""Header files that are kept up to date for legacy readers (``code-only-upgrade``)."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, read_all, until, virtual_time
from support.legacy_layout import write_legacy
from tierlog.actors.legacy_rolling.find import LegacySegment, find
from tierlog.actors.legacy_rolling.header import LegacyHeader, format_header, header_name, parse_header
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.storage_backends.base.errors import SegmentNotFound
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = pytest.mark.anyio

NAME = "app/events"
KEEPING = replace(OPTIONS, collector=replace(OPTIONS.collector, delay=0))


@pytest.fixture
def world() -> ContainerWorld:
    return ContainerWorld(KEEPING, LayoutMode.CODE_ONLY_UPGRADE)


async def seen(world: ContainerWorld, name: str = NAME) -> LegacySegment:
    """The segment as a legacy reader finds it."""
    segment = await find(world.chunks, name)
    assert segment is not None
    return segment


async def bytes_seen(world: ContainerWorld, name: str = NAME) -> bytes:
    return b"".join(
        [await world.chunks.read(chunk.name, 0, chunk.length) for chunk in (await seen(world, name)).chunks]
    )


async def test_after_a_flush_legacy_readers_see_every_byte(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME, rolling_size=10)
        for count in range(1, 4):
            await owner.store.append(NAME, b"0123456")
            await owner.store.flush()
            assert await bytes_seen(world) == b"0123456" * count
        await owner.store.seal_segment(NAME)
        await owner.store.flush()
        assert (await seen(world)).sealed


async def test_a_grown_header_is_appended_to_and_an_unchanged_one_is_not_written(
    world: ContainerWorld,
) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME, rolling_size=10)
        await owner.store.append(NAME, b"0123456789")
        await owner.store.flush()
        calls = world.chunks.calls
        calls.clear()
        await owner.store.append(NAME, b"01234")
        await owner.store.flush()
        assert [call.verb for call in calls if call.name == header_name(NAME) and call.verb != "read"] == [
            "create_with_content",
            "write",
        ]

        calls.clear()
        await owner.store.append(NAME, b"567")
        await owner.store.flush()
        assert [call.verb for call in calls if call.name == header_name(NAME)] == []


async def test_truncation_removes_files_from_the_header(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME, rolling_size=4)
        await owner.store.append(NAME, b"0123456789")
        await owner.store.flush()
        await owner.store.truncate_segment(NAME, 6)
        await owner.store.flush()

        assert ((await seen(world)).start_offset, await bytes_seen(world)) == (4, b"456789")


async def test_a_header_is_deleted_with_its_segment(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        for name in (NAME, f"{NAME}#1"):
            await owner.store.create_segment(name)
            await owner.store.append(name, name.encode())
        await owner.store.seal_segment(f"{NAME}#1")
        await owner.store.flush()
        assert await bytes_seen(world, f"{NAME}#1") == b"app/events#1"

        await owner.store.merge_segments(NAME, [f"{NAME}#1"])
        await owner.store.flush()
        assert await find(world.chunks, f"{NAME}#1") is None
        assert await bytes_seen(world) == b"app/eventsapp/events#1"

        await owner.store.delete_segment(NAME)
        await owner.store.flush()
        assert not await world.chunks.exists(header_name(NAME))


@pytest.mark.parametrize("data", [b"", b"data"])
async def test_s14_a_deleted_segment_is_not_imported_again_from_its_header(
    world: ContainerWorld, data: bytes
) -> None:
    """It is there until the next flush is complete, forever if a crash comes before, and then without its
    chunks."""
    async with world.owner() as owner:
        await owner.store.create_segment(NAME)
        await owner.store.append(NAME, data)
        await owner.store.seal_segment(NAME)
        await owner.store.flush()
        assert await bytes_seen(world) == data

        await owner.store.delete_segment(NAME)
        for chunk in [info.name async for info in world.chunks.list("containers/")]:
            await world.chunks.delete(chunk)
        with pytest.raises(SegmentNotFound):
            await owner.store.segment_info(NAME)
        await owner.store.create_segment(NAME)
        assert not (await owner.store.segment_info(NAME)).sealed


async def test_a_read_only_header_of_an_earlier_segment_is_replaced(world: ContainerWorld) -> None:
    """It says the same as far as it goes: what was sealed was empty."""
    async with world.owner() as owner:
        await owner.store.create_segment(NAME, rolling_size=100)
        await owner.store.append(NAME, b"data")
        await world.chunks.create_with_content(header_name(NAME), [format_header(LegacyHeader(100))])
        await world.chunks.set_read_only(header_name(NAME), True)
        await owner.store.flush()

        assert await bytes_seen(world) == b"data"
        assert not (await seen(world)).sealed


async def test_an_identical_header_of_an_earlier_sealed_segment_is_unsealed(
    world: ContainerWorld,
) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME)
        await owner.store.append(NAME, b"data")
        await owner.store.flush()
        await world.chunks.set_read_only(header_name(NAME), True)

    async with world.owner():
        await until(lambda: not world.memory.chunks[header_name(NAME)].read_only)
        assert not (await seen(world)).sealed


async def test_the_next_owner_completes_what_a_crash_left_behind(world: ContainerWorld) -> None:
    async with world.owner(layout=LayoutMode.INSTALL_NEW) as owner:
        await owner.store.create_segment(NAME)
        await owner.store.append(NAME, b"data")
        await owner.store.flush()
        assert await find(world.chunks, NAME) is None

    async with world.owner():
        await until(lambda: header_name(NAME) in world.memory.chunks)
    assert await bytes_seen(world) == b"data"


async def test_an_imported_segment_keeps_its_header_and_it_grows(world: ContainerWorld) -> None:
    await world.chunks.open()
    await write_legacy(world.chunks, NAME, b"0123", b"45", max_size=100)
    before = bytes(world.memory.chunks[header_name(NAME)].data)
    async with world.owner() as owner:
        assert await owner.store.append(NAME, b"6789") == 6
        await owner.store.flush()
        assert await read_all(owner.store, NAME) == b"0123456789"

    after = bytes(world.memory.chunks[header_name(NAME)].data)
    header = parse_header(after, NAME)
    assert header is not None
    assert after.startswith(before)
    assert format_header(header) == after
    assert await bytes_seen(world) == b"0123456789"


@virtual_time
async def test_headers_that_could_not_be_written_are_written_later(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME)
        await owner.store.append(NAME, b"data")
        world.chunks.script = lambda call: Fault(FaultKind.BEFORE) if call.name == header_name(NAME) else None
        await owner.store.flush()
        assert not await world.chunks.inner.exists(header_name(NAME))

        world.chunks.script = None
        await anyio.sleep(6)
        assert await bytes_seen(world) == b"data"


@virtual_time
async def test_a_segment_with_a_damaged_chunk_does_not_hold_up_the_headers_of_others(
    world: ContainerWorld,
) -> None:
    async with world.owner(layout=LayoutMode.INSTALL_NEW) as owner:
        for name in ("app/damaged", NAME):
            await owner.store.create_segment(name)
            await owner.store.append(name, b"data")
            await owner.store.flush()
        damaged = next(chunk for name, chunk in world.memory.chunks.items() if name.startswith("containers/"))
        kept = bytes(damaged.data)
        damaged.data.clear()

    async with world.owner():
        await anyio.sleep(1)
        assert [name for name in world.memory.chunks if name.endswith("$header")] == [header_name(NAME)]
        damaged.data += kept
        await anyio.sleep(6)
        assert await bytes_seen(world, "app/damaged") == b"data"


async def test_segments_the_format_cannot_express_stop_nothing(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        for name in ("app/größe", NAME):
            await owner.store.create_segment(name)
            await owner.store.append(name, b"data")
        await owner.store.flush()
        assert await bytes_seen(world) == b"data"
        assert [name for name in world.memory.chunks if name.endswith("$header")] == [header_name(NAME)]


async def test_a_header_that_a_write_under_way_delayed_is_written_after_it(world: ContainerWorld) -> None:
    """The write changes neither the chunks at the ends nor their number."""

    def be_under_way(call: Call) -> None:
        if call.verb == "info" and call.name.startswith("containers/"):
            world.memory.chunks[call.name].data[4:] = b"mo"

    async with world.owner() as owner:
        await owner.store.create_segment(NAME)
        await owner.store.append(NAME, b"data")
        world.chunks.script = be_under_way
        await owner.store.flush()
        assert header_name(NAME) not in world.memory.chunks

        world.chunks.script = None
        [chunk] = [chunk for name, chunk in world.memory.chunks.items() if name.startswith("containers/")]
        del chunk.data[4:]
        await owner.store.append(NAME, b"more")
        await owner.store.flush()
        assert len((await seen(world)).chunks) == 1
        assert await bytes_seen(world) == b"datamore"


@pytest.mark.parametrize("mode", [mode for mode in LayoutMode if mode is not LayoutMode.CODE_ONLY_UPGRADE])
async def test_no_other_mode_writes_a_header(world: ContainerWorld, mode: LayoutMode) -> None:
    async with world.owner(layout=mode) as owner:
        await owner.store.create_segment(NAME)
        await owner.store.append(NAME, b"data")
        await owner.store.flush()
        assert [name for name in world.memory.chunks if name.endswith("$header")] == []
