"""Writers of any number, as rows of the system table (rule M20)."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest
from msgspec.structs import replace
from simulation.records import broken_records

from support.container_parts import Parts, by_writer
from support.container_world import OPTIONS, ContainerWorld, Owner, read_all, virtual_time
from support.live_segments import cold_images
from support.stores import make
from support.table_rows import records_of
from tierlog import AttributeUpdate, OutOfOrder, SegmentStore, UnknownWriter
from tierlog.actors.container.cold_segments import ColdSegments
from tierlog.actors.container.operations.attributes import SpillRequest
from tierlog.actors.container.segments import SegmentState
from tierlog.actors.container.writer_rows import (
    decode_writer,
    state_of,
    writer_key,
    writer_row,
    writers_prefix,
)
from tierlog.journal.operations.segment_image import WriterState
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import DataCorruption, Unavailable
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

FEW = replace(OPTIONS, image_entries=4)
COLD = replace(FEW, active_segments_max=1)
NAME, OTHER = "app/events", "app/other"
WRITERS = [f"w{number:02}" for number in range(20)]


async def send(store: SegmentStore, writer: str, number: int, name: str = NAME) -> int | None:
    return await store.append(name, f"{writer}:{number};".encode(), writer_id=writer, event_number=number)


async def filled(owner: Owner) -> dict[str, int]:
    """Each writer's offset of its event 1, in both segments."""
    await make(owner.store, OTHER)
    await make(owner.store, NAME, b"")
    offsets: dict[str, int] = {}
    for writer in WRITERS:
        offset = await send(owner.store, writer, 1)
        assert offset is not None
        offsets[writer] = offset
    return offsets


async def check(owner: Owner, offsets: Mapping[str, int], last: Mapping[str, int] = {}) -> None:
    """Each writer gets the answers that it would get if it had never left memory."""
    store = owner.store
    before = (await store.segment_info(NAME)).length
    for writer, offset in offsets.items():
        newest = last.get(writer, 1)
        assert await store.last_event_number(NAME, writer) == newest
        assert await send(store, writer, 1) == (offset if newest == 1 else None), "a repeat"
        assert await send(store, writer, 0) is None
        with pytest.raises(OutOfOrder):
            await send(store, writer, newest + 2)
    assert await store.last_event_number(NAME, "nobody") is None
    assert (await store.segment_info(NAME)).length == before, "nothing was applied twice"


def writers_of(owner: Owner) -> object:
    """All that is known of the writers of ``NAME``: in memory, and as rows."""
    segment = owner.container.segments.in_memory(NAME)
    assert segment is not None
    prefix = writers_prefix(segment.sid).decode()
    rows = {key: entry for key, entry in records_of(owner.container).items() if key.startswith(prefix)}
    return segment.writers, segment.expired, segment.has_writer_rows, rows


def rows_of(owner: Owner) -> list[str]:
    return [key for key in records_of(owner.container) if key.startswith(("y:", "v:"))]


async def go_cold(owner: Owner) -> None:
    await owner.store.flush()
    await anyio.sleep(1)
    await owner.store.append(OTHER, b"x")  # a group, after which idle segments are looked for
    await anyio.sleep(1)
    assert cold_images(owner.container)


# --- exactly once -------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
async def test_m20_writers_that_left_memory_are_known_after_crashes_and_checkpoints(flushed: bool) -> None:
    world = ContainerWorld(FEW)
    async with world.owner() as owner:
        offsets = await filled(owner)
        segment = owner.container.segments.require(NAME)
        assert len(segment.writers) <= 4
        if flushed:
            await owner.store.flush()
        await check(owner, offsets)
        await owner.crash()
    async with world.owner() as owner:
        await check(owner, offsets)
        await owner.checkpoint()
        await owner.crash()
    async with world.owner() as owner:
        await check(owner, offsets)
        await owner.store.flush()
        assert not list(broken_records(owner.container))
    async with world.owner() as owner:
        await check(owner, offsets)


