"""Truncate: move a segment's start. Chunks entirely before it leave the chain, the first few at once,
the rest as deferred work (rule S11), and are deleted by the collector after that commit (rule F2).

A chunk that contains the start stays whole. A segment truncated at its end has no chunk.
"""

from __future__ import annotations

from ...base.errors import BadOffset
from ..records import DeferredWorkKind, DeferredWorkRecord
from ..segment_transaction import SegmentTransaction
from .deferred_work import begin_deferred


async def truncate(txn: SegmentTransaction, offset: int) -> None:
    segment = await txn.segment()
    if offset > segment.length:
        message = (
            f"truncation of segment {txn.id:016x} at {offset}, beyond its {segment.length} bytes in tier 2"
        )
        raise BadOffset(message, segment=f"{txn.id:016x}", expected=segment.length, given=offset)

    if offset > segment.start_offset:
        segment = txn.update(segment, start_offset=offset)
        # S11: the first few chunks at once, so that a small truncation leaves no work behind.
        await begin_deferred(
            txn, DeferredWorkRecord(DeferredWorkKind.TRUNCATE, txn.id, index_offset=segment.first_chunk_start)
        )
