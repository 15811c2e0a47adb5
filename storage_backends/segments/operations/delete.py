"""Delete: the segment's record goes, and what it referred to becomes deferred work: O(1) records (rules S11,
F2).

From the commit on its id is unknown. Its chunks stay referenced by their own records and are released to the
collector by the commits that delete those (rule G1).
"""

from __future__ import annotations

from ..records import DeferredWorkKind, DeferredWorkRecord
from ..segment_transaction import SegmentTransaction
from .deferred_work import begin_deferred


async def delete(txn: SegmentTransaction) -> None:
    segment = await txn.segment()
    # The delete goes on where the truncation was: its index records below that are gone.
    truncation = await txn.take_deferred(DeferredWorkKind.TRUNCATE)
    # There is nothing left to join.
    await txn.take_deferred(DeferredWorkKind.DEFRAG)
    txn.metadata.drop(segment)
    txn.drop_spare(txn.id)
    await begin_deferred(
        txn,
        DeferredWorkRecord(
            DeferredWorkKind.DELETE,
            txn.id,
            end=segment.length,
            index_offset=truncation.index_offset if truncation else segment.first_chunk_start,
            chunk=segment.first_chunk,
            chunks=segment.chunk_count,
        ),
    )
