"""Relocation: the live end of a mostly truncated first chunk moves to a new chunk, and the old one can go
(rule S10).

Owns: whether a segment's first chunk is to be moved, and the move. Does not own: the thresholds
(``defrag_rules.py``), the copy (``joining.py``). It is never part of a truncation, which stays a matter of
records: it follows as deferred work, or on request.

A first chunk that this owner may still append to stays: it is the last one too, and the next chunk will make
it worth another look.
"""

from __future__ import annotations

from ...base.errors import DataCorruption
from ..defrag_rules import relocates
from ..records import ChunkRecord, SegmentRecord
from ..segment_transaction import SegmentTransaction
from .join_chunks import Source, replace


def is_due(txn: SegmentTransaction, segment: SegmentRecord, first: ChunkRecord) -> bool:
    """Whether the segment's first chunk is worth moving now."""
    dead = segment.start_offset - segment.first_chunk_start
    may_grow = not first.next_chunk and not segment.sealed and txn.room(segment, first) > 0
    return relocates(first.length, dead, txn.core.options.defrag) and not may_grow


async def relocate(txn: SegmentTransaction, *, pass_damage: bool = False) -> bool:
    """Move what is left of the first chunk, if it is worth it. Whether it was. ``pass_damage``: a damaged one
    stays, without an error."""
    segment = await txn.segment()
    if not segment.first_chunk:
        return False

    first = await txn.metadata.chunk(segment.first_chunk)
    if not is_due(txn, segment, first):
        return False

    try:
        await replace(
            txn,
            segment,
            None,
            segment.start_offset,
            [Source(first, segment.start_offset - segment.first_chunk_start)],
        )
    except DataCorruption:
        if not pass_damage:
            raise
        txn.core.joins_refused += 1
        return False

    txn.core.chunks_relocated += 1
    return True
