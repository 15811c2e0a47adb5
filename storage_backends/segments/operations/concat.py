"""Concat: link a sealed segment's chunks behind the target's. O(1) records change, and no chunk (rules S4,
S11).

The source's record is deleted and the target's grows in one commit. Chunk records change only in one link,
because they do not contain where a chunk lies. The index of the spliced part, a hint to readers, is deferred
work.
"""

from __future__ import annotations

from ...base.errors import InvalidArgument, SegmentNotFound, SegmentNotSealed, SegmentSealed
from ..records import DeferredWorkKind, DeferredWorkRecord, SegmentRecord
from ..segment_transaction import SegmentTransaction
from .deferred_work import begin_deferred, count_loose
from .defrag import defrag_from


async def concat(txn: SegmentTransaction, source_id: int) -> int:
    if source_id == txn.id:
        raise InvalidArgument(f"segment {txn.id:016x} cannot be appended to itself")

    target = await txn.segment()
    if target.sealed:
        raise SegmentSealed(f"segment {txn.id:016x} is sealed", segment=f"{txn.id:016x}")

    # S12: the target is held by now. Merges form no circle, so this order cannot deadlock.
    source = _check_source(source_id, await txn.take_source(source_id))
    # Void with the source: its small chunks are counted for the target.
    await txn.take_deferred(DeferredWorkKind.DEFRAG, source_id)
    txn.metadata.drop(source)
    # Nothing is written to the source any more, so its unused name is garbage.
    txn.drop_spare(source_id)
    if source.length:
        # The last chunk of before may be joined with the first of the source.
        seam = target.last_chunk_start
        target = await _splice(txn, target, source)
        if txn.context.options.defrag.inline and not await defrag_from(txn, seam):
            await count_loose(txn, target, seam, source.chunk_count)  # the rest is deferred work
    return target.length


def _check_source(source_id: int, source: SegmentRecord | None) -> SegmentRecord:
    if source is None:
        raise SegmentNotFound(
            f"source segment {source_id:016x} has no record in tier 2", segment=f"{source_id:016x}"
        )

    if not source.sealed:
        raise SegmentNotSealed(
            f"source segment {source_id:016x} is not sealed in tier 2", segment=f"{source_id:016x}"
        )

    if source.start_offset:
        raise InvalidArgument(
            f"source segment {source_id:016x} is truncated at {source.start_offset}; only a whole segment "
            f"can be appended"
        )

    return source


async def _splice(txn: SegmentTransaction, target: SegmentRecord, source: SegmentRecord) -> SegmentRecord:
    if target.last_chunk:
        txn.link(await txn.metadata.chunk(target.last_chunk), source.first_chunk)
    else:
        target = txn.update(target, first_chunk=source.first_chunk)
    start, seam = target.length, target.last_chunk_start
    target = txn.update(
        target,
        length=start + source.length,
        last_chunk=source.last_chunk,
        last_chunk_start=start + source.last_chunk_start,
        chunk_count=target.chunk_count + source.chunk_count,
    )
    work = DeferredWorkRecord(
        DeferredWorkKind.SPLICE,
        source.segment,
        txn.id,
        start,
        source.length,
        position=start,
        chunk=source.first_chunk,
    )
    await begin_deferred(txn, work)
    # By the average: to read every chunk's length would cost as much as there are chunks (S11).
    is_small = source.length // source.chunk_count <= txn.context.options.defrag.small_max
    if is_small and not txn.context.options.defrag.inline:
        await count_loose(txn, target, seam, source.chunk_count)
    return target
