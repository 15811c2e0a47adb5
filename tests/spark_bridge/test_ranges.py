"""Where a segment may be cut: always between events, the same in every replay, and never read where nothing has to be cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierlog import events
from tierlog.spark_bridge import ranges
from tierlog.spark_bridge.ranges import Range, admit, blocks, plan, split, walk
from tierlog.storage_backends.base.errors import DataCorruption


class Bytes:
    """A source that remembers what was asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

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

    assert [event for block in found for event in events.decode(block.data[: block.borders[-1]])] == given_events
    assert [block.offset + border for block in found for border in block.borders[:-1]] == events.borders(source.data)[:-1]


@settings(max_examples=50)
@given(some_events, st.integers(4, 64))
def test_a_walk_finds_every_border(given_events: list[bytes], block: int) -> None:
    source = Bytes(events.encode(given_events))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "WALK_BYTES", block)

        assert list(walk(source, "s", 0, len(source.data))) == events.borders(source.data)[1:]


def test_a_walk_steps_over_what_is_larger_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "WALK_BYTES", 10)
    source = Bytes(events.encode([b"x" * 1000] * 3))

    list(walk(source, "s", 0, len(source.data)))

    assert source.asked == [(0, 10), (1004, 10), (2008, 10)]


@given(some_events, st.integers(1, 200))
def test_parts_follow_each_other_and_are_large_enough(given_events: list[bytes], size: int) -> None:
    source = Bytes(events.encode(given_events))

    parts = list(split(source, whole(source), size))

    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == len(source.data)
    assert all(part.size >= size for part in parts[:-1])
    assert {part.start for part in parts} <= set(events.borders(source.data))


def test_one_range_for_each_segment_needs_no_reading() -> None:
    source = Bytes(events.encode([b"abc"] * 100))

    assert plan(source, [whole(source), Range("empty", 1, 5, 5), whole(source, "t")], 2) == [whole(source), whole(source, "t")]
    assert source.asked == []


def test_more_ranges_are_cut_where_more_are_wanted() -> None:
    source = Bytes(events.encode([b"abc"] * 100))

    parts = plan(source, [whole(source)], 4)

    assert len(parts) == 4
    assert plan(source, [whole(source)], 4) == parts


def test_a_micro_batch_takes_of_each_segment_in_proportion() -> None:
    source = Bytes(events.encode([b"abcdef"] * 100))

    assert admit(source, [whole(source), Range("t", 1, 0, 500)], 300) == {"s": 200, "t": 100}
    assert admit(source, [whole(source)], 1000) == {"s": 1000}


def test_a_micro_batch_takes_at_least_one_event() -> None:
    source = Bytes(events.encode([b"abcdef"] * 100))

    assert admit(source, [whole(source)], 1) == {"s": 10}


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff....", b"\0\0\0\7abc", b"\0\0", events.encode([b"a"]) + b"\0"])
def test_bytes_that_are_no_events_are_told_with_segment_and_offset(data: bytes) -> None:
    source = Bytes(data)
    for read in (lambda: list(blocks(source, "s", 0, len(data), 1 << 20)), lambda: list(walk(source, "s", 0, len(data)))):
        with pytest.raises(DataCorruption, match="segment 's' has no framed events from byte"):
            read()
