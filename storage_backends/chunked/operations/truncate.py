"""Truncate: move a segment's start; chunks that lie wholly before it leave the chain.

Owns: which chunks go. Their records and index records go in the same commit; the chunks themselves are released after it and
deleted by the collector (rule F2). A chunk that the start lies in stays whole. At the end of the segment no chunk is left:
"truncated to empty" is a layout like any other.
"""

from __future__ import annotations

from ...base.errors import BadOffset
from ..segment_transaction import SegmentTransaction


async def truncate(txn: SegmentTransaction, offset: int) -> None:
    segment = await txn.segment()
    if offset > segment.length:
        message = f"truncation of segment {txn.id:016x} at {offset}, beyond its {segment.length} bytes in tier 2"
        raise BadOffset(message, segment=f"{txn.id:016x}", expected=segment.length, given=offset)

    if offset <= segment.start_offset:
        return

    name, start, dropped = segment.first_chunk, segment.first_chunk_start, 0
    while name:
        chunk = await txn.metadata.chunk(name)
        if start + chunk.length > offset:
            break
        txn.drop_chunk(chunk)
        name, start, dropped = chunk.next_chunk, start + chunk.length, dropped + 1

    await txn.drop_index(txn.id, segment.first_chunk_start, start)
    segment = txn.update(segment, start_offset=offset, first_chunk=name, first_chunk_start=start, chunk_count=segment.chunk_count - dropped)
    if not name:
        txn.update(segment, last_chunk="", last_chunk_start=start)
