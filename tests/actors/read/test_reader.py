"""The reader: cache, merged sources and long-term storage seen as one segment."""

from __future__ import annotations

import sys

import attrs
import pytest

from tierlog.actors.read.reader import Reader
from tierlog.actors.read.tail_cache import TailCache
from tierlog.actors.read.unflushed import UnflushedBytes
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.operations.segment_image import MergedRange
from tierlog.storage_backends.base.errors import DataCorruption, SegmentNotFound, SegmentTruncated

pytestmark = pytest.mark.anyio


@attrs.define
class Segment:
    sid: int
    durable_length: int
    flushed: int = 0
    start_offset: int = 0
    merges: list[MergedRange] = attrs.field(factory=list)
    name: str = "app/events"
    is_gone: bool = False


@attrs.define
class Storage:
    """Long-term storage: whole segments by id; ``before``: what happens ahead of the next reads, the last one
    first."""

    data: dict[int, bytes] = attrs.field(factory=dict)
    asked: list[tuple[int, int, int]] = attrs.field(factory=list)
    before: list[object] = attrs.field(factory=list)

    async def read(self, sid: int, offset: int, size: int, limit: int) -> bytes:
        self.asked.append((sid, offset, size))
        if self.before:
            action = self.before.pop()
            if callable(action):
                action()

        if sid not in self.data:
            raise SegmentNotFound(f"no record of {sid}")

        return self.data[sid][offset : min(offset + size, limit)]


@attrs.define
class World:
    cache: TailCache = attrs.field(factory=lambda: TailCache(1 << 20, None))
    storage: Storage = attrs.field(factory=Storage)
    segments: dict[int, Segment] = attrs.field(factory=dict)

    def segment(
        self, sid: int, data: bytes, *, flushed: int = 0, cached: int | None = None, **fields: object
    ) -> Segment:
        """A segment whose first ``flushed`` bytes are in long-term storage and whose bytes from ``cached`` on
        are in the cache."""
        segment = self.segments[sid] = Segment(sid, len(data), flushed, **fields)  # type: ignore[arg-type]
        self.storage.data[sid] = data[:flushed]
        self.cache.open_segment(sid, flushed)
        start = flushed if cached is None else cached
        if start < len(data):
            self.cache.append(sid, start, data[start:], 1)

        return segment

    @property
    def reader(self) -> Reader:
        return Reader(
            self.cache,
            UnflushedBytes(self.cache, MemoryLogService().log("unread")),
            self.storage,
            self.segments.get,
        )

    async def all_of(self, segment: Segment) -> bytes:
        """Everything, read on and on as a caller does."""
        found = b""
        while piece := await self.reader.read(segment, segment.start_offset + len(found), 1000):
            found += piece

        return found


async def test_cached_bytes_need_no_storage() -> None:
    world = World()
    segment = world.segment(1, b"0123456789")

    assert await world.reader.read(segment, 2, 5) == b"23456"
    assert world.storage.asked == []


async def test_a_read_before_a_merged_source_ends_there() -> None:
    world = World()
    world.segment(2, b"bb")
    segment = world.segment(1, b"aaaa??", flushed=4, cached=4, merges=[MergedRange(4, 2, 2)])

    assert await world.reader.read(segment, 0, 100) == b"aaaa"
    assert world.storage.asked == [(1, 0, 4)]


async def test_sources_nested_deeper_than_the_stack_are_read() -> None:
    world = World()
    world.segment(1, b"ab")
    depth = sys.getrecursionlimit()
    for sid in range(2, depth + 2):
        world.segment(sid, b"??", cached=2, merges=[MergedRange(0, sid - 1, 2)])
    top = world.segments[depth + 1]

    assert await world.reader.read(top, 1, 100) == b"b"
    del world.segments[1]
    with pytest.raises(DataCorruption, match="which is unknown"):
        await world.reader.read(top, 0, 100)


async def test_a_read_between_many_merged_sources_takes_its_source_only() -> None:
    world = World()
    for sid in (2, 3, 4):
        world.segment(sid, bytes([sid]) * 2)
    merges = [MergedRange(2 * index, sid, 2) for index, sid in enumerate((2, 3, 4))]
    segment = world.segment(1, b"??????", cached=6, merges=merges)

    assert [await world.reader.read(segment, offset, 100) for offset in range(7)] == [
        b"\x02\x02",
        b"\x02",
        b"\x03\x03",
        b"\x03",
        b"\x04\x04",
        b"\x04",
        b"",
    ]


async def test_a_layout_that_changed_during_the_read_is_read_again() -> None:
    """The source was spliced into the target, and lost its record, while the read was under way."""
    world = World()
    world.segment(2, b"bb", flushed=2)
    segment = world.segment(1, b"aa??", flushed=2, cached=4, merges=[MergedRange(2, 2, 2)])

    def splice() -> None:
        del world.storage.data[2], world.segments[2]
        world.storage.data[1] = b"aabb"
        segment.flushed = 4
        segment.merges.clear()

    world.storage.before.append(splice)

    assert await world.reader.read(segment, 2, 10) == b"bb"
    assert world.storage.asked == [(2, 0, 2), (1, 2, 2)]


