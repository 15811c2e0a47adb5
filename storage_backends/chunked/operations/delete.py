"""Delete: all records of a segment, in one commit. Its chunks are released to the collector after it (rules F2, G1)."""

from __future__ import annotations

from ..segment_transaction import SegmentTransaction


async def delete(txn: SegmentTransaction) -> None:
    segment = await txn.segment()
    name = segment.first_chunk
    while name:
        chunk = await txn.metadata.chunk(name)
        txn.drop_chunk(chunk)
        name = chunk.next_chunk
    await txn.drop_index(txn.id, segment.first_chunk_start, segment.length)
    txn.metadata.drop(segment)