async def test_m20_a_writer_that_left_memory_goes_on_where_it_was() -> None:
    world = ContainerWorld(FEW)
    async with world.owner() as owner:
        offsets = await filled(owner)
        await owner.store.flush()
        again = [*WRITERS[:3], WRITERS[10]]
        for writer in again:
            assert await send(owner.store, writer, 2)
        last = dict.fromkeys(again, 2)
        await check(owner, offsets, last)
        # They leave once more: their new rows are above the old ones, which may be in runs.
        for writer in WRITERS[11:]:
            await send(owner.store, writer, 2)
            last[writer] = 2
        await check(owner, offsets, last)
        await owner.store.flush()
        await check(owner, offsets, last)
        await owner.crash()
    async with world.owner() as owner:
        await check(owner, offsets, last)


async def test_m20_requests_behind_one_that_is_looked_up_keep_their_order() -> None:
    async with ContainerWorld(FEW).owner() as owner:
        await filled(owner)
        await owner.store.flush()
        async with anyio.create_task_group() as tasks:
            for number in range(2, 6):
                tasks.start_soon(send, owner.store, WRITERS[0], number)
                tasks.start_soon(send, owner.store, WRITERS[0], number)
                await anyio.lowlevel.checkpoint()
        text = bytes(await read_all(owner.store, NAME))
        assert [text.count(b"w00:%d;" % number) for number in range(1, 6)] == [1] * 5


