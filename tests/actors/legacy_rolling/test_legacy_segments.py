"""Segments of the legacy layout in a container: imported on demand and at first access, in one operation,
once (rule S14)."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import (
    OPTIONS,
    ContainerWorld,
    read_all,
    recorded_segments,
    referenced_chunks,
    until,
)
from support.legacy_layout import write_files, write_header, write_legacy
from support.table_rows import decided_import, records_of
from tierlog.actors.container.operations.import_segment import ImportRequest
from tierlog.actors.container.publish import Publisher
from tierlog.actors.container.requests import Request
from tierlog.actors.container.state import ContainerState
from tierlog.actors.legacy_rolling.export import export_segment
from tierlog.actors.legacy_rolling.file_claims import file_claim_name
from tierlog.actors.legacy_rolling.find import find
from tierlog.actors.legacy_rolling.header import header_name
from tierlog.actors.legacy_rolling.importing import import_segment
from tierlog.actors.read.tail_cache import TailCache
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    NotOwner,
    SegmentExists,
    SegmentNotFound,
    Unavailable,
)
from tierlog.storage_backends.base.transactions import staged_name
from tierlog.storage_backends.segments.chain import Chain
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import ChunkRecord
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, every, nth

pytestmark = pytest.mark.anyio

NAME = "app/old"
SPACING = OPTIONS.chunked.index_spacing


@pytest.fixture
async def world() -> ContainerWorld:
    world = ContainerWorld(OPTIONS, LayoutMode.LAYOUT_UPGRADE)
    await world.chunks.open()
    return world


async def write_segment(world: ContainerWorld, name: str = NAME, *, sealed: bool = False) -> ChunkStorage:
    await write_legacy(world.chunks, name, b"0123", b"45", b"6789", max_size=100, sealed=sealed)
    return world.chunks


# --- on demand ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", LayoutMode)
async def test_an_import_on_demand_works_in_every_mode(world: ContainerWorld, mode: LayoutMode) -> None:
    await write_segment(world, sealed=True)
    async with world.owner(layout=mode) as owner:
        assert await import_segment(owner.container, NAME) == 10
        info = await owner.store.segment_info(NAME)
        assert (info.length, info.flushed_length, info.start_offset, info.sealed) == (10, 10, 0, True)
        assert await read_all(owner.store, NAME) == b"0123456789"
        assert not owner.container.state.segments.by_id[info.segment_id].needs_flush


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("crash", [False, True])
async def test_s14_an_imported_segment_is_recovered_with_its_container(
    world: ContainerWorld, checkpoint: bool, crash: bool
) -> None:
    await write_segment(world)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await import_segment(owner.container, NAME)
        imported = await owner.store.segment_info(NAME)
        if checkpoint:
            await owner.checkpoint()
        await owner.store.append(NAME, b"new")
        await (owner.crash() if crash else owner.stop())

    async with world.owner() as owner:
        info = await owner.store.segment_info(NAME)
        assert info == replace(imported, length=13)
        assert await read_all(owner.store, NAME) == b"0123456789new"

        await owner.store.create_segment("app/new")
        assert (await owner.store.segment_info("app/new")).segment_id != info.segment_id


async def test_the_containers_own_spacing_and_rolling_size_count(world: ContainerWorld) -> None:
    """A single plain file says no size at which files roll; and the index is read as the container would have
    written it."""
    await write_files(world.chunks, [("plain", b"0123456789")])
    async with world.owner(
        replace(OPTIONS, chunked=ChunkedOptions(rolling_size=7, index_spacing=4))
    ) as owner:
        await import_segment(owner.container, "plain")
        sid = (await owner.store.segment_info("plain")).segment_id

        assert (await owner.container.storage.info(sid)).rolling_size == 7
        index = sorted(key for key in records_of(owner.container) if key.startswith("i:"))
        assert index == [f"i:{sid:016x}:{offset:016x}" for offset in (4, 8)]


async def test_appends_after_an_import_go_to_a_new_chunk_rule_s3(
    world: ContainerWorld,
) -> None:
    await write_segment(world)
    async with world.owner() as owner:
        await import_segment(owner.container, NAME)
        await owner.store.append(NAME, b"new", expected_offset=10)
        await owner.store.flush()

        assert (await owner.store.segment_info(NAME)).flushed_length == 13
        assert await read_all(owner.store, NAME) == b"0123456789new"
        assert bytes(world.memory.chunks[f"{NAME}$offset.6"].data) == b"6789"
        assert len(referenced_chunks(owner.container)) == 4


async def test_s14_deleting_an_imported_segment_deletes_its_files_for_good(
    world: ContainerWorld,
) -> None:
    await write_segment(world)
    options = replace(OPTIONS, collector=replace(OPTIONS.collector, delay=0))
    async with world.owner(options) as owner:
        assert await read_all(owner.store, NAME) == b"0123456789"
        await owner.store.delete_segment(NAME)
        with pytest.raises(SegmentNotFound):
            await owner.store.read(NAME, 0, 1)
        await owner.store.flush()
        await until(
            lambda: (
                [
                    name
                    for name in sorted(world.memory.chunks)
                    if "/journal/" not in name and "/runs/" not in name
                ]
                == [file_claim_name(NAME), "_system/store", f"{NAME}$header"]
            )
        )
        with pytest.raises(InvalidArgument, match="imported or exported before"):
            await import_segment(owner.container, NAME)

    async with world.owner(options) as owner:
        with pytest.raises(SegmentNotFound):
            await owner.store.segment_info(NAME)
        await owner.store.create_segment(NAME)
        assert (await owner.store.segment_info(NAME)).length == 0


@pytest.mark.parametrize("data", [b"", b"data"])
async def test_s14_a_deleted_segment_is_not_imported_again_from_its_export(
    world: ContainerWorld, data: bytes
) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(NAME)
        await owner.store.append(NAME, data)
        await owner.store.seal_segment(NAME)
        await owner.store.flush()
        await export_segment(owner.container, NAME, replace=False)
        await owner.store.delete_segment(NAME)
        assert header_name(NAME) in world.memory.chunks

        with pytest.raises(SegmentNotFound):
            await owner.store.read(NAME, 0, 1)
        with pytest.raises(InvalidArgument, match="imported or exported before"):
            await import_segment(owner.container, NAME)


async def test_what_exists_is_not_imported(world: ContainerWorld) -> None:
    await write_segment(world)
    async with world.owner() as owner:
        await import_segment(owner.container, NAME)
        with pytest.raises(SegmentExists):
            await import_segment(owner.container, NAME)
        with pytest.raises(SegmentNotFound, match="legacy layout has no segment"):
            await import_segment(owner.container, "app/none")


async def test_a_stores_own_chunks_are_no_legacy_segment(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment("app/new")
        await owner.store.append("app/new", b"data")
        await owner.store.flush()
        (chunk,) = world.chunk_names
        await write_header(world.chunks, "app/exported", f"maxsize=9&0={chunk}&".encode())

        for name in (chunk, "app/exported"):
            with pytest.raises(SegmentNotFound):
                await owner.store.segment_info(name)
            with pytest.raises(SegmentNotFound):
                await import_segment(owner.container, name)


async def test_a_staged_name_is_refused(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        with pytest.raises(InvalidArgument, match="staged"):
            await owner.container.ask_internal(
                ImportRequest.of_chain(staged_name("app/t", "1", "part"), Chain(0, 0, False, 1, ()), SPACING),
                0,
            )


# --- at first access ----------------------------------------------------------------------------


async def test_every_verb_finds_a_segment_of_the_legacy_layout(world: ContainerWorld) -> None:
    for name in "abcdefgh":
        await write_segment(world, name, sealed=name == "c")
    async with world.owner() as owner:
        store = owner.store
        assert await store.read("a", 2, 3) == b"234"
        assert await store.append("b", b"x") == 10
        await store.create_segment("target")
        assert await store.merge_segments("target", ["c"]) == 0
        await store.truncate_segment("d", 5)
        assert await store.seal_segment("e") == 10
        await store.delete_segment("f")
        with pytest.raises(SegmentExists):
            await store.create_segment("g")
        assert [block async for block in store.tail("e")] == [b"0123456789"]
        assert await store.append_many("h", [b"x", b"y"]) == 10
        assert await store.list_segments() == ["a", "b", "d", "e", "g", "h", "target"]
        await store.flush()
        assert await read_all(store, "target") == b"0123456789"
        assert await read_all(store, "d", 5) == b"56789"


async def test_callers_at_the_same_time_import_once(world: ContainerWorld) -> None:
    await write_segment(world)
    async with world.owner() as owner:
        found: list[bytes] = []

        async def read() -> None:
            found.append(await read_all(owner.store, NAME))

        before = world.chunks.statistics().reads
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(read)

        assert found == [b"0123456789"] * 5
        assert len(recorded_segments(owner.container)) == 1
        # The journal's element, the header twice, three files once for their checksums, and what the five
        # readers read.
        assert world.chunks.statistics().reads - before <= 6 + 5 * 3
        assert not len(owner.container.imports._names)


async def test_of_two_concurrent_imports_the_second_finds_the_segment_existing(
    world: ContainerWorld,
) -> None:
    await write_segment(world)
    async with world.owner() as owner:
        answers: list[object] = []

        async def take() -> None:
            try:
                answers.append(await import_segment(owner.container, NAME))
            except SegmentExists as error:
                answers.append(type(error))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(take)

    assert answers == [10, SegmentExists, SegmentExists]


async def test_a_caller_refused_just_before_a_concurrent_import_retries(
    world: ContainerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_segment(world)
    async with world.owner(layout=LayoutMode.LAYOUT_UPGRADE) as owner:
        real, asked = owner.container._ask, 0

        async def ask(request: Request, size: int) -> object:
            nonlocal asked
            asked += 1
            if asked == 1:
                await import_segment(owner.container, NAME)
                raise SegmentNotFound(f"no segment {NAME!r}", segment=NAME)
            return await real(request, size)

        monkeypatch.setattr(owner.container, "_ask", ask)
        assert (await owner.store.segment_info(NAME)).length == 10
        assert asked == 2


async def test_c1_a_fenced_owner_does_not_refuse_an_import_from_stale_state(
    world: ContainerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_segment(world)
    async with world.owner() as owner:
        await import_segment(owner.container, NAME)

        async def wait_durable() -> None:
            raise NotOwner("a newer owner has the log")

        with monkeypatch.context() as patch, pytest.raises(NotOwner):
            patch.setattr(owner.container, "wait_durable", wait_durable)
            await import_segment(owner.container, NAME)


async def test_a_segment_without_data_files_is_imported_empty(world: ContainerWorld) -> None:
    await write_legacy(world.chunks, NAME, sealed=True)
    async with world.owner() as owner:
        info = await owner.store.segment_info(NAME)
        assert (info.length, info.sealed) == (0, True)


@pytest.mark.parametrize("mode", [LayoutMode.NO_UPGRADE, LayoutMode.INSTALL_NEW])
async def test_without_lookups_nothing_is_found_and_nothing_asked(
    world: ContainerWorld, mode: LayoutMode
) -> None:
    await write_segment(world)
    async with world.owner(layout=mode) as owner:
        before = len(world.chunks.calls)
        with pytest.raises(SegmentNotFound):
            await owner.store.read(NAME, 0, 1)
        with pytest.raises(SegmentNotFound):
            await owner.store.append(NAME, b"x")
        await owner.store.create_segment(NAME)
        assert not [call for call in world.chunks.calls[before:] if call.name.startswith(NAME)]


async def test_while_long_term_storage_is_down_no_call_reports_a_missing_segment(
    world: ContainerWorld,
) -> None:
    await write_files(world.chunks, [("plain", b"bytes")])
    async with world.owner() as owner:
        world.chunks.script = every(Fault(FaultKind.BEFORE))
        with pytest.raises(Unavailable):
            await owner.store.create_segment("plain")
        with pytest.raises(Unavailable):
            await owner.store.append("plain", b"x")

        world.chunks.script = None
        assert await owner.store.read("plain", 0, 9) == b"bytes"


async def test_an_import_is_readable_once_it_is_durable_rule_c1() -> None:
    state = ContainerState(epoch=1)
    publisher = Publisher(state, TailCache(1 << 20, None), due_bytes=1 << 20)
    chain = Chain(10, 0, False, 100, ((0, ChunkRecord("old").grown([bytes(10)])),))
    op, sid = await decided_import(state, ImportRequest.of_chain(NAME, chain, SPACING))
    state.apply(op)
    assert (state.segments.by_id[sid].length, state.segments.by_id[sid].durable_length) == (10, -1)

    publisher.publish([op], 1)
    assert state.segments.by_id[sid].durable_length == 10


async def test_s14_a_flipped_bit_in_the_read_of_a_header_never_changes_the_segment(
    world: ContainerWorld,
) -> None:
    """With a start of 10 in place of 50, most of the first file was no part of the segment."""
    first, second = f"{NAME}$offset.0", f"{NAME}$offset.50"
    await world.chunks.open()
    await write_files(world.chunks, [(first, b"1" * 50), (second, b"2" * 10)])
    header = f"maxsize=50&0={first}&50={second}&".encode()
    await write_header(world.chunks, NAME, header)
    for bit in range(8 * len(header)):
        for read in (1, 2):
            world.chunks.script = nth(read, Fault(FaultKind.FLIP, bit=bit), "read")
            with pytest.raises(DataCorruption):
                await find(world.chunks, NAME)

    world.chunks.script = None
    found = await find(world.chunks, NAME)
    assert found is not None
    assert found.length == 60


async def test_a_header_cannot_name_the_stores_own_objects(world: ContainerWorld) -> None:
    """They would be deleted with it: a claim, or the manifest of a backup."""
    await world.chunks.create_with_content("_system/backups/monday/manifest", [b"manifest"])
    await write_header(world.chunks, NAME, b"maxsize=100&0=_system/backups/monday/manifest&")
    async with world.owner() as owner:
        with pytest.raises(SegmentNotFound):
            await import_segment(owner.container, NAME)
        with pytest.raises(SegmentNotFound):
            await owner.store.segment_info(NAME)
