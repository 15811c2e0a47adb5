"""The reader: one segment's bytes from the tail cache, merged sources, long-term storage, and the log.

Order: the cache first, then a merged source that is not spliced yet, then long-term storage up to the flushed
offset, and the log from there on. A read returns from one source and may be short; it is never empty below
the durable length. If a chunk vanishes during a read the segment has changed: the reader tries again as long
as the layout changes. Cancellation leaves nothing behind."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import DataCorruption, SegmentNotFound, SegmentTruncated, TierlogError
from .tail_cache import TailCache
from .unflushed import UnflushedBytes


class PendingMerge(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def length(self) -> int: ...


class ReadableSegment(Protocol):
    """What the reader needs of a container's segment."""

    @property
    def sid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def durable_length(self) -> int: ...
    @property
    def flushed(self) -> int: ...
    @property
    def merges(self) -> Sequence[PendingMerge]: ...
    @property
    def is_gone(self) -> bool:
        """Whether it was deleted or merged away since it was found."""
        ...


class SegmentStorage(Protocol):
    async def read(self, sid: int, offset: int, size: int, limit: int) -> Buffer:
        """Bytes at ``offset``; ``limit`` is the end of what is flushed."""
        ...


class Reader:
    def __init__(
        self,
        cache: TailCache,
        unflushed: UnflushedBytes,
        storage: SegmentStorage,
        segment_of: Callable[[int], ReadableSegment | None],
    ) -> None:
        self._cache = cache
        self._unflushed = unflushed
        self._storage = storage
        self._segment_of = segment_of

    async def read(self, segment: ReadableSegment, offset: int, size: int) -> Buffer:
        """Up to ``size`` durable bytes at ``offset``; ``b""`` at or past the tail. Not copied where possible:
        a view keeps its whole block or window alive. Raises ``SegmentTruncated`` before the start."""
        known: object = None
        while True:
            check_start(segment, offset)
            try:
                return await self._read_once(segment, offset, size)
            except (DataCorruption, SegmentNotFound, SegmentTruncated) as error:
                # A splice, truncation or delete may have replaced the layout during the read; a spliced
                # source has no record. Sources of sources are spliced one after the other, so it may happen
                # again. If the layout has not changed, it is corruption.
                # By its id: another segment may have the name by now.
                segment = self._reloaded(segment)
                before, known = known, self._layout(segment)
                if known == before:
                    raise self._refusal(segment, error) from None

    def _layout(self, segment: ReadableSegment) -> object:
        """A value that changes whenever bytes of the segment move. Made after a failure only: a segment may
        have 65,536 merges."""
        found: list[object] = []
        left = [segment]
        while left:
            each = left.pop()
            merges = [(merge.offset, merge.source) for merge in each.merges]
            found.append((each.sid, each.start_offset, each.flushed, merges))
            sources = (self._segment_of(source) for _, source in merges)
            left += (source for source in sources if source is not None)
        return found

    def _reloaded(self, segment: ReadableSegment) -> ReadableSegment:
        """The segment's present object: a cold segment may have been loaded meanwhile."""
        current = self._segment_of(segment.sid)
        if current is None:
            raise _deleted(segment)

        return current

    def _refusal(
        self, segment: ReadableSegment, error: DataCorruption | SegmentNotFound | SegmentTruncated
    ) -> TierlogError:
        """The error for the caller, who knows segments by name."""
        if segment.is_gone:
            return _deleted(segment)

        if isinstance(error, DataCorruption):
            return error

        what = "has lost its record" if isinstance(error, SegmentNotFound) else "begins too late"
        return DataCorruption(f"segment {segment.name!r} {what} in long-term storage: {error}")

    async def _read_once(self, segment: ReadableSegment, offset: int, size: int) -> Buffer:
        end = min(offset + size, segment.durable_length)
        # A source may have merged sources itself, nested deeper than Python's stack.
        while offset < end:
            index = bisect_right(segment.merges, offset, key=_end)
            if index == len(segment.merges):
                return await self._read_own(segment, offset, end)

            merge = segment.merges[index]
            if offset < merge.offset:
                # A read has one source: what follows comes with the next one.
                return await self._read_own(segment, offset, min(end, merge.offset))

            source = self._segment_of(merge.source)
            if source is None:
                raise DataCorruption(
                    f"segment {segment.name!r} refers to merged segment {merge.source:#x}, which is unknown"
                )

            end = min(end - merge.offset, merge.length, source.durable_length)
            segment, offset = source, offset - merge.offset
        return b""

    async def _read_own(self, segment: ReadableSegment, offset: int, end: int) -> Buffer:
        slices: Sequence[Buffer] = self._cache.slices(segment.sid, offset, end)
        # Behind the flushed offset only the log has the bytes that left the cache (C10).
        if not slices and offset >= segment.flushed:
            slices = await self._unflushed.read(segment.sid, offset, end)
            if not slices:
                raise DataCorruption(
                    f"segment {segment.name!r}: offset {offset} is neither flushed (to {segment.flushed}) "
                    f"nor known to be in the log"
                )
        if slices:
            return slices[0] if len(slices) == 1 else b"".join(slices)

        cached = self._cache.next_cached(segment.sid, offset)
        # Only up to the next cached block: the rest comes from memory.
        stop = min(end, segment.flushed, end if cached is None else cached)
        data = await self._storage.read(segment.sid, offset, stop - offset, segment.flushed)
        if not data:
            raise DataCorruption(
                f"segment {segment.name!r}: long-term storage holds nothing at {offset}, flushed to "
                f"{segment.flushed}"
            )

        return data


def check_start(segment: ReadableSegment, offset: int) -> None:
    """Raises ``SegmentTruncated`` before the segment's start."""
    if offset < segment.start_offset:
        raise SegmentTruncated(
            f"offset {offset} of {segment.name!r} was truncated; it now starts at {segment.start_offset}",
            segment=segment.name,
            start_offset=segment.start_offset,
        )


def _end(merge: PendingMerge) -> int:
    return merge.offset + merge.length


def _deleted(segment: ReadableSegment) -> SegmentNotFound:
    return SegmentNotFound(f"no segment {segment.name!r}: it was deleted meanwhile", segment=segment.name)
