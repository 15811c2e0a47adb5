"""Where a segment may be cut: always between events, the same in every replay, and never read where nothing
has to be cut."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierlog.spark_bridge import events, ranges
from tierlog.spark_bridge.ranges import Range, admit, around, blocks, plan, split
from tierlog.storage_backends.base.errors import DataCorruption


class Bytes:
    """A source that remembers what was asked for."""

    def __init__(self, data: bytes, starts: Sequence[int] = ()) -> None:
        self.data = data
        self.starts = starts
        self.asked: list[tuple[int, int]] = []
        self.asked_starts: list[tuple[int, int]] = []

    def append_starts(self, segment: str, start: int, end: int) -> list[int]:
        self.asked_starts.append((start, end))
        return [offset for offset in self.starts if start <= offset < end]

    def read(self, segment: str, offset: int, size: int) -> bytes:
        self.asked.append((offset, size))
        return self.data[offset : offset + size]


def whole(source: Bytes, segment: str = "s") -> Range:
    return Range(segment, 1, 0, len(source.data))


some_events = st.lists(st.binary(max_size=60), max_size=30)


@given(some_events, st.integers(4, 64))
def test_blocks_hold_all_events_in_order_whatever_their_size(given_events: list[bytes], size: int) -> None:
    source = Bytes(events.encode(given_events))

    found = list(blocks(source, "s", 0, len(source.data), size))

    assert [
        event for block in found for event in events.decode(block.data[: block.boundaries[-1]])
    ] == given_events
    assert [
        block.offset + boundary for block in found for boundary in block.boundaries[:-1]
    ] == events.boundaries(source.data)[:-1]


def test_the_next_block_is_read_while_the_caller_has_one() -> None:
    """And no thread is left when the caller has enough."""
    threads = set(threading.enumerate())
    source, second = Bytes(events.encode([b"x" * 96] * 10)), threading.Event()
    read = source.read

    def noticed(segment: str, offset: int, size: int) -> bytes:
        if offset == 300:
            second.set()
        return read(segment, offset, size)

    source.read = noticed  # type: ignore[method-assign]
    found = blocks(source, "s", 0, 1000, 300)

    assert next(found).offset == 0
    assert second.wait(30)
    found.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) <= threads  # idle ones of earlier tests may have ended


@settings(max_examples=50)
@given(some_events, st.integers(4, 64), st.data())
def test_the_boundaries_around_a_position_are_the_nearest_ones(
    given_events: list[bytes], block: int, data: st.DataObject
) -> None:
    source = Bytes(events.encode(given_events))
    boundaries = events.boundaries(source.data)
    position = data.draw(st.integers(0, len(source.data)))
    start = data.draw(st.sampled_from([each for each in boundaries if each <= position]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "WALK_BYTES", block)

        found = around(source, "s", start, len(source.data), position)

    assert found.before == max(each for each in boundaries if each <= position)
    assert found.after == min(each for each in boundaries if each >= position)


def test_what_is_larger_than_a_block_is_stepped_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "WALK_BYTES", 10)
    source = Bytes(events.encode([b"x" * 1000] * 3))

    around(source, "s", 0, len(source.data), len(source.data))

    assert source.asked == [(0, 10), (1004, 10), (2008, 10)]


@given(some_events, st.integers(1, 200))
def test_parts_follow_each_other_and_are_large_enough(given_events: list[bytes], size: int) -> None:
    source = Bytes(events.encode(given_events))

    parts = list(split(source, whole(source), size))

    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == len(source.data)
    assert all(part.size >= size for part in parts[:-1])
    assert {part.start for part in parts} <= set(events.boundaries(source.data))


def test_one_range_for_each_segment_needs_no_reading() -> None:
    source = Bytes(events.encode([b"abc"] * 100))

    assert plan(source, [whole(source), Range("empty", 1, 5, 5), whole(source, "t")], 2) == [
        whole(source),
        whole(source, "t"),
    ]
    assert source.asked == []


def test_more_ranges_are_cut_where_more_are_wanted() -> None:
    source = Bytes(events.encode([b"abc"] * 100))

    parts = plan(source, [whole(source)], 4)

    assert len(parts) == 4
    assert plan(source, [whole(source)], 4) == parts


@settings(max_examples=60)
@given(some_events, st.data())
def test_s5_append_starts_change_what_is_read_and_never_where_is_cut(
    given_events: list[bytes], data: st.DataObject
) -> None:
    """Whichever of them the service still knows: a replay cuts at the same places."""
    encoded = events.encode(given_events)
    boundaries = events.boundaries(encoded)[:-1]
    known = sorted(data.draw(st.sets(st.sampled_from(boundaries)))) if boundaries else []
    size = data.draw(st.integers(1, len(encoded) + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "NEAR_BYTES", data.draw(st.integers(0, 20)))
        patch.setattr(ranges, "_SEARCH_BYTES", data.draw(st.integers(1, 40)))
        with_starts, without = Bytes(encoded, known), Bytes(encoded)

        assert list(split(with_starts, whole(with_starts), size)) == list(
            split(without, whole(without), size)
        )
        assert admit(with_starts, [whole(with_starts)], size) == admit(without, [whole(without)], size)


def test_s5_a_cut_reads_from_the_last_append_before_it_to_the_cut_and_no_more() -> None:
    source = Bytes(events.encode([b"x" * 996] * 40_000), starts=range(0, 40_000_000, 1_000_000))

    parts = plan(source, [whole(source)], 4)

    assert [part.end for part in parts] == [10_000_000, 20_000_000, 30_000_000, 40_000_000]
    assert admit(source, [whole(source)], 25_300_500) == {"s": 25_300_000}
    assert sum(size for _, size in source.asked) < 400_000
    assert len(source.asked_starts) == 4


def test_a_micro_batch_takes_of_each_segment_in_proportion() -> None:
    source = Bytes(events.encode([b"abcdef"] * 100))

    assert admit(source, [whole(source), Range("t", 1, 0, 500)], 300) == {"s": 200, "t": 100}
    assert admit(source, [whole(source)], 1000) == {"s": 1000}


def test_a_micro_batch_takes_at_least_one_event() -> None:
    source = Bytes(events.encode([b"abcdef"] * 100))

    assert admit(source, [whole(source)], 1) == {"s": 10}


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff....", b"\0\0\0\7abc", b"\0\0", events.encode([b"a"]) + b"\0"]
)
def test_bytes_that_are_no_events_are_reported_with_segment_and_offset(data: bytes) -> None:
    source = Bytes(data)
    for read in (
        lambda: list(blocks(source, "s", 0, len(data), 1 << 20)),
        lambda: around(source, "s", 0, len(data), len(data)),
    ):
        with pytest.raises(DataCorruption, match="segment 's' has no framed events from byte"):
            read()
