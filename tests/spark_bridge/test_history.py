"""History out of long-term storage itself: the same events as through the service, whatever is missing,
damaged or out of reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.direct import PLACE, Layouts, MemoryStorage, stored
from tierlog.actors.direct_read.storage import DirectStorage
from tierlog.actors.direct_read.windows import ROOM, Window
from tierlog.spark_bridge import events
from tierlog.spark_bridge.history import History, Refusals, frames, read_extents
from tierlog.spark_bridge.options import Direct
from tierlog.spark_bridge.ranges import Block, Range
from tierlog.storage_backends.base.checksum import BLOCK
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    SegmentNotFound,
    SegmentTruncated,
    StoreMismatch,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.base.segment_layout import ChunkExtent, StoragePlace

RANDOM = Random(5)
EVENTS = [RANDOM.randbytes(RANDOM.choice((0, 5, 100, 1000, 30_000))) for _ in range(600)]
DATA = events.encode(EVENTS)
SIZES = [BLOCK + 77, 100_000, BLOCK, 400_000]


class Service:
    """A source of bytes that remembers what it was asked for."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def append_starts(self, segment: str, start: int, end: int) -> Sequence[int]:
        return []

    def read(self, segment: str, offset: int, size: int) -> bytes:
        self.asked.append((offset, size))
        return self.data[offset : offset + size]


class World:
    """A segment that is flushed up to ``flushed``, and one job that reads it."""

    def __init__(
        self, direct: Direct = Direct.AUTO, sizes: Sequence[int] = SIZES, data: bytes = DATA
    ) -> None:
        self.service, self.chunks = Service(data), MemoryStorage()
        self.extents = stored(data, sizes, self.chunks)
        self.flushed = self.extents[-1].end
        self.layouts = Layouts(self.extents)
        self.error: TierlogError | None = None
        self.reports: list[str] = []
        self.opened: list[StoragePlace] = []
        self.dropped: list[StoragePlace] = []
        self.history = History(direct, "job", self.layouts, self, Refusals(self.reports.append))

    def storage(self, place: StoragePlace) -> DirectStorage:
        self.opened.append(place)
        if self.error is not None:
            raise self.error
        return self.chunks

    def drop_storage(self, place: StoragePlace) -> None:
        self.dropped.append(place)

    def read(self, start: int = 0, end: int | None = None) -> list[bytes]:
        part = Range("s", 1, start, len(self.service.data) if end is None else end)
        return collected(self.history.blocks(self.service, part, self.flushed, 1 << 16), start)


def collected(found: Iterator[Block], start: int = 0) -> list[bytes]:
    """The events of all blocks, which follow each other."""
    values, position = list[bytes](), start
    for block in found:
        assert block.offset == position
        values += events.decode(bytes(block.data[: block.boundaries[-1]]))
        position += block.boundaries[-1]
    return values


def test_flushed_events_come_out_of_chunks_and_the_others_through_the_service() -> None:
    world = World()

    assert world.read() == EVENTS
    # From the first event on that is not wholly in long-term storage.
    assert world.flushed - 30_004 <= world.service.asked[0][0] <= world.flushed
    assert (world.opened, world.reports) == ([PLACE], [])


def test_flushed_history_asks_the_service_for_no_byte() -> None:
    world = World(sizes=[len(DATA)])

    assert world.read() == EVENTS
    assert world.service.asked == []


def test_s21_a_layout_of_many_chunks_is_asked_for_in_pages() -> None:
    """The event that straddles two pages belongs to the second one."""
    quarter = len(DATA) // 4
    world = World(sizes=[quarter, quarter, quarter, len(DATA) - 3 * quarter])
    world.layouts.page = 2

    assert world.read() == EVENTS
    assert len(world.layouts.asked) == 3
    assert world.service.asked == []


def test_an_event_that_is_larger_than_a_page_comes_through_the_service() -> None:
    data = events.encode([bytes(100_000)] * 20)
    world = World(sizes=[30_000] * 66, data=data)
    world.layouts.page = 2

    assert world.read() == [bytes(100_000)] * 20
    assert world.reports == []