async def test_m20_a_lookup_that_fails_refuses_the_append(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ContainerWorld(FEW).owner() as owner:
        await filled(owner)
        await owner.store.flush()

        async def fail(*_: object) -> None:
            raise Unavailable("the run cannot be read")

        owner.container.state.find_cached = lambda runs, key: (False, None)
        with monkeypatch.context() as patch:
            patch.setattr(ColdSegments, "look_up", fail)
            with pytest.raises(Unavailable):
                await send(owner.store, WRITERS[0], 2)
        assert await send(owner.store, WRITERS[0], 2)


async def test_m20_an_expired_writer_stays_expired() -> None:
    world = ContainerWorld(FEW)
    async with world.owner() as owner:
        offsets = await filled(owner)
        await owner.store.flush()
        gone = [*WRITERS[:6], WRITERS[-1]]
        assert await owner.store.expire_writers(NAME, [*gone, "nobody", *gone]) == len(gone)
        assert await owner.store.expire_writers(NAME, gone) == 0
        segment = owner.container.segments.require(NAME)
        assert len(segment.expired) <= 4

        async def check_all(owner: Owner) -> None:
            for writer in gone:
                assert await owner.store.last_event_number(NAME, writer) is None
                for number in (1, 2):
                    with pytest.raises(UnknownWriter):
                        await send(owner.store, writer, number)
            await check(owner, {writer: offsets[writer] for writer in WRITERS if writer not in gone})

        await check_all(owner)
        await owner.store.flush()
        await check_all(owner)
        await owner.checkpoint()
        await owner.crash()
    async with world.owner() as owner:
        await check_all(owner)


# --- the same state everywhere ------------------------------------------------------------------


async def test_m20_replay_has_the_writers_that_the_owner_had() -> None:
    """After writers left, came back, were repeated, expired; after merges and deletions of segments that had
    writers too; with and without runs and checkpoints."""
    world = ContainerWorld(FEW)
    found: object = None
    for round_ in range(6):
        async with world.owner() as owner:
            store = owner.store
            if round_:
                assert writers_of(owner) == found
            else:
                await filled(owner)
            for step in range(8):
                writer = WRITERS[(7 * step + 3 * round_) % 20]
                last = await store.last_event_number(NAME, writer)
                if last is None:
                    continue
                await send(store, writer, last + 1)
                await send(store, writer, last + 1)
            await store.expire_writers(NAME, [WRITERS[3 * round_], WRITERS[3 * round_ + 1]])
            for number in range(2):
                await make(store, f"{NAME}#{round_}.{number}")
                for writer in WRITERS[:7]:
                    await send(store, writer, 5, f"{NAME}#{round_}.{number}")
            await store.seal_segment(f"{NAME}#{round_}.0")
            await store.merge_segments(NAME, [f"{NAME}#{round_}.0"])
            await store.delete_segment(f"{NAME}#{round_}.1")
            if round_ % 2:
                await store.flush()
            if round_ % 3 == 1:
                await owner.checkpoint()
                await send(store, WRITERS[19], (await store.last_event_number(NAME, WRITERS[19]) or 0) + 1)
            found = writers_of(owner)
            await owner.crash()
    async with world.owner() as owner:
        await anyio.sleep(10)
        assert not list(broken_records(owner.container))
        assert not [key for key in rows_of(owner) if key.startswith("v:")]


async def test_m20_a_segment_with_very_many_writers_goes_cold_and_comes_back() -> None:
    world = ContainerWorld(COLD)
    async with world.owner() as owner:
        offsets = await filled(owner)
        await owner.store.expire_writers(NAME, WRITERS[:5])
        offsets = dict(list(offsets.items())[5:])
        await go_cold(owner)
        assert owner.container.segments.in_memory(NAME) is None
        assert await owner.store.last_event_number(NAME, WRITERS[7]) == 1
        assert await owner.store.last_event_number(NAME, WRITERS[0]) is None
        assert owner.container.segments.in_memory(NAME) is None, "a question loads nothing"
        await check(owner, offsets)
        with pytest.raises(UnknownWriter):
            await send(owner.store, WRITERS[0], 2)
        await go_cold(owner)
    async with world.owner() as owner:
        await check(owner, offsets)


async def test_m20_nothing_is_left_of_the_writers_of_removed_segments() -> None:
    async with ContainerWorld(FEW).owner() as owner:
        await filled(owner)
        await owner.store.flush()
        for name in (f"{NAME}#1", f"{NAME}#2"):
            await make(owner.store, name)
            for writer in WRITERS[:10]:
                await send(owner.store, writer, 1, name)
        await owner.store.seal_segment(f"{NAME}#1")
        await owner.store.merge_segments(NAME, [f"{NAME}#1"])
        await owner.store.delete_segment(f"{NAME}#2")
        sid = owner.container.segments.require(NAME).sid
        await anyio.sleep(10)
        assert all(key.startswith(f"y:{sid:016x}:") for key in rows_of(owner))
        await owner.store.delete_segment(NAME)
        await make(owner.store, NAME)
        assert await send(owner.store, WRITERS[0], 7) == 0, "a later segment of that name knows none of them"
        await anyio.sleep(10)
        assert not rows_of(owner)


async def test_m20_updates_of_a_table_are_applied_once_by_writers_that_left_memory() -> None:
    world = ContainerWorld(FEW)
    async with world.owner() as owner:
        await owner.store.create_table(NAME)
        table = owner.store.table(NAME)
        versions: dict[str, int | None] = {}
        for number, writer in enumerate(WRITERS):
            value = b"%d" % number
            versions[writer] = await table.put(b"k", value, writer_id=writer, event_number=1)
        await owner.store.flush()
        for writer, version in versions.items():
            assert await table.put(b"k", b"again", writer_id=writer, event_number=1) == version
        assert (await table.get(b"k")) is not None
        assert len(owner.container.segments.require(NAME).writers) <= 4
        await owner.crash()
    async with world.owner() as owner:
        table = owner.store.table(NAME)
        for writer, version in versions.items():
            assert await table.put(b"k", b"again", writer_id=writer, event_number=1) == version
        row = await table.get(b"k")
        assert row is not None
        assert row.value == b"19"


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "room"), [(3_000, 64), pytest.param(100_000, 1024, marks=pytest.mark.extended)]
)
async def test_m20_memory_holds_a_bounded_number_of_writers(count: int, room: int) -> None:
    world = ContainerWorld(replace(OPTIONS, image_entries=room))
    async with world.owner() as owner:
        await make(owner.store, NAME)
        container = owner.container
        segment = container.segments.require(NAME)
        for start in range(0, count, 1000):
            requests = [
                by_writer(b"x", 1, writer=b"%06d" % number, name=NAME)
                for number in range(start, min(count, start + 1000))
            ]
            for request in requests:
                if not container.offer(request):
                    await container.accept(request)
            assert [await request.reply.wait() for request in requests] == list(
                range(start, start + len(requests))
            )
            assert len(segment.writers) <= room
        await owner.store.flush()
        await anyio.sleep(5)
        assert container.state.table.memory < 100_000
        assert len(segment.image()) < 64 * room + 200
        for number in range(0, count, count // 100):
            assert await owner.store.last_event_number(NAME, b"%06d" % number) == 1
            repeat = await owner.store.append(NAME, b"x", writer_id=b"%06d" % number, event_number=1)
            assert repeat == number
        assert segment.length == count


async def test_m20_images_of_an_earlier_version_become_rows_and_go_cold() -> None:
    """The earlier one kept all writers in the image."""
    world = ContainerWorld(replace(COLD, image_entries=1 << 20))
    async with world.owner() as owner:
        offsets = await filled(owner)
        await owner.store.expire_writers(NAME, WRITERS[10:])
        assert not rows_of(owner)
        await owner.checkpoint()
    world.options = COLD
    async with world.owner() as owner:
        with anyio.fail_after(60):
            while len(rows_of(owner)) < 12:
                await anyio.sleep(0.1)
        await check(owner, dict(list(offsets.items())[:10]))
        with pytest.raises(UnknownWriter):
            await send(owner.store, WRITERS[12], 2)
        await go_cold(owner)
        assert owner.container.segments.in_memory(NAME) is None


async def test_m17_the_image_of_a_deleted_segment_becomes_no_rows() -> None:
    """Nobody would remove them."""
    world = ContainerWorld(replace(FEW, image_entries=1 << 20))
    async with world.owner() as owner:
        await filled(owner)
        names = [AttributeUpdate(f"n{number}", 1) for number in range(20)]
        await owner.store.update_attributes(NAME, names)
        await owner.store.flush()
        world.chunks.script = lambda call: Fault(FaultKind.BEFORE)
        await owner.store.delete_segment(NAME)
        await owner.checkpoint()
        await owner.crash()
    world.options = FEW
    async with world.owner() as owner:
        await anyio.sleep(5)
        world.chunks.script = None
        await anyio.sleep(1000)
        await owner.store.flush()
        assert [key for key in records_of(owner.container) if key[:2] in ("a:", "y:", "v:")] == []


async def test_m20_very_many_writers_of_an_earlier_version_leave_in_steps() -> None:
    parts = Parts()
    segment: SegmentState = parts.create()
    segment.writers.update((b"%d" % number, WriterState(1, 1, 0)) for number in range(2000))
    segment.expired.update((b"e%d" % number, None) for number in range(1100))
    assert not segment.fits_row
    for _ in range(4):
        parts.do(SpillRequest(segment.sid))
    assert (len(segment.writers), len(segment.expired)) == (1024, 1024)
    assert segment.fits_row
    assert parts.operations(SpillRequest(segment.sid)) == ([], None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("y:0000000000000001:zz", b""),
        ("y:0000000000000001:77", b"short"),
    ],
)
async def test_a_damaged_row_of_a_writer_is_refused(key: str, value: bytes) -> None:
    with pytest.raises(DataCorruption):
        decode_writer(key, value)


async def test_the_row_of_a_writer_has_its_latest_events() -> None:
    known = WriterState(-1, 3, 1 << 40)
    for state in (known, None):
        row = writer_row(7, b"w\x00", 9, state)
        assert row.value is not None
        assert (row.key, decode_writer(row.key.decode(), row.value)) == (
            writer_key(7, b"w\x00"),
            (b"w\x00", state),
        )
    with pytest.raises(DecodeError):
        state_of(b"x")
