"""What a flush of one segment consists of, captured at a cycle's cut: ranges of data and splices of merged
sources, in offset order. Pure.

A segment is captured in one sync step with what is merged into it, at the cut or later, so its length, start,
seal and merges belong to the same sequence (rule F1). What comes after that belongs to the next cycle.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Protocol, TypeAlias

from msgspec import Struct

from ...journal.operations.segment_image import MergedRanges, SegmentStatus


class FlushableSegment(Protocol):
    """What the writer needs of a container's segment."""

    @property
    def sid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def status(self) -> SegmentStatus: ...
    @property
    def length(self) -> int: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def sealed(self) -> bool: ...
    @property
    def rolling_size(self) -> int: ...
    @property
    def flushed(self) -> int: ...
    @property
    def has_record(self) -> bool: ...
    @property
    def merges(self) -> MergedRanges: ...
    @property
    def append_boundaries(self) -> Sequence[int]: ...
    @property
    def is_flushed(self) -> bool: ...
    @property
    def needs_flush(self) -> bool: ...
    @property
    def touched(self) -> int:
        """The sequence of its last change."""
        ...


class DataPiece(Struct, frozen=True):
    """Bytes ``start .. end`` of the segment itself."""

    start: int
    end: int


class SplicePiece(Struct, frozen=True):
    """The chunks of a merged source, linked at ``offset``."""

    offset: int
    source: int
    length: int


Piece: TypeAlias = DataPiece | SplicePiece


class SegmentFlush(Struct, frozen=True, eq=False):
    """One segment's part in a cycle, as of the cut."""

    sid: int
    name: str
    status: SegmentStatus
    is_flushed: bool
    """Whether long-term storage's record was up to date."""
    length: int
    start_offset: int
    sealed: bool
    rolling_size: int
    merges: MergedRanges
    cut: int
    """The sequence of the newest operation in it."""
    touched: int
    """The sequence of the segment's last change."""
    limit: int | None = None
    """Where a flush ends that takes only the first bytes, before any splice, and neither truncates nor seals
    (rule F8)."""

    @property
    def deleted(self) -> bool:
        return self.status is SegmentStatus.DELETED

    @property
    def is_wanted(self) -> bool:
        """Whether a cycle flushes the segment for itself. What is merged at the cut comes with its target;
        the target of a later merge may be captured already, or be clean."""
        return (
            self.deleted
            or (self.status is SegmentStatus.LIVE and not self.is_flushed)
            or (self.status is SegmentStatus.MERGED and self.touched > self.cut)
        )

    def data_end(self, flushed: int) -> int:
        """Where the data ends that no splice comes before."""
        index = self._next_merge(flushed)
        return self.merges[index].offset if index < len(self.merges) else self.length

    def pieces(self, flushed: int, size_max: int) -> Iterator[Piece]:
        """The pieces between ``flushed`` and the captured length, in order; data in pieces of at most
        ``size_max`` bytes."""
        # A round of F8 takes a prefix that ends before the first splice: it is data only.
        if self.limit is not None:
            yield from _data(flushed, self.limit, size_max)
            return

        position = flushed
        # What was linked by an earlier commit is left out: the record's length is the flush position (F3), so
        # a flush that was cut short goes on behind it.
        for merge in islice(self.merges, self._next_merge(flushed), None):
            yield from _data(position, merge.offset, size_max)
            yield SplicePiece(merge.offset, merge.source, merge.length)
            position = merge.offset + merge.length

        yield from _data(position, self.length, size_max)

    def _next_merge(self, flushed: int) -> int:
        """The index of the first one that is not flushed. There may be very many."""
        return bisect_left(self.merges, flushed, key=attrgetter("offset"))


def _data(start: int, end: int, size_max: int) -> Iterator[DataPiece]:
    while start < end:
        stop = min(end, start + size_max)
        yield DataPiece(start, stop)
        start = stop


def capture(segment: FlushableSegment, cut: int) -> SegmentFlush:
    return SegmentFlush(
        segment.sid,
        segment.name,
        segment.status,
        segment.is_flushed,
        segment.length,
        segment.start_offset,
        segment.sealed,
        segment.rolling_size,
        # A copy: the list goes on to change while the flush is under way.
        segment.merges.copy(),
        cut,
        segment.touched,
    )