def test_a_part_of_a_segment_is_read_from_boundary_to_boundary() -> None:
    world, found = World(), events.boundaries(DATA)
    start, end = found[20], found[400]

    assert world.read(start, end) == EVENTS[20:400]
    assert world.service.asked == []


def test_without_anything_flushed_nothing_else_is_asked() -> None:
    for direct in Direct:
        world = World(direct)
        world.flushed = 0

        assert world.read() == EVENTS
        assert (world.layouts.asked, world.opened) == ([], [])


def test_a_little_history_is_not_worth_a_request_unless_it_is_demanded() -> None:
    end = events.boundaries(DATA)[5]
    for direct, asked in ((Direct.AUTO, 0), (Direct.ALWAYS, 1), (Direct.NEVER, 0)):
        world = World(direct)

        assert world.read(0, end) == EVENTS[:5]
        assert len(world.layouts.asked) == asked


@pytest.mark.parametrize("error", [Unavailable("not mounted"), StoreMismatch("it is another store's")])
def test_a_storage_out_of_reach_is_reported_once_a_job(error: TierlogError) -> None:
    world = World()
    world.error = error

    assert world.read() == EVENTS
    assert world.read() == EVENTS
    assert world.reports == [str(error)]
    assert len(world.opened) == len(world.layouts.asked) == 1  # not asked for again

    other = attrs.evolve(world.history, job="another")
    list(other.blocks(world.service, Range("s", 1, 0, len(DATA)), world.flushed, 1 << 16))
    assert world.reports == [str(error)] * 2


def test_always_fails_where_the_storage_is_out_of_reach() -> None:
    world = World(Direct.ALWAYS)
    world.error = Unavailable("/lts is not mounted")

    with pytest.raises(Unavailable, match=r"direct is 'always', and this executor .*/lts is not mounted"):
        world.read()
    assert world.service.asked == []


def test_s21_a_chunk_that_an_old_layout_names_is_asked_for_again() -> None:
    """It was joined with others, or its beginning was relocated, while the task read."""
    for direct in (Direct.AUTO, Direct.ALWAYS):
        world = World(direct)
        joined = stored(DATA, [sum(SIZES)], world.chunks, "joined")
        del world.chunks.chunks["c2"]
        world.layouts.answers.append(joined)

        assert world.read() == EVENTS
        assert world.reports == []
        [first, second] = world.layouts.asked
        assert 0 == first[0] < second[0] <= world.extents[2].start  # from the last event on


def test_s21_a_chunk_that_is_missing_for_good_is_read_through_the_service() -> None:
    world = World()
    del world.chunks.chunks["c2"]

    assert world.read() == EVENTS
    assert "a chunk that the segment needs is missing" in world.reports[0]

    world = World(Direct.ALWAYS)
    del world.chunks.chunks["c2"]
    with pytest.raises(DataCorruption, match="is missing from long-term storage") as caught:
        world.read()
    assert caught.value.file == "c2"


