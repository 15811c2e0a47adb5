"""Segments of many chunks that are there already: their records come in pieces, and go again if the segment
does not come (rule S14)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import anyio
import pytest
from msgspec.structs import replace
from simulation.records import broken_records

from support.container_world import OPTIONS, ContainerWorld, Owner, read_all, until
from support.legacy_layout import write_legacy
from support.table_rows import decided_import, records_in_memory, records_of, store_of, write_record
from tierlog.actors.container.operations.import_segment import ImportRequest, decide_import, look_up_import
from tierlog.actors.container.state import ContainerState
from tierlog.actors.legacy_rolling.importing import import_segment
from tierlog.journal.log.contract import GROUP_BYTES_MAX
from tierlog.journal.operations.segment_image import SegmentImage, SegmentStatus
from tierlog.storage_backends.base.errors import InvalidArgument, SegmentExists, SegmentNotFound, Unavailable
from tierlog.storage_backends.segments.chain import Chain, ChunkRecords
from tierlog.storage_backends.segments.context import StorageContext
from tierlog.storage_backends.segments.operations import adopt
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import (
    ChunkRecord,
    DeferredWorkKind,
    DeferredWorkRecord,
    ReleasedRecord,
    deferred_work_key,
    released_key,
)

pytestmark = pytest.mark.anyio

NAME = "app/old"
PARTS = [bytes([65 + number]) * 10 for number in range(20)]
DATA = b"".join(PARTS)
PIECES = replace(
    OPTIONS,
    chunked=ChunkedOptions(adopt_bytes=600, index_spacing=32, maintenance_records=4),
    collector=replace(OPTIONS.collector, delay=0.0),
    writer=replace(OPTIONS.writer, deferred_pause=0.0),
)
"""Three or four chunks in a piece, and an index record for every three."""


@pytest.fixture
async def world() -> ContainerWorld:
    world = ContainerWorld(PIECES)
    await world.chunks.open()
    await write_legacy(world.chunks, NAME, *PARTS, max_size=10)
    return world


def keys(owner: Owner, *kinds: str) -> list[str]:
    return [key for key in records_of(owner.container) if key.startswith(kinds)]


async def nothing_is_left(owner: Owner, world: ContainerWorld) -> None:
    """No record of the import, and all files as they were."""
    await until(lambda: not keys(owner, "s:", "c:", "i:", "d:", "o:"))
    await owner.store.flush()
    assert len([name for name in world.memory.chunks if name.startswith(f"{NAME}$offset.")]) == len(PARTS)


@contextmanager
def held_after(pieces: int) -> Iterator[anyio.Event]:
    """An adoption stays where it is once so many pieces are laid, and the event is set."""
    held, write = anyio.Event(), adopt._write
    calls = 0

    async def writing(context: StorageContext, segment: int, piece: list[ChunkRecords]) -> None:
        nonlocal calls
        calls += 1
        if calls > pieces:
            held.set()
            await anyio.sleep_forever()
        await write(context, segment, piece)

    with mock.patch.object(adopt, "_write", writing):
        yield held


async def test_a_segment_of_many_chunks_is_imported_in_pieces_rule_s14(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        assert await import_segment(owner.container, NAME) == len(DATA)
        assert owner.container.storage.statistics().commits >= 5
        assert await read_all(owner.store, NAME) == DATA
        sid = (await owner.store.segment_info(NAME)).segment_id
        await until(lambda: not keys(owner, "d:"))
        assert not list(broken_records(owner.container))
        assert (len(keys(owner, "c:")), len(keys(owner, f"i:{sid:016x}:"))) == (20, 6)

        await owner.store.append(NAME, b"more")
        await owner.store.flush()
        assert await read_all(owner.store, NAME, 190) == PARTS[-1] + b"more"


async def test_a_piece_is_bounded(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        metadata = owner.container.storage._context.metadata
        with mock.patch.object(metadata, "commit", wraps=metadata.commit) as commit:
            await import_segment(owner.container, NAME)
        sizes = [
            sum(len(key) + len(value or b"") for key, value in call.args[1].items())
            for call in commit.call_args_list
        ]

    assert len(sizes) >= 5
    assert max(sizes) < 600


async def test_pieces_are_invisible_and_their_owner_does_not_collect_them(world: ContainerWorld) -> None:
    async with world.owner() as owner, anyio.create_task_group() as tasks:
        with held_after(3) as held:
            tasks.start_soon(import_segment, owner.container, NAME)
            await held.wait()
            before = keys(owner, "c:", "i:", "d:")
            await owner.store.flush()

            assert keys(owner, "c:", "i:", "d:") == before != []
            assert await owner.store.list_segments() == []
            assert not list(broken_records(owner.container))
            with pytest.raises(SegmentNotFound):
                await owner.store.segment_info(NAME)
            await owner.store.create_segment("app/new")
            [work] = keys(owner, "d:")
            assert work != deferred_work_key(
                (await owner.store.segment_info("app/new")).segment_id, DeferredWorkKind.ADOPT
            )
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("pieces", [1, 3])
async def test_the_next_owner_rolls_back_an_interrupted_import_and_deletes_no_file(
    world: ContainerWorld, pieces: int
) -> None:
    async with anyio.create_task_group() as tasks:
        first = await world.start(tasks)
        with held_after(pieces) as held:
            tasks.start_soon(import_segment, first.container, NAME)
            await held.wait()
            assert keys(first, "d:") == [f"d:{1 << 32 | 1:016x}:adopt"]
            await first.crash()
            tasks.cancel_scope.cancel()

    async with world.owner() as owner:
        await nothing_is_left(owner, world)
        assert await import_segment(owner.container, NAME) == len(DATA)
        assert await read_all(owner.store, NAME) == DATA


async def test_a_cancelled_import_is_rolled_back_by_its_own_owner(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        async with anyio.create_task_group() as tasks:
            with held_after(2) as held:
                tasks.start_soon(import_segment, owner.container, NAME)
                await held.wait()
                tasks.cancel_scope.cancel()
        await nothing_is_left(owner, world)
        assert await import_segment(owner.container, NAME) == len(DATA)


async def test_a_call_before_the_rollback_is_refused_as_retryable() -> None:
    state = ContainerState(epoch=1)
    chunk = ChunkRecord("old").grown([bytes(10)])
    request = ImportRequest.of_chain(NAME, Chain(10, 0, False, 100, ((0, chunk),)), 64)
    write_record(state, chunk.key, chunk.encode())
    with pytest.raises(InvalidArgument, match="belongs to another segment"):
        await decided_import(state, request)

    work = DeferredWorkRecord(DeferredWorkKind.ADOPT, 7, chunk="old", chunks=1, end=10)
    write_record(state, work.key, work.encode())
    with pytest.raises(Unavailable, match="is being removed: try again"):
        await decided_import(state, request)


async def test_an_import_whose_name_was_taken_meanwhile_is_rolled_back(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        write = adopt._write

        async def writing(context: StorageContext, segment: int, piece: list[ChunkRecords]) -> None:
            await write(context, segment, piece)
            if piece[-1].chunk.next_chunk == "":
                await owner.store.create_segment(NAME)

        with mock.patch.object(adopt, "_write", writing), pytest.raises(SegmentExists):
            await import_segment(owner.container, NAME)
        assert (await owner.store.segment_info(NAME)).length == 0
        await until(lambda: not keys(owner, "c:", "i:", "d:", "o:"))


async def test_a_rolled_back_import_is_no_segment() -> None:
    """A request that comes after its own cancellation finds fewer records than it laid."""
    state = ContainerState(epoch=1)
    chain = Chain(10, 0, False, 100, ((0, ChunkRecord("old").grown([bytes(10)])),))
    request = ImportRequest.of_chain(NAME, chain, 64)
    request.adopted = state.take_segment_id()

    with pytest.raises(Unavailable, match="were removed before its import was complete"):
        await decided_import(state, request)


async def test_an_import_whose_records_change_after_it_looked_is_not_decided() -> None:
    state = ContainerState(epoch=1)
    chunk = ChunkRecord("old").grown([bytes(10)])
    request = ImportRequest.of_chain(NAME, Chain(10, 0, False, 100, ((0, chunk),)), 64)
    await look_up_import(state, store_of(state), request)
    write_record(state, released_key("old"), ReleasedRecord("old", 10).encode())

    assert decide_import(state, request) == (None, None)


async def test_the_last_operation_settles_the_deferred_work() -> None:
    state = ContainerState(epoch=1)
    chain = Chain(10, 0, False, 100, ((0, ChunkRecord("old").grown([bytes(10)])),))
    request = ImportRequest.of_chain(NAME, chain, 64)
    sid = request.adopted = state.take_segment_id()
    key = deferred_work_key(sid, DeferredWorkKind.ADOPT)
    work = DeferredWorkRecord(DeferredWorkKind.ADOPT, sid, chunk="old", chunks=1, end=10)
    write_record(state, key, work.encode())
    state.apply((await decided_import(state, request))[0])

    left = DeferredWorkRecord.decode(records_in_memory(state)[key][1])
    assert (left.chunk, left.chunks, left.index_offset, left.end) == ("", 0, 0, 0)
    assert state.next_segment_id() == sid + 1


async def test_records_that_no_transaction_can_hold_are_refused(world: ContainerWorld) -> None:
    chunk = ChunkRecord("old", 1, packed_crcs=bytes(4), packed_starts=bytes(33 << 20))
    async with world.owner() as owner:
        with pytest.raises(InvalidArgument, match="one transaction holds"):
            await owner.container.imports.restore(image_of(1), Chain(1, 0, False, 1, ((0, chunk),)))
        assert not keys(owner, "c:", "d:")


def image_of(length: int) -> SegmentImage:
    return SegmentImage(0, SegmentStatus.LIVE, False, length, 0, 128 << 20, NAME, (), (), ())


async def test_a_segment_with_more_records_than_a_group_holds_is_restored(
    world: ContainerWorld,
) -> None:
    """With the real limits; such a segment was backed up, and then the whole restore failed."""
    size, count = 256 << 30, 40
    chunk = ChunkRecord("", size, packed_crcs=bytes(4 * (size >> 20)))
    chunks = tuple(
        (number * size, replace(chunk, name=f"containers/0000/{number:032x}")) for number in range(count)
    )
    assert sum(len(each.packed_crcs) for _, each in chunks) > GROUP_BYTES_MAX // 2
    async with world.owner(replace(OPTIONS, chunked=ChunkedOptions(index_spacing=1 << 40))) as owner:
        await owner.container.imports.restore(
            image_of(count * size), Chain(count * size, 0, False, size, chunks)
        )

        assert (await owner.store.segment_info(NAME)).flushed_length == count * size
        assert len(keys(owner, "c:")) == count