async def test_a_truncation_during_the_read_is_reported_in_the_callers_offsets() -> None:
    """Long-term storage, which was truncated first, knows ids only."""
    world = World()
    segment = world.segment(1, b"0123456789", flushed=10, cached=10)

    def truncate() -> None:
        segment.start_offset = 6
        raise SegmentTruncated("segment 0000000000000001 begins at 6", start_offset=6)

    world.storage.before.append(truncate)
    with pytest.raises(
        SegmentTruncated, match="offset 2 of 'app/events' was truncated; it now starts at 6"
    ) as caught:
        await world.reader.read(segment, 2, 4)
    assert (caught.value.segment, caught.value.start_offset) == ("app/events", 6)


async def test_storage_that_begins_behind_the_segments_start_is_corruption() -> None:
    world = World()
    segment = world.segment(1, b"0123456789", flushed=10, cached=10)

    def refuse() -> None:
        raise SegmentTruncated("segment 0000000000000001 begins at 6", start_offset=6)

    world.storage.before += [refuse, refuse]
    with pytest.raises(DataCorruption, match="'app/events' begins too late in long-term storage"):
        await world.reader.read(segment, 2, 4)


async def test_a_layout_is_read_again_as_often_as_it_changes() -> None:
    """The source's own source is spliced into it during the first read, the source into the target under the
    second."""
    world = World()
    world.segment(3, b"cc", flushed=2)
    middle = world.segment(2, b"??", flushed=0, cached=2, merges=[MergedRange(0, 3, 2)])
    segment = world.segment(1, b"aa??", flushed=2, cached=4, merges=[MergedRange(2, 2, 2)])

    def splice_into_middle() -> None:
        del world.storage.data[3], world.segments[3]
        world.storage.data[2] = b"cc"
        middle.flushed = 2
        middle.merges.clear()

    def splice_into_segment() -> None:
        del world.storage.data[2], world.segments[2]
        world.storage.data[1] = b"aacc"
        segment.flushed = 4
        segment.merges.clear()

    world.storage.before += [splice_into_segment, splice_into_middle]

    assert await world.reader.read(segment, 2, 10) == b"cc"
    assert world.storage.asked == [(3, 0, 2), (2, 0, 2), (1, 2, 2)]


async def test_corruption_is_reported_after_a_second_read() -> None:
    world = World()
    segment = world.segment(1, b"0123456789", flushed=10, cached=10)
    world.storage.data[1] = b""
    with pytest.raises(DataCorruption, match="holds nothing at 0"):
        await world.reader.read(segment, 0, 10)

    assert len(world.storage.asked) == 2


async def test_a_segment_deleted_during_the_read_is_not_found() -> None:
    world = World()
    segment = world.segment(1, b"0123456789", flushed=10, cached=10)
    world.storage.data[1] = b""  # its chunks are collected
    segment.is_gone = True
    with pytest.raises(SegmentNotFound, match="no segment 'app/events': it was deleted meanwhile"):
        await world.reader.read(segment, 0, 10)


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["deleted", "deleted and forgotten"])
async def test_a_segment_that_was_evicted_and_deleted_during_the_read_is_not_found(
    is_forgotten: bool,
) -> None:
    """What came back is another object; the one that the read began with still looks alive."""
    world = World()
    segment = world.segment(1, b"0123456789", flushed=10, cached=10)

    def evict_and_delete() -> None:
        world.segments[1] = attrs.evolve(segment, is_gone=True)
        if is_forgotten:
            del world.segments[1]
        del world.storage.data[1]

    world.storage.before += [evict_and_delete]

    with pytest.raises(SegmentNotFound, match="no segment 'app/events': it was deleted meanwhile"):
        await world.reader.read(segment, 0, 10)


async def test_a_segment_that_was_evicted_and_truncated_during_the_read_is_truncated() -> None:
    world = World()
    segment = world.segment(1, b"0123456789", flushed=10, cached=10)

    def evict_and_truncate() -> None:
        world.segments[1] = attrs.evolve(segment, start_offset=6)
        raise SegmentTruncated("segment 0000000000000001 begins at 6", start_offset=6)

    world.storage.before += [evict_and_truncate]

    with pytest.raises(SegmentTruncated, match="'app/events' was truncated; it now starts at 6"):
        await world.reader.read(segment, 2, 4)


async def test_a_segment_without_its_record_is_corruption() -> None:
    world = World()
    segment = world.segment(1, b"0123456789", flushed=10, cached=10)
    del world.storage.data[1]
    with pytest.raises(DataCorruption, match="'app/events' has lost its record"):
        await world.reader.read(segment, 0, 10)


async def test_missing_bytes_are_corruption() -> None:
    world = World()
    segment = world.segment(1, b"0123456789", flushed=4, cached=6)
    with pytest.raises(DataCorruption, match="offset 4 is neither flushed"):
        await world.reader.read(segment, 4, 10)

    assert world.storage.asked == []


async def test_a_merge_of_an_unknown_source_is_corruption() -> None:
    world = World()
    segment = world.segment(1, b"??", merges=[MergedRange(0, 9, 2)])
    with pytest.raises(DataCorruption, match="merged segment 0x9, which is unknown"):
        await world.reader.read(segment, 0, 10)