def test_s21_a_storage_that_was_unmounted_has_to_prove_again_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its chunks seem to be missing, and it is not there any more when it is opened anew."""
    world = World()
    world.chunks.chunks.clear()
    monkeypatch.setattr(
        world, "drop_storage", lambda place: setattr(world, "error", Unavailable("it is not mounted"))
    )

    assert world.read() == EVENTS
    assert world.reports == ["it is not mounted"]


def damaged(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


def test_s21_damage_is_never_given_to_spark() -> None:
    world = World()
    world.chunks.chunks["c2"] = damaged(world.chunks.chunks["c2"], 500_000)

    assert world.read() == EVENTS
    assert "do not match their checksum" in world.reports[0]

    world = World(Direct.ALWAYS)
    world.chunks.chunks["c2"] = damaged(world.chunks.chunks["c2"], 500_000)
    with pytest.raises(DataCorruption, match="do not match their checksum"):
        world.read()


def test_another_segment_of_the_name_and_lost_events_are_no_matter_of_the_storage() -> None:
    world = World()
    world.layouts.segment_id = 2
    with pytest.raises(SegmentNotFound, match="deleted and recreated"):
        world.read()

    world = World()
    world.layouts.start_offset = 5
    with pytest.raises(SegmentTruncated, match="was truncated at 5"):
        world.read()
    assert world.service.asked == []


def test_what_is_no_event_is_reported_with_its_place() -> None:
    data = DATA + b"\xff" * 2 * BLOCK
    world = World(Direct.ALWAYS, [len(data)], data)

    with pytest.raises(DataCorruption, match=r"has no framed events from .*no frame begins at"):
        world.read()


# --- of a store without a service ----------------------------------------------------------------


def test_the_chunks_of_a_plan_are_enough() -> None:
    world = World(sizes=[BLOCK, len(DATA) - BLOCK])

    assert collected(read_extents(world.chunks, world.extents, Range("s", 1, 0, len(DATA)))) == EVENTS


def test_without_a_service_what_is_missing_or_incomplete_is_reported() -> None:
    world = World(sizes=[BLOCK, len(DATA) - BLOCK])
    cut = world.extents[0].end
    with pytest.raises(DataCorruption, match="has no whole event at byte"):
        list(read_extents(world.chunks, world.extents[:1], Range("s", 1, 0, cut)))

    del world.chunks.chunks["c1"]
    with pytest.raises(DataCorruption, match="is missing from long-term storage. If the store has an owner"):
        list(read_extents(world.chunks, world.extents, Range("s", 1, 0, len(DATA))))


# --- frames ------------------------------------------------------------------------------------


def cut(data: bytes, sizes: Iterable[int], start: int = 0) -> Iterator[Window]:
    """Windows over one buffer, as ``windows`` gives them."""
    buffer, position = bytearray(ROOM + max(1, len(data))), 0
    for size in [*sizes, len(data)]:
        piece = data[position : position + size]
        if piece:
            buffer[ROOM : ROOM + len(piece)] = piece
            yield Window(start + position, buffer, ROOM, ROOM + len(piece))
        position += len(piece)


@given(st.lists(st.binary(max_size=40), max_size=30), st.lists(st.integers(1, 50), max_size=40))
def test_frames_that_straddle_windows_are_put_together(given_events: list[bytes], sizes: list[int]) -> None:
    assert collected(frames(cut(events.encode(given_events), sizes), "s")) == given_events


def test_an_event_may_be_larger_than_the_room_and_than_a_window() -> None:
    given_events = [b"a", bytes(3 * ROOM), b"b" * (ROOM - 4), b"", bytes(ROOM + 1), b"c"]

    assert collected(frames(cut(events.encode(given_events), [ROOM] * 9), "s")) == given_events


def test_blocks_that_were_decoded_do_not_change_with_the_buffer() -> None:
    pytest.importorskip("pyarrow")
    from tierlog.spark_bridge.reader import record_batch
    from tierlog.spark_bridge.schema import Column, arrow_schema

    schema = arrow_schema([Column("value", "binary"), Column("offset", "bigint")])
    for size in (100, 3 * BLOCK // 2):  # many equal ones, and one alone in its window
        given_events = [RANDOM.randbytes(size) for _ in range(50 if size == 100 else 3)]
        world = World(sizes=[(size + 4) * len(given_events)], data=events.encode(given_events))
        part = Range("s", 1, 0, len(world.service.data))
        found = [
            record_batch(block, "s", schema) for block in read_extents(world.chunks, world.extents, part)
        ]
        assert [value for batch in found for value in batch.column("value").to_pylist()] == given_events


def test_extents_of_a_segment_are_in_order_or_refused() -> None:
    extent = ChunkExtent(0, "c", BLOCK, 0, bytes(4))
    layouts = Layouts([extent, extent])

    with pytest.raises(ValueError, match="do not follow each other"):
        layouts.segment_layout("s", 0, BLOCK)
