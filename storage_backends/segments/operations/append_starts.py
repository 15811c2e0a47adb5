"""Starts: where appends begin in a range of a segment, out of its chunk records (rule S5). No chunk is read.

Owns: the walk over the records of the range. Does not own: which starts are kept (``records/chunk.py``).

Ordering: as a read: no lock, and a look from anew when a commit changed the chain under it.
"""

from __future__ import annotations

from bisect import bisect_left

from ..core import Core
from ..layout import Layout
from .read import on_layout


async def starts(core: Core, segment: int, start: int, end: int, limit: int) -> list[int]:
    return await on_layout(core, segment, end, lambda layout: _starts(core, layout, start, end, limit))


async def _starts(core: Core, layout: Layout, start: int, end: int, limit: int) -> list[int]:
    found: list[int] = []
    known = len(layout)
    offset, end = max(start, layout.segment.start_offset), min(end, layout.segment.length)
    while offset < end and len(found) < limit:
        chunk_start, chunk = await layout.locate(offset)
        inside = chunk.starts
        taken = inside[bisect_left(inside, offset - chunk_start) : bisect_left(inside, end - chunk_start)]
        found += (chunk_start + each for each in taken)
        offset = chunk_start + chunk.length
    if len(layout) != known:
        core.layouts.trim()
    return found[:limit]
