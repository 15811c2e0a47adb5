"""Extents: which blocks of which chunks have the bytes of a range, for readers that fetch them from long-term
storage themselves. Only records are read."""

from __future__ import annotations

from anyio.lowlevel import checkpoint

from ...base.checksum import BLOCK
from ...base.segment_layout import LAYOUT_BLOCKS_MAX, LAYOUT_CHUNKS_MAX, ChunkExtent
from ..context import StorageContext
from ..layout import Layout
from .read import on_layout

_CHUNKS_AT_ONCE = 64


async def extents(context: StorageContext, segment: int, start: int, end: int) -> list[ChunkExtent]:
    """The whole blocks that have the bytes ``start .. end``, as far as they are there, in order. An answer is
    bounded and may end earlier: the last extent says where."""
    return await on_layout(context, segment, end, lambda layout: _extents(context, layout, start, end))


async def _extents(context: StorageContext, layout: Layout, start: int, end: int) -> list[ChunkExtent]:
    found: list[ChunkExtent] = []
    known = len(layout)
    offset, end = max(start, layout.segment.start_offset), min(end, layout.segment.length)
    blocks = LAYOUT_BLOCKS_MAX
    while offset < end and len(found) < LAYOUT_CHUNKS_MAX and blocks:
        chunk_start, chunk = await layout.locate(offset)
        first = (offset - chunk_start) // BLOCK
        # Whole blocks: the checksum of a block covers all of it (rule S5).
        behind = -(-(min(end - chunk_start, chunk.length)) // BLOCK)
        behind = min(behind, first + blocks)
        extent = ChunkExtent(
            chunk_start, chunk.name, chunk.length, first, chunk.packed_crcs[4 * first : 4 * behind]
        )
        found.append(extent)
        if len(found) % _CHUNKS_AT_ONCE == 0:
            # Records that are in memory are found without a wait.
            await checkpoint()
        blocks -= behind - first
        offset = extent.end
    if len(layout) != known:
        context.layouts.trim()
    return found
