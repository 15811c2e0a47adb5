"""Info, exists, list and chunks, as of the last commit. They read the record store itself, never the layout
cache."""

from __future__ import annotations

from ...base.codec import DecodeError
from ...base.errors import DataCorruption, SegmentNotFound
from ..context import StorageContext
from ..layout import Layout, LayoutChanged
from ..records import SEGMENT_PREFIX, ChunkRecord, SegmentRecord, segment_key, segment_of_key
from ..transaction import decode_record


async def info(context: StorageContext, segment: int) -> SegmentRecord:
    found = await context.metadata.get(segment_key(segment))
    if found is None:
        raise SegmentNotFound(f"segment {segment:016x} has no record in tier 2", segment=f"{segment:016x}")

    return decode_record(SegmentRecord, segment_key(segment), found[1])


async def exists(context: StorageContext, segment: int) -> bool:
    return await context.metadata.get(segment_key(segment)) is not None


async def segments(context: StorageContext) -> list[int]:
    return [_segment_of(key) for key in await context.metadata.scan(SEGMENT_PREFIX)]


def _segment_of(key: str) -> int:
    try:
        return segment_of_key(key)
    except DecodeError as error:
        raise DataCorruption(f"a metadata key does not decode: {error}", file=key) from error


async def chunks(context: StorageContext, segment: int) -> list[tuple[int, ChunkRecord]]:
    """Starts over when a commit changes the chain during the walk."""
    while True:
        # Not from the cache: a commit that has just been made may not have discarded the layout there.
        layout = Layout(context.metadata, segment, context.options.index_spacing)
        await layout.load()
        try:
            return await _walk(layout)
        except LayoutChanged as gone:
            if await layout.is_current():
                raise DataCorruption(str(gone), file=gone.name) from gone


async def _walk(layout: Layout) -> list[tuple[int, ChunkRecord]]:
    """Without the leading chunks that a truncation has not removed yet (rule S11)."""
    found: list[tuple[int, ChunkRecord]] = []
    offset = layout.segment.start_offset
    while offset < layout.segment.length:
        start, record = await layout.locate(offset)
        found.append((start, record))
        offset = start + record.length
    return found
