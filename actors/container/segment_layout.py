"""The layout of a segment: the chunks that have its flushed bytes, for readers that fetch them from long-term
storage themselves (rule S21).

A chunk that an answer names stays for the collector's delay (rule G2): it is released after the commit that
dropped it, which has discarded the layout that this answer came from. What is not flushed, and merged sources
that are not spliced yet, are behind the flushed length, so nothing else is asked. Cancellation leaves nothing
behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...storage_backends.base.errors import DataCorruption, SegmentNotFound
from ...storage_backends.base.segment_layout import SegmentLayout, StoragePlace
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from .segments import SegmentState

if TYPE_CHECKING:
    from .container import Container


async def find_layout(
    storage: ChunkedSegmentStorage,
    segment: SegmentState,
    start: int,
    end: int,
    *,
    epoch: int,
    valid_for: float,
    place: StoragePlace,
) -> SegmentLayout:
    """The chunks of ``segment`` that have the flushed bytes of ``start .. end``."""
    first, flushed = segment.start_offset, segment.flushed
    last = min(end, flushed)
    found = await storage.extents(segment.sid, max(start, first), last) if max(start, first) < last else []
    reached = found[-1].end if found else last
    return SegmentLayout(
        segment.sid,
        epoch,
        first,
        flushed,
        tuple(found),
        reached if reached < last else None,
        valid_for,
        place,
    )


async def segment_layout(container: Container, name: str, start: int, end: int) -> SegmentLayout:
    segment = await container.find_kind(name)
    if start < segment.start_offset:
        await container.wait_durable()  # the truncation may not be durable yet
    options = container.options
    layout = find_layout(
        container.storage,
        segment,
        start,
        end,
        epoch=container.state.epoch,
        valid_for=options.collector.delay,
        place=options.place,
    )
    try:
        return await container.as_owner(layout)
    except (DataCorruption, SegmentNotFound):
        # Deleted or merged away meanwhile, its records may be gone.
        current = container.segments.readable(segment.sid)
        if current is None or current.is_gone:
            raise SegmentNotFound(
                f"no segment {segment.name!r}: it was deleted meanwhile", segment=segment.name
            ) from None
        raise
