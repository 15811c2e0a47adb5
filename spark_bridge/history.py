"""History out of long-term storage itself: what a task does with the flushed bytes of its range, in place of
asking the service for them (rule S21).

The task asks the owner which chunks have the bytes, reads them where they are, with the credentials of its
own environment, and verifies every block. It finds that it cannot, or that a chunk is missing or damaged,
before it has given an event of that block to Spark. Then the service reads the rest of the range, from the
last event that was given on; so no event is left out or comes twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import attrs

from ..actors.direct_read.storage import DirectStorage
from ..actors.direct_read.windows import ROOM, Window, windows
from ..storage_backends.base.errors import (
    ChunkNotFound,
    DataCorruption,
    SegmentNotFound,
    SegmentTruncated,
    TierlogError,
    Unavailable,
)
from ..storage_backends.base.segment_layout import ChunkExtent, SegmentLayout, StoragePlace
from .options import Direct
from .ranges import Block, BytesSource, Range, blocks, boundaries_at

DIRECT_BYTES_MIN = 1 << 20
"""Less is read as quickly through the service: with ``auto`` it costs no further request."""


class LayoutSource(Protocol):
    def segment_layout(self, name: str, start: int, end: int) -> SegmentLayout: ...


class Storages(Protocol):
    def storage(self, place: StoragePlace) -> DirectStorage:
        """The storage at a place, once it has proved to be the store's. Raises as ``open_storage``."""

    def drop_storage(self, place: StoragePlace) -> None:
        """Let it prove that again."""


class Refusals:
    """Why the jobs of this process read through the service. Each is reported once, and not tried again."""

    def __init__(self, report: Callable[[str], None], jobs_max: int = 1_000) -> None:
        self._report = report
        self._jobs_max = jobs_max
        self._jobs: set[str] = set()

    def __contains__(self, job: str) -> bool:
        return job in self._jobs

    def add(self, job: str, reason: str) -> None:
        if job in self._jobs:
            return

        if len(self._jobs) >= self._jobs_max:
            self._jobs.clear()  # old ones, mostly: they would be reported once more
        self._jobs.add(job)
        self._report(reason)


@attrs.frozen
class History:
    """How one job reads."""

    direct: Direct
    job: str
    layouts: LayoutSource
    storages: Storages
    refusals: Refusals

    def blocks(self, source: BytesSource, part: Range, flushed: int, size: int) -> Iterator[Block]:
        """All events of ``part``, whose segment is flushed up to ``flushed``: out of long-term storage, as
        far as possible, and the others out of ``source``."""
        position = part.start
        if self._applies(part, flushed):
            try:
                for block in self._flushed(part):
                    yield block
                    position = block.offset + block.boundaries[-1]
            except (SegmentNotFound, SegmentTruncated):
                raise
            except TierlogError as error:
                if self.direct is Direct.ALWAYS:
                    raise _refused(error) from error
                self.refusals.add(self.job, str(error))
        yield from blocks(source, part.segment, position, part.end, size)

    def _applies(self, part: Range, flushed: int) -> bool:
        size = min(part.end, flushed) - part.start
        if self.direct is Direct.AUTO:
            return size >= DIRECT_BYTES_MIN and self.job not in self.refusals
        return self.direct is Direct.ALWAYS and size > 0

    def _flushed(self, part: Range) -> Iterator[Block]:
        """The first events of ``part``, up to one that is not wholly in long-term storage."""
        position, missing = part.start, ""
        while position < part.end:
            layout = self.layouts.segment_layout(part.segment, position, part.end)
            _check_same(layout, part, position)
            begin, end = position, _end(layout.extents, part.end)
            if begin >= end:
                return

            storage = self.storages.storage(layout.place)
            try:
                for block in frames(windows(storage, layout.extents, begin, end), part.segment):
                    yield block
                    position = block.offset + block.boundaries[-1]
            except (ChunkNotFound, Unavailable) as error:
                self.storages.drop_storage(layout.place)
                if not isinstance(error, ChunkNotFound):
                    raise
                # The layout is old, unless the newest one names that chunk too.
                if error.chunk == missing:
                    raise DataCorruption(
                        "a chunk that the segment needs is missing from long-term storage", file=error.chunk
                    ) from error
                missing = error.chunk
                continue
            # No more is flushed, or one event is larger than all of that.
            if layout.next_start is None or position == begin:
                return


def read_extents(storage: DirectStorage, extents: tuple[ChunkExtent, ...], part: Range) -> Iterator[Block]:
    """All events of ``part``, which lies in the extents: of a store without a service."""
    position = part.start
    try:
        for block in frames(windows(storage, extents, part.start, part.end), part.segment):
            yield block
            position = block.offset + block.boundaries[-1]
    except ChunkNotFound as error:
        raise DataCorruption(
            "a chunk is missing from long-term storage. If the store has an owner, that has deleted it since "
            "the read was planned: read again, or through the service",
            file=error.chunk,
        ) from error
    if position < part.end:
        raise DataCorruption(
            f"segment {part.segment!r} has no whole event at byte {position}, before {part.end}: something "
            f"else was appended, or the last event was not flushed completely",
            file=part.segment,
            offset=position,
        )


def frames(pieces: Iterable[Window], segment: str) -> Iterator[Block]:
    """The whole events of the windows, whose first byte is a boundary. The rest of an event that straddles
    two of them is put in front of the second one."""
    rest = b""
    for window in pieces:
        if len(rest) <= ROOM:
            begin = window.begin - len(rest)
            window.buffer[begin : window.begin] = rest
            data = memoryview(window.buffer)[begin : window.end]
        else:
            data = memoryview(rest + memoryview(window.buffer)[window.begin : window.end])
        offset = window.offset - len(rest)
        found = boundaries_at(data, segment, offset)
        rest = bytes(data[found[-1] :])
        if found[-1]:
            yield Block(offset, data, found)


def _end(extents: tuple[ChunkExtent, ...], end: int) -> int:
    return min(end, extents[-1].end) if extents else 0


def _check_same(layout: SegmentLayout, part: Range, position: int) -> None:
    if part.segment_id not in (None, layout.segment_id):
        raise SegmentNotFound(
            f"segment {part.segment!r} was deleted and recreated while it was read", segment=part.segment
        )
    if layout.start_offset > position:
        raise SegmentTruncated(
            f"segment {part.segment!r} was truncated at {layout.start_offset} while it was read from "
            f"{position} on",
            segment=part.segment,
            start_offset=layout.start_offset,
        )


def _refused(error: TierlogError) -> TierlogError:
    if isinstance(error, DataCorruption):
        return error

    return Unavailable(
        f"option direct is 'always', and this executor cannot read long-term storage itself: {error}"
    )
