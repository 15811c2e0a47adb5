"""Append starts out of memory, of long-term storage and of merged sources, as one list (rule S5)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import attrs
import pytest

from tierlog.actors.read.append_starts import APPEND_STARTS_MAX, AppendStarts
from tierlog.journal.operations.segment_image import MergedRange
from tierlog.storage_backends.base.errors import DataCorruption, SegmentNotFound

pytestmark = pytest.mark.anyio


@attrs.define
class Segment:
    sid: int
    durable_length: int
    flushed: int = 0
    append_boundaries: Sequence[int] = ()
    merges: Sequence[MergedRange] = ()
    start_offset: int = 0
    name: str = "app/events"
    is_gone: bool = False


@attrs.define
class Storage:
    known: dict[int, list[int]]
    before: Callable[[], None] = lambda: None

    async def starts(self, segment: int, start: int, end: int, limit: int) -> list[int]:
        self.before()
        if segment not in self.known:
            raise SegmentNotFound(f"no record of {segment}")

        return [offset for offset in self.known[segment] if start <= offset < end][:limit]


def finder(storage: Storage, *segments: Segment) -> AppendStarts:
    table = {segment.sid: segment for segment in segments}
    return AppendStarts(storage, table.get)


async def test_flushed_and_unflushed_starts_follow_each_other() -> None:
    """The last boundary below what is flushed stays in memory, and is returned once."""
    segment = Segment(1, 60, flushed=40, append_boundaries=[30, 45, 55])
    starts = finder(Storage({1: [0, 20, 30]}), segment)

    assert await starts.find(segment, 0, 100) == [0, 20, 30, 45, 55]
    assert await starts.find(segment, 20, 55) == [20, 30, 45]


async def test_starts_of_sources_nested_deeper_than_the_stack_are_found() -> None:
    depth = sys.getrecursionlimit()
    nested = [Segment(sid, 10, merges=[MergedRange(0, sid - 1, 10)]) for sid in range(2, depth + 2)]
    starts = finder(Storage({}), Segment(1, 10, append_boundaries=[0, 5]), *nested)

    assert await starts.find(nested[-1], 0, 100) == [0, 5]


async def test_truncated_and_undurable_starts_are_not_returned() -> None:
    segment = Segment(1, 50, flushed=40, append_boundaries=[45, 50, 55], start_offset=20)

    assert await finder(Storage({1: [0, 20, 30]}), segment).find(segment, 0, 100) == [20, 30, 45]


async def test_starts_of_unspliced_sources_are_returned() -> None:
    """One of them has a source itself, and own bytes lie between them."""
    inner = Segment(3, 10, append_boundaries=[0, 5])
    middle = Segment(2, 30, flushed=10, append_boundaries=[15], merges=[MergedRange(20, 3, 10)])
    target = Segment(1, 100, flushed=20, append_boundaries=[70], merges=[MergedRange(30, 2, 30)])
    starts = finder(Storage({1: [0], 2: [0, 8]}), inner, middle, target)

    assert await starts.find(target, 0, 100) == [0, 30, 38, 45, 50, 55, 70]
    assert await starts.find(target, 38, 55) == [38, 45, 50]


async def test_a_splice_during_the_query_is_retried() -> None:
    """The source's record vanishes with it."""
    source = Segment(2, 20, flushed=20)
    target = Segment(1, 30, flushed=10, merges=[MergedRange(10, 2, 20)])
    storage = Storage({1: [0]})

    def splice() -> None:
        storage.known = {1: [0, 10, 18]}
        target.flushed, target.merges = 30, ()

    storage.before = splice

    assert await finder(storage, source, target).find(target, 0, 30) == [0, 10, 18]


async def test_a_record_that_stays_lost_is_reported() -> None:
    segment = Segment(1, 30, flushed=30)
    with pytest.raises(SegmentNotFound, match="no record of 1"):
        await finder(Storage({}), segment).find(segment, 0, 30)

    segment.is_gone = True
    with pytest.raises(SegmentNotFound, match="'app/events': it was deleted meanwhile"):
        await finder(Storage({}), segment).find(segment, 0, 30)


async def test_damage_is_reported() -> None:
    def damage() -> None:
        raise DataCorruption("a record does not decode")

    segment = Segment(1, 30, flushed=30)
    with pytest.raises(DataCorruption):
        await finder(Storage({1: []}, damage), segment).find(segment, 0, 30)


async def test_an_answer_is_bounded_and_includes_the_first() -> None:
    count = APPEND_STARTS_MAX
    segment = Segment(1, 3 * count, flushed=count, append_boundaries=range(count, 3 * count))

    assert await finder(Storage({1: list(range(count))}), segment).find(segment, 1, 3 * count) == list(
        range(1, count + 1)
    )
