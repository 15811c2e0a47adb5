"""Append starts: offsets at which a segment can be divided without cutting an append (rule S5).

They come from the chunk records of flushed bytes, from memory for later ones, and from both for merged
sources that are not spliced yet. About one start per MiB is kept; those of bytes that a checkpoint logged
again are not known after a recovery. Only records are read.

An answer is a hint for dividing work: it may differ from the next one, but each offset is the start of an
append. If a splice moves the records meanwhile, the search is repeated, as in ``reader.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from ...storage_backends.base.errors import DataCorruption, SegmentNotFound
from .reader import ReadableSegment

APPEND_STARTS_MAX = 4096
"""The most offsets in one answer: those of about 4 GiB."""


class DividedSegment(ReadableSegment, Protocol):
    @property
    def append_boundaries(self) -> Sequence[int]: ...


class StartsStorage(Protocol):
    async def starts(self, segment: int, start: int, end: int, limit: int) -> Sequence[int]: ...


class _Flushed(Struct, frozen=True):
    """A flushed range of a segment, which begins at ``base`` of the segment in question."""

    sid: int
    base: int
    start: int
    end: int


class _Plan(Struct, frozen=True):
    flushed: tuple[_Flushed, ...]
    known: tuple[int, ...]


class AppendStarts:
    def __init__(self, storage: StartsStorage, segment_of: Callable[[int], DividedSegment | None]) -> None:
        self._storage = storage
        self._segment_of = segment_of

    async def find(self, segment: DividedSegment, start: int, end: int) -> list[int]:
        """The first ``APPEND_STARTS_MAX`` offsets in ``start .. end`` at which durable appends begin, of
        those that are kept; ascending."""
        before: _Plan | None = None
        while True:
            plan = self._plan(segment, max(start, segment.start_offset), min(end, segment.durable_length))
            try:
                return await self._carry_out(plan)
            except (DataCorruption, SegmentNotFound):
                # A splice or a delete may have removed the records meanwhile. It is corruption if the layout
                # has not changed.
                current = self._segment_of(segment.sid)
                if current is None or current.is_gone:
                    raise SegmentNotFound(
                        f"no segment {segment.name!r}: it was deleted meanwhile", segment=segment.name
                    ) from None

                if plan == before:
                    raise
                segment, before = current, plan

    def _plan(self, segment: DividedSegment, start: int, end: int) -> _Plan:
        flushed: list[_Flushed] = []
        known: list[int] = []
        left = [(segment, 0, start, end)]
        # Without recursion: merges may be nested deeper than Python's stack.
        while left:
            each, base, start, end = left.pop()
            if start < min(end, each.flushed):
                flushed.append(_Flushed(each.sid, base, start, min(end, each.flushed)))
            known += [
                base + boundary
                for boundary in each.append_boundaries
                if max(start, each.flushed) <= boundary < end
            ]
            for merge in each.merges:
                source = self._segment_of(merge.source)
                # The splice is flushed: the target's own records have the starts.
                if source is None or merge.offset < each.flushed:
                    continue

                inside = max(start - merge.offset, 0), min(end - merge.offset, merge.length)
                left.append((source, base + merge.offset, *inside))
        return _Plan(tuple(flushed), tuple(known))

    async def _carry_out(self, plan: _Plan) -> list[int]:
        found = list(plan.known)
        for stretch in plan.flushed:
            inside = await self._storage.starts(stretch.sid, stretch.start, stretch.end, APPEND_STARTS_MAX)
            found += (stretch.base + each for each in inside)
        # Merged sources are visited after the segment's own ranges, so the order is restored here.
        return sorted(found)[:APPEND_STARTS_MAX]
