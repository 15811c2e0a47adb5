"""The pieces of a segment's flush: they cover exactly what is not flushed, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.container_parts import NAME, Parts, append
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.truncate import TruncateRequest
from tierlog.actors.flush.aggregation import DataPiece, SegmentFlush, SplicePiece, capture
from tierlog.journal.operations.segment_image import MergedRange, MergedRanges, SegmentStatus


def plan_of(length: int, *merges: MergedRange) -> SegmentFlush:
    return SegmentFlush(
        1, NAME, SegmentStatus.LIVE, False, length, 0, False, 1 << 20, MergedRanges.of(merges), 0, 0
    )


@pytest.mark.parametrize(
    ("plan", "flushed", "pieces"),
    [
        (plan_of(0), 0, []),
        (plan_of(10), 10, []),
        (plan_of(10), 0, [DataPiece(0, 4), DataPiece(4, 8), DataPiece(8, 10)]),
        (plan_of(10), 7, [DataPiece(7, 10)]),
        (plan_of(9, MergedRange(2, 7, 5)), 0, [DataPiece(0, 2), SplicePiece(2, 7, 5), DataPiece(7, 9)]),
        (plan_of(9, MergedRange(2, 7, 5)), 7, [DataPiece(7, 9)]),
        (plan_of(5, MergedRange(0, 7, 5)), 0, [SplicePiece(0, 7, 5)]),
        (plan_of(8, MergedRange(0, 7, 5), MergedRange(5, 8, 3)), 5, [SplicePiece(5, 8, 3)]),
    ],
)
def test_the_pieces_of_a_plan(plan: SegmentFlush, flushed: int, pieces: list[object]) -> None:
    assert list(plan.pieces(flushed, 4)) == pieces


parts_of_a_segment = st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=10)


@given(parts_of_a_segment, st.integers(0, 10), st.integers(1, 20))
def test_pieces_cover_the_unflushed_range_without_gap_or_overlap(
    parts: list[tuple[bool, int]], done: int, size_max: int
) -> None:
    """F3: a splice is whole, at its place between the target's own bytes."""
    merges, boundaries, length = [], [0], 0
    for is_merge, size in parts:
        if is_merge:
            merges.append(MergedRange(length, 100 + length, size))
        length += size
        boundaries.append(length)
    flushed = boundaries[min(done, len(boundaries) - 1)]

    position = flushed
    spliced = []
    for piece in plan_of(length, *merges).pieces(flushed, size_max):
        if isinstance(piece, DataPiece):
            assert piece.start == position
            assert 0 < piece.end - piece.start <= size_max
            position = piece.end
        else:
            assert piece.offset == position
            spliced.append(MergedRange(piece.offset, piece.source, piece.length))
            position += piece.length

    assert position == length
    assert spliced == [merge for merge in merges if merge.offset >= flushed]


def test_a_capture_keeps_the_instant_of_the_cut() -> None:
    """F1: length, start, seal and merges belong to one sequence; what comes later belongs to the next
    cycle."""
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abcdef"), TruncateRequest(NAME, 2), SealRequest(NAME))
    plan = capture(segment, 0)
    parts.do(TruncateRequest(NAME, 4), DeleteRequest(NAME))

    assert (plan.length, plan.start_offset, plan.sealed, plan.deleted) == (6, 2, True, False)
    assert capture(segment, 0).deleted
